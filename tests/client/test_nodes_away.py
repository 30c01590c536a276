"""One of several nodes is down: its vbuckets wait, and the changes of the other nodes continue."""

import asyncio
from itertools import count

import pytest

from penstock import connect
from penstock.client.documents.document import compute_vbucket
from penstock.errors import Unreachable, VbucketsNotServed
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.schema import Change
from penstock.wire.messages.dcp import StreamReq
from tests.client.peer import Script, in_loop
from tests.client.producer import accept, marker, mutations, noop, refuse
from tests.node.balanced_nodes import apply_bucket
from tests.node.serve_process import run_processes

# Real nodes

VBUCKETS, NODES = 8, 3


class Cluster:
    """Nodes in processes of their own, with their data on disk."""

    def __init__(self, processes):
        self.nodes = processes
        self._numbers = count()

    def url(self, *numbers, **options):
        hosts = ",".join(f"127.0.0.1:{self.nodes[number].ports[0]}" for number in numbers)
        return f"couchbase://{hosts}/beer?" + "&".join(f"{name}={value}" for name, value in options.items())

    async def write(self, bucket, vbuckets, many=40):
        """Store documents in these vbuckets alone."""
        keys: list[str] = []
        while len(keys) < many:
            key = f"k{next(self._numbers)}"
            vbucket = compute_vbucket(key.encode(), VBUCKETS)
            if vbucket in vbuckets:
                keys.append(key)
        await bucket.upsert_many((key, b"v") for key in keys)
        return many


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with run_processes(tmp_path_factory.mktemp("cluster"), NODES) as processes:
        apply_bucket([process.ports for process in processes], "beer", VBUCKETS)
        yield Cluster(processes)


async def take(stream, many):
    """Return the next `many` changes; fail if the deliveries have more."""
    rows: list[Change] = []
    while len(rows) < many:
        delivery = await stream.next_delivery()
        rows += delivery.changes
    assert len(rows) == many
    return rows


def seqnos_of(rows):
    found: dict[int, list[int]] = {vbucket: [] for vbucket in range(VBUCKETS)}
    for row in rows:
        assert row.event == "mutation"
        found[row.vbucket].append(row.seqno)
    return found


def list_seqnos_between(first, last):
    """Return vbucket -> all seqnos after `first` up to `last`. Each key is written once, so none is deduplicated."""
    return {vbucket: [*range(first[vbucket] + 1, last[vbucket] + 1)] for vbucket in range(VBUCKETS)}


@pytest.mark.process
@pytest.mark.parametrize("killed", [0, 2], ids=["the node in the URL", "another node"])
@in_loop
async def test_killed_node_delays_only_its_own_vbuckets(cluster, killed):
    async with connect(cluster.url(killed)) as bucket, connect(cluster.url((killed + 1) % 3)) as writer:
        owners = (await bucket.cluster()).owners
        away = {vb for vb, owner in enumerate(owners) if owner == killed}
        others = {*range(VBUCKETS)} - away
        first = await bucket.high_seqnos()
        async with await bucket.stream("now") as stream:
            rows = await take(stream, await cluster.write(writer, {*range(VBUCKETS)}))
            assert stream.missing == ()
            await asyncio.to_thread(cluster.nodes[killed].kill)
            for _ in range(3):
                rows += await take(stream, await cluster.write(writer, others))
            assert {*stream.missing} == away
            await asyncio.to_thread(cluster.nodes[killed].start)
            # A new writer: the other one may repeat a write whose reply is lost with its old connection.
            async with connect(cluster.url((killed + 1) % 3)) as later:
                rows += await take(stream, await cluster.write(later, {*range(VBUCKETS)}))
                rows += await take(stream, await cluster.write(later, away))
            assert stream.missing == ()
        assert seqnos_of(rows) == list_seqnos_between(first, await bucket.high_seqnos())


@pytest.mark.process
@in_loop
async def test_node_that_stays_down_is_reported_with_its_vbuckets(cluster):
    async with connect(cluster.url(0, 1, retrySeconds=1)) as bucket:
        owners = (await bucket.cluster()).owners
        async with await bucket.stream("now") as stream:
            await take(stream, await cluster.write(bucket, {*range(VBUCKETS)}))
            await asyncio.to_thread(cluster.nodes[2].kill)
            with pytest.raises(Unreachable) as caught:
                await stream.next_delivery()
    await asyncio.to_thread(cluster.nodes[2].start)
    assert isinstance(caught.value.__cause__, VbucketsNotServed)
    assert caught.value.__cause__.vbuckets == tuple(vb for vb, owner in enumerate(owners) if owner == 2)
    assert f"127.0.0.1:{cluster.nodes[2].ports[0]}" in str(caught.value)


