"""Refused messages of a relay: they stop the vbucket and are named. Values without the datatypes that were granted."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from penstock import Node, connect
from penstock.client.cluster import copy_check
from penstock.client.cluster.copy_check import check_takeovers, compare_copies
from penstock.client.connect.address import parse_address
from penstock.client.relays.frame_relay import FrameRelay
from penstock.client.relays.limited_frames import limit_frame, limit_run
from penstock.client.relays.refused_messages import MessageRefused
from penstock.client.replication.node_control import NodeControl, read_copied_seqnos
from penstock.client.replication.replicator import ReplicationOptions, Replicator
from penstock.errors import UnsupportedServer, UsageError
from penstock.wire.codec.constants import Dialect, VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Frame, cut_frame, join_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import Mutation, Prepare, SetVbucketState, StreamEnd, StreamReq
from penstock.wire.messages.tap import TapMutation
from penstock.wire.protocol.frame_receiver import FrameReceiver, Slab
from penstock.wire.values.snappy import deflate
from tests.client.old_server import COUCHBASE_2_5, COUCHBASE_3_1, OldServer, Release, reply
from tests.client.peer import documents, in_loop
from tests.client.test_frame_relay import connect_peers
from tests.waiting import pass_turns

LONG = b'{"text": "%s"}' % (b"abc" * 100)
PACKED = deflate(LONG)
BOTH, JSON = Datatype.JSON | Datatype.SNAPPY, Datatype.JSON


def cut_run(messages, dialect):
    """Return the one run of some data messages."""
    (run,) = FrameReceiver(Slab(), run_dialect=dialect).feed(b"".join(message.encode() for message in messages))
    return run


def make_mutation(number, value, datatype):
    return Mutation(vbucket=1, opaque=9, key=b"k%d" % number, value=value, datatype=datatype, by_seqno=number)


def make_tap_mutation(number, value, datatype):
    return TapMutation(vbucket=1, opaque=9, key=b"k%d" % number, value=value, datatype=datatype)


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize(
    ("make", "dialect"), [(make_mutation, Dialect.DCP), (make_tap_mutation, Dialect.TAP)], ids=["dcp", "tap"]
)
@pytest.mark.parametrize(
    ("granted", "value", "datatype"),
    [(BOTH, PACKED, BOTH), (JSON, LONG, JSON), (Datatype(0), LONG, 0), (Datatype.SNAPPY, PACKED, Datatype.SNAPPY)],
)
def test_values_of_a_run_have_the_granted_datatypes_only(make, dialect, count, granted, value, datatype):
    kinds = [(PACKED, BOTH) if number % 3 else (b"plain", 0) for number in range(1, count + 1)]
    messages = [make(number, *kind) for number, kind in enumerate(kinds, 1)]
    expected = [
        replace(message, value=value, datatype=int(datatype)) if message.datatype else message for message in messages
    ]
    assert limit_run(cut_run(messages, dialect), granted) == b"".join(message.encode() for message in expected)


def test_message_that_stands_alone_is_limited_too():
    prepare = Prepare(vbucket=1, key=b"k", value=PACKED, datatype=BOTH, by_seqno=1, durability=1)
    frame = cut_frame(memoryview(prepare.encode()), 0)
    assert limit_frame(frame, BOTH) is frame
    limited = limit_frame(frame, Datatype(0))
    assert (limited.value, limited.datatype) == (LONG, 0)


def refuse(opcode, opaque, status=Status.EINVAL):
    return join_frame(Frame(Magic.RESPONSE, opcode, status, opaque=opaque, value=b"why"))


KINDS = [
    Opcode.DCP_MUTATION,
    Opcode.DCP_DELETION,
    Opcode.DCP_EXPIRATION,
    Opcode.DCP_SNAPSHOT_MARKER,
    Opcode.DCP_SET_VBUCKET_STATE,
    Opcode.DCP_SYSTEM_EVENT,
    Opcode.DCP_SEQNO_ADVANCED,
    Opcode.DCP_PREPARE,
    Opcode.DCP_COMMIT,
    Opcode.DCP_ABORT,
]


@pytest.mark.parametrize("opcode", KINDS, ids=[kind.name for kind in KINDS])
@in_loop
async def test_refused_message_names_its_vbucket(opcode):
    source, target = await connect_peers()
    refused: dict[int, MessageRefused] = {}
    relay = FrameRelay(source.link, target.link, lambda frame: None, on_refused=refused.__setitem__)
    stream: dict[str, Any] = {"start_seqno": 0, "end_seqno": 9, "vbuuid": 0, "snap_start": 0, "snap_end": 0}
    for vbucket, opaque in ((7, 70), (8, 80)):
        target.writer.write(StreamReq(vbucket=vbucket, opaque=opaque, **stream).encode())
    target.writer.write(refuse(opcode, 80))
    answer = refuse(opcode, 80)
    size = 2 * len(StreamReq(**stream).encode()) + len(answer)
    assert (await source.reader.readexactly(size)).endswith(answer)
    assert [*refused] == [8]
    expected = rf"^vbucket 8: {target.link.peer} refused {opcode.name} with EINVAL \(why\), so its copy is incomplete$"
    with pytest.raises(MessageRefused, match=expected):
        raise refused[8]
    await relay.close()
    await asyncio.gather(source.close(), target.close())


@in_loop
async def test_messages_behind_the_end_of_a_stream_may_be_refused():
    source, target = await connect_peers()
    refused: dict[int, MessageRefused] = {}
    relay = FrameRelay(source.link, target.link, lambda frame: None, on_refused=refused.__setitem__)
    request = StreamReq(vbucket=7, opaque=70, start_seqno=0, end_seqno=9, vbuuid=0, snap_start=0, snap_end=0).encode()
    target.writer.write(request)
    await source.reader.readexactly(len(request))
    end = StreamEnd(vbucket=7, opaque=70, reason=2).encode()
    source.writer.write(end)
    await target.reader.readexactly(len(end))
    late = refuse(Opcode.DCP_MUTATION, 70, Status.KEY_ENOENT)
    target.writer.write(late)
    assert await source.reader.readexactly(len(late)) == late
    assert not refused
    await relay.close()
    await asyncio.gather(source.close(), target.close())


@in_loop
async def test_refused_message_of_tap_ends_the_relay_and_a_delay_does_not():
    source, target = await connect_peers()
    relay = FrameRelay(source.link, target.link, lambda frame: None, dialect=Dialect.TAP)
    delay = refuse(Opcode.TAP_MUTATION, 5, Status.ETMPFAIL)
    target.writer.write(delay)
    assert await source.reader.readexactly(len(delay)) == delay
    target.writer.write(refuse(Opcode.TAP_MUTATION, 6))
    reason = await relay.wait_closed()
    assert isinstance(reason, MessageRefused)
    assert "refused TAP_MUTATION with EINVAL" in str(reason)
    await asyncio.gather(source.close(), target.close())


def encode_state(state):
    return SetVbucketState(vbucket=7, opaque=70, state=state).encode()


@pytest.mark.parametrize(
    "failure",
    [None, UsageError("it lacks documents"), ZeroDivisionError("a fault")],
    ids=["equal", "incomplete", "fault"],
)
@in_loop
async def test_takeover_is_passed_on_after_its_check_only(failure):
    source, target = await connect_peers()
    begun, result = (asyncio.get_running_loop().create_future() for _ in range(2))

    async def check(vbucket):
        begun.set_result(vbucket)
        await result

    relay = FrameRelay(source.link, target.link, lambda frame: None, before_takeover=check)
    pending, active = encode_state(VbucketState.PENDING), encode_state(VbucketState.ACTIVE)
    end = StreamEnd(vbucket=7, opaque=70, reason=0).encode()
    source.writer.write(pending + active + end)
    assert await begun == 7
    assert await target.reader.readexactly(len(pending)) == pending
    await pass_turns(100)
    assert target.reader.at_eof() is False
    if failure is None:
        result.set_result(None)
        assert await target.reader.readexactly(len(active + end)) == active + end
        await relay.close()
    else:
        result.set_exception(failure)
        assert str(failure) in str(await relay.wait_closed())
        assert await target.reader.read() == b""
    await asyncio.gather(source.close(), target.close())


@pytest.fixture(scope="module")
def node():
    with Node.running(["beer"], vbuckets=4) as node:
        yield node


@pytest.mark.parametrize("protocol", [Dialect.DCP, Dialect.UPR, Dialect.TAP])
@in_loop
async def test_replication_names_a_refused_change_and_ends(node, protocol):
    """The target drops the refused change, and counts the seqnos behind it, as other servers do."""

    def refuse_one(server, frame):
        # In TAP, other bytes stand in front of the key.
        return reply(frame, Status.EINVAL) if b"k7" in frame.key + frame.value else None

    opcode = Opcode.TAP_MUTATION if protocol is Dialect.TAP else Opcode.DCP_MUTATION
    with Node.running(["beer"], vbuckets=4) as source, OldServer(node, Release({opcode: refuse_one})) as server:
        async with connect(source.url("beer")) as bucket:
            await bucket.upsert_many(documents(0, 40))
        options = ReplicationOptions(until_caught_up=True, protocol=protocol, overwrite=True)
        addresses = parse_address(source.url("beer")), parse_address(server.url())
        with pytest.raises(MessageRefused, match=f"refused {opcode.name} with EINVAL"):
            async with Replicator(*addresses, options) as replicator:
                await replicator.run()


@in_loop
async def test_copy_with_fewer_documents_is_not_taken_over(node, monkeypatch):
    monkeypatch.setattr(copy_check, "_PATIENCE", 0.0)
    with Node.running(["beer"], vbuckets=4) as source:
        async with (
            NodeControl(parse_address(source.url("beer"))) as old,
            NodeControl(parse_address(node.url("beer"))) as new,
        ):
            await new.set_states([2], VbucketState.DEAD)
            await new.delete_vbuckets([2])
            await new.set_states([2], VbucketState.PENDING)
            await compare_copies(2, old, new)
            async with connect(source.url("beer")) as bucket:
                await bucket.upsert_many(documents(0, 40))
            await old.set_states([2], VbucketState.DEAD)
            with pytest.raises(UsageError, match=r"^vbucket 2 has 0 documents at \S+, expected 1\d as at"):
                await compare_copies(2, old, new)


@pytest.mark.parametrize("group", ["vbucket-seqno", "vbucket-details"])
@in_loop
async def test_statistics_of_a_dead_vbucket_are_read_among_all(node, group):
    """kv_engine answers NOT_MY_VBUCKET to STAT vbucket-seqno of a dead vbucket."""

    def refuse_single(server, frame):
        return reply(frame, Status.NOT_MY_VBUCKET) if frame.key == f"{group} 1".encode() else None

    with OldServer(node, Release({Opcode.STAT: refuse_single})) as server:
        async with NodeControl(parse_address(server.url())) as control:
            found = await control.read_vbucket_stats(group, 1)
            assert found["vb_1:high_seqno"] == (await control.read_stats(group))["vb_1:high_seqno"]
        assert len(server.find_requests(Opcode.STAT)) == 3


@in_loop
async def test_seqno_of_a_copy_is_that_of_its_newest_change(node):
    """high_seqno of a replica is the end of its open snapshot on other servers."""
    stats = {"vb_0:high_seqno": "90", "vb_0:abs_high_seqno": "7", "vb_1:high_seqno": "5"}
    with OldServer(node, Release(stats={"vbucket-seqno": stats})) as server:
        async with NodeControl(parse_address(server.url())) as control:
            assert await read_copied_seqnos(control) == {0: 7, 1: 5}


@pytest.mark.parametrize(
    ("release", "has_dcp"), [(COUCHBASE_2_5, False), (COUCHBASE_3_1, True)], ids=["2.5.1", "3.1.6"]
)
@in_loop
async def test_move_needs_dcp_and_names_no_option_that_it_lacks(node, release, has_dcp):
    with OldServer(node, release) as server:
        async with NodeControl(parse_address(server.url())) as control:
            if has_dcp:
                await check_takeovers(control)
                return
            with pytest.raises(UnsupportedServer, match=r"is Couchbase 2.5.1, which has no DCP to move") as caught:
                await check_takeovers(control)
            assert "protocol=tap" not in str(caught.value)
