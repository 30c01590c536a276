"""Servers whose frames are cut, changed, delayed, repeated, reordered or too long: a client ends with its own errors.

Each example is one conversation over real sockets. The client enters a bucket, requests documents and statistics, and
reads the changes in one of the dialects. For any answers, the client ends in bounded time, with a result or an Error.
It leaves no task and no connection behind, and its memory stays within its limits.
"""

import asyncio
import tracemalloc
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock import connect
from penstock.errors import Error
from penstock.wire.codec.constants import Dialect, Feature
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Opcode, UprOpcode
from penstock.wire.messages.dcp import StreamReq
from penstock.wire.messages.kv import pack_features, pack_vb_seqnos
from penstock.wire.messages.upr import UprStreamReq
from tests.client.peer import Script, reply, stats_reply
from tests.client.producer import LOG, accept, end, marker, mutations, noop
from tests.client.test_tap_feed import begin, close
from tests.client.test_tap_feed import mutations as tap_mutations
from tests.client.test_tap_peers import UPR
from tests.examples import scaled
from tests.patience import PATIENCE
from tests.waiting import pass_turns

LIMITS = {"connectTimeout": 0.3, "operationTimeout": 0.3, "retrySeconds": 0.3, "noopInterval": 1}
LOST_AFTER = 1.0
MOST_BYTES = 64 << 20
MANY = 40

# A correct node, for a few calls


def dcp(peer, frame):
    if frame.opcode != Opcode.DCP_STREAM_REQ:
        return None
    request = decode_frame(frame)
    assert isinstance(request, StreamReq)
    first = request.start_seqno
    data = accept(request) + noop(7)
    if first < MANY:
        data += marker(request, first, MANY) + mutations(request, *range(first + 1, MANY + 1))
    return data + end(request)


def upr(peer, frame):
    if frame.opcode == UprOpcode.UPR_GET_FAILOVER_LOG:
        return UPR.log(decode_frame(frame, Dialect.UPR), LOG)
    if frame.opcode == UprOpcode.UPR_STREAM_REQ:
        request = decode_frame(frame, Dialect.UPR)
        assert isinstance(request, UprStreamReq)
        seqnos = range(request.start_seqno + 1, MANY + 1)
        return UPR.accept(request) + UPR.snapshot(request, *seqnos) + UPR.end(request)
    return None


def tap(peer, frame):
    if frame.opcode != Opcode.TAP_CONNECT:
        return b"" if Opcode.TAP_MUTATION <= frame.opcode <= Opcode.TAP_CHECKPOINT_END else None
    asyncio.get_running_loop().call_later(0.05, peer.transport.close)
    return b"".join(begin(vb) + tap_mutations(vb, MANY) + close(vb) for vb in range(2))


PRODUCERS = {"dcp": dcp, "upr": upr, "tap": tap}


def statistics(frame):
    """Return the statistics of a node that has the streams' documents, or None for any other group."""
    if frame.key == b"vbucket-details":
        named = {f"vb_{vb}:num_items": MANY for vb in range(2)}
        return stats_reply(frame, {f"vb_{vb}": "active" for vb in range(2)} | named)
    if frame.key == b"vbucket-seqno":
        names = ("high_seqno", "purge_seqno", "uuid")
        return stats_reply(frame, {f"vb_{vb}:{name}": MANY for vb in range(2) for name in names})
    return None


def make_correct_answer(protocol):
    def answer(peer, frame):
        if frame.opcode == Opcode.HELLO:
            return reply(frame, value=pack_features([Feature.SELECT_BUCKET, Feature.XERROR, Feature.JSON]))
        if frame.opcode == Opcode.GET_ALL_VB_SEQNOS:
            return reply(frame, value=pack_vb_seqnos((vb, MANY) for vb in range(2)))
        found = statistics(frame) if frame.opcode == Opcode.STAT else None
        return PRODUCERS[protocol](peer, frame) if found is None else found

    return answer


# Changes to answers

CHANGES = ["cut", "flip", "grow", "repeat", "insert", "late", "swap", "none", "hang up", "huge body", "endless"]


