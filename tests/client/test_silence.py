"""Silence after half a frame or instead of a reply: noticed within the operation timeout, also during other traffic."""

import asyncio
import re

import pytest

from penstock import connect
from penstock.errors import Unreachable
from penstock.wire.codec.constants import Dialect, Feature
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Opcode, UprOpcode
from penstock.wire.messages.dcp import StreamReq
from penstock.wire.messages.kv import pack_features
from penstock.wire.messages.sasl import SaslAuth, SaslListMechs
from penstock.wire.messages.upr import UprStreamReq
from tests.client.peer import Script, in_loop, reply, stats_reply
from tests.client.producer import LOG, accept, marker, mutation, mutations, noop
from tests.client.test_tap_feed import begin
from tests.client.test_tap_feed import mutations as tap_mutations
from tests.client.test_tap_peers import UPR, tap
from tests.patience import PATIENCE

TIMES = {"operationTimeout": 0.3, "connectTimeout": 0.3, "retrySeconds": 0.05, "noopInterval": 60}
"""The NOOP interval is much longer than the other times."""

HALF = {"nothing": 0, "half a header": 11, "half a body": 27}


def cut(answer, size):
    """Return the first `size` bytes of an answer; of an answer without a body, a part of its header."""
    return answer[: min(size, len(answer) - 1)]


def make_halting_script(opcode, size, features=()):
    """Return a script that answers like a good node, but sends only half an answer to one opcode."""

    def answer(peer, frame):
        if frame.opcode == Opcode.HELLO and opcode != Opcode.HELLO:
            return reply(frame, value=pack_features([Feature.SELECT_BUCKET, *features]))
        if frame.opcode == SaslListMechs.opcode and opcode != SaslListMechs.opcode:
            return reply(frame, value=b"PLAIN")
        return cut(reply(frame, value=b"0123456789ABCDEF"), size) if frame.opcode == opcode else None

    return Script(answer, vbuckets=1)


STEPS = [
    Opcode.HELLO,
    SaslListMechs.opcode,
    SaslAuth.opcode,
    Opcode.SELECT_BUCKET,
    Opcode.GET_CLUSTER_CONFIG,
    Opcode.DCP_OPEN,
    Opcode.DCP_CONTROL,
    Opcode.DCP_STREAM_REQ,
]


async def find_unnoticed(call, opcodes, text):
    """Wait for incomplete answers to each opcode, all at the same time; return the waits without the expected error.

    Args:
        call: `call(opcode, size)` waits for an answer of which only `size` bytes arrive.
        opcodes: opcodes to try, each with every size in HALF.
        text: pattern that must occur in the error.
    """
    rows = [(opcode, half) for opcode in opcodes for half in HALF]
    found = await asyncio.gather(*(call(opcode, HALF[half]) for opcode, half in rows), return_exceptions=True)
    return [
        (opcode.name, half, end)
        for (opcode, half), end in zip(rows, found, strict=True)
        if not isinstance(end, Unreachable) or not re.search(text, str(end))
    ]


@in_loop
async def test_incomplete_answer_is_noticed_in_each_step_of_a_stream():
    async def follow(opcode, size):
        async with (
            make_halting_script(opcode, size) as script,
            connect(script.url(**TIMES), username="u", password="p") as bucket,
            await bucket.stream() as stream,
        ):
            return await anext(stream.changes())

    assert await find_unnoticed(follow, STEPS, r"(within|for) 0\.3 s") == []


CALLS = {
    Opcode.GET: lambda bucket: bucket.get("k"),
    Opcode.SET: lambda bucket: bucket.upsert("k", b"v"),
    Opcode.STAT: lambda bucket: bucket.stats(),
    Opcode.GET_ALL_VB_SEQNOS: lambda bucket: bucket.high_seqnos(),
    Opcode.GET_FAILOVER_LOG: lambda bucket: bucket.failover_logs([0]),
}


@in_loop
async def test_incomplete_answer_to_a_request_is_noticed():
    async def ask(opcode, size):
        url = {**TIMES, "connectTimeout": PATIENCE}
        async with make_halting_script(opcode, size) as script, connect(script.url(**url)) as bucket:
            return await CALLS[opcode](bucket)

    assert await find_unnoticed(ask, CALLS, r"no answer within 0\.3 s") == []


@in_loop
async def test_statistics_without_an_end_are_noticed():
    def answer(peer, frame):
        return stats_reply(frame, {"a": "1"})[:-24] if frame.opcode == Opcode.STAT else None

    async with Script(answer) as script, connect(script.url(**TIMES)) as bucket:
        with pytest.raises(Unreachable, match=r"STAT: no answer within 0\.3 s"):
            await bucket.stats()


