"""What is done with the bytes of one try: a client sends them to a node, over a socket, and takes what comes back.

Whatever it sends, the node answers in whole frames that its own layouts know, to requests that were made; it says
nothing of an error of its own; the connection ends when the client has ended its side; and another client goes on as if
nothing had been. Each try has a bucket of its own, so that it can be repeated alone.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

from fuzz.corpus import AT_ONCE
from fuzz.frames import reads
from penstock.errors import RemoteProtocolError
from penstock.node import Node
from penstock.node.auth import Attempts
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import HEADER_BYTES, Frame, frame_length, opcode_name, status_name
from penstock.wire.codec.layout import decode
from penstock.wire.codec.opcodes import Magic
from penstock.wire.messages.kv import Noop
from penstock.wire.protocol.frame_receiver import Connection, Slab
from tests.node.conversations import DOCUMENTS, FIRSTS, SEEDS

SECONDS = 10.0
"""In which the node must have answered, and ended the connection."""

MOST_REPLIED = 64 * 1024 * 1024
VBUCKETS = 4
_ANSWERS = (Magic.RESPONSE, Magic.ALT_RESPONSE)
WITNESS = "witness"

answered: Counter[str] = Counter()
"""How often each opcode was answered with each status."""


def tries(dialect: Dialect | None) -> Iterator[bytes]:
    """Yield conversations to begin with: those of a dialect, and each key-value command behind a document."""
    prepared = b"".join(message.encode() for message in DOCUMENTS)
    if dialect is not None:
        first, *others = (message.encode() for message in FIRSTS[dialect])
        yield AT_ONCE + prepared + first + b"".join(others)
        for other in others:
            yield AT_ONCE + prepared + first + other
    for seed in SEEDS:
        yield AT_ONCE + prepared + (FIRSTS[dialect][0].encode() if dialect else b"") + seed


def check(data: bytes, dialect: Dialect | None) -> None:
    """Raise AssertionError for what a node may not do. dialect: of no meaning here; the try itself decides it."""
    _served().check(data)


@cache
def _served() -> Served:
    return Served()


class Served(logging.Handler):
    """A node and its event loop, on which nothing runs but while there is a try; and the errors that were logged.

    Attributes:
        errors: what was logged during a try.
        port: where tries are sent.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[str] = []
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._unhandled)
        logging.getLogger().addHandler(self)
        self.node = self.loop.run_until_complete(
            Node.start(port=0, buckets=[WITNESS], vbuckets=VBUCKETS, most_connections=100)
        )
        self.port = self.choose_port()
        self.witness = self.loop.run_until_complete(asyncio.open_connection("127.0.0.1", self.port))

    def choose_port(self) -> int:
        return self.node.kv_port

    def emit(self, record: logging.LogRecord) -> None:
        self.errors.append(self.format(record))

    def check(self, data: bytes) -> None:
        self.errors.clear()
        replied = self.loop.run_until_complete(self._converse(data))
        assert not self.errors, "\n".join(self.errors)
        self.check_replies(replied, data)

    def check_replies(self, replied: bytes, data: bytes) -> None:
        """Raise AssertionError for answers that a node may not give."""
        check_replies(replied, data)

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    async def _converse(self, data: bytes) -> bytes:
        """Send a try, and return all that was answered until the node had ended the connection."""
        async with asyncio.timeout(SECONDS):
            await self.node.buckets.create(BucketSpec(name="default", vbuckets=VBUCKETS))
            client = socket.socket()
            client.setblocking(False)
            await self.loop.sock_connect(client, ("127.0.0.1", self.port))
            taking = self.loop.create_task(take_all(self.loop, client))
            try:
                for piece in reads(data):
                    await self.loop.sock_sendall(client, piece)
                await self.ask_witness()  # meanwhile producers have their turns
                client.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the node has ended it, as it may
            finally:
                replied = await taking
                client.close()
            await self.clear()
            return replied

    async def clear(self) -> None:
        """Delete the bucket of the try, and forget its guesses: the logins of the next try would wait for them."""
        await self.node.buckets.delete("default")
        self.node.attempts = Attempts(self.loop.time)

    async def ask_witness(self) -> None:
        """Let another client ask for something, and wait for the answer."""
        request = Noop()
        reader, writer = self.witness
        writer.write(request.encode())
        head = await reader.readexactly(HEADER_BYTES)
        assert head[1] == request.opcode, f"another client was answered with {head.hex()}"
        await reader.readexactly(frame_length(head, 0) - HEADER_BYTES)


async def take_all(loop: asyncio.AbstractEventLoop, client: socket.socket) -> bytes:
    """Return what comes until the node ends the connection."""
    taken = bytearray()
    try:
        while data := await loop.sock_recv(client, 1 << 16):
            taken += data
            assert len(taken) < MOST_REPLIED, f"more than {MOST_REPLIED} bytes in answer"
    except ConnectionError:
        pass
    return bytes(taken)


def check_replies(replied: bytes, data: bytes) -> None:
    """Raise AssertionError for what is no whole frame, for one that no dialect knows, and for one nobody asked for."""
    asked = opaques_of(b"".join(reads(data)))
    received = Connection(Slab(1 << 16), runs=None)
    for event in received.feed(replied):
        assert isinstance(event, Frame), f"the node sent {event}"
        check_known(event)
        if event.magic in _ANSWERS:
            answered[f"{opcode_name(event.opcode)} {status_name(event.specific)}"] += 1
            assert asked is None or event.opaque in asked, f"the node answered a request that nobody made: {event}"


def opaques_of(data: bytes) -> frozenset[int] | None:
    """Return the opaques of the frames that bytes are made of, None if they are not made of frames alone."""
    opaques = set()
    for event in Connection(Slab(1 << 16), runs=None).feed(data):
        if not isinstance(event, Frame):
            return None
        opaques.add(event.opaque)
    return frozenset(opaques)


def check_known(frame: Frame) -> None:
    """Raise AssertionError for a frame that is a message in no dialect. Any opcode may be refused."""
    if frame.magic in _ANSWERS and frame.specific and not frame.extras and not frame.key:
        return
    faults = []
    for dialect in Dialect:
        try:
            decode(frame, dialect)
        except RemoteProtocolError as error:
            faults.append(str(error))
        else:
            return
    raise AssertionError(f"the node sent {frame}, which is no message: {faults[-1]}")