@pytest.mark.process
@in_loop
async def test_read_up_to_now_resumes_after_a_node_was_killed(cluster):
    async with connect(cluster.url(0, 1)) as bucket:
        await cluster.write(bucket, {*range(VBUCKETS)}, 400)
        async with await bucket.stream(stop="now") as stream:
            first = await stream.next_delivery()
            assert first is not None
            rows = [*first.changes]
            await asyncio.to_thread(cluster.nodes[2].kill)
            await asyncio.to_thread(cluster.nodes[2].start)
            while (delivery := await stream.next_delivery()) is not None:
                rows += delivery.changes
        assert seqnos_of(rows) == list_seqnos_between(dict.fromkeys(range(VBUCKETS), 0), await bucket.high_seqnos())


# Scripted nodes


def make_cluster(*scripts):
    servers = [f"127.0.0.1:{script.port}" for script in scripts]
    rows = [[number] for number in range(len(scripts))]
    for script in scripts:
        script.config = {"vBucketServerMap": {"serverList": servers, "vBucketMap": rows}}


def decode_request(frame):
    request = decode_frame(frame)
    assert isinstance(request, StreamReq)
    return request


def flowing(peer, frame):
    """Answer as a producer that sends one more change at each reply to its NOOP."""
    if frame.opcode == Opcode.DCP_STREAM_REQ:
        request = decode_request(frame)
        peer.request, peer.seqno = request, request.start_seqno
        return accept(request) + noop(7)
    if frame.opcode == Opcode.DCP_NOOP:
        peer.seqno += 1
        first = 0 if peer.seqno == 1 else peer.seqno
        return marker(peer.request, first, peer.seqno) + mutations(peer.request, peer.seqno) + noop(7)
    return None


async def collect(stream, found):
    async for change in stream.changes():
        found.append(change)


def fall_silent_at(opcode):
    return lambda peer, frame: b"" if frame.opcode == opcode else None


@pytest.mark.long
@pytest.mark.parametrize(
    ("opcode", "options"),
    [
        (Opcode.HELLO, {"connectTimeout": 0.3}),
        (Opcode.DCP_OPEN, {"connectTimeout": 0.3}),
        (Opcode.DCP_STREAM_REQ, {"operationTimeout": 0.3}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
@in_loop
async def test_silent_node_delays_no_other_node(opcode, options):
    """The other node has new changes all the time, however often the silent node is retried."""
    async with Script(flowing) as one, Script(fall_silent_at(opcode)) as two:
        make_cluster(one, two)
        async with connect(one.url(retrySeconds=1.5, **options)) as bucket, await bucket.stream() as stream:
            found: list[Change] = []
            with pytest.raises(Unreachable, match=r"vbucket 1 .*127.0.0.1"):
                await collect(stream, found)
            assert stream.missing == (1,)
            assert len(found) > 100
            assert {change.vbucket for change in found} == {0}
            assert [change.seqno for change in found] == [*range(1, len(found) + 1)]
    assert 2 < len(two.peers) < 30


@in_loop
async def test_node_that_always_disconnects_causes_no_busy_loop_while_another_streams():
    def hang_up(peer, frame):
        if frame.opcode != Opcode.DCP_STREAM_REQ:
            return None
        peer.transport.close()
        return b""

    async with Script(flowing) as one, Script(hang_up) as two:
        make_cluster(one, two)
        async with connect(one.url(retrySeconds=1)) as bucket, await bucket.stream() as stream:
            with pytest.raises(Unreachable, match=r"vbucket 1 \(1 of 2\) is not served by .*the node closed it"):
                [change async for change in stream.changes()]
    assert len(two.peers) < 15


@in_loop
async def test_refused_vbucket_is_requested_again_on_the_same_connection():
    asked = []

    def serve(peer, frame):
        if frame.opcode != Opcode.DCP_STREAM_REQ:
            return None
        request = decode_request(frame)
        asked.append((script.peers.index(peer), request.vbucket))
        if request.vbucket == 1 and len(asked) < 5:
            return refuse(request, Status.ETMPFAIL)
        return accept(request) + marker(request, 0, 1) + mutations(request, 1)

    async with Script(serve) as script, connect(script.url()) as bucket, await bucket.stream() as stream:
        found = stream.changes()
        assert [(await anext(found)).vbucket for _ in range(2)] == [0, 1]
        assert stream.missing == ()
    ((number, _), *_) = asked
    assert asked == [(number, vb) for vb in (0, 1, 1, 1, 1)]


@pytest.mark.long
@in_loop
async def test_follower_that_may_skip_vbuckets_waits_for_ever():
    """The vbucket is served only after many times the limit."""
    asked = []

    def serve(peer, frame):
        if frame.opcode != Opcode.DCP_STREAM_REQ or decode_request(frame).vbucket == 0:
            return flowing(peer, frame)
        request = decode_request(frame)
        asked.append(request)
        if len(asked) < 6:
            return refuse(request, Status.NOT_MY_VBUCKET)
        return accept(request) + marker(request, 0, 1) + mutations(request, 1)

    async with Script(serve) as script:
        url = script.url(retrySeconds=0.05, missingVbuckets="skip")
        async with connect(url) as bucket, await bucket.stream() as stream:
            async for change in stream.changes():
                if change.vbucket == 1:
                    break
                assert stream.missing in ((), (1,))
    assert len(asked) == 6
