"""Every dialect against a real node: the same changes for the same history, also over restarts of the node."""

import asyncio
import itertools
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from penstock import connect, read_changes
from penstock.client.bucket import Bucket
from penstock.client.feeds.stream_position import Position
from penstock.errors import ConnectionClosed, UsageError
from penstock.wire.codec.constants import Dialect, VbucketState
from penstock.wire.codec.flags import OpenFlag
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.schema import Change, Event
from penstock.wire.messages.dcp import Open
from penstock.wire.messages.kv import SetVbucket
from tests.client.peer import Script, documents, in_loop, reply

DIALECTS = [dialect.value for dialect in Dialect]
RESUMING = [name for name in DIALECTS if name != "tap"]

every = pytest.mark.parametrize("protocol", DIALECTS)
resuming = pytest.mark.parametrize("protocol", RESUMING)


async def read(bucket, *args, **options):
    return [change async for change in bucket.changes(*args, **options)]


def compute_documents(rows):
    """Return the documents that result from the rows, applied in the order of their arrival."""
    kept: dict[tuple[int, bytes], tuple[int, bytes]] = {}
    for row in rows:
        if row.event == Event.ROLLBACK:
            cut = row.seqno
            kept = {place: it for place, it in kept.items() if place[0] != row.vbucket or ((it[0] or 0) <= cut and cut)}
        elif row.event == Event.MUTATION:
            kept[row.vbucket, row.key] = (row.seqno, row.value)
        else:
            kept.pop((row.vbucket, row.key), None)
    return {key.decode(): value for (_, key), (_, value) in kept.items()}


class Following(NamedTuple):
    """A bucket, a stream of its changes, and the rows that the stream has delivered so far."""

    bucket: Bucket
    changes: AsyncGenerator[Change, None]
    rows: list[Change]

    async def until(self, expected):
        """Read rows until they result in these documents."""
        async for change in self.changes:
            self.rows.append(change)
            if compute_documents(self.rows) == dict(expected):
                return
        pytest.fail(f"the stream ended with {len(self.rows)} rows")


@asynccontextmanager
async def following(running, protocol, many):
    """Store documents, and follow the bucket until the stream has delivered them."""
    async with connect(running.url(protocol=protocol)) as bucket:
        await bucket.upsert_many(documents(0, many))
        async with await bucket.stream() as stream:
            here = Following(bucket, stream.changes(), [])
            await here.until(documents(0, many))
            yield here


async def first_after_now(bucket, changes):
    """Store documents until a stream from now on delivers one; return that change.

    The node does not report when the stream has started.
    """
    coming = asyncio.ensure_future(anext(changes))
    for number in itertools.count():
        await bucket.upsert(f"new{number}", b"value")
        if coming.done():
            return await coming


@every
@in_loop
async def test_every_dialect_delivers_the_same_changes(running, protocol):
    async with connect(running.url()) as bucket:
        await bucket.upsert_many(documents(0, 400), flags=0xDEADBEEF, expiry=10_000)
        await bucket.upsert_many(documents(100, 200))
        await bucket.remove_many([f"k{number}" for number in range(0, 400, 7)])
        expected = {(row.vbucket, row.key): row for row in await read(bucket, stop="now")}
        found = await read(bucket, stop="now", protocol=protocol)
    assert len(found) == len(expected) == 400
    filled = set()
    for row in found:
        for name, mine, theirs in zip(Change._fields, row, expected[row.vbucket, row.key], strict=True):
            assert mine is None or mine == theirs, name
            filled |= {name} if mine is not None else set()
    assert filled >= {"vbucket", "rev_seqno", "cas", "event", "key", "value", "flags", "expiry", "history"}
    assert ("seqno" in filled) == ("vbuuid" in filled) == (protocol != "tap")
    assert ("snapshot_end" in filled) == ("delete_time" in filled) == (protocol == "dcp")


@every
@in_loop
async def test_stream_follows_new_changes(running, protocol):
    async with following(running, protocol, 100) as here:
        await here.bucket.upsert("new", b"value")
        await here.until([*documents(0, 100), ("new", b"value")])
    assert len(here.rows) == 101


@every
@in_loop
async def test_stream_from_now_has_no_earlier_changes(running, protocol):
    async with connect(running.url(protocol=protocol)) as bucket:
        await bucket.upsert_many(documents(0, 100))
        async with await bucket.stream("now") as stream:
            assert (await first_after_now(bucket, stream.changes())).key.startswith(b"new")
        assert not await read(bucket, "now", "now")


@every
@in_loop
async def test_empty_bucket_and_selected_vbuckets_are_read(running, protocol):
    async with connect(running.url(protocol=protocol)) as bucket:
        assert not await read(bucket, stop="now")
        await bucket.upsert_many(documents(0, 200))
        rows = await read(bucket, stop="now", vbuckets=[1, 3])
        assert {row.vbucket for row in rows} == {1, 3}
        assert len(rows) == sum(seqno for vb, seqno in (await bucket.high_seqnos()).items() if vb in (1, 3))


@every
def test_blocking_reader_reads_an_empty_bucket(running, protocol):
    assert sum(batch.num_rows for batch in read_changes(running.url(), stop="now", protocol=protocol)) == 0


