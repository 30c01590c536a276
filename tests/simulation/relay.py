"""The relay of an orchestrator: passes the frames of a producer and a consumer to each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from penstock.wire.codec.constants import Feature
from penstock.wire.codec.flags import OpenFlag
from penstock.wire.codec.frame import BODY_LENGTH, HEADER_BYTES
from penstock.wire.codec.layout import Request
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.messages.dcp import AddStream, Open
from penstock.wire.messages.kv import Hello, SelectBucket, pack_features

__all__ = ["run_relay"]

_FEATURES = (Feature.XATTR, Feature.SNAPPY, Feature.JSON, Feature.COLLECTIONS)
_FLAGS = OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES
_SECONDS = 10.0
_ADD_STREAM_REPLY = bytes((Magic.RESPONSE, Opcode.DCP_ADD_STREAM))
_SUCCESS = b"\0\0"


class _End(asyncio.Protocol):
    """One connection of the relay.

    Attributes:
        other: gets the frames of this connection; None while it is set up.
        change: changes the frames of this connection.
        ended: done at the end of the connection.
        replies: frames that arrived before there was another end.
    """

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self.change = change
        self.other: _End | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.replies: asyncio.Queue[bytes] = asyncio.Queue()
        self.transport: asyncio.Transport
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= HEADER_BYTES:
            end = HEADER_BYTES + BODY_LENGTH.unpack_from(self._data)[0]
            if len(self._data) < end:
                return
            frame, self._data = self._data[:end], self._data[end:]
            if self.other is None:
                self.replies.put_nowait(frame)
            elif frame[:2] == _ADD_STREAM_REPLY:
                if frame[6:8] != _SUCCESS:
                    self.transport.abort()  # the next connection requests the stream again
            else:
                self.other.transport.write(self.change(frame))

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    async def ask(self, request: Request) -> None:
        """Send a request and wait for its success."""
        self.transport.write(request.encode())
        reply = await self.replies.get()
        if reply[6:8] != _SUCCESS:
            raise ConnectionError(f"{request} was refused: {reply[:24].hex()}")


async def run_relay(
    source: str,
    target: str,
    port: int,
    bucket: str,
    vbuckets: Sequence[int],
    name: str,
    change: Callable[[bytes], bytes],
) -> None:
    """Copy vbuckets of one node to another, until a connection ends or the caller cancels.

    The function of the product's orchestrator can stand in its place.

    Args:
        source: the address of the node with the active vbuckets.
        target: the address of the other node.
        port: the port of both.
        bucket: the bucket.
        vbuckets: the vbuckets.
        name: makes the names of the connections unique.
        change: changes each frame that is passed on.

    Raises:
        OSError: a connection failed or was refused.
        TimeoutError: a node did not answer.
    """
    loop = asyncio.get_running_loop()
    ends: list[_End] = []
    try:
        async with asyncio.timeout(_SECONDS):
            for host in (source, target):
                _, end = await loop.create_connection(partial(_End, change), host, port)
                ends.append(end)
            producer, consumer = ends
            await asyncio.gather(
                _open(producer, bucket, name, _FLAGS | OpenFlag.PRODUCER), _open(consumer, bucket, name, _FLAGS)
            )
        producer.other, consumer.other = consumer, producer
        for vbucket in vbuckets:
            consumer.transport.write(AddStream(vbucket=vbucket, opaque=vbucket).encode())
        await asyncio.wait([end.ended for end in ends], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.transport.abort()


async def _open(end: _End, bucket: str, name: str, flags: int) -> None:
    async def talk() -> None:
        await end.ask(Hello(value=pack_features(_FEATURES)))
        await end.ask(SelectBucket(key=bucket.encode()))
        await end.ask(Open(key=f"replication {name}".encode(), flags=flags))

    talking = asyncio.ensure_future(talk())
    try:
        await asyncio.wait([talking, end.ended], return_when=asyncio.FIRST_COMPLETED)
        if not talking.done():
            raise ConnectionResetError("the connection ended while it was opened")
        talking.result()
    finally:
        talking.cancel()
