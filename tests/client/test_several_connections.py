"""Several connections to each node: of a change stream, and for documents."""

import asyncio

import pytest

from penstock import connect
from penstock.client.connect.address import parse_address
from penstock.errors import UsageError
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.columns.schema import Change
from penstock.wire.messages.dcp import Control
from tests.client.peer import Peer, Script, documents, in_loop
from tests.client.producer import accept, marker, mutations
from tests.waiting import wait_until

# Change streams


@in_loop
async def test_stream_over_several_connections_survives_a_cut_of_one(penstock_cluster):
    """Every change comes once and in order, and the streams of the other connections go on."""
    cluster = await asyncio.to_thread(penstock_cluster, 2, vbuckets=16)
    url = f"{cluster.bucket.url}?streamConnections=3&flowControlBytes=65536"
    async with connect(url) as bucket, await bucket.stream() as stream:
        rows: list[Change] = []

        async def read(until):
            while len(rows) < until:
                delivery = await stream.next_delivery()
                assert delivery is not None
                rows.extend(delivery.changes)

        await bucket.upsert_many(documents(0, 200, size=2000))
        await read(200)
        opened = stream._connections.open_connections
        assert len({(each.endpoint, each.slot) for each in opened}) == len(opened) == 6
        assert stream.counts.reconnects == 0
        opened[0].link.transport.abort()
        await bucket.upsert_many(documents(200, 400, size=2000))
        await read(400)
        assert stream.counts.reconnects == 1
        assert {each.connection_id for each in opened[1:]} < set(stream._connections.by_id)
        assert stream.counts.changes == len(rows) == 400
        for vbucket in range(16):
            seqnos = [row.seqno or 0 for row in rows if row.vbucket == vbucket]
            assert seqnos == sorted(set(seqnos))


@in_loop
async def test_connections_of_a_stream_divide_vbuckets_names_and_window():
    def produce(peer, frame):
        if frame.opcode != Opcode.DCP_STREAM_REQ:
            return None
        request = decode_frame(frame)
        return accept(request) + marker(request, 0, 1) + mutations(request, 1)

    async with Script(produce, vbuckets=5) as script:
        options = {"streamConnections": 2, "flowControlBytes": 1 << 20}
        async with connect(script.url(**options)) as bucket, await bucket.stream() as stream:
            changes = stream.changes()
            assert sorted([(await anext(changes)).vbucket for _ in range(5)]) == [0, 1, 2, 3, 4]
            name = stream.counts.connection_name
        seen = {}
        for peer in script.peers:
            requested = {frame.specific for frame in peer.requests if frame.opcode == Opcode.DCP_STREAM_REQ}
            for frame in peer.requests:
                if frame.opcode == Opcode.DCP_OPEN:
                    seen[frame.key.decode()] = requested
                elif frame.opcode == Opcode.DCP_CONTROL and frame.key == b"connection_buffer_size":
                    assert decode_frame(frame) == Control(key=frame.key, value=b"524288", opaque=frame.opaque)
        assert seen == {f"{name}:0": {0, 2, 4}, f"{name}:1": {1, 3}}


@pytest.mark.parametrize("number", [0, 17])
def test_number_of_connections_has_limits(number):
    with pytest.raises(UsageError, match="option streamConnections is"):
        parse_address(f"couchbase://h/beer?streamConnections={number}")


# Documents


@in_loop
async def test_busy_connections_lead_to_another_one():
    """The replies are held back, so each of the concurrent requests needs a connection, up to the limit."""
    held: list[tuple[Peer, bytes]] = []

    def answer(peer, frame):
        if frame.opcode != Opcode.GET or not is_holding:
            return None
        held.append((peer, script.set_up(frame)))
        return b""

    def count_gets():
        return sorted(sum(frame.opcode == Opcode.GET for frame in peer.requests) for peer in script.peers)

    is_holding = False
    async with Script(answer) as script, connect(script.url(documentConnections=3)) as bucket:
        for _ in range(5):
            await bucket.get("k")
        assert count_gets() == [5]  # one after the other, they need one connection
        is_holding = True
        reads = [asyncio.create_task(bucket.get("k")) for _ in range(6)]
        await wait_until(lambda: len(held) == 6, *reads)
        assert count_gets() == [2, 2, 7]
        for peer, data in held:
            peer.transport.write(data)
        await asyncio.gather(*reads)
        is_holding = False
        busy = next(peer for peer in script.peers[1:])
        busy.transport.abort()
        await busy.lost.wait()
        await asyncio.gather(*(bucket.get("k") for _ in range(30)))  # an ended connection is replaced


@in_loop
async def test_documents_over_several_connections(penstock_cluster):
    cluster = await asyncio.to_thread(penstock_cluster, 2, vbuckets=8)
    async with connect(f"{cluster.bucket.url}?documentConnections=4") as bucket:
        written = documents(0, 200)
        await asyncio.gather(*(bucket.upsert(key, value) for key, value in written))
        assert len(bucket._nodes._further.list_all()) == 2 * 3
        found = await bucket.get_many([key for key, _ in written])
        assert [each and each.value for each in found] == [value for _, value in written]
        assert sum((await bucket.high_seqnos()).values()) == len(written)
        assert bucket.dropped == {}
