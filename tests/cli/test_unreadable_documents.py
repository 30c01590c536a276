"""Documents that a filter cannot read: `penstock xdcr`, `tail` and `dump` count them apart, and name them."""

import asyncio
import json

import pytest

import penstock
from penstock import Node
from tests.cli.output_checks import check_object
from tests.client.replicated import read_values

DOCUMENTS = {
    b"plain": b'{"s":"keep","n":5}',
    b"other": b'{"s":"other","n":1e400}',
    b"binary": b"\x00keep",
    b"elsewhere": b'{"s":"keep","n":5,"x":1e400,"y":"\\ud800","z":%s}' % (b"7" * 5000),
    b"number": b'{"s":"keep","n":1e400}',
    b"text": b'{"s":"keep","n":"\\ud800"}',
}
KEPT = {b"plain", b"elsewhere"}
UNREADABLE = {
    "key b'number': n is a number beyond the range of a double",
    "key b'text': n is a text with half a surrogate pair",
}
FILTER = "s = 'keep' AND n > 1"


@pytest.fixture(scope="module")
def url():
    async def store(url):
        async with penstock.connect(url) as bucket:
            await bucket.upsert_many(DOCUMENTS.items())

    with Node.running(["beer"], vbuckets=4) as node:
        asyncio.run(store(node.url("beer")))
        yield node.url("beer")


def test_xdcr_names_unreadable_documents(run, url):
    with Node.running(["beer"], vbuckets=2) as target:
        to = target.url("beer")
        at = ("xdcr", "--from", url, "--to", to, "--until", "now", "--quiet")
        code, out, err = run(*at, "--filter-value", "s = 'keep'")
        assert (code, err) == (0, "")
        assert "4 written" in out
        assert "2 filtered, 0 unreadable" in out
        assert read_values(to).keys() == KEPT | {b"number", b"text"}
        code, out, err = run(*at, "--filter-value", FILTER)
        assert code == 1
        assert "2 older than the target's, 0 missing, 2 filtered, 2 unreadable" in out
        assert set(err.splitlines()) == {f"penstock: unreadable: {each}" for each in UNREADABLE}
        shown = run(*at, "--filter-value", FILTER, "--json")
        numbers = shown.json_lines[-1]
        check_object("xdcr", numbers)
        assert (numbers["received"], numbers["filtered"], numbers["unreadable"]) == (6, 2, 2)
        assert set(numbers["unreadable_examples"]) == UNREADABLE


@pytest.mark.parametrize("dialect", ["dcp", "upr", "tap"])
def test_tail_names_unreadable_documents(run, url, dialect):
    at = ("tail", "--url", url, "--from", "beginning", "--until", "now", "--quiet", "--protocol", dialect)
    shown = run(*at, "--filter-value", FILTER)
    assert shown.err.startswith("Not shown: the filter could not read 2 documents, which are left out: key b'")
    assert all(each in shown.err for each in UNREADABLE)
    shown = run(*at, "--filter-value", FILTER, "--json")
    assert {each["key"].encode() for each in shown.json_lines} == KEPT
    found = json.loads(shown.err)
    check_object("tail report", found)
    assert (found["unreadable"]["count"], set(found["unreadable"]["examples"])) == (2, UNREADABLE)
    assert run(*at, "--filter-value", "s = 'keep'").err == ""


def test_dump_names_unreadable_documents(run, url, tmp_path):
    dumped = run("dump", tmp_path / "all.jsonl", "--url", url, "--filter-value", FILTER, "--json")
    assert dumped.code == 1
    check_object("dump", dumped.json)
    assert (dumped.json["rows"], dumped.json["unreadable"]["count"]) == (2, 2)
    assert all(each in dumped.err for each in UNREADABLE)
    assert run("dump", tmp_path / "rest.jsonl", "--url", url, "--filter-value", "s = 'keep'").code == 0