@in_loop
async def test_incomplete_tls_handshake_is_noticed():
    """A listener accepts the first TLS message, and sends a part of an answer."""

    def hello(reader, writer):
        writer.write(b"\x16\x03\x03\x00\x7a\x02\x00")
        writers.append(writer)

    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(hello, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable, match=r"no connection to 127\.0\.0\.1:\d+ within 0\.3 s"):
            async with connect(
                f"couchbases://127.0.0.1:{port}/beer?connectTimeout=0.3&retrySeconds=0.05&tlsVerify=none"
            ):
                pass
        for writer in writers:
            writer.transport.abort()


def dcp(peer, frame):
    if frame.opcode != Opcode.DCP_STREAM_REQ:
        return None
    request = decode_frame(frame)
    assert isinstance(request, StreamReq)
    first = mutations(request, 1) if request.start_seqno == 0 else b""
    return accept(request) + marker(request, 0, 9) + first + mutation(request, 2)[:40]


def upr(peer, frame):
    """Answer as a UPR producer: the log is requested before the stream request, and once more after it."""
    if frame.opcode == UprOpcode.UPR_GET_FAILOVER_LOG:
        half = UPR.mutations(peer.request, 2)[:-20] if hasattr(peer, "request") else b""
        return UPR.log(decode_frame(frame, Dialect.UPR), LOG) + half
    if frame.opcode == UprOpcode.UPR_STREAM_REQ:
        request = peer.request = decode_frame(frame, Dialect.UPR)
        assert isinstance(request, UprStreamReq)
        first = UPR.mutations(request, 1) if request.start_seqno == 0 else b""
        return UPR.accept(request) + UPR.snapshot_start(request) + first
    return None


@pytest.mark.parametrize(
    ("protocol", "script"),
    [
        ("dcp", lambda: Script(dcp)),
        ("upr", lambda: Script(upr)),
        ("tap", lambda: tap(lambda peer: (begin(0) + tap_mutations(0, 2))[:-10])),
    ],
)
@in_loop
async def test_incomplete_change_is_noticed(protocol, script):
    """The first change is delivered, and the wait for the second change ends."""
    found: list[int] = []
    async with (
        script() as peers,
        connect(peers.url(protocol=protocol, **TIMES)) as bucket,
        await bucket.stream(vbuckets=[0]) as stream,
    ):
        with pytest.raises(Unreachable, match=r"nothing for 0\.3 s after \d+ of the \d+ bytes of a frame"):
            await collect(stream, found)
    assert len(found) >= 1


@in_loop
async def test_unanswered_stream_is_noticed_while_others_continue():
    """It costs the connection, and after the limit the stream. The other stream has changes all the time."""

    def answer(peer, frame):
        if frame.opcode == Opcode.DCP_STREAM_REQ:
            request = decode_frame(frame)
            assert isinstance(request, StreamReq)
            if request.vbucket == 1:
                return b""
            peer.request, peer.seqno = request, request.start_seqno
            return accept(request) + noop(7)
        if frame.opcode == Opcode.DCP_NOOP:
            peer.seqno += 1
            loop = asyncio.get_running_loop()
            first = 0 if peer.seqno == 1 else peer.seqno
            data = marker(peer.request, first, peer.seqno) + mutations(peer.request, peer.seqno) + noop(7)
            loop.call_later(0.01, peer.transport.write, data)
            return b""
        return None

    found: list[int] = []
    async with (
        Script(answer) as script,
        connect(script.url(**TIMES | {"retrySeconds": 0.5})) as bucket,
        await bucket.stream() as stream,
    ):
        with pytest.raises(Unreachable, match=r"a stream request without an answer for 0\.3 s"):
            await collect(stream, found)
    assert found == [*range(1, len(found) + 1)]
    assert len(found) > 10


async def collect(stream, found):
    async for change in stream.changes():
        found.append(change.seqno)


@in_loop
async def test_closing_does_not_wait_for_the_peer():
    """The peer has sent half a frame, and reads no more bytes."""
    async with Script(dcp) as script:
        bucket = connect(script.url(**TIMES))
        await bucket.connect()
        stream = await bucket.stream(vbuckets=[0])
        assert await stream.next_delivery() is not None
        for peer in script.peers:
            peer.transport.pause_reading()
        await stream.close()
        await bucket.close()
        assert await stream.next_delivery() is None
