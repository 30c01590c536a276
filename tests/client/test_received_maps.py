"""Cluster maps that nodes send without a request for them: pushes, and the bodies of NOT_MY_VBUCKET."""

import asyncio
import json

import pytest

from penstock import connect
from penstock.client.connect.cluster_map import ClusterMap
from penstock.client.connect.dropped_frames import DropReason
from penstock.client.connect.received_maps import ReceivedMap
from penstock.client.documents.document import compute_vbucket
from penstock.client.streams import stream_recovery
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.frame import Frame, join_frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode, ServerOpcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.cluster import ClustermapChanged, OldClustermapChanged
from penstock.wire.messages.dcp import StreamReq
from penstock.wire.messages.kv import pack_features
from tests.client.peer import Script, in_loop, reply
from tests.client.producer import accept, end, marker, mutation, mutations
from tests.client.test_nodes import config
from tests.waiting import pass_turns

_SERVED_REVISION = 7


NOTIFYING = [Feature.DUPLEX, Feature.CLUSTERMAP_CHANGE_NOTIFICATION]


def make_map(*scripts, owners, rev=_SERVED_REVISION, **others):
    return config([f"127.0.0.1:{script.port}" for script in scripts], owners, rev=rev, **others)


def serve_map(*scripts, owners, rev=_SERVED_REVISION):
    for script in scripts:
        script.config = json.loads(make_map(*scripts, owners=owners, rev=rev))


def count_requests(opcode, *scripts):
    return sum(frame.opcode == opcode for each in scripts for peer in each.peers for frame in peer.requests)


def notifying(answer):
    """Return the answers of a producer that grants pushed maps; `answer` is called with each stream request."""

    def produce(peer, frame):
        if frame.opcode == Opcode.HELLO:
            return reply(frame, value=pack_features(NOTIFYING))
        if frame.opcode != Opcode.DCP_STREAM_REQ:
            return None
        request = decode_frame(frame)
        assert isinstance(request, StreamReq)
        return answer(peer, request)

    return produce


def push(value=b"", key=b"beer", epoch=0, revision=_SERVED_REVISION + 1):
    return ClustermapChanged(key=key, epoch=epoch, revision=revision, value=value).encode()


# Real nodes


@in_loop
async def test_client_follows_a_move_that_a_node_pushes(penstock_cluster):
    """No request fails after the move, so only a push can show it to the client."""
    cluster = await asyncio.to_thread(penstock_cluster, 2, vbuckets=4)
    async with connect(cluster.bucket.url) as bucket:
        owner = (await bucket.cluster()).owners[0]
        await asyncio.to_thread(cluster.bucket.move, 0, 1 - owner)
        while (await bucket.cluster()).owners[0] == owner:
            await pass_turns()


# Scripted nodes


@pytest.mark.parametrize("is_old", [False, True])
@in_loop
async def test_pushed_map_is_used_without_a_request(is_old):
    pushed: list[bytes] = []

    def answer(peer, frame):
        if frame.opcode == Opcode.HELLO:
            return reply(frame, value=frame.value)  # everything is granted
        return b"".join(pushed) + script.set_up(frame) if frame.opcode == Opcode.STAT else None

    async with Script(answer) as script, Script() as other:
        serve_map(script, other, owners=[0, 0])
        async with connect(script.url()) as bucket:
            moved = make_map(script, other, owners=[0, 1], rev=8, name="beer")
            old = make_map(script, other, owners=[1, 1], rev=6)
            kind = OldClustermapChanged(key=b"beer", revision=8, value=moved).encode() if is_old else push(moved)
            pushed += [kind, push(old, revision=6), push(make_map(script, other, owners=[1, 0], rev=9), key=b"wine")]
            await bucket.stats()
            assert (await bucket.cluster()).owners == (0, 1)
            assert bucket.dropped == {DropReason.PUSHED: 1}  # that of another bucket
            assert count_requests(Opcode.GET_CLUSTER_CONFIG, script) == 1


@in_loop
async def test_pushed_version_leads_to_one_request():
    pushed: list[bytes] = []
    async with Script(lambda peer, frame: None) as script:
        script.answer = lambda peer, frame: (
            b"".join(pushed) + script.set_up(frame) if frame.opcode == Opcode.STAT else None
        )
        serve_map(script, owners=[0, 0])
        async with connect(script.url()) as bucket:
            pushed += [push(revision=_SERVED_REVISION), push(epoch=2**64 - 1, revision=99)]  # known, older epoch
            await bucket.stats()
            await bucket.stats()
            assert count_requests(Opcode.GET_CLUSTER_CONFIG, script) == 1
            serve_map(script, owners=[0, 0], rev=8)
            pushed[:] = [push(revision=8)]
            await bucket.stats()
            assert (await bucket.cluster()).version == (0, 8)
            await bucket.stats()
            await bucket.stats()
            assert count_requests(Opcode.GET_CLUSTER_CONFIG, script) == 2


