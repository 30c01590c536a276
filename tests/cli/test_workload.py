"""`penstock workload`: the number and the kinds of its changes, their keys, and their rate."""

import asyncio
import collections
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Node, connect
from penstock.cli.bucket.random_changes import ChangeMix, Workload, read_live_keys
from penstock.errors import Error, UsageError
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from tests.client.old_server import COUCHBASE_2_5, OldServer
from tests.patience import PATIENCE

SHARES = st.integers(0, 30)


@given(st.tuples(SHARES, SHARES, SHARES).filter(any), st.integers(1, 3))
def test_every_round_of_a_mix_is_exact(shares, rounds):
    mix = ChangeMix(*shares)
    kinds = collections.Counter(itertools.islice(mix.generate_kinds(), rounds * sum(mix)))
    assert (kinds["update"], kinds["delete"], kinds["insert"]) == tuple(rounds * share for share in shares)


def test_the_kinds_of_a_mix_are_interleaved():
    first = "".join(kind[0] for kind in itertools.islice(ChangeMix(4, 2, 2).generate_kinds(), 8))
    assert (first[:4].count("u"), first[:4].count("d"), first[:4].count("i")) == (2, 1, 1)


@pytest.mark.parametrize(
    ("release", "warning"),
    [
        (COUCHBASE_2_5, ""),
        (
            COUCHBASE_2_5.override({Opcode.TAP_CONNECT: Status.NOT_SUPPORTED}),
            "has no change streams: keys of its documents",
        ),
    ],
    ids=["TAP", "no streams"],
)
def test_documents_of_a_server_without_dcp_are_changed(run, release, warning):
    with Node.running(["beer"], vbuckets=4) as node, OldServer(node, release) as server:
        done = run("workload", "--changes", 40, "--mix", "1:0:1", "--rate", 0, "--url", server.url(), "--json")
        assert done.code == 0, done.err
        assert (done.json["changes"], warning in done.err) == (40, True)
        assert not done.err or warning


@pytest.mark.parametrize("text", ["", "1", "1:2", "0:0:0", "1:2:3:4", "-1:2:3", "a:b:c", "1:2:٣", "1.5:1:1"])
def test_invalid_mix_is_refused(text):
    with pytest.raises(UsageError, match="expected update:delete:insert"):
        ChangeMix.parse(text)


async def store_documents(bucket, count):
    await bucket.upsert_many((f"k{number}", b'{"n":%d}' % number) for number in range(count))


def changes_of(url):
    async def collect():
        async with connect(url) as bucket:
            return [change async for change in bucket.changes("beginning", "now")]

    return asyncio.run(collect())


def test_shares_are_exact_and_all_keys_are_different(on_beer, node):
    async def fill():
        async with connect(node.url("beer")) as bucket:
            await store_documents(bucket, 200)

    asyncio.run(fill())
    done = on_beer("workload", "--changes", 160, "--mix", "100:50:10", "--rate", 0, "--seed", 1, "--json")
    assert done.code == 0
    summary = done.json
    assert {k: summary[k] for k in ("changes", "updates", "deletes", "inserts")} == {
        "changes": 160, "updates": 100, "deletes": 50, "inserts": 10,
    }  # fmt: skip
    changes = [change for change in changes_of(node.url("beer")) if change.event == "deletion" or change.rev_seqno > 1]
    assert len({change.key for change in changes}) == 150
    updated = [json.loads(change.value) for change in changes if change.value is not None]
    assert len(updated) == 100
    assert all(document["revision"] == 1 and "n" in document for document in updated)


def test_workload_continues_with_inserts_if_no_document_is_left(on_beer, node):
    done = on_beer("workload", "--changes", 30, "--mix", "1:1:1", "--rate", 0, "--json")
    assert done.code == 0
    assert done.json["changes"] == 30
    changes = changes_of(node.url("beer"))
    assert sum(change.event == "mutation" for change in changes) == done.json["inserts"] - done.json["deletes"]


def test_workload_ends_if_all_documents_are_deleted(on_beer, node):
    on_beer("load", "-", "--key", "id", stdin=b'{"id":1}\n{"id":2}\n')
    assert on_beer("workload", "--mix", "0:1:0", "--rate", 0, "--json").json["deletes"] == 2
    again = on_beer("workload", "--mix", "1:1:0")
    assert (again.code, again.out) == (1, "")
    assert "has no documents to change" in again.err


