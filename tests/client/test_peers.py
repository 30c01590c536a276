"""Streams from faulty peers: valid changes are delivered, then the peer is retried or reported."""

import asyncio
from dataclasses import replace

import pytest

from penstock import connect
from penstock.client.streams.stream_connection import tolerated_silence
from penstock.errors import OrderViolation, RemoteProtocolError, Unreachable
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import DcpNoop, StreamReq
from tests.client.peer import Script, in_loop
from tests.client.producer import accept, end, marker, mutation, mutations, refuse


def producer(serve):
    """Return a script that answers stream requests by `serve(peer, request)`, and other requests like a good node."""

    def answer(peer, frame):
        if frame.opcode == Opcode.DCP_STREAM_REQ:
            request = decode_frame(frame)
            assert isinstance(request, StreamReq)
            return serve(peer, request)
        return None

    return Script(answer)


async def follow(script, **options):
    """Follow vbucket 0 of a script until an error; return the received seqnos and the error."""
    options = {"retrySeconds": 0.05, **options}
    found = []
    async with connect(script.url(**options)) as bucket, await bucket.stream(vbuckets=[0]) as stream:
        try:
            async for change in stream.changes():
                found.append(change.seqno)
        except (Unreachable, RemoteProtocolError) as error:
            return found, error


@in_loop
async def test_garbage_ends_a_stream_after_its_valid_changes():
    def serve(peer, request):
        return accept(request) + marker(request, 1, 9) + mutations(request, 1, 2) + b"HTTP/1.1 400 Bad Request\r\n\r\n"

    async with producer(serve) as script:
        found, error = await follow(script)
        assert found == [1, 2]
        assert isinstance(error, RemoteProtocolError)
        assert str(error) == "first byte of a frame is 0x48, not a known magic"


VIOLATIONS = {
    "a change again": lambda r: marker(r, 1, 9) + mutations(r, 1, 2, 2),
    "a change behind its snapshot": lambda r: marker(r, 1, 2) + mutations(r, 1, 2, 3),
    "a snapshot below": lambda r: marker(r, 1, 2) + mutations(r, 1, 2) + marker(r, 2, 1),
    "another vbucket": lambda r: marker(r, 1, 9) + mutations(r, 1, 2) + mutations(replace(r, vbucket=1), 3),
    "an unknown opaque": lambda r: marker(r, 1, 9) + mutations(r, 1, 2) + mutations(replace(r, opaque=0), 3),
    "accepted twice": lambda r: marker(r, 1, 9) + mutations(r, 1, 2) + accept(r),
}


@pytest.mark.parametrize("name", VIOLATIONS)
@in_loop
async def test_broken_order_costs_a_connection_and_the_stream_resumes(name):
    asked = []

    def serve(peer, request):
        asked.append(request.start_seqno)
        if request.start_seqno == 0:
            return accept(request) + VIOLATIONS[name](request)
        return accept(request) + marker(request, 3, 3) + mutations(request, 3)

    async with (
        producer(serve) as script,
        connect(script.url()) as bucket,
        await bucket.stream(vbuckets=[0]) as stream,
    ):
        changes = stream.changes()
        assert [(await anext(changes)).seqno for _ in range(3)] == [1, 2, 3]
    assert asked == [0, 2]


@in_loop
async def test_producer_that_always_breaks_the_order_is_an_error(caplog):
    asked = []

    def serve(peer, request):
        asked.append(request.start_seqno)
        return accept(request) + marker(request, 1, 9) + (mutations(request, 1) if len(asked) == 1 else b"") + again

    again = mutations(StreamReq(opaque=7, start_seqno=0, end_seqno=0), 1)
    async with producer(serve) as script:
        found, error = await follow(script, retrySeconds=20)
    assert found == [1]
    assert asked == [0, 1, 1]
    assert isinstance(error, OrderViolation)
    assert str(error) == "vbucket 0: change under opaque 7, which no stream of this connection has had"
    assert [record.getMessage() for record in caplog.records] == [
        f"{script.url().partition('?')[0]} violated the order of its streams ({error}); reconnecting"
    ] * 2


