"""`penstock load`, `tail` and `stats`: documents go into a bucket, and its changes come out."""

import asyncio
import base64
import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock import connect
from penstock.cli.bucket.samples import make_samples
from penstock.client.connect import retry
from penstock.client.documents.document import compute_vbucket
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.messages.kv import GetLocked, Set, SetVbucket
from tests.cli.output_checks import check_object
from tests.client.peer import serving
from tests.client.test_tap_feed import begin, mutation, mutations
from tests.client.test_tap_peers import closing, tap
from tests.node.watch import run as on_loop
from tests.node.wire_client import connected

BEER_SAMPLE = Path(__file__).parents[3] / "shared" / "data" / "beer-sample.jsonl"


def write_samples(path: Path) -> Path:
    lines = (json.dumps({"id": key, "doc": document}) for key, document in make_samples(3000, 4))
    path.write_text("\n".join(lines))
    return path


def test_one_refused_document_does_not_stop_the_others(node, run):
    lines = b"".join(b'{"id": "k%d", "n": %d}\n' % (number, number) for number in range(6))
    url = f"{node.url('beer')}?retrySeconds=0.2"
    with connected(node, "beer") as client:
        vbucket = compute_vbucket(b"k3", 16)
        assert client.ask(Set(key=b"k3", value=b"{}", vbucket=vbucket)).specific == Status.SUCCESS
        assert client.ask(GetLocked(key=b"k3", lock_time=30, vbucket=vbucket)).specific == Status.SUCCESS
        for way, code in (("skip", 0), ("stop", 1)):
            done = run("load", "-", "--key", "id", "--on-error", way, "--url", url, stdin=lines)
            assert done.code == code
            assert done.err.startswith("penstock: - line 4: SET b'k3': ")
            if way == "skip":
                assert "5 documents loaded, 1 skipped" in done.out
            else:
                assert "3 documents loaded, 0 skipped" in done.out
    found = run("tail", "--from", "beginning", "--until", "now", "--json", "--url", url).json_lines
    assert {line["key"] for line in found if line["value"] != "{}"} == {"k0", "k1", "k2", "k4", "k5"}


def compact(document) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize("source", ["generated", "beer-sample"])
def test_loaded_documents_come_back_byte_for_byte(on_beer, tmp_path, source):
    if source == "beer-sample" and not BEER_SAMPLE.exists():
        pytest.skip(f"{BEER_SAMPLE} is not there")
    path = BEER_SAMPLE if source == "beer-sample" else write_samples(tmp_path / "made.jsonl")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    loaded = on_beer("load", path, "--key", "id", "--value", "doc", "--json")
    assert loaded.code == 0
    assert loaded.json["loaded"] == len(lines)

    changes = on_beer("tail", "--from", "beginning", "--until", "now", "--json").json_lines
    assert {change["key"]: change["value"] for change in changes} == {
        line["id"]: compact(line["doc"]) for line in lines
    }
    assert len(changes) == len(lines)

    stats = on_beer("stats", "--json").json
    assert int(stats["curr_items"]) == len(lines)
    seqnos = on_beer("stats", "vbucket-seqno", "--json").json
    assert sum(int(seqnos[f"vb_{vbucket}:high_seqno"]) for vbucket in range(16)) == len(lines)


def test_summary_counts_the_loaded_documents(on_beer):
    done = on_beer("load", "-", "--key", "id", stdin=b'{"id":1}\n\n{"id":2}\n')
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("2 documents loaded, 0 skipped, 0.")


LINES = b'{"id":"a"}\n{"id":"b"}\nnonsense\n{"id":"d"}\n[]\n'


def test_numbers_are_stored_with_the_digits_of_the_file(on_beer):
    lines = [
        '{"id":"decimal","price":12345678901234567.89}',
        '{"id":"tiny","n":1e-400,"n":100.10}',
        '{"id":"huge","n":-1E+400}',
    ]
    assert on_beer("load", "-", "--key", "id", stdin="\n".join(lines).encode()).code == 0
    changes = on_beer("tail", "--from", "beginning", "--until", "now", "--json").json_lines
    assert sorted(change["value"] for change in changes) == sorted(lines)


def test_stop_loads_the_documents_before_the_bad_line(on_beer):
    done = on_beer("load", "-", "--key", "id", stdin=LINES)
    assert done.code == 1
    assert "2 documents loaded, 0 skipped" in done.out
    assert "stopped at line 3" in done.out
    assert done.err.startswith("penstock: - line 3: not JSON")
    assert len(done.err.splitlines()) == 1
    keys = [c["key"] for c in on_beer("tail", "--from", "beginning", "--until", "now", "--json").json_lines]
    assert sorted(keys) == ["a", "b"]


