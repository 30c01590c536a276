"""One connection to the node: asyncio moves the bytes, the table of handlers decides what they mean.

Requests are served in order, and all that one read brought are answered with one write. A read that asks for much is
served in turns, so that others are served in between; until it is done, and while the peer does not take what was
written, nothing more is read from it. So a connection never holds more than one read, the replies of one turn and one
reply more than what the transport was told to buffer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from operator import length_hint
from typing import TYPE_CHECKING, cast

from penstock.errors import NoBucket, RemoteProtocolError, StatusError
from penstock.node.dispatch import HANDLERS, unusual
from penstock.node.producer import Producer
from penstock.node.replies import Goodbye, reply
from penstock.node.served import Counters, ServedBucket
from penstock.store.vbucket import Vbucket
from penstock.wire.connection import Broken, Connection, Malformed, ReceiveEvent
from penstock.wire.constants import Magic, Opcode, Status
from penstock.wire.frame import Frame, opcode_name

if TYPE_CHECKING:
    from penstock.node.server import Node

__all__ = ["NodeConnection"]

logger = logging.getLogger("penstock.node")

WRITE_BUFFER_BYTES = 2 * 1024 * 1024
"""What the transport holds before the connection counts as paused; it goes on at a quarter."""

TURN_BYTES = 512 * 1024  # of replies
_REQUEST_BYTES = 256  # what it costs to serve a request, in bytes of replies: at most 2048 in a turn
_CLOSE_SECONDS = 5.0  # for the peer to take what was written before

_WITHOUT_CONFIG = frozenset((Opcode.DCP_STREAM_REQ, Opcode.DCP_GET_FAILOVER_LOG))
"""Their errors have no body, as the servers that first had them."""


class NodeConnection(asyncio.BufferedProtocol):
    """bucket: the one selected; vbuckets, counters and changed are its, or empty. tokens: stores answer with vbuuid and
    seqno. datatypes: those agreed on. producer: there from DCP OPEN on. paused: the peer does not take what is sent.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.bucket: ServedBucket | None = None
        self.vbuckets: Sequence[Vbucket] = ()
        self.counters = Counters()
        self.changed: set[int] = set()
        self.tokens = False
        self.datatypes = 0
        self.producer: Producer | None = None
        self.paused = False
        self._transport: asyncio.Transport
        self._received = Connection(node.slab, runs=None)
        self._requests: Iterator[ReceiveEvent] = iter(())
        self._serving: ReceiveEvent | None = None
        self._replies: list[bytes] = []
        self._closing = False
        self._closer: asyncio.TimerHandle | None = None

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES, WRITE_BUFFER_BYTES // 4)
        if "default" in self.node.buckets:
            self.select(self.node.buckets["default"])
        self.node.enter(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        events = self._received.receive_data(nbytes)
        if events:
            self._requests = iter(events)
            self.guarded(self._serve)

    def pause_writing(self) -> None:
        self.paused = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.paused = False
        if self.requests_waiting:
            self.node.loop.call_soon(self.guarded, self._serve)
        else:
            self._transport.resume_reading()
        if self.producer is not None:
            self.producer.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_up()
        if self._closer is not None:
            self._closer.cancel()
        self.node.leave(self)

    # What handlers use

    def select(self, bucket: ServedBucket) -> None:
        if self.bucket is not None:
            self.bucket.notify()
        self.bucket, self.vbuckets = bucket, bucket.store.vbuckets
        self.counters, self.changed = bucket.counters, bucket.changed

    def selected(self) -> ServedBucket:
        """Return the bucket. Raises NoBucket."""
        if self.bucket is None:
            raise NoBucket
        return self.bucket

    def config(self) -> bytes:
        """Return the bucket's cluster map. Raises NoBucket."""
        return self.selected().config(self.node.kv_port)

    def write(self, data: bytes | bytearray) -> None:
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Send what is still to be sent, for a few seconds, and end the connection."""
        if self._closing:
            return
        self._give_up()
        self._flush()
        self._transport.close()
        self._closer = self.node.loop.call_later(_CLOSE_SECONDS, self._transport.abort)

    def abort(self, why: str) -> None:
        """End the connection at once; what was not sent never is."""
        logger.info("connection ended: %s", why)
        self._give_up()
        self._transport.abort()

    def guarded(self, work: Callable[[], None]) -> None:
        """Do some work for this connection. Whatever happens in it ends this connection at most, never the node."""
        if self._closing:
            return
        try:
            work()
        except Goodbye as goodbye:
            logger.info("connection closed: %s", goodbye)
            self._replies.append(goodbye.last)
            self.close()
        except Exception:
            # The one place that catches everything: a defect of ours, wherever it is, must not take the others down.
            request = self._serving if isinstance(self._serving, Frame) else None
            logger.exception("internal error in %s", opcode_name(request.opcode) if request else "the producer")
            if request is not None:
                self._replies.append(reply(request, Status.EINTERNAL))
            self.close()

    # What STAT shows

    @property
    def requests_waiting(self) -> int:
        return length_hint(self._requests)

    @property
    def bytes_unsent(self) -> int:
        return self._transport.get_write_buffer_size()

    # Serving

    def _serve(self) -> None:
        """Serve what was received, or as much of it as one turn allows."""
        add, handler_of, share = self._replies.append, HANDLERS.get, TURN_BYTES
        event: ReceiveEvent | None = None
        try:
            for event in self._requests:
                try:
                    if type(event) is Frame:
                        magic, opcode, _, datatype, _, cas, extras, key, value, _ = event
                        shape = (magic, datatype, opcode, len(extras), not key, not value, not cas)
                        answer = handler_of(shape, unusual)(self, event)
                    else:
                        answer = _answer_to_no_frame(event)
                except (StatusError, RemoteProtocolError) as error:
                    answer = self._refusal(event, error)
                add(answer)
                share -= len(answer) + _REQUEST_BYTES
                if share <= 0:
                    break
            event = None
        finally:
            self._serving = event
        self._flush()
        if self.requests_waiting:
            self._transport.pause_reading()
            if not self.paused:
                self.node.loop.call_soon(self.guarded, self._serve)
        elif not self.paused:
            self._transport.resume_reading()

    def _refusal(self, request: ReceiveEvent, error: StatusError | RemoteProtocolError) -> bytes:
        assert isinstance(request, Frame)
        logger.debug("%s", error)
        body = b""
        if error.status == Status.NOT_MY_VBUCKET and request.opcode not in _WITHOUT_CONFIG:
            body = self.config()
        return reply(request, error.status, value=body)

    def _flush(self) -> None:
        data = b"".join(self._replies)
        self._replies.clear()
        self.write(data)
        if self.changed and self.bucket is not None:
            self.bucket.notify()

    def _give_up(self) -> None:
        self._closing = True
        self._requests = iter(())
        if self.producer is not None:
            self.producer.stop()


def _answer_to_no_frame(event: ReceiveEvent) -> bytes:
    """Answer a frame whose parts do not fit. Raises Goodbye where there is nothing to answer, or nothing follows."""
    if isinstance(event, Malformed) and event.magic in (Magic.REQUEST, Magic.ALT_REQUEST):
        logger.debug("%s", event.error)
        return reply(Frame(event.magic, event.opcode, opaque=event.opaque), event.error.status)
    error = event.error if isinstance(event, Malformed | Broken) else event
    raise Goodbye(str(error))
