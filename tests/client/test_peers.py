"""Streams from peers that misbehave: what they give is given, and then they are left, tried again, or reported."""

import asyncio

import pytest

from penstock import connect
from penstock.client.stream import tolerated_silence
from penstock.errors import RemoteProtocolError, Unreachable
from penstock.wire.constants import Opcode, Status
from penstock.wire.dcp import DcpNoop, StreamReq
from penstock.wire.layout import decode
from tests.client.peer import Script, in_loop
from tests.client.producer import accept, end, marker, mutation, mutations, refuse


def producer(serve):
    """Return a script whose streams are answered by `serve(peer, request)`, and else is a good node."""

    def answer(peer, frame):
        if frame.opcode == Opcode.DCP_STREAM_REQ:
            request = decode(frame)
            assert isinstance(request, StreamReq)
            return serve(peer, request)
        return None

    return Script(answer)


async def follow(script, **options):
    """Follow a script's first vbucket for ever; return what it gave and how it ended."""
    options = {"retrySeconds": 0.05, **options}
    found = []
    async with connect(script.url(**options)) as bucket, await bucket.stream(vbuckets=[0]) as stream:
        try:
            async for change in stream.changes():
                found.append(change.seqno)
        except (Unreachable, RemoteProtocolError) as error:
            return found, error


@in_loop
async def test_garbage_ends_a_stream_behind_what_came_before():
    def serve(peer, request):
        return accept(request) + marker(request, 1, 9) + mutations(request, 1, 2) + b"HTTP/1.1 400 Bad Request\r\n\r\n"

    async with producer(serve) as script:
        found, error = await follow(script)
        assert found == [1, 2]
        assert isinstance(error, RemoteProtocolError)
        assert str(error) == "first byte of a frame is 0x48, not a known magic"


@in_loop
async def test_a_rule_that_is_broken_ends_a_stream_behind_what_came_before():
    def serve(peer, request):
        peer.transport.write(accept(request) + marker(request, 1, 9) + mutations(request, 1, 2))
        peer.request = request
        return b""

    async with (
        producer(serve) as script,
        connect(script.url()) as bucket,
        await bucket.stream(vbuckets=[0]) as stream,
    ):
        changes = stream.changes()
        assert (await anext(changes)).seqno == 1
        peer = script.peers[-1]
        peer.transport.write(mutations(peer.request, 2))
        assert (await anext(changes)).seqno == 2
        with pytest.raises(RemoteProtocolError, match="vbucket 0: by_seqno 2 after 2"):
            await anext(changes)
        await peer.lost.wait()


@in_loop
async def test_half_a_frame_and_no_more_is_a_lost_connection():
    def serve(peer, request):
        seqno = request.start_seqno
        whole = accept(request) + marker(request, 0, 9) + mutations(request, seqno + 1)
        peer.transport.write(whole + mutation(request, seqno + 2)[:30])
        peer.transport.close()
        return b""

    async with producer(serve) as script:
        found = []
        async with connect(script.url()) as bucket, await bucket.stream(vbuckets=[0]) as stream:
            async for change in stream.changes():
                found.append(change.seqno)
                if len(found) == 5:
                    break
    assert found == [1, 2, 3, 4, 5]


@in_loop
async def test_a_peer_that_falls_silent_is_noticed_and_tried_again():
    """Silence, half a frame into a change, of twice the noop interval; then the rest comes on another connection."""

    def serve(peer, request):
        if request.start_seqno == 0:
            return accept(request) + marker(request, 1, 2) + mutations(request, 1) + mutation(request, 2)[:30]
        return accept(request) + marker(request, 1, 2) + mutations(request, 2)

    async with producer(serve) as script:
        loop, times = asyncio.get_running_loop(), []
        async with connect(script.url(noopInterval=1)) as bucket, await bucket.stream(vbuckets=[0]) as stream:
            async for change in stream.changes():
                times.append(loop.time())
                if change.seqno == 2:
                    break
    assert 1.9 < times[1] - times[0] < 3.5


