"""One try against the key-value port of a node: a client sends it over a socket, and checks the answers.

The node must answer the requests in whole frames of its own layouts, and must log no error of its own. The connection
must end when the client has ended its side, and another client must be answered meanwhile. Each try has a bucket of its
own, so that it can be repeated alone.
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
from fuzz.frames import split_reads
from penstock.errors import RemoteProtocolError
from penstock.node import Node
from penstock.node.auth import LoginAttempts
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import HEADER_BYTES, Frame, name_opcode, name_status, read_frame_length
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Magic
from penstock.wire.messages.kv import Noop
from penstock.wire.protocol.frame_receiver import FrameReceiver, Slab
from tests.node.conversations import DOCUMENTS, FIRSTS, SEEDS

SECONDS = 10.0
"""Time in which the node must have answered, and ended the connection."""

MOST_REPLIED = 64 * 1024 * 1024
VBUCKETS = 4
_ANSWERS = (Magic.RESPONSE, Magic.ALT_RESPONSE)
WITNESS = "witness"

answered: Counter[str] = Counter()
"""How often each opcode was answered with each status."""


def list_tries(dialect: Dialect | None) -> Iterator[bytes]:
    """Yield conversations to begin with: those of a dialect, and each key-value command after a document."""
    prepared = b"".join(message.encode() for message in DOCUMENTS)
    if dialect is not None:
        first, *others = (message.encode() for message in FIRSTS[dialect])
        yield AT_ONCE + prepared + first + b"".join(others)
        for other in others:
            yield AT_ONCE + prepared + first + other
    for seed in SEEDS:
        yield AT_ONCE + prepared + (FIRSTS[dialect][0].encode() if dialect else b"") + seed


def check(data: bytes, dialect: Dialect | None) -> None:
    """Run one try. Raises AssertionError for an invalid reaction of the node. The try decides its own dialect."""
    _get_served().check(data)


@cache
def _get_served() -> ServedNode:
    return ServedNode()


class ServedNode(logging.Handler):
    """A node, its event loop, which runs only during a try, and the errors that the node logged.

    Attributes:
        errors: errors that were logged during a try.
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
        replied = self.loop.run_until_complete(self._send_try(data))
        assert not self.errors, "\n".join(self.errors)
        self.check_replies(replied, data)

    def check_replies(self, replied: bytes, data: bytes) -> None:
        """Raise AssertionError for invalid answers of a node."""
        check_replies(replied, data)

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    async def _send_try(self, data: bytes) -> bytes:
        """Send a try, and return all that was answered until the node had ended the connection."""
        async with asyncio.timeout(SECONDS):
            await self.node.buckets.create(BucketSpec(name="default", vbuckets=VBUCKETS))
            client = socket.socket()
            client.setblocking(False)
            await self.loop.sock_connect(client, ("127.0.0.1", self.port))
            taking = self.loop.create_task(receive_all(self.loop, client))
            try:
                for piece in split_reads(data):
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
        self.node.attempts = LoginAttempts(self.loop.time)

    async def ask_witness(self) -> None:
        """Let another client send a request, and wait for the answer."""
        request = Noop()
        reader, writer = self.witness
        writer.write(request.encode())
        head = await reader.readexactly(HEADER_BYTES)
        assert head[1] == request.opcode, f"another client was answered with {head.hex()}"
        await reader.readexactly(read_frame_length(head, 0) - HEADER_BYTES)


async def receive_all(loop: asyncio.AbstractEventLoop, client: socket.socket) -> bytes:
    """Return the bytes that the node sends before it ends the connection."""
    taken = bytearray()
    try:
        while data := await loop.sock_recv(client, 1 << 16):
            taken += data
            assert len(taken) < MOST_REPLIED, f"more than {MOST_REPLIED} bytes in answer"
    except ConnectionError:
        pass
    return bytes(taken)


def check_replies(replied: bytes, data: bytes) -> None:
    """Raise AssertionError for bytes that are no whole frame, a frame of no dialect, or an answer without a request."""
    asked = find_opaques(b"".join(split_reads(data)))
    received = FrameReceiver(Slab(1 << 16), run_dialect=None)
    for event in received.feed(replied):
        assert isinstance(event, Frame), f"the node sent {event}"
        check_known(event)
        if event.magic in _ANSWERS:
            answered[f"{name_opcode(event.opcode)} {name_status(event.specific)}"] += 1
            assert asked is None or event.opaque in asked, f"the node answered a request that nobody made: {event}"


def find_opaques(data: bytes) -> frozenset[int] | None:
    """Return the opaques of the frames in some bytes, None if the bytes are not whole frames alone."""
    opaques = set()
    for event in FrameReceiver(Slab(1 << 16), run_dialect=None).feed(data):
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
            decode_frame(frame, dialect)
        except RemoteProtocolError as error:
            faults.append(str(error))
        else:
            return
    raise AssertionError(f"the node sent {frame}, which is no message: {faults[-1]}")