def test_only_keys_from_the_file_are_changed(on_beer, node, tmp_path):
    on_beer("load", "-", "--key", "id", stdin=b'{"id":"a"}\n{"id":"b"}\n{"id":"c"}\n')
    chosen = tmp_path / "keys.jsonl"
    chosen.write_text('"a"\n{"key": "b"}\n')
    assert on_beer("workload", "--changes", 4, "--mix", "1:0:0", "--keys", chosen).code == 0
    revisions = {change.key: change.rev_seqno for change in changes_of(node.url("beer"))}
    assert revisions == {b"a": 3, b"b": 3, b"c": 1}
    chosen.write_text('"a"\n7\n')
    wrong = on_beer("workload", "--keys", chosen)
    assert wrong.code == 2
    assert f"{chosen} line 2: a number" in wrong.err


def test_rate_is_exact_to_one_change(node):
    async def change():
        async with connect(node.url("beer")) as bucket:
            await store_documents(bucket, 300)  # a batch changes each document once, and may be as large as all changes
            engine = Workload(bucket, await read_live_keys(bucket), mix=ChangeMix(1, 0, 0), rate=1000, seed=1)
            seen: list[int] = []
            tally = await engine.run(asyncio.Event(), seconds=0.3, report=lambda tally: seen.append(tally.changes))
            return tally, seen

    tally, seen = asyncio.run(change())
    assert tally.changes == 300  # the changes of a late batch are made up for
    assert seen == sorted(seen)
    assert tally.seconds >= 0.3


def test_stop_event_ends_the_workload(node):
    async def run_and_stop():
        async with connect(node.url("beer")) as bucket:
            engine = Workload(bucket, [], mix=ChangeMix(), rate=500, seed=1)
            stop = asyncio.Event()
            async with asyncio.timeout(PATIENCE):
                return await engine.run(stop, report=lambda tally: stop.set())

    assert asyncio.run(run_and_stop()).changes > 0


def test_values_that_are_no_objects_are_replaced_by_a_sample(node):
    async def change():
        async with connect(node.url("beer")) as bucket:
            await bucket.upsert_many([("a", b"\xff"), ("b", b"[1]"), ("c", b'{"revision":"x"}')])
            engine = Workload(bucket, await read_live_keys(bucket), mix=ChangeMix(1, 0, 0), rate=0, seed=1)
            await engine.run(asyncio.Event(), changes=3)
            return [json.loads(document.value)["name"] for document in await bucket.get_many("abc") if document]

    assert len(asyncio.run(change())) == 3


def test_an_update_keeps_the_digits_of_all_numbers(node):
    async def change():
        async with connect(node.url("beer")) as bucket:
            await bucket.upsert("k", b'{"n":12345678901234567.89,"revision":4,"m":[1e-400,1E+400,-0],"h":"\\ud800"}')
            engine = Workload(bucket, await read_live_keys(bucket), mix=ChangeMix(1, 0, 0), rate=0, seed=1)
            await engine.run(asyncio.Event(), changes=1)
            return (await bucket.get("k")).value

    updated = asyncio.run(change())
    assert updated == b'{"n":12345678901234567.89,"m":[1e-400,1E+400,-0],"h":"\\ud800","revision":5}'


def test_bucket_without_documents_to_change_is_an_error(node):
    async def start():
        async with connect(node.url("beer")) as bucket:
            Workload(bucket, [], mix=ChangeMix(1, 1, 0), rate=0)

    with pytest.raises(Error, match="no documents to change"):
        asyncio.run(start())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--docs", "x", "--rate", 3], "--rate cannot be combined with --docs"),
        (["--docs", "x", "--mix", "1:1:1"], "--mix cannot be combined with --docs"),
        (["--docs", "missing/x"], "missing/x cannot be written"),
        (["--docs", "."], ". cannot be written"),
        (["--count", 3], "--count without --docs"),
        (["--mix", "1:2"], "expected update:delete:insert"),
        (["--keys", "missing.jsonl"], "missing.jsonl cannot be read"),
    ],
)
def test_wrong_usage_is_reported(run, arguments, reason):
    done = run("workload", *arguments)
    assert (done.code, done.out) == (2, "")
    assert reason in done.err