@dataclass
class Hostility:
    """Changes some of the answers of a script.

    Attributes:
        plan: number of the answer, from 0 -> (one of CHANGES, the place of the change, a byte for it).
        has_noop: whether the dialect has NOOPs. Without them, nothing distinguishes a producer that stops within a
            stream from a slow one until its connection ends.
        script: gives the default answers.
        count: number of answers so far.
        held: bytes of an answer that will be sent after the next one.
    """

    plan: dict[int, tuple[str, int, int]]
    has_noop: bool
    script: Script = field(init=False)
    count: int = 0
    held: bytes = b""

    def answer(self, peer, frame, answer):
        data = self.script.set_up(frame) if answer is None else answer
        if not data:
            return b""
        change, place, byte = self.plan.get(self.count, ("", 0, 0))
        self.count += 1
        if change and not self.has_noop:
            asyncio.get_running_loop().call_later(LOST_AFTER, peer.transport.close)
        if change != "swap":
            data, self.held = data + self.held, b""
        return self.changed(peer, change, bytearray(data), place, byte)

    def changed(self, peer, change, data, place, byte):
        at = place % len(data)
        match change:
            case "cut":
                return bytes(data[:at])
            case "flip":
                data[at] ^= byte or 1
            case "grow":
                data[at:at] = bytes([byte]) * (place * 7 % 500 + 1)
            case "repeat":
                data *= 2 + byte % 3
            case "insert":
                data[at:at] = bytes([byte, 0xFF, byte]) * 9
            case "late":
                asyncio.get_running_loop().call_later(byte / 500, write, peer, bytes(data))
                return b""
            case "swap":
                self.held = bytes(data)
                return b""
            case "none":
                return b""
            case "hang up":
                write(peer, bytes(data[:at]))
                peer.transport.close()
                return b""
            case "huge body":
                data[8:12] = b"\x7f\xff\xff\xff"
            case "endless":
                data = bytes(data) * (2000 // (len(data) // 100 + 1))
        return bytes(data)


def write(peer, data):
    if not peer.transport.is_closing():
        peer.transport.write(data)


async def talk(protocol, plan):
    """Return the number of received changes, and the error that ended the conversation, or None."""
    hostility = Hostility(plan, has_noop=protocol == "dcp")
    producer = make_correct_answer(protocol)
    count = 0
    async with Script(lambda peer, frame: hostility.answer(peer, frame, producer(peer, frame))) as script:
        hostility.script = script
        try:
            async with connect(script.url(protocol=protocol, **LIMITS)) as bucket:
                await bucket.get("k")
                await bucket.upsert("k", b"v")
                await bucket.stats()
                async with await bucket.stream(stop="now") as stream:
                    async for batch in stream:
                        count += batch.num_rows
                        assert stream.queued_bytes < MOST_BYTES
                        if count > 100 * MANY:
                            break
        except (Error, OSError) as error:
            return count, error
    return count, None


def converse(protocol, plan):
    async def bounded():
        async with asyncio.timeout(PATIENCE):
            found = await talk(protocol, plan)
        await pass_turns()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return found

    return asyncio.run(bounded())


@pytest.mark.parametrize("protocol", PRODUCERS)
def test_correct_server_delivers_everything(protocol):
    assert converse(protocol, {}) == (2 * MANY, None)


plans = st.dictionaries(
    st.integers(0, 30),
    st.tuples(st.sampled_from(CHANGES), st.integers(0, 4000), st.integers(0, 255)),
    min_size=1,
    max_size=4,
)
quick = settings(max_examples=scaled(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
thorough = settings(max_examples=1_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("protocol", PRODUCERS)
@given(plan=plans)
@example(plan={0: ("huge body", 0, 0)})
@example(plan={7: ("endless", 0, 0)})
@quick
def test_hostile_server_ends_in_an_error_or_an_answer(protocol, plan):
    converse(protocol, plan)


@pytest.mark.soak
@pytest.mark.parametrize("protocol", PRODUCERS)
@given(plan=plans)
@thorough
def test_many_hostile_servers_end_in_an_error_or_an_answer(protocol, plan):
    converse(protocol, plan)


def test_announced_body_uses_no_memory_before_it_arrives():
    """A frame of 2 GiB is refused when its header arrives."""
    tracemalloc.start()
    try:
        converse("dcp", {4: ("huge body", 0, 0)})
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