def test_skip_loads_all_other_documents(on_beer):
    done = on_beer("load", "-", "--key", "id", "--on-error", "skip", "--json", stdin=LINES)
    assert done.code == 0
    assert {**done.json, "seconds": 0} == {"loaded": 3, "skipped": 2, "seconds": 0, "stopped_at_line": None}
    assert [line.split(":")[1] for line in done.err.splitlines()] == [" - line 3", " - line 5"]


def test_documents_are_stored_in_chunks_of_bounded_size(on_beer, node):
    lines = b"".join(b'{"id":%d,"doc":"%s"}\n' % (number, b"x" * 3_000_000) for number in range(5))
    assert on_beer("load", "-", "--key", "id", "--value", "doc", stdin=lines).code == 0
    assert int(on_beer("stats", "--json").json["curr_items"]) == 5


def test_an_expiry_is_stored(on_beer):
    on_beer("load", "-", "--key", "id", "--expiry", 2_000_000_000, stdin=b'{"id":1}\n')
    (change,) = on_beer("tail", "--from", "beginning", "--until", "now", "--json").json_lines
    assert change["expiry"] == 2_000_000_000


def test_an_expiry_above_thirty_days_counts_from_now(on_beer):
    assert on_beer("load", "-", "--key", "id", "--expiry", 60 * 86400, stdin=b'{"id":1}\n').code == 0
    (change,) = on_beer("tail", "--from", "beginning", "--until", "now", "--json").json_lines
    assert abs(change["expiry"] - time.time() - 60 * 86400) < 86400


def test_a_change_has_a_line_of_aligned_columns(on_beer, node):
    async def change():
        async with connect(node.url("beer")) as bucket:
            await bucket.upsert("k", b'{"name":"Bi\xc3\xa8re"}')
            await bucket.upsert("k2", b"\x00\xff\n" + b"z" * 200)
            await bucket.remove("k")

    asyncio.run(change())
    found = on_beer("tail", "--from", "beginning", "--until", "now")
    assert found.code == 0
    rows = {line.split()[3]: line for line in found.lines}
    assert rows.keys() == {"k", "k2"}
    assert "deletion" in rows["k"]
    assert rows["k2"].endswith("203 \\x00\\xff\\n" + "z" * 49 + "…")
    assert len({line.index(line.split()[2]) for line in found.lines}) == 1


def test_tail_prints_collections_and_extended_attributes(run, node):
    served = node.buckets["beer"]

    def make():
        served.change_manifest(served.store.manifests.current.with_scope("s").with_collection("s", "c"))
        value = pack_xattrs({"_a": b"1", "b": b"\xff"}, b"{}")
        served.store.vbuckets[3].set(b"\x09k", value, datatype=Datatype.XATTR | Datatype.JSON)

    on_loop(node, make)
    at = ["tail", "--from", "beginning", "--until", "now", "--vbucket", "3", "--url"]
    lines = run(*at, node.url("beer")).lines
    assert [line.split()[2:4] for line in lines] == [
        ["create_scope", "s"],
        ["begin_collection", "s.c"],
        ["mutation", "s.c/k"],
    ]
    (row,) = run(*at, node.url("beer") + "?xattrs=true&collections=s.c", "--json", "--limit", "9").json_lines[1:]
    assert (row["scope"], row["collection"], row["key"], row["value"]) == ("s", "c", "k", "{}")
    assert row["xattrs"] == {"_a": "1", "b_base64": "/w=="}


@pytest.mark.parametrize(("names", "expected"), [(["s.d"], {"d"}), (["s.d", "_default"], {"d", "k"})])
def test_tail_takes_collections(run, node, names, expected):
    served = node.buckets["beer"]

    def make():
        manifest = served.store.manifests.current.with_scope("s").with_collection("s", "c").with_collection("s", "d")
        served.change_manifest(manifest)
        for key in (b"\0k", b"\x09c", b"\x0ad"):
            served.store.vbuckets[3].set(key, b"{}")

    on_loop(node, make)
    chosen = [text for name in names for text in ("--collections", name)]
    done = run("tail", "--from", "beginning", "--until", "now", "--json", "--url", node.url("beer"), *chosen)
    assert (done.code, {row["key"] for row in done.json_lines if "key" in row}) == (0, expected)