GARBAGE = [
    push(b"["),
    push(b"[" * 100_000),
    push(config(["a:1", "b:2"], [2], rev=8)),
    push(config(["a:1"], [0] * 3, rev=8, name="wine")),
    OldClustermapChanged(key=b"beer", revision=8).encode(),
    join_frame(Frame(Magic.SERVER_REQUEST, ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION, key=b"beer", extras=b"123")),
    join_frame(Frame(Magic.SERVER_REQUEST, 0x02, value=b"?")),
    join_frame(Frame(Magic.SERVER_REQUEST, 0xEE, extras=b"1", key=b"\xff", value=b"?")),
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
@in_loop
async def test_server_requests_of_no_use_are_ignored(garbage):
    async with Script(lambda peer, frame: None) as script:
        script.answer = lambda peer, frame: garbage + script.set_up(frame) if frame.opcode == Opcode.STAT else None
        serve_map(script, owners=[0, 0])
        async with connect(script.url()) as bucket:
            known = await bucket.cluster()
            await bucket.stats()
            await bucket.stats()
            assert bucket.dropped == {DropReason.PUSHED: 2}
            assert await bucket.cluster() == known


@in_loop
async def test_unreadable_push_is_logged_once(caplog):
    async with Script(lambda peer, frame: None) as script:
        script.answer = lambda peer, frame: push(b"[") + script.set_up(frame) if frame.opcode == Opcode.STAT else None
        async with connect(script.url()) as bucket:
            for _ in range(3):
                await bucket.stats()
            (line,) = caplog.messages
            assert f"127.0.0.1:{script.port} sent a cluster map that is ignored: cluster map of 1 bytes" in line


@in_loop
async def test_stream_goes_to_the_node_of_a_pushed_map_without_a_request():
    @notifying
    def produce(peer, request):
        start = request.start_seqno
        data = accept(request) + marker(request, start, start + 1) + mutations(request, start + 1)
        moved = push(make_map(one, two, owners=[1], rev=8))
        return data if start else data + moved + end(request, 2)

    async with Script(produce, vbuckets=1) as one, Script(produce, vbuckets=1) as two:
        serve_map(one, two, owners=[0])
        async with connect(one.url()) as bucket, await bucket.stream() as stream:
            changes = stream.changes()
            before = count_requests(Opcode.GET_CLUSTER_CONFIG, one)
            assert [(await anext(changes)).seqno for _ in range(2)] == [1, 2]
            assert count_requests(Opcode.GET_CLUSTER_CONFIG, one) == before + 1  # by the stream's first connection
            assert count_requests(Opcode.DCP_STREAM_REQ, two) == 1
            hello = next(frame for frame in one.peers[-1].requests if frame.opcode == Opcode.HELLO)
            assert pack_features(NOTIFYING) in hello.value


@pytest.mark.parametrize("way", ["the whole map", "its version alone", "no push"])
@in_loop
async def test_stream_leaves_a_node_that_keeps_silent_about_a_move(way, monkeypatch):
    """Couchbase 7.2.8 ends no stream after a takeover: seen with two servers, 0 of 48 rows."""
    monkeypatch.setattr(stream_recovery, "_POLL_SECONDS", 0.05)

    def produce(peer, frame):
        if frame.opcode == Opcode.HELLO:
            return reply(frame, value=pack_features([] if way == "no push" else NOTIFYING))
        if frame.opcode == Opcode.DCP_CLOSE_STREAM:
            late = marker(peer.asked, 3, 3) + mutation(peer.asked, 3, b"of the old owner")
            return late + reply(frame)
        if frame.opcode != Opcode.DCP_STREAM_REQ:
            return None
        request = peer.asked = decode_frame(frame)
        assert isinstance(request, StreamReq)
        start = request.start_seqno
        data = accept(request) + marker(request, start, start + 2) + mutations(request, start + 1, start + 2)
        if start:
            return data
        serve_map(one, two, owners=[1], rev=8)
        pushed = {"the whole map": json.dumps(one.config).encode(), "its version alone": b""}.get(way)
        return data if pushed is None else data + push(pushed)

    async with Script(produce, vbuckets=1) as one, Script(produce, vbuckets=1) as two:
        serve_map(one, two, owners=[0])
        async with connect(one.url()) as bucket, await bucket.stream() as stream:
            changes = stream.changes()
            found = [await anext(changes) for _ in range(4)]
            assert [change.seqno for change in found] == [1, 2, 3, 4]
            assert {change.value for change in found} == {b"value"}
            assert stream.missing == ()
        assert count_requests(Opcode.DCP_CLOSE_STREAM, one) == 1
        assert count_requests(Opcode.DCP_STREAM_REQ, one) == count_requests(Opcode.DCP_STREAM_REQ, two) == 1


# Refusals


KEYS = {compute_vbucket(b"k%d" % number, 2): b"k%d" % number for number in range(20)}


def refuse_vbucket(vbucket, body):
    """Return the answers of a node that does not have a vbucket any more."""

    def answer(peer, frame):
        if frame.opcode in (Opcode.SET, Opcode.GET) and frame.specific == vbucket:
            return reply(frame, Status.NOT_MY_VBUCKET, value=body())
        return None

    return answer


@in_loop
async def test_map_in_a_refusal_is_used_without_a_request():
    async with Script() as one, Script() as two:
        serve_map(one, two, owners=[0, 0])
        one.answer = refuse_vbucket(1, lambda: make_map(one, two, owners=[0, 1], rev=8))
        async with connect(one.url()) as bucket:
            await bucket.upsert(KEYS[1], b"")
            await bucket.get_many(KEYS.values())
            assert (await bucket.cluster()).owners == (0, 1)
        assert count_requests(Opcode.SET, two) == count_requests(Opcode.GET, two) == 1
        assert count_requests(Opcode.GET_CLUSTER_CONFIG, one) == 1


@pytest.mark.parametrize(
    "body",
    [
        lambda one, two: b"",
        lambda one, two: b"not my vbucket",
        lambda one, two: make_map(one, two, owners=[0, 1, 1], rev=6),
        lambda one, two: make_map(one, two, owners=[1, 0], rev=6),
        lambda one, two: make_map(one, two, owners=[0, 5], rev=9),
        lambda one, two: make_map(one, two, owners=[1, 0], rev=9, name="wine"),
    ],
    ids=["empty", "text", "old, other number", "old", "invalid", "of another bucket"],
)
@in_loop
async def test_map_is_requested_after_a_refusal_without_a_newer_one(body):
    def refuse():
        serve_map(one, two, owners=[0, 1], rev=8)
        return body(one, two)

    async with Script() as one, Script() as two:
        serve_map(one, two, owners=[0, 0])
        one.answer = refuse_vbucket(1, refuse)
        async with connect(one.url()) as bucket:
            await bucket.upsert(KEYS[1], b"")
            assert (await bucket.cluster()).version == (0, 8)
        assert count_requests(Opcode.SET, two) == 1
        assert count_requests(Opcode.GET_CLUSTER_CONFIG, one) == 2


@in_loop
async def test_stream_uses_the_map_in_a_refusal():
    def refuse(peer, frame):
        if frame.opcode == Opcode.DCP_STREAM_REQ:
            return reply(frame, Status.NOT_MY_VBUCKET, value=make_map(one, two, owners=[1], rev=8))
        return None

    def produce(peer, frame):
        if frame.opcode != Opcode.DCP_STREAM_REQ:
            return None
        request = decode_frame(frame)
        return accept(request) + marker(request, 0, 1) + mutations(request, 1)

    async with Script(refuse, vbuckets=1) as one, Script(produce, vbuckets=1) as two:
        serve_map(one, two, owners=[0])
        async with connect(one.url()) as bucket, await bucket.stream() as stream:
            before = count_requests(Opcode.GET_CLUSTER_CONFIG, one)
            assert (await anext(stream.changes())).seqno == 1
            assert count_requests(Opcode.GET_CLUSTER_CONFIG, one) == before + 1


# The kept map

PRESENT = ClusterMap((("a", 1),), (0,), uuid="u", version=(1, 5))


@pytest.mark.parametrize(
    ("received", "taken"),
    [
        ([], None),
        ([PRESENT], None),
        ([PRESENT._replace(version=(1, 4))], None),
        ([PRESENT._replace(version=(0, 9))], None),
        ([PRESENT._replace(version=(1, 7)), PRESENT._replace(version=(1, 6))], PRESENT._replace(version=(1, 7))),
        ([PRESENT._replace(version=(1, 6)), ClusterMap((), (), version=(1, 6))], PRESENT._replace(version=(1, 6))),
        ([ClusterMap((), (), version=(2, 1))], ClusterMap((), (), version=(2, 1))),
        ([PRESENT._replace(version=(0, 0))], PRESENT._replace(version=(0, 0))),  # it cannot be compared
        ([PRESENT._replace(uuid="v")], PRESENT._replace(uuid="v", endpoints=(), owners=())),
    ],
)
def test_newest_map_is_kept_until_it_is_taken(received, taken):
    kept = ReceivedMap()
    for each in received:
        kept.put(each)
    assert kept.take(PRESENT) == taken
    assert kept.take(PRESENT) is None
