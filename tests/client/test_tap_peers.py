"""TAP and UPR from peers that are cut off, fall silent or refuse: what was given is cut off or gone on with."""

import asyncio

import pytest

from penstock import connect
from penstock.errors import NotSupported, RemoteProtocolError, Unreachable
from penstock.wire.constants import Opcode, Status, UprOpcode
from penstock.wire.layout import decode
from penstock.wire.schema import Event
from penstock.wire.tap import TapReply
from penstock.wire.upr import UprStreamReq
from tests.client.dialects import LOG, Upr
from tests.client.peer import Script, in_loop
from tests.client.test_tap_feed import begin, close, mutation, mutations, rollback

UPR = Upr()
WHOLE = begin(0) + mutations(0, 3) + close(0) + begin(1) + mutations(1, 2, flags=1) + close(1)


def tap(serve):
    """Return a script that answers TAP_CONNECT by `serve(peer)`, and else is a good node."""
    return Script(lambda peer, frame: serve(peer) if frame.opcode == Opcode.TAP_CONNECT else _none_of_acks(frame))


def _none_of_acks(frame):
    return b"" if Opcode.TAP_MUTATION <= frame.opcode <= Opcode.TAP_CHECKPOINT_END else None


def closing(*dumps):
    """Serve these dumps, one a connection, and hang up behind each."""
    left = iter(dumps)

    def serve(peer):
        peer.transport.write(next(left))
        peer.transport.close()
        return b""

    return serve


async def dump(script, **options):
    async with connect(script.url(protocol="tap", **options)) as bucket:
        return [change async for change in bucket.changes(stop="now")]


@in_loop
async def test_a_dump_ends_with_its_connection():
    async with tap(closing(WHOLE)) as script:
        rows = await dump(script)
    assert [row.vbucket for row in rows] == [0, 0, 0, 1, 1]
    assert {row.history for row in rows} == {0}


@pytest.mark.parametrize(
    "part",
    [
        begin(0),
        begin(0) + mutations(0, 2),
        begin(0) + mutations(0, 2) + mutation(0, b"half")[:40],
        begin(0) + mutations(0, 2) + close(0) + close(1)[:30],
        begin(0) + mutations(0, 2) + begin(1) + close(0),
        b"",
    ],
)
@in_loop
async def test_a_dump_that_was_cut_off_comes_again(part):
    async with tap(closing(part, WHOLE)) as script:
        rows = await dump(script)
    *before, _, _, _, _, _ = rows
    if b"k0" in part:
        assert before.pop() == rollback(0, 1)
        assert [row.key for row in before] == [b"k0", b"k1"]
    assert not [row for row in before if row.event == Event.ROLLBACK]
    assert [(row.vbucket, row.key) for row in rows[-5:]] == [(0, b"k0"), (0, b"k1"), (0, b"k2"), (1, b"k0"), (1, b"k1")]


@in_loop
async def test_a_dump_that_is_always_cut_off_is_reported():
    def serve(peer):
        peer.transport.write(begin(0) + mutations(0, 2))
        peer.transport.close()
        return b""

    async with tap(serve) as script:
        with pytest.raises(Unreachable, match="did not serve for"):
            await dump(script, retrySeconds=0.2)
        assert len(script.peers) > 2


@in_loop
async def test_acknowledgements_come_back_when_the_rows_are_consumed():
    acknowledged: asyncio.Queue[int] = asyncio.Queue()

    def answer(peer, frame):
        if frame.opcode == Opcode.TAP_CONNECT:
            return begin(0, opaque=1)
        if isinstance(message := decode(frame), TapReply):
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
async def test_a_server_without_tap():
    async with tap(lambda peer: TapReply(status=Status.NOT_SUPPORTED).encode(Opcode.TAP_CONNECT)) as script:
        with pytest.raises(NotSupported, match="TAP_CONNECT refused"):
            await dump(script)


@in_loop
async def test_garbage_behind_a_dump():
    async with tap(closing(WHOLE + b"HTTP/1.1 400 Bad Request\r\n\r\n")) as script:
        with pytest.raises(RemoteProtocolError, match="not a known magic"):
            await dump(script)


@in_loop
async def test_a_failover_log_without_an_answer_is_noticed():
    def answer(peer, frame):
        return b"" if frame.opcode == UprOpcode.UPR_GET_FAILOVER_LOG else None

    async with Script(answer) as script:
        url = script.url(protocol="upr", operationTimeout=0.2, retrySeconds=0.1)
        async with connect(url) as bucket, await bucket.stream() as stream:
            with pytest.raises(Unreachable, match=r"a stream request without an answer for 0\.2 s"):
                await anext(stream.changes())


@in_loop
async def test_upr_goes_on_over_connections_in_the_middle_of_a_snapshot():
    """Each connection gives one change of a snapshot of nine, and hangs up; the last one gives its end."""

    def answer(peer, frame):
        if frame.opcode == UprOpcode.UPR_GET_FAILOVER_LOG:
            return UPR.log(decode(frame, UPR.dialect), LOG)
        if frame.opcode != UprOpcode.UPR_STREAM_REQ:
            return None
        request = decode(frame, UPR.dialect)
        assert isinstance(request, UprStreamReq)
        seqno = request.start_seqno + 1
        peer.transport.write(UPR.accept(request) + UPR.snapshot_start(request) + UPR.mutations(request, seqno))
        if seqno < 9:
            peer.transport.close()
            return b""
        return UPR.snapshot_end(request) + UPR.end(request)

    async with Script(answer, vbuckets=1) as script, connect(script.url(protocol="upr")) as bucket:
        async with await bucket.stream("beginning", {0: 9}) as stream:
            rows = [change async for change in stream.changes()]
        assert [(row.seqno, row.history) for row in rows] == [(seqno, 0) for seqno in range(1, 10)]
        assert stream.positions[0].is_complete
        assert len(script.peers) == 10