def test_bytes_that_are_not_utf8_are_in_base64(on_beer, node):
    async def change():
        async with connect(node.url("beer")) as bucket:
            await bucket.upsert(b"\xff", b"\xfe")

    asyncio.run(change())
    (row,) = on_beer("tail", "--from", "beginning", "--until", "now", "--json").json_lines
    assert (base64.b64decode(row["key_base64"]), base64.b64decode(row["value_base64"])) == (b"\xff", b"\xfe")
    assert isinstance(row["cas"], str)
    assert isinstance(row["vbuuid"], str)
    assert "key" not in row
    assert "xattrs" not in row


def test_tail_prints_a_selection_of_the_changes(on_beer):
    on_beer("load", "-", "--key", "id", stdin=b"".join(b'{"id":%d}\n' % number for number in range(100)))
    everything = on_beer("tail", "--from", "beginning", "--until", "now", "--json").json_lines
    some = on_beer("tail", "--from", "beginning", "--until", "now", "--vbucket", 3, "--vbucket", 5, "--json").json_lines
    assert some == [change for change in everything if change["vbucket"] in (3, 5)]
    assert len(on_beer("tail", "--from", "beginning", "--limit", 7).lines) == 7
    keys = on_beer("tail", "--from", "beginning", "--until", "now", "--keys-only", "--json").json_lines
    assert [row["key"] for row in keys] == [row["key"] for row in everything]
    assert not any("value" in row for row in keys)
    assert on_beer("tail", "--from", "now", "--until", "now") == (0, "", "")


@pytest.mark.long
def test_tail_prints_the_same_changes_in_every_dialect(on_beer, tmp_path):
    on_beer("load", write_samples(tmp_path / "made.jsonl"), "--key", "id", "--value", "doc")

    def documents(*protocol):
        lines = on_beer("tail", "--from", "beginning", "--until", "now", "--json", *protocol).json_lines
        return sorted((change["vbucket"], change["key"], change["value"], change["cas"]) for change in lines)

    expected = documents()
    assert len(expected) == 3000
    for protocol in ("tap", "upr-draft", "upr", "dcp"):
        assert documents("--protocol", protocol) == expected
    assert "   1          mutation" in on_beer("tail", "--from", "beginning", "--until", "now", "--protocol", "tap").out


def test_unknown_dialect_is_wrong_usage(on_beer):
    result = on_beer("tail", "--protocol", "xdcr")
    assert result.code == 2
    assert result.err == "penstock: option protocol is 'xdcr', expected one of tap, upr-draft, upr, dcp\n"


def test_impossible_vbucket_is_wrong_usage(on_beer):
    done = on_beer("tail", "--vbucket", 16)
    assert done.code == 2
    assert "which has 16" in done.err


def test_statistics_are_printed(on_beer):
    assert on_beer("stats").lines[0].split()[0] == "pid"
    assert on_beer("stats", "failovers", 7, "--json").json["vb_7:num_entries"] == "1"
    assert (unknown := on_beer("stats", "nonsense")).code == 2
    assert "has no statistics 'nonsense'" in unknown.err
    assert (missing := on_beer("stats", "fusion", "sync_info")).code == 2
    assert "NOT_SUPPORTED (group 'fusion' is not supported" in missing.err
    assert (foreign := on_beer("stats", "hash", 99999)).code == 2
    assert "vbucket 99999 of" in foreign.err


def test_statistics_of_a_document_are_printed(on_beer):
    on_beer("load", "-", "--key", "id", stdin=b'{"id":"k"}\n')
    vbucket = compute_vbucket(b"k", 16)
    assert on_beer("stats", "key", "k", vbucket, "--json").json["key_vb_state"] == "active"
    assert on_beer("stats", "key", "other", vbucket).code == 2


def test_a_dump_over_tap_ends_with_the_connection(run):
    """ep-engine 2.5.1: no CLOSE_BACKFILL. Each connection dumps everything, so a second dump would be noticed."""
    whole = begin(0) + mutations(0, 300) + begin(1) + mutations(1, 20)
    with serving(tap(closing(*[whole] * 9), (300, 20))) as script:
        shown = run("tail", "--from", "beginning", "--until", "now", "--protocol", "tap", "--url", script.url())
    assert (shown.code, shown.err, len(shown.lines)) == (0, "", 320)


def test_a_dump_over_tap_that_never_has_everything_is_an_error(run, monkeypatch):
    monkeypatch.setattr(retry, "LONGEST_DELAY", 0.1)
    with serving(tap(closing(*[begin(1) + mutations(1, 2)] * 9), (0, 5))) as script:
        shown = run("tail", "--from", "beginning", "--until", "now", "--protocol", "tap", "--url", script.url())
    assert shown.code == 1
    assert "the dump has 2 of 5 documents (vbucket 1: 2 of 5)" in shown.err


