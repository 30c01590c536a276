"""Counts the modules that a request enters on its way, and its calls of functions.

    python tools/journeys.py

Each is one more file that a reader of the journey has to open. `tests/test_journeys.py` holds the numbers.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import penstock
from penstock.node import Node
from penstock.wire.codec.flags import OpenFlag
from penstock.wire.codec.frame import HEADER_BYTES, read_frame_length
from penstock.wire.codec.layout import Request
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.dcp import Open, StreamReq
from penstock.wire.messages.kv import Get, Set

_SOURCE = str(Path(penstock.__file__).parent)
_KEY = b"key"
_TURNS = 8
"""Changes that a client receives: during some of them it also does other work, and the shortest journey counts."""


class Journey(NamedTuple):
    """The way of one request through the project.

    Attributes:
        modules: the modules that it enters, by their path in the package.
        calls: calls of the project's functions.
    """

    modules: frozenset[str]
    calls: int


class _Peer:
    """A client that is no part of the journey: it sends messages and reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    @asynccontextmanager
    async def connected(cls, node: Node) -> AsyncIterator[_Peer]:
        reader, writer = await asyncio.open_connection("127.0.0.1", node.kv_port)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def exchange(self, data: bytes, opcode: int) -> None:
        """Send bytes, and read frames up to one with an opcode."""
        self.send(data)
        head = b""
        while head[1:2] != bytes([opcode]):
            head = await self._reader.readexactly(HEADER_BYTES)
            await self._reader.readexactly(read_frame_length(head, 0) - HEADER_BYTES)

    async def ask(self, request: Request) -> None:
        data = request.encode()
        await self.exchange(data, data[1])


async def _count(work: Callable[[], Awaitable[object]]) -> Journey:
    """Return the journey of some work, with everything that the event loop runs meanwhile."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_SOURCE):
            calls.append(frame.f_code.co_filename.removeprefix(f"{_SOURCE}/"))

    sys.setprofile(note)
    try:
        await work()
    finally:
        sys.setprofile(None)
    return Journey(frozenset(calls), len(calls))


async def _serve(node: Node, request: Request) -> Journey:
    """Return the journey of a request over a connection that has served it before."""
    async with _Peer.connected(node) as peer:
        await peer.ask(request)
        return await _count(partial(peer.exchange, request.encode(), request.encode()[1]))


async def _stream(node: Node) -> Journey:
    """Return the journey of a stream request up to its first mutation."""
    async with _Peer.connected(node) as peer:
        await peer.ask(Set(key=_KEY, value=b"{}"))
        await peer.ask(Open(key=b"journey", flags=OpenFlag.PRODUCER))
        data = StreamReq(start_seqno=0, end_seqno=2**64 - 1).encode()
        return await _count(partial(peer.exchange, data, Opcode.DCP_MUTATION))


async def _consume(node: Node) -> Journey:
    """Return the journey of a change from the socket of a client to a batch. The node is in another thread."""
    data = Set(key=_KEY, value=b"{}").encode()
    async with penstock.connect(node.url("default")) as bucket, _Peer.connected(node) as peer:
        batches = bucket.batches(start="beginning")
        found = []
        for _ in range(_TURNS):
            await peer.exchange(data, Opcode.SET)
            await anext(batches)

            async def receive() -> None:
                peer.send(data)
                await anext(batches)

            found.append(await _count(receive))
        await batches.aclose()
        return min(found, key=lambda journey: len(journey.modules))


async def _serve_requests() -> dict[str, Journey]:
    node = await Node.start(port=0, http_port=0, vbuckets=4)
    try:
        return {
            "SET": await _serve(node, Set(key=_KEY, value=b"{}")),
            "GET": await _serve(node, Get(key=_KEY)),
            "STREAM_REQ to the first mutation": await _stream(node),
        }
    finally:
        await node.stop()


def measure_journeys() -> dict[str, Journey]:
    """Return the journeys by name."""
    found = asyncio.run(_serve_requests())
    with Node.running(["default"], vbuckets=4) as node:
        return {**found, "a change, socket to batch": asyncio.run(_consume(node))}


def main() -> None:
    for name, journey in measure_journeys().items():
        print(f"{name}: {len(journey.modules)} modules, {journey.calls} calls")
        for module in sorted(journey.modules):
            print(f"    {module}")


if __name__ == "__main__":
    main()
