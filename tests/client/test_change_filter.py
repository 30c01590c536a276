"""Streams with a filter of keys and values, and streams that start at a time."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

import penstock
from penstock.client.filters.change_filter import ChangeFilter
from penstock.client.filters.unreadable_changes import UnreadableChanges
from penstock.client.positions.file_positions import FilePositions
from penstock.errors import UsageError
from penstock.node import Node
from penstock.wire.codec.flags import Datatype
from penstock.wire.columns.run_decoder import make_batch
from penstock.wire.columns.schema import Change, Event
from penstock.wire.messages.dcp_values import pack_xattrs
from tests.node.watch import run as run_on_node
from tests.patience import PATIENCE
from tests.waiting import wait_until

DIALECTS = ("dcp", "upr", "upr-draft", "tap")


@pytest.fixture
def url():
    with Node.running(["beer"], vbuckets=16) as node:
        yield node.url("beer")


def run(url, main):
    async def connected():
        async with asyncio.timeout(PATIENCE), penstock.connect(url) as bucket:
            return await main(bucket)

    return asyncio.run(connected())


async def fill(bucket, kind, numbers):
    documents = [(f"{kind}{each}", json.dumps({"kind": kind, "abv": each}).encode()) for each in numbers]
    await bucket.upsert_many(documents)


async def read_keys(bucket, **options):
    return {change.key.decode() async for change in bucket.changes(stop="now", **options)}


def test_rows_match_by_key_and_by_value_and_other_events_pass():
    rows = [
        Change(1, 1, 1, key=b"ale", value=b'{"abv": 7}'),
        Change(1, 1, 2, key=b"ale", value=b'{"abv": 3}'),
        Change(1, 1, 3, key=b"ale", value=b"no JSON"),
        Change(1, 1, 4, key=b"ale", event=Event.DELETION),
        Change(1, 1, 5, key=b"gin", event=Event.EXPIRATION),
        Change(1, 1, 6, event=Event.CREATE_SCOPE, value=b"{}"),
        Change(1, 1, 0, event=Event.ROLLBACK, requested_seqno=0),
    ]
    chosen = ChangeFilter("^a", "abv > 5")
    expected = [rows[0], rows[3], rows[5], rows[6]]
    assert chosen.select_changes(rows, UnreadableChanges()) == expected
    assert chosen.select_changes(make_batch(rows), UnreadableChanges()) == make_batch(expected)
    by_metadata = ChangeFilter(None, "META().id = 'ale'")
    assert by_metadata.select_changes(rows, UnreadableChanges()) == [
        *rows[:4],
        *rows[5:],
    ]  # the key of a tombstone decides
    assert ChangeFilter(None, "META().expiration = 0").select_changes(rows, UnreadableChanges()) == rows
    excluding = ChangeFilter(None, "abv > 5", excluded_key="^gin")
    assert excluding.select_changes(rows, UnreadableChanges()) == expected
    assert ChangeFilter("i", excluded_key="^gin").select_changes(rows, UnreadableChanges()) == rows[5:]
    everything = make_batch(rows)
    assert ChangeFilter().select_changes(everything, UnreadableChanges()) is everything


def test_unreadable_changes_are_counted_and_the_first_are_named():
    rows = [Change(1, 1, seqno, key=b"k%d" % seqno, value=b'{"n":1e400}') for seqno in range(1, 151)]
    earlier, later = UnreadableChanges(), UnreadableChanges()
    only = ChangeFilter(None, "n > 1")
    alone = UnreadableChanges()
    only.select_changes(rows[:1], alone)
    assert alone.describe().startswith("the filter could not read 1 document, which is left out: key b'k1'")
    assert only.select_changes(rows, earlier) == []
    assert len(only.select_changes(make_batch(rows[:2]), later)) == 0
    assert (earlier.count, len(earlier.examples), later.count) == (150, 100, 2)
    assert later.examples[1] == "key b'k2': n is a number beyond the range of a double"
    later.continue_from(earlier)
    assert (later.count, later.examples) == (152, earlier.examples)


@pytest.mark.parametrize("protocol", DIALECTS)
def test_stream_has_only_matching_changes(url, protocol):
    async def main(bucket):
        await fill(bucket, "ale", range(20))
        await fill(bucket, "gin", range(500))
        options = {"protocol": protocol, "filter_key": "^ale", "filter_value": "abv >= 15"}
        assert await read_keys(bucket, **options) == {f"ale{each}" for each in range(15, 20)}
        assert await read_keys(bucket, protocol=protocol, filter_key="^rum") == set()
        await bucket.remove("gin0")
        others = {f"ale{each}" for each in range(20)}
        assert await read_keys(bucket, protocol=protocol, filter_key_exclude="^gin") == others

    run(url, main)


def test_stream_chooses_by_extended_attributes():
    def store(node):
        vbucket = node.buckets["beer"].store.vbuckets[3]
        for name in (b"me", b"you"):
            value = pack_xattrs({"owner": b'"%s"' % name}, b"{}")
            vbucket.set(b"\0of_" + name, value, datatype=int(Datatype.XATTR | Datatype.JSON))

    async def main(bucket):
        await fill(bucket, "ale", range(5))
        owned = "META().xattrs.owner = 'me' AND REGEXP_CONTAINS(META().id, '^of')"
        assert await read_keys(bucket, filter_value=owned, xattrs=True) == {"of_me"}
        for options in ({}, {"xattrs": True, "protocol": "upr"}):
            with pytest.raises(UsageError, match=r"META\(\).xattrs"):
                await bucket.stream(filter_value=owned, **options)

    with Node.running(["beer"], vbuckets=16) as node:
        run_on_node(node, lambda: store(node))
        run(node.url("beer"), main)


def test_position_moves_over_changes_that_the_filter_leaves_out(url, tmp_path):
    async def main(bucket):
        await fill(bucket, "ale", range(20))
        store = FilePositions(tmp_path / "positions")
        async with penstock.Consumer(bucket, store, stop="now", filter_key="^gin") as consumer:
            assert [change async for change in consumer.changes()] == []
        saved = await store.read()
        assert saved is not None
        assert {vb: each.seqno for vb, each in saved.by_vbucket.items()} == await bucket.high_seqnos()
        await fill(bucket, "gin", range(5))
        async with penstock.Consumer(bucket, store, stop="now", filter_key="^gin") as consumer:
            assert len([change async for change in consumer.changes()]) == 5

    run(url, main)


def test_delivery_has_the_branches_of_those_that_the_filter_left_out():
    """Without them, a consumer could not commit between the changes of the delivery."""

    async def main(bucket):
        async with await bucket.stream(filter_key="^gin") as stream:
            coming = asyncio.create_task(stream.next_delivery())
            await fill(bucket, "ale", range(20))
            await wait_until(lambda: stream.positions[0].seqno == 20, coming)
            await fill(bucket, "gin", range(3))
            assert (await coming).logs.keys() == {0}

    with Node.running(["beer"], vbuckets=1) as node:
        run(node.url("beer"), main)


@pytest.mark.parametrize(
    "options", [{"filter_key": "("}, {"filter_value": "abv >"}, {"filter_value": "abv > 1", "values": False}]
)
def test_invalid_filter_is_refused(url, options):
    async def main(bucket):
        with pytest.raises(UsageError):
            await bucket.stream(**options)

    run(url, main)


def test_stream_and_consumer_start_at_a_time(url, tmp_path):
    async def main(bucket):
        await fill(bucket, "ale", range(20))
        last = max([change.cas async for change in bucket.changes(stop="now")])
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=last // 1000 + 2)
        await fill(bucket, "gin", range(20))
        expected = {f"gin{each}".encode() for each in range(20)}
        assert {change.key async for change in bucket.changes(moment, "now")} == expected
        store = FilePositions(tmp_path / "positions")
        async with penstock.Consumer(bucket, store, start=moment, stop="now") as consumer:
            assert await store.read() is not None  # a crash before the first commit must not search again
            assert {change.key async for change in consumer.changes()} == expected

    run(url, main)


@pytest.mark.parametrize("moment", [datetime(2026, 1, 1), datetime.now(UTC) + timedelta(days=1)])
def test_time_without_a_zone_or_in_the_future_is_refused(url, moment):
    async def main(bucket):
        with pytest.raises(UsageError):
            await bucket.stream(moment)

    run(url, main)
