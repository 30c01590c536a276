"""`penstock xdcr`, in this process and as a process that is killed."""

import json
import signal

import pytest

from penstock import Node
from penstock.wire.codec.constants import MAX_VALUE, Feature
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.messages.kv import SetWithMeta
from penstock.wire.values.snappy import deflate
from tests.cli.test_processes import read_first_line, run_process, stop_process
from tests.client.replicated import read_values, read_versions, replicate
from tests.node.wire_client import connected


@pytest.fixture
def urls():
    with Node.running(["beer"], vbuckets=4) as source, Node.running(["beer"], vbuckets=16) as target:
        yield source.url("beer"), target.url("beer")


def load(run, url, first, behind):
    lines = "".join(json.dumps({"id": f"k{number}", "n": number}) + "\n" for number in range(first, behind))
    assert run("load", "-", "--key", "id", "--url", url, stdin=lines.encode()).code == 0


def test_a_bucket_is_replicated_up_to_now(run, urls, tmp_path):
    load(run, urls[0], 0, 100)
    at = ("xdcr", "--from", urls[0], "--to", urls[1], "--until", "now", "--state", tmp_path / "state")
    code, out, err = run(*at)
    assert (code, err) == (0, "")
    assert (
        out == "100 changes: 100 written, 0 older than the target's, 0 missing, 0 filtered, 0 unreadable, 0 refused\n"
    )
    assert read_versions(urls[1]) == read_versions(urls[0])
    load(run, urls[0], 100, 103)
    numbers = run(*at, "--json").json_lines[-1]
    assert (numbers["received"], numbers["written"], numbers["done"]) == (3, 3, True)


def test_filters_are_options(run, urls):
    load(run, urls[0], 0, 20)
    at = ("xdcr", "--from", urls[0], "--to", urls[1], "--until", "now", "--json")
    chosen = run(*at, "--filter-key", "^k1", "--filter-value", "n >= 12").json_lines[-1]
    assert (chosen["written"], chosen["filtered"]) == (8, 12)
    assert read_values(urls[1]).keys() == {b"k%d" % number for number in range(12, 20)}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("--filter-key", "("), "regular expression '(': "),
        (("--filter-key-exclude", "("), "regular expression '(': "),
        (("--filter-value", "n >"), "filter 'n >', character 4: found the end, expected a string"),
        (("--map", "a.b=c"), "mapping 'a.b=c', expected scope.collection=scope.collection or scope=scope"),
        (
            ("--refused", "/nowhere/file"),
            "/nowhere/file cannot be written (No such file or directory), expected a file",
        ),
    ],
)
def test_invalid_options_are_usage_errors(run, urls, given, problem):
    code, out, err = run("xdcr", "--from", urls[0], "--to", urls[1], *given)
    assert (code, out) == (2, "")
    assert problem in err


def test_refused_changes_are_in_a_file_and_in_the_exit_status(run, tmp_path):
    long = deflate(pack_xattrs({"_sync": b'"%s"' % (b"s" * 500_000)}, b"x" * (MAX_VALUE - 100)))
    with Node.running(["beer"], vbuckets=1) as source, Node.running(["beer"], vbuckets=2) as target:
        with connected(source, "beer") as client:
            client.hello(Feature.XATTR, Feature.JSON, Feature.SNAPPY)
            datatype = Datatype.XATTR | Datatype.SNAPPY
            request = SetWithMeta(key=b"long", value=long, datatype=datatype, flags=0, expiry=0, rev_seqno=1, new_cas=5)
            assert client.status(request) == Status.SUCCESS
        load(run, source.url("beer"), 0, 3)
        file = tmp_path / "refused.jsonl"
        code, out, err = run(
            "xdcr", "--from", source.url("beer"), "--to", target.url("beer"), "--until", "now", "--refused", file
        )
        assert code == 1
        assert "3 written" in out
        assert "1 refused" in out
        assert err.startswith("penstock: refused: key b'long': value of ")
        (line,) = file.read_text().splitlines()
        assert {name: json.loads(line)[name] for name in ("key", "status", "cas")} == {
            "key": "long",
            "status": Status.E2BIG,
            "cas": "5",
        }


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_replication_with_its_numbers(urls, number, run):
    load(run, urls[0], 0, 10)
    with run_process("xdcr", "--from", urls[0], "--to", urls[1], "--json") as process:
        while json.loads(read_first_line(process.stdout))["lag"] != 0:
            pass
        code, out, err = stop_process(process, number)
    assert (code, err) == (0, "")
    numbers = json.loads(out.splitlines()[-1])
    assert (numbers["written"], numbers["done"]) == (10, True)


@pytest.mark.process
def test_a_killed_replication_resumes_without_loss(urls, run, tmp_path):
    state = tmp_path / "state"
    load(run, urls[0], 0, 1000)
    for turn in range(1, 4):
        with run_process("xdcr", "--from", urls[0], "--to", urls[1], "--state", state, "--json") as process:
            numbers = json.loads(read_first_line(process.stdout))
            while turn > 1 and not numbers["received"]:
                numbers = json.loads(read_first_line(process.stdout))
            load(run, urls[0], turn * 900, turn * 900 + 1000)  # the kill may come before, amid or after these changes
            process.kill()
    assert replicate(*urls, state=str(state)).refused == 0
    assert read_versions(urls[1]) == read_versions(urls[0])
    assert replicate(*urls, state=str(state)).received == 0