def test_a_stream_over_tap_that_lacks_documents_is_reported(run):
    """ep-engine 3.1.6 after kill -9: no backfill, only new changes. The second change ends the command."""
    counted = tap(lambda peer: mutation(0, b"first"), (300, 20))
    of_counted, producers, asked = counted.answer, [], []

    def answer(peer, frame):
        if frame.opcode == Opcode.TAP_CONNECT:
            producers.append(peer)
        if frame.opcode == Opcode.STAT:
            asked.append(frame)
        if len(asked) == 2:  # the client is about to report the missing documents
            producers[0].transport.write(mutation(0, b"second"))
        return of_counted(peer, frame)

    counted.answer = answer
    with serving(counted) as script:
        url, limit = script.url(), ("--limit", 2)
        shown = run("tail", "--from", "beginning", "--protocol", "tap", *limit, "--url", url)
    assert (shown.code, len(shown.lines)) == (0, 2)
    assert "of 320 documents (vbucket 0:" in shown.err


@pytest.mark.parametrize("protocol", ["dcp", "tap"])
def test_a_tail_up_to_now_needs_every_vbucket(run, node, protocol):
    async def store():
        async with connect(node.url("beer")) as bucket:
            await bucket.upsert_many((f"k{number}", b"v") for number in range(100))

    asyncio.run(store())
    with connected(node, "beer") as client:
        for vbucket in (3, 5, 6):
            assert client.status(SetVbucket(vbucket=vbucket, state=VbucketState.DEAD)) == Status.SUCCESS
    url = f"{node.url('beer')}?retrySeconds=0.2"
    command = ("tail", "--from", "beginning", "--until", "now", "--json", "--protocol", protocol)
    failed = run(*command, "--url", url)
    assert (failed.code, failed.out) == (1, "")
    assert f"last failure: vbuckets 3, 5-6 (3 of 16) are not served by {node.url('beer')}" in failed.err
    accepted = run(*command, "--url", url, "--missing-vbuckets", "skip")
    assert accepted.code == 0
    assert {row["vbucket"] for row in accepted.json_lines} == {*range(16)} - {3, 5, 6}
    assert accepted.err == (
        f"penstock: vbuckets 3, 5-6 (3 of 16) are not served by {node.url('beer')}: skipped (missingVbuckets=skip)\n"
    )


def test_tail_prints_reports_and_serves_metrics(on_beer):
    """Reports are on standard error. There is one at the end, however short the time was."""
    on_beer("load", "-", "--key", "id", stdin=b'{"id": "ale"}\n')
    shown = on_beer("tail", "--from", "beginning", "--limit", 1, "--report", 1000, "--metrics", 0)
    assert re.search(r"^Metrics: http://127.0.0.1:\d+/metrics$", shown.err, re.MULTILINE)
    assert len(shown.lines) == 1
    shown = on_beer("tail", "--from", "beginning", "--until", "now", "--report", 0.001)
    assert " changes/s, " in shown.err
    shown = on_beer("tail", "--from", "beginning", "--until", "now", "--report", 0.001, "--json")
    found = json.loads(shown.err.splitlines()[0])
    check_object("tail report", found)
    report = found["report"]
    assert (report["bucket"], report["rollbacks"]) == ("beer", 0)


def test_tail_starts_at_a_time_and_filters_keys_and_values(on_beer):
    def load(*numbers):
        documents = "".join(f'{{"id":"{kind}{each}","abv":{each}}}\n' for each in numbers for kind in ("ale", "gin"))
        assert on_beer("load", "-", "--key", "id", stdin=documents.encode()).code == 0

    load(1, 2)
    moment = datetime.now(UTC).isoformat()
    load(3, 4, 5)
    shown = on_beer(
        *("tail", "--since", moment, "--until", "now", "--json", "--filter-key", "^ale", "--filter-value", "abv < 5")
    )
    assert sorted(change["key"] for change in shown.json_lines) == ["ale3", "ale4"]
    others = on_beer("tail", "--until", "now", "--from", "beginning", "--json", "--filter-key-exclude", "^gin|[1-4]$")
    assert [change["key"] for change in others.json_lines] == ["ale5"]
    refused = on_beer("tail", "--since", "soon")
    assert (refused.code, "found the time 'soon', expected a time such as" in refused.err) == (2, True)