@pytest.mark.parametrize(
    ("noop_interval", "seconds"),
    [(1, [2, 4, 8, 16, 24, 24]), (5, [10, 20, 24, 24]), (12, [24, 24]), (20, [40, 40, 40])],
)
def test_the_tolerated_silence_widens_with_each_timeout_up_to_a_bound(noop_interval, seconds):
    assert [tolerated_silence(noop_interval, timeouts) for timeouts in range(len(seconds))] == seconds
    assert tolerated_silence(noop_interval, 10**9) == seconds[-1]


@in_loop
async def test_a_peer_that_is_always_late_with_its_noops_keeps_its_second_connection():
    """Its first sign of life comes after 2.5 s, as it looks no more often, though 1 s was agreed on."""
    noop = DcpNoop().encode()

    def serve(peer, request):
        loop = asyncio.get_running_loop()
        loop.call_later(2.5, peer.transport.write, noop)
        loop.call_later(2.6, peer.transport.write, mutations(request, 1))
        return accept(request) + marker(request, 0, 9)

    async with producer(serve) as script:
        async with connect(script.url(noopInterval=1)) as bucket, await bucket.stream(vbuckets=[0]) as stream:
            assert (await anext(stream.changes())).seqno == 1
        streams = [peer for peer in script.peers if any(f.opcode == Opcode.DCP_STREAM_REQ for f in peer.requests)]
        assert len(streams) == 2


@in_loop
async def test_a_stream_request_without_an_answer_is_noticed_though_the_peer_lives():
    def serve(peer, request):
        return b""

    async with producer(serve) as script:
        _, error = await follow(script, operationTimeout=0.1)
        assert "a stream request without an answer for 0.1 s" in str(error)


@pytest.mark.parametrize("reason", [0, 1, 2, 6])
@in_loop
async def test_a_stream_that_always_ends_at_once_is_no_busy_loop(reason):
    """Though the other stream of the connection has something new each time."""
    asked = []

    def serve(peer, request):
        asked.append(request)
        if request.vbucket == 0:
            return accept(request) + end(request, reason)
        seqno = request.start_seqno + 1
        return accept(request) + marker(request, seqno, seqno) + mutations(request, seqno)

    async with (
        producer(serve) as script,
        connect(script.url(retrySeconds=0.4)) as bucket,
        await bucket.stream() as stream,
    ):
        with pytest.raises(Unreachable, match="vbucket 0: the producer ended the stream at 0"):
            [batch async for batch in stream]
    assert len(asked) < 30


@in_loop
async def test_a_refusal_that_never_mends_is_reported_though_other_streams_flow():
    def serve(peer, request):
        if request.vbucket == 0:
            return refuse(request, Status.ETMPFAIL)
        seqno = request.start_seqno + 1
        return accept(request) + marker(request, seqno, seqno) + mutations(request, seqno)

    async with (
        producer(serve) as script,
        connect(script.url(retrySeconds=0.4)) as bucket,
        await bucket.stream() as stream,
    ):
        with pytest.raises(Unreachable, match="vbucket 0: stream from 0 refused, ETMPFAIL"):
            [batch async for batch in stream]


@in_loop
async def test_a_producer_without_regard_for_flow_control_is_held_back():
    """128 MiB for a window of 64 KiB: what is in memory stays below the window and one read."""
    value, many = bytes(1 << 20), 128

    def serve(peer, request):
        peer.transport.write(accept(request) + marker(request, 1, many))
        for seqno in range(1, many + 1):
            peer.transport.write(mutation(request, seqno, value))
        return b""

    async with (
        producer(serve) as script,
        connect(script.url(flowControlBytes=65536)) as bucket,
        await bucket.stream("beginning", {0: many}) as stream,
    ):
        async for batch in stream:
            await bucket.stats()
            await bucket.stats()
            assert stream.queued_bytes < 65536 + (4 << 20)
            if batch["seqno"][-1].as_py() == many:
                break
        else:
            pytest.fail("the stream ended before its last change")
