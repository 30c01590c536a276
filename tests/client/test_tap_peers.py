"""TAP and UPR from peers that disconnect, fall silent or refuse: changes are rolled back, or streams resume."""

import asyncio
import logging
import re

import pytest

from penstock import connect
from penstock.client.connect import retry
from penstock.client.streams import silence_watch
from penstock.errors import RemoteProtocolError, Unreachable, UnsupportedServer
from penstock.wire.codec.constants import TapOpaque
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Opcode, UprOpcode
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.schema import Change, Event
from penstock.wire.messages.tap import TapReply, unpack_tap_options
from penstock.wire.messages.upr import UprStreamReq
from tests.client.dialects import LOG, UprMessageBuilder
from tests.client.peer import Script, in_loop, reply, stats_reply
from tests.client.test_tap_feed import begin, close, mutation, mutations, opaque_message, rollback

UPR = UprMessageBuilder()
WHOLE = begin(0) + mutations(0, 3) + close(0) + begin(1) + mutations(1, 2, flags=1) + close(1)


def tap(serve, *counts):
    """Return a script that answers TAP_CONNECT by `serve(peer)`, and other requests like a good node.

    Args:
        serve: `serve(peer)` returns the bytes of the TAP stream.
        counts: for each STAT in turn, the number of documents of vbucket 0, 1, ...; the last entry is used again.
            Without counts, the node refuses the group.
    """
    left = [*counts]

    def answer(peer, frame):
        if frame.opcode == Opcode.TAP_CONNECT:
            return serve(peer)
        if frame.opcode == Opcode.STAT and frame.key != b"vbucket":
            return (
                _counted(frame, left.pop(0) if len(left) > 1 else left[0]) if left else reply(frame, Status.KEY_ENOENT)
            )
        return _ignore_acknowledgements(frame)

    return Script(answer)


def _counted(frame, items):
    assert frame.key == b"vbucket-details"
    states = {f"vb_{vb}": "active" for vb in range(len(items))}
    return stats_reply(frame, states | {f"vb_{vb}:num_items": number for vb, number in enumerate(items)})


def _ignore_acknowledgements(frame):
    return b"" if Opcode.TAP_MUTATION <= frame.opcode <= Opcode.TAP_CHECKPOINT_END else None


def closing(*dumps, end="close"):
    """Return a `serve` function that sends one of the dumps on each connection, and then closes the connection."""
    left = iter(dumps)

    def serve(peer):
        peer.transport.write(next(left))
        getattr(peer.transport, end)()
        return b""

    return serve


def vbuckets_asked_for(script):
    """Return the list of vbuckets of each TAP_CONNECT; an empty list means all vbuckets."""
    frames = [frame for peer in script.peers for frame in peer.requests if frame.opcode == Opcode.TAP_CONNECT]
    found = [unpack_tap_options(int.from_bytes(frame.extras, "big"), frame.value).vbuckets for frame in frames]
    return [list(vbuckets or ()) for vbuckets in found]


async def dump(script, **options):
    async with connect(script.url(protocol="tap", **options)) as bucket:
        return [change async for change in bucket.changes(stop="now")]


@pytest.mark.parametrize("counts", [[], [(3, 2)], [(2, 2), (3, 3)], [(4, 4), (3, 1)]])
@pytest.mark.parametrize(
    "dumped",
    [
        WHOLE,
        begin(0) + begin(1) + mutations(0, 3) + mutations(1, 2),  # ep-engine 2.5.1: no CLOSE_BACKFILL
        mutations(0, 3) + mutations(1, 2),
    ],
)
@in_loop
async def test_a_dump_ends_with_its_connection(dumped, counts):
    async with tap(closing(dumped), *counts) as script:
        rows = await dump(script)
    assert [row.vbucket for row in rows] == [0, 0, 0, 1, 1]
    assert {row.history for row in rows} == {0}
    assert vbuckets_asked_for(script) == [[]]


SECOND = begin(1) + mutations(1, 2)


