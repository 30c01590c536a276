"""How many durable writes are committed each second, and how many plain writes are stored?

Two nodes are processes of their own. This program relays the frames of DCP from the active node to its replica, as
ns_server does. Each client writes one document at a time. With the level MAJORITY a write is prepared on both nodes.
It is committed after the acknowledgement of the replica.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress

from benchmarks.process import PASSWORD, USER, run_penstock
from benchmarks.report import Report, make_parser
from penstock.wire.codec.constants import DurabilityLevel, Feature, VbucketState
from penstock.wire.codec.flags import Datatype, OpenFlag
from penstock.wire.codec.frame import BODY_LENGTH, HEADER, HEADER_BYTES
from penstock.wire.codec.layout import Message
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.messages.dcp import AddStream, Open
from penstock.wire.messages.frame_info import Durability, RequestInfos, pack_request_infos
from penstock.wire.messages.kv import Hello, SelectBucket, Set, SetVbucket, pack_features
from penstock.wire.messages.sasl import SaslAuth

FEATURES = (Feature.XATTR, Feature.JSON, Feature.COLLECTIONS)
FLAGS = OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES
MAJORITY = pack_request_infos(RequestInfos(durability=Durability(DurabilityLevel.MAJORITY)))


class Peer:
    """A connection to a node."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> Peer:
        """Return a connection with a login, a bucket and the features."""
        peer = cls(*await asyncio.open_connection("127.0.0.1", port))
        await peer.ask(SaslAuth(key=b"PLAIN", value=f"\0{USER}\0{PASSWORD}".encode()))
        await peer.ask(SelectBucket(key=b"default"))
        await peer.ask(Hello(value=pack_features(FEATURES)))
        return peer

    async def receive(self) -> bytes:
        """Return the next frame."""
        head = await self.reader.readexactly(HEADER_BYTES)
        return head + await self.reader.readexactly(BODY_LENGTH.unpack_from(head)[0])

    async def ask(self, message: Message) -> None:
        """Send a request and receive its reply. Raises ConnectionError if it is refused."""
        self.writer.write(message.encode())
        reply = HEADER.unpack_from(await self.receive())
        if reply[5]:
            raise ConnectionError(f"{type(message).__name__}: status 0x{reply[5]:x}")


async def relay(receiver: Peer, sender: Peer) -> None:
    """Pass frames on, except the reply to ADD_STREAM."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            frame = await receiver.receive()
            if frame[:2] != bytes((Magic.RESPONSE, Opcode.DCP_ADD_STREAM)):
                sender.writer.write(frame)


async def set_states(port: int, state: VbucketState, vbuckets: int) -> None:
    peer = await Peer.connect(port)
    value = json.dumps({"topology": [["active", "replica"]]}).encode()
    for vbucket in range(vbuckets):
        await peer.ask(SetVbucket(vbucket=vbucket, state=state, value=value, datatype=Datatype.JSON))
    peer.writer.close()


async def start_replication(source: int, target: int, vbuckets: int) -> list[asyncio.Task[None]]:
    """Let the target copy all vbuckets of the source, and return the tasks of the relay."""
    await set_states(target, VbucketState.REPLICA, vbuckets)
    await set_states(source, VbucketState.ACTIVE, vbuckets)
    producer, consumer = await Peer.connect(source), await Peer.connect(target)
    await producer.ask(Open(key=b"relay", flags=FLAGS | OpenFlag.PRODUCER))
    name = json.dumps({"consumer_name": "replica"}).encode()
    await consumer.ask(Open(key=b"relay", flags=FLAGS, value=name, datatype=Datatype.JSON))
    for vbucket in range(vbuckets):
        consumer.writer.write(AddStream(vbucket=vbucket, opaque=vbucket).encode())
    return [asyncio.create_task(relay(producer, consumer)), asyncio.create_task(relay(consumer, producer))]


async def write(port: int, *, clients: int, writes: int, vbuckets: int, framing: bytes) -> float:
    """Write by several clients, each one document at a time, and return the seconds."""
    peers = [await Peer.connect(port) for _ in range(clients)]
    numbers = iter(range(writes))

    async def work(peer: Peer) -> None:
        for number in numbers:
            key = b"\0%d" % number
            await peer.ask(Set(key=key, value=bytes(100), vbucket=number % vbuckets, framing=framing))

    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for peer in peers:
            tasks.create_task(work(peer))
    seconds = time.perf_counter() - started
    for peer in peers:
        peer.writer.close()
    return seconds


async def measure(report: Report, source: int, target: int, *, clients: int, writes: int, vbuckets: int) -> None:
    load = {"clients": clients, "writes": writes, "vbuckets": vbuckets}
    tasks = await start_replication(source, target, vbuckets)
    await write(source, **load | {"writes": clients}, framing=MAJORITY)  # the streams are open afterwards
    for name, framing in (("plain", b""), ("majority of two nodes", MAJORITY)):
        seconds = await write(source, **load, framing=framing)
        report.add_row(name, f"{writes / seconds:.0f} writes/s, {clients / writes * seconds * 1e3:.2f} ms each")
    for task in tasks:
        task.cancel()


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--writes", type=int, default=20_000)
    parser.add_argument("--vbuckets", type=int, default=64)
    chosen = parser.parse_args()
    report = Report(f"Writes of {chosen.clients} clients, one at a time each", chosen)
    options = ("--vbuckets", chosen.vbuckets)
    load = {"clients": chosen.clients, "writes": chosen.writes, "vbuckets": chosen.vbuckets}
    with run_penstock(*options) as active, run_penstock(*options) as replica:
        asyncio.run(measure(report, active.port, replica.port, **load))
    report.finish()


if __name__ == "__main__":
    main()
