"""A relay between two sockets: bytes pass unchanged, and a slow side stops the other one."""

import asyncio
import socket
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.connect.node_link import NodeLink
from penstock.client.relays.frame_relay import FrameRelay
from penstock.errors import ConnectionClosed, RemoteProtocolError
from penstock.wire.codec.frame import Frame, join_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.messages.dcp import AddStream, AddStreamReply, BufferAck, DcpNoop, Mutation, SnapshotMarker
from penstock.wire.protocol.frame_receiver import SLAB_BYTES
from tests.client.peer import in_loop
from tests.waiting import pass_turns, wait_until


class Peer(NamedTuple):
    """One end of a connection of the relay: the relay's side, and the node's side."""

    link: NodeLink
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def connect(cls):
        accepted = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(lambda *streams: accepted.set_result(streams), "127.0.0.1", 0)
        link = await NodeLink.open("127.0.0.1", server.sockets[0].getsockname()[1], 10)
        server.close()
        return cls(link, *(await accepted))

    async def close(self):
        self.writer.close()
        await self.link.close()


async def connect_peers():
    return await Peer.connect(), await Peer.connect()


FRAMES = st.one_of(
    st.builds(
        Mutation,
        vbucket=st.integers(0, 3),
        key=st.binary(min_size=1, max_size=9),
        value=st.binary(max_size=3000),
        by_seqno=st.integers(1, 99),
    ),
    st.builds(SnapshotMarker, vbucket=st.integers(0, 3), start_seqno=st.just(0), end_seqno=st.integers(1, 9)),
    st.just(DcpNoop(opaque=4)),
)


@settings(deadline=None)
@given(st.lists(FRAMES, max_size=20), st.lists(st.integers(1, 5000), max_size=10))
def test_bytes_pass_unchanged_however_they_are_cut(messages, sizes):
    data = b"".join(message.encode() for message in messages)

    @in_loop
    async def main():
        source, target = await connect_peers()
        seen: list[Frame] = []
        relay = FrameRelay(source.link, target.link, seen.append)
        at = 0
        for size in (*sizes, len(data)):
            source.writer.write(data[at : at + size])
            await source.writer.drain()
            at += size
        assert await target.reader.readexactly(len(data)) == data
        assert relay.nbytes == len(data)
        alone = [message for message in messages if not isinstance(message, Mutation)]
        assert [frame.opcode for frame in seen] == [message.opcode for message in alone]
        await relay.close()
        await asyncio.gather(source.close(), target.close())

    main()


@in_loop
async def test_replies_to_the_relay_are_kept_and_other_frames_go_back():
    source, target = await connect_peers()
    relay = FrameRelay(source.link, target.link, lambda frame: None)
    asked = asyncio.create_task(target.link.request(AddStream(vbucket=3), 10))
    await target.reader.readexactly(len(AddStream().encode()))
    ack = BufferAck(opaque=9, nbytes=5).encode()
    noop = join_frame(Frame(Magic.RESPONSE, Opcode.DCP_NOOP, opaque=77))
    target.writer.write(ack + AddStreamReply(opaque=1, stream_opaque=1).encode() + noop)
    assert (await asked).opcode == Opcode.DCP_ADD_STREAM
    assert await source.reader.readexactly(len(ack + noop)) == ack + noop
    await relay.close()
    await asyncio.gather(source.close(), target.close())


@in_loop
async def test_target_that_does_not_read_stops_the_source():
    source, target = await connect_peers()
    relay = FrameRelay(source.link, target.link, lambda frame: None)
    frame = Mutation(key=b"k", value=bytes(1 << 20), by_seqno=1).encode()
    source.writer.transport.set_write_buffer_limits(high=0)
    sent = 0

    async def fill():
        nonlocal sent
        while True:
            source.writer.write(frame)
            await source.writer.drain()
            sent += len(frame)

    filling = asyncio.create_task(fill())
    drained = target.link.transport.drained
    await wait_until(lambda: not drained.is_set(), filling)
    passed = relay.nbytes
    await pass_turns(1000)
    assert relay.nbytes <= passed + SLAB_BYTES
    filling.cancel()
    await asyncio.wait([filling])
    arrived = len(await target.reader.readexactly(sent))
    assert arrived == sent
    await relay.close()
    await asyncio.gather(source.close(), target.close())


@in_loop
async def test_end_of_one_side_ends_the_other():
    for number in range(2):
        peers = await connect_peers()
        relay = FrameRelay(peers[0].link, peers[1].link, lambda frame: None)
        peers[number].writer.transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        reason = await relay.wait_closed()
        assert isinstance(reason, ConnectionClosed)
        assert str(peers[number].link.peer) in str(reason)
        assert await peers[1 - number].reader.read() == b""
        await asyncio.gather(*(peer.close() for peer in peers))


@in_loop
async def test_target_that_sends_changes_ends_the_relay():
    source, target = await connect_peers()
    relay = FrameRelay(source.link, target.link, lambda frame: None)
    target.writer.write(Mutation(key=b"k", by_seqno=1).encode())
    assert isinstance(await relay.wait_closed(), RemoteProtocolError)
    await asyncio.gather(source.close(), target.close())