@pytest.mark.parametrize("end", ["close", "abort"])
@pytest.mark.parametrize(
    ("part", "again", "second"),
    [
        (begin(0), [], WHOLE),
        (begin(0) + mutations(0, 2), [], WHOLE),
        (begin(0) + mutations(0, 2) + mutation(0, b"half")[:40], [], WHOLE),
        (begin(0) + mutations(0, 2) + close(0) + close(1)[:30], [], WHOLE),
        (begin(0) + mutations(0, 2) + begin(1) + close(0), [], WHOLE),
        (begin(0) + mutations(0, 3) + begin(1) + mutations(1, 1), [1], SECOND),
        (begin(0) + mutations(0, 3) + begin(1) + mutations(1, 1) + mutation(1, b"half")[:40], [1], SECOND),
        (begin(0) + mutations(0, 3), [1], SECOND),
        (b"", [], WHOLE),
    ],
)
@in_loop
async def test_interrupted_dump_repeats_only_incomplete_vbuckets(part, again, second, end):
    async with tap(closing(part, second, end=end), (3, 2)) as script:
        rows = await dump(script)
    asked_for = vbuckets_asked_for(script)
    documents: dict[tuple[int, bytes], Change] = {}
    for row in rows:
        if row.event == Event.ROLLBACK:
            assert row == rollback(row.vbucket, 1)
            documents = {key: found for key, found in documents.items() if key[0] != row.vbucket}
        else:
            assert (row.vbucket, row.key) not in documents
            documents[row.vbucket, row.key] = row
    assert [*documents] == [(0, b"k0"), (0, b"k1"), (0, b"k2"), (1, b"k0"), (1, b"k1")]
    assert len(asked_for) == 2
    assert end == "abort" or asked_for[1] == again  # a reset may discard bytes that were sent before it


@in_loop
async def test_a_dump_that_lacks_the_same_documents_each_time_is_reported(monkeypatch):
    monkeypatch.setattr(retry, "LONGEST_DELAY", 0.1)
    async with tap(closing(*[SECOND] * 9), (0, 3)) as script:
        with pytest.raises(Unreachable, match=r"5 consecutive TAP dumps .* has 2 of 3 documents \(vbucket 1: 2 of 3\)"):
            await dump(script)
        assert vbuckets_asked_for(script) == [[], *[[1]] * 5]
        # Once before the first dump, and twice after each: when it has ended, and when the next dump is due.
        queries = [frame for peer in script.peers for frame in peer.requests if frame.key == b"vbucket-details"]
        assert len(queries) == 1 + 2 * 6


@in_loop
async def test_dump_that_is_always_interrupted_is_reported():
    async with tap(closing(*[begin(0) + mutations(0, 2)] * 9), (3, 0)) as script:
        with pytest.raises(Unreachable, match=r"did not serve for .* 2 of 3 documents"):
            await dump(script, retrySeconds=0.2)
        assert len(vbuckets_asked_for(script)) > 2


class Warnings(logging.Handler):
    """Collects the log messages of the client.

    Attributes:
        texts: messages in the order of their arrival.
    """

    def __init__(self):
        super().__init__()
        self.texts: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record):
        self.texts.put_nowait(record.getMessage())

    def __enter__(self):
        logging.getLogger("penstock.client").addHandler(self)
        return self

    def __exit__(self, *exc):
        logging.getLogger("penstock.client").removeHandler(self)


@in_loop
async def test_producer_that_announces_nothing_after_a_crash_causes_no_rollback():
    """ep-engine 3.1.6 after kill -9: neither INITIAL_VBUCKET_STREAM nor a backfill, only new changes."""
    left = iter([WHOLE, opaque_message(0, TapOpaque.ENABLE_AUTO_NACK) + mutation(0, b"new")])

    def serve(peer):
        peer.transport.write(dumped := next(left))
        if dumped is WHOLE:
            peer.transport.close()
        return b""

    async with tap(serve, (3, 2)) as script, connect(script.url(protocol="tap")) as bucket:
        with Warnings() as warnings:
            async with await bucket.stream() as stream:
                changes = stream.changes()
                rows = [await anext(changes) for _ in range(6)]
                await changes.aclose()
    assert [(row.event, row.history) for row in rows] == [(Event.MUTATION, 0)] * 6
    assert rows[-1].key == b"new"
    assert warnings.texts.empty()


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (b"", r"the TAP stream has 0 of 5 documents \(vbucket 0: 0 of 3, vbucket 1: 0 of 2\)"),
        (mutation(0, b"new"), r"the TAP stream has 1 of 5 documents \(vbucket 0: 1 of 3, vbucket 1: 0 of 2\)"),
        (begin(0) + mutations(0, 3) + close(0), r"the TAP stream has 0 of 2 documents \(vbucket 1: 0 of 2\)"),
    ],
)
@in_loop
async def test_incomplete_stream_is_reported(sent, found, monkeypatch):
    monkeypatch.setattr(silence_watch, "_SETTLE_SECONDS", 0.2)
    async with (
        tap(lambda peer: opaque_message(0, TapOpaque.ENABLE_AUTO_NACK) + sent, (3, 2)) as script,
        connect(script.url(protocol="tap")) as bucket,
    ):
        with Warnings() as warnings:
            following = asyncio.ensure_future(_follow(bucket))
            assert re.search(found, await warnings.texts.get())
            following.cancel()
            await asyncio.wait([following])