@resuming
@in_loop
async def test_positions_of_one_dialect_resume_in_another(running, protocol):
    async with connect(running.url()) as bucket:
        rows: list[Change] = []
        positions: dict[int, Position] = {}
        for step, name in enumerate(["dcp", protocol, "upr", "dcp"]):
            await bucket.upsert_many(documents(step * 100, step * 100 + 150))
            async with await bucket.stream(positions, "now", protocol=name) as stream:
                async for batch in stream.changes():
                    rows.append(batch)
            positions = stream.positions
            assert all(each.is_complete for each in positions.values())
        assert compute_documents(rows) == dict(documents(0, 450))
        assert {row.history for row in rows} == {0}
        assert len({(row.vbucket, row.seqno) for row in rows}) == len(rows)


@resuming
@in_loop
async def test_a_failover_is_a_new_branch_and_loses_nothing(running, protocol):
    async with following(running, protocol, 200) as here:
        for state in (VbucketState.REPLICA, VbucketState.ACTIVE):
            await here.bucket._requests.send_requests([SetVbucket(vbucket=vb, state=state) for vb in range(4)])
        await here.bucket.upsert_many(documents(200, 300))
        await here.until(documents(0, 300))
        logs = await here.bucket.failover_logs(range(4))
        newest = [row for row in here.rows if row.key and int(row.key[1:]) >= 200]
        assert {(row.vbucket, row.vbuuid) for row in newest} == {(vb, log[0].vbuuid) for vb, log in logs.items()}
        assert len({log[0] for log in logs.values()}) == 4
    assert {row.history for row in here.rows} == {0}
    assert len(here.rows) == 300


@every
@in_loop
async def test_a_flushed_bucket_is_rolled_back(running, protocol):
    async with following(running, protocol, 200) as here:
        await here.bucket.flush()
        await here.bucket.upsert_many(documents(100, 150))
        await here.until(documents(100, 150))
    rollbacks = [row for row in here.rows if row.event == Event.ROLLBACK]
    assert sorted(row.vbucket for row in rollbacks) == [0, 1, 2, 3]
    assert {(row.seqno, row.history) for row in rollbacks} == {(0, 1)}


@every
@in_loop
async def test_node_that_lost_its_data_is_rolled_back(running, protocol):
    async with following(running, protocol, 200) as here:
        await running.restart()
        await here.bucket.upsert_many(documents(150, 300))
        await here.until(documents(150, 300))
    assert sorted(row.vbucket for row in here.rows if row.event == Event.ROLLBACK) == [0, 1, 2, 3]


@in_loop
async def test_tap_from_now_on_ends_with_its_connection(running):
    async with connect(running.url(protocol="tap")) as bucket, await bucket.stream("now") as stream:
        changes = stream.changes()
        await first_after_now(bucket, changes)
        await running.restart()
        with pytest.raises(ConnectionClosed, match="TAP cannot resume"):
            await Following(bucket, changes, []).until({"never": b""})


@pytest.mark.parametrize(
    ("arguments", "options", "found"),
    [
        (({},), {"protocol": "tap"}, "TAP cannot resume"),
        (("beginning", {1: 5}), {"protocol": "tap"}, "TAP cannot resume"),
        (("middle",), {"protocol": "tap"}, "TAP cannot resume"),
        ((), {"protocol": "TAP"}, "option protocol is 'TAP', expected one of tap, upr-draft, upr, dcp"),
        ((), {"protocol": "upr", "vbuckets": [9]}, "vbucket 9"),
    ],
)
@in_loop
async def test_impossible_stream_request_is_refused(running, arguments, options, found):
    async with connect(running.url()) as bucket:
        with pytest.raises(UsageError, match=found):
            await bucket.stream(*arguments, **options)


# How a connection is set up


@pytest.mark.parametrize("refusal", [None, Status.EINVAL, Status.NOT_SUPPORTED])
@in_loop
async def test_old_server_is_sent_fewer_options(refusal):
    def answer(peer, frame):
        message = decode_frame(frame) if frame.opcode == Opcode.DCP_OPEN else None
        if frame.opcode == Opcode.DCP_STREAM_REQ:
            asked.set()
            return b""
        if refusal is None:
            return None
        if isinstance(message, Open) and message.flags & OpenFlag.INCLUDE_DELETE_TIMES:
            return reply(frame, Status.EINVAL)
        return reply(frame, refusal) if frame.key in (b"enable_expiry_opcode", b"set_noop_interval") else None

    asked = asyncio.Event()
    async with Script(answer) as script, connect(script.url()) as bucket, await bucket.stream() as stream:
        reading = asyncio.ensure_future(anext(stream.changes()))
        await asked.wait()
        requests = [[*peer.requests] for peer in script.peers]
        opened = [frame for each in requests for frame in each if frame.opcode == Opcode.DCP_OPEN]
        flags = [int.from_bytes(frame.extras[4:], "big") for frame in opened]
        assert flags == ([0x21] if refusal is None else [0x21, 0x01])
        settings = [frame.key for frame in requests[-1] if frame.opcode == Opcode.DCP_CONTROL]
        assert settings == [
            *(b"enable_expiry_opcode", b"set_noop_interval", b"enable_noop", b"connection_buffer_size"),
        ]
        reading.cancel()
        await asyncio.wait([reading])


@every
@in_loop
async def test_tcp_keepalive_is_on_where_the_dialect_has_no_noop(running, protocol):
    async with connect(running.url(protocol=protocol)) as bucket:
        await bucket.upsert("k", b"")
        async with await bucket.stream() as stream:
            await anext(stream.changes())
            (connection,) = stream._connections.by_id.values()
            link = connection.link
            sock = link.transport.socket
            assert bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) == (protocol != "dcp")
            if protocol != "dcp" and hasattr(socket, "TCP_KEEPIDLE"):
                names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
                values = [sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
                assert values == [60, 10, 6]