@in_loop
async def test_bounded_read_of_changes_under_an_unknown_opaque_fails():
    def serve(peer, request):
        return accept(request) + b"".join(
            part(replace(request, opaque=4711))
            for part in (lambda r: marker(r, 1, 2), lambda r: mutations(r, 1, 2), end)
        )

    async with producer(serve) as script, connect(script.url()) as bucket:
        with pytest.raises(OrderViolation, match="under opaque 4711"):
            async with await bucket.stream("beginning", {0: 2}) as stream:
                assert not [batch async for batch in stream]


@in_loop
async def test_flush_during_a_stream_starts_a_new_history(caplog):
    """As in Couchbase 3.1.6: seqnos start again at 1 under the same vbuuid, without a message."""
    asked = []

    def serve(peer, request):
        asked.append(request.start_seqno)
        before = marker(request, 1, 41) + mutations(request, 41) if len(asked) == 1 else b""
        return accept(request) + before + marker(request, 1, 2) + mutations(request, 1, 2)

    async with (
        producer(serve) as script,
        connect(script.url()) as bucket,
        await bucket.stream(vbuckets=[0]) as stream,
    ):
        changes = stream.changes()
        found = [await anext(changes) for _ in range(4)]
    assert [(change.event, change.seqno, change.history) for change in found] == [
        ("mutation", 41, 0),
        ("rollback", 0, 1),
        ("mutation", 1, 1),
        ("mutation", 2, 1),
    ]
    assert asked == [0, 0]
    assert "snapshot 1..2 after seqno 41" in caplog.text


@in_loop
async def test_endless_flushes_are_an_error():
    def serve(peer, request):
        snapshot = marker(request, 1, 2) + mutations(request, 1, 2)
        return accept(request) + snapshot + snapshot

    async with producer(serve) as script:
        found, error = await follow(script, retrySeconds=20)
    assert found == [1, 2, 0, 1, 2, 0, 1, 2]
    assert isinstance(error, OrderViolation)


@pytest.mark.parametrize("opcode", [Opcode.HELLO, Opcode.SELECT_BUCKET, Opcode.GET_CLUSTER_CONFIG])
@in_loop
async def test_node_that_closes_a_new_connection_is_reported(opcode):
    """memcached 3.1.6 does so when a client requests a bucket that it does not have."""

    def hang_up(peer, frame):
        if frame.opcode != opcode:
            return None
        peer.transport.close()
        return b""

    async with Script(hang_up) as script:
        with pytest.raises(
            Unreachable, match=f"the connection ended before {opcode.name} was answered: the node closed it$"
        ):
            async with connect(script.url(retrySeconds=0.05)):
                pass


@in_loop
async def test_incomplete_frame_at_the_end_is_reported():
    def serve(peer, request):
        peer.transport.write(accept(request) + marker(request, 1, 9) + mutation(request, 1)[:30])
        peer.transport.close()
        return b""

    async with producer(serve) as script:
        found, error = await follow(script)
    assert not found
    assert "the node closed it after 30 of the 62 bytes of a frame" in str(error)


@in_loop
async def test_incomplete_frame_is_a_lost_connection():
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
async def test_silent_peer_is_noticed_and_retried():
    """After half a change, silence lasts twice the NOOP interval; then the rest comes on another connection."""

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
def test_tolerated_silence_grows_with_each_timeout_up_to_a_bound(noop_interval, seconds):
    assert [tolerated_silence(noop_interval, timeouts) for timeouts in range(len(seconds))] == seconds
    assert tolerated_silence(noop_interval, 10**9) == seconds[-1]


@pytest.mark.long
@in_loop
async def test_a_peer_that_is_always_late_with_its_noops_keeps_its_second_connection():
    """Its first NOOP comes after 2.5 s, since it checks no more often, although 1 s was agreed."""
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
async def test_unanswered_stream_request_is_noticed_on_a_live_connection():
    def serve(peer, request):
        return b""

    async with producer(serve) as script:
        _, error = await follow(script, operationTimeout=0.1)
        assert "a stream request without an answer for 0.1 s" in str(error)


@pytest.mark.parametrize("reason", [0, 1, 2, 6])
@in_loop
async def test_stream_that_always_ends_at_once_causes_no_busy_loop(reason):
    """The other stream of the connection has a new change each time."""
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
async def test_lasting_refusal_is_reported_while_other_streams_continue():
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
async def test_producer_that_ignores_flow_control_is_held_back():
    """128 MiB for a window of 64 KiB: the bytes in memory stay below the window plus one read."""
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