async def _follow(bucket):
    async for _ in bucket.changes():
        pass


@in_loop
async def test_acknowledgements_are_sent_when_the_rows_are_consumed():
    acknowledged: asyncio.Queue[int] = asyncio.Queue()

    def answer(peer, frame):
        if frame.opcode == Opcode.TAP_CONNECT:
            return begin(0, opaque=1)
        if isinstance(message := decode_frame(frame), TapReply):
            acknowledged.put_nowait(message.opaque)
            return mutations(0, 2) + close(0, opaque=2) if message.opaque == 1 else b""
        return None

    async with Script(answer) as script, connect(script.url(protocol="tap")) as bucket, await bucket.stream() as stream:
        batches = stream.batches()
        first = await anext(batches)
        assert first.num_rows == 2
        assert await acknowledged.get() == 1
        assert acknowledged.empty()
        waiting = asyncio.ensure_future(anext(batches))
        assert await acknowledged.get() == 2
        waiting.cancel()
        await asyncio.wait([waiting])


@in_loop
async def test_server_without_tap_is_reported():
    async with tap(lambda peer: TapReply(status=Status.NOT_SUPPORTED).encode(Opcode.TAP_CONNECT)) as script:
        with pytest.raises(UnsupportedServer, match="which has no TAP"):
            await dump(script)


@in_loop
async def test_garbage_after_a_dump_is_an_error():
    async with tap(closing(WHOLE + b"HTTP/1.1 400 Bad Request\r\n\r\n")) as script:
        with pytest.raises(RemoteProtocolError, match="not a known magic"):
            await dump(script)


@in_loop
async def test_unanswered_failover_log_request_is_noticed():
    asked = []

    def answer(peer, frame):
        if frame.opcode != UprOpcode.UPR_GET_FAILOVER_LOG:
            return None
        asked.append(frame)
        # The first request only checks the dialect.
        return b"" if asked[1:] else UPR.log(decode_frame(frame, UPR.dialect), LOG)

    async with Script(answer) as script:
        url = script.url(protocol="upr", operationTimeout=0.2, retrySeconds=0.1)
        async with connect(url) as bucket, await bucket.stream() as stream:
            with pytest.raises(Unreachable, match=r"a stream request without an answer for 0\.2 s"):
                await anext(stream.changes())


@in_loop
async def test_upr_resumes_in_the_middle_of_a_snapshot_on_another_connection():
    """Each connection delivers one change of a snapshot of four, then closes; the last one sends the snapshot's end."""

    def answer(peer, frame):
        if frame.opcode == UprOpcode.UPR_GET_FAILOVER_LOG:
            return UPR.log(decode_frame(frame, UPR.dialect), LOG)
        if frame.opcode != UprOpcode.UPR_STREAM_REQ:
            return None
        request = decode_frame(frame, UPR.dialect)
        assert isinstance(request, UprStreamReq)
        seqno = request.start_seqno + 1
        peer.transport.write(UPR.accept(request) + UPR.snapshot_start(request) + UPR.mutations(request, seqno))
        if seqno < 4:
            peer.transport.close()
            return b""
        return UPR.snapshot_end(request) + UPR.end(request)

    async with Script(answer, vbuckets=1) as script, connect(script.url(protocol="upr")) as bucket:
        async with await bucket.stream("beginning", {0: 4}) as stream:
            rows = [change async for change in stream.changes()]
        assert [(row.seqno, row.history) for row in rows] == [(seqno, 0) for seqno in range(1, 5)]
        assert stream.positions[0].is_complete
        assert len(script.peers) == 6  # four for the stream, one for documents, one to check the dialect
