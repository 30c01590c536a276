"""One connection to the node: asyncio moves the bytes, the table of handlers decides what they mean.

Requests are served in order, and all that one read brought are answered with one write. A read that asks for much is
served in turns of a few milliseconds, so that others are served in between; until it is done, and while the peer does
not take what was written, nothing more is read from it. So a connection never holds more than one read, the replies of
one turn and one reply more than what the transport was told to buffer.

A request may have to wait, for the disk for instance: it is *parked*, and those behind it wait with it; then one read
more is held. A client that takes replies in any order has many parked requests at once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import length_hint
from typing import NamedTuple, Protocol, cast

from penstock.errors import RemoteProtocolError, StatusError
from penstock.node.answers import Answer, Barrier, Finished, Goodbye, Parked, Pieces
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.commands.kv_commands import VIEWED
from penstock.node.server.dispatch import answer_malformed, choose_handlers, serve, unusual
from penstock.node.server.outflow import Outflow
from penstock.node.server.parked_requests import ParkedRequests
from penstock.node.server.unread_watch import UnreadWatch
from penstock.node.session.connection_registry import Guests
from penstock.node.session.listener import Listener
from penstock.node.session.node_services import NodeServices
from penstock.node.session.replies import classic_status, refusal, reply
from penstock.node.session.session import Session
from penstock.wire.codec.constants import MAX_FRAME
from penstock.wire.codec.frame import Frame, opcode_name
from penstock.wire.codec.opcodes import Magic
from penstock.wire.codec.statuses import Status
from penstock.wire.protocol.frame_receiver import Broken, Connection, Malformed, ReceiveEvent, Slab

__all__ = ["ConnectionOwner", "NodeConnection"]

logger = logging.getLogger("penstock.node")

WRITE_BUFFER_BYTES = 2 * 1024 * 1024
"""What the transport holds before the connection counts as paused; it goes on at a quarter."""

MAX_BEFORE_LOGIN = 4 * 1024
"""Bytes of a frame, and of one read, where a login is required and missing. A step of a login has 1 KiB at most."""

UNREAD_BEFORE_LOGIN = 16 * 1024
"""Bytes of replies that a connection without its login may leave unread. The system's own buffer takes more than a
client waits for (the error map is the longest, 9 KiB), so these fill up only when nobody reads."""

MOST_BEHIND_LOGIN = 64
"""Requests that may wait behind a login. A client pipelines a handful; each costs a node far more than its 24 bytes."""

TURN_BYTES = 512 * 1024  # of replies; before login UNREAD_BEFORE_LOGIN
_REQUEST_BYTES = 256  # what it costs to serve a request, in bytes of replies: at most 2048 in a turn
_TURN_SECONDS = 0.005  # requests that take long end the turn before its bytes do
_CLOCK_BYTES = 4 * 1024  # of replies between two looks at the clock: at most 16 requests
_CLOSE_SECONDS = 5.0  # for the peer to take what was written before

# A peer that is gone without a word is noticed within about two minutes, whatever the system's own times are.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


class ConnectionOwner(NodeServices, Protocol):
    """The node, as far as its connections need it."""

    @property
    def slab(self) -> Slab: ...
    @property
    def guests(self) -> Guests: ...

    def enter(self, connection: NodeConnection) -> None: ...
    def leave(self, connection: NodeConnection) -> None: ...


class NodeConnection(asyncio.BufferedProtocol):
    """One client connection: receives frames, has them served in order, and writes the replies.

    Attributes:
        session: what handlers know of the connection.
        paused: the peer does not take what is sent.
        frame_began: when the frame began that has not ended yet, by the event loop's clock; 0 for none.
    """

    def __init__(self, node: ConnectionOwner, listener: Listener) -> None:
        self.node = node
        self.paused = False
        self.frame_began = 0.0
        self._transport: asyncio.Transport
        self._outflow: Outflow
        self._received = Connection(node.slab, runs=None, viewed=VIEWED)
        self._requests: Iterator[ReceiveEvent | _Again] = iter(())
        self._serving: ReceiveEvent | _Again | None = None
        self._parked = ParkedRequests()
        self._turn_bytes = TURN_BYTES
        self._turn_is_due = False
        self._replies: list[Answer] = []
        self._closing = False
        self._closer: asyncio.TimerHandle | None = None
        self._unread = UnreadWatch(node.loop, node.idle_timeout, lambda: self.bytes_unsent, self.abort)
        self.session = Session(node, listener, self, choose_handlers)

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._outflow = Outflow(self.node.loop, self._transport, partial(self.guarded, self._go_on))
        _keep_alive(transport.get_extra_info("socket"))
        peername, session = transport.get_extra_info("peername"), self.session
        session.host, session.peer = "" if peername is None else peername[0], _address(peername)
        session.dialect = session.listener.dialect
        session.login.present(transport.get_extra_info("peercert"))
        self.node.enter(self)
        if not self._closing:
            session.enter()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        events = self._received.receive_data(nbytes)
        if self._received.is_between_frames:
            self.frame_began = 0.0
        elif events or not self.frame_began:
            self.frame_began = self.node.loop.time()
        if events:
            # Behind a parked request one more read is taken: so it is noticed when the peer goes away meanwhile.
            self._requests = iter([*self._requests, *events] if self._is_blocked() else events)
            self.guarded(self._serve)

    def pause_writing(self) -> None:
        if not self._is_logged_in:
            self.node.loop.call_soon(self.guarded, self.abort, "it has not logged in, and does not read its replies")
        self._outflow.is_full = True
        self._hold()

    def resume_writing(self) -> None:
        self._outflow.is_full = False
        if self._outflow.nbytes:
            self._outflow.send_soon()
        else:
            self._go_on()

    def _hold(self) -> None:
        """Read, serve and stream nothing more before what there is to send was taken."""
        self.paused = True
        self._transport.pause_reading()

    def _go_on(self) -> None:
        self.paused = False
        if self.requests_waiting:
            self._serve_soon()
        else:
            self._transport.resume_reading()
        self.session.map.resume()
        if self.session.producer is not None:
            self.session.producer.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_up()
        self._unread.stop()
        if self._closer is not None:
            self._closer.cancel()
        self._outflow.clear()
        self.node.leave(self)

    # What the registry of connections uses

    @property
    def host(self) -> str:
        return self.session.host

    def uses(self, bucket: ServedBucket) -> bool:
        """Tell whether the client has selected a bucket."""
        return self.session.bucket is bucket

    def renew(self) -> None:
        """Apply a change of the users."""
        self.session.renew()

    # What the session uses

    @property
    def requests_waiting(self) -> int:
        return length_hint(self._requests)

    @property
    def bytes_unsent(self) -> int:
        return self._transport.get_write_buffer_size() + self._outflow.nbytes

    def wait_for_parked(self) -> None:
        """Check that no request is parked. Raises Barrier."""
        if self._parked:
            raise Barrier

    def allow_any_order(self, allowed: bool) -> None:
        """Let replies leave in any order, or in the order of the requests."""
        self._parked.any_order = allowed

    def set_limits(self, *, logged_in: bool) -> None:
        """Set the limits of frames and unread replies, and the time that there is for a login."""
        if logged_in:
            self._bound(MAX_FRAME, WRITE_BUFFER_BYTES, TURN_BYTES)
            self.node.guests.logged_in(self)
        else:
            self._bound(MAX_BEFORE_LOGIN, UNREAD_BEFORE_LOGIN, UNREAD_BEFORE_LOGIN)
            self.node.guests.wait_for_login(self)

    def _bound(self, frame: int, unread: int, turn: int) -> None:
        """Set the limits of a frame, of replies that the peer leaves unread, and of the replies of one turn."""
        self._received.max_frame = frame
        unread = max(unread, self.bytes_unsent)  # what is on its way already is not held against the peer
        self._transport.set_write_buffer_limits(unread, unread // 4)
        self._turn_bytes = turn

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self._transport.is_closing():
            if self._outflow.nbytes:
                self._outflow.add((data,))
            else:
                self._transport.write(data)
            self._unread.written += len(data)
            # Not every consumer lets itself be asked whether it lives; without a stream nobody waits for anything.
            if self.session.producer is not None:
                self._unread.start()

    def close(self) -> None:
        """Send what is still to be sent, for a few seconds, and end the connection."""
        if self._closing:
            return
        self._give_up()
        self._flush()
        self._outflow.finish()
        self._transport.close()
        self._closer = self.node.loop.call_later(_CLOSE_SECONDS, self._transport.abort)

    def abort(self, why: str) -> None:
        """End the connection at once; what was not sent never is."""
        logger.info("connection ended: %s", why)
        self._give_up()
        self._transport.abort()

    def guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """Do some work for this connection. Whatever happens in it ends this connection at most, never the node."""
        if self._closing:
            return
        try:
            work(*arguments)
        except Goodbye as goodbye:
            logger.info("connection closed: %s", goodbye)
            self._replies.append(goodbye.last)
            self.close()
        except Exception:
            # The one place that catches everything: a defect of ours, wherever it is, must not take the others down.
            serving = self._serving
            request = _request_of(serving) if isinstance(serving, Frame | _Again) else None
            logger.exception("internal error in %s", opcode_name(request.opcode) if request else "the producer")
            if request is not None:
                self._replies.append(reply(request, Status.EINTERNAL))
            self.close()

    # Serving

    def _serve_soon(self) -> None:
        """Take a turn after those of others; one is due at most, whatever ends meanwhile."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self.node.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_is_due = False
        self.guarded(self._serve)

    def _serve(self) -> None:
        """Serve what was received, or as much of it as one turn allows."""
        if self._is_blocked():
            self._flush()
            if self.requests_waiting:
                self._wait_parked()
            return
        session = self.session
        add, share, clock = self._replies.append, self._turn_bytes, self.node.loop.time
        look_at, deadline = max(share - _CLOCK_BYTES, 0), clock() + _TURN_SECONDS
        event: ReceiveEvent | _Again | None = None
        answer: Answer
        try:
            for event in self._requests:
                try:
                    if type(event) is Frame:
                        magic, opcode, _, datatype, _, cas, extras, key, value, _ = event
                        shape = (magic, datatype, opcode, len(extras), not key, not value, not cas)
                        answer = session.handlers.get(shape, unusual)(session, event)
                    elif isinstance(event, _Again):
                        answer = self._serve_again(event)
                    else:
                        answer = self._answer_to_no_frame(event)
                except (StatusError, RemoteProtocolError) as error:
                    answer = self._refusal(event, error)
                except Parked as parked:
                    self._park(parked, event)
                    if self._is_blocked():
                        break
                    continue
                except Barrier:
                    self._parked.barrier, self._requests = True, iter([event, *self._requests])
                    break
                add(answer)
                share -= len(answer) + _REQUEST_BYTES
                if share <= look_at:
                    if share <= 0 or clock() >= deadline:
                        break
                    look_at = max(share - _CLOCK_BYTES, 0)
            event = None
        finally:
            self._serving = event
        self._flush()
        if self.requests_waiting and self._is_blocked():
            self._wait_parked()
        elif self.requests_waiting:
            self._transport.pause_reading()
            if not self.paused:
                self._serve_soon()
        elif not self.paused:
            self._transport.resume_reading()

    def _wait_parked(self) -> None:
        """Read no more until a parked request is answered. Raises Goodbye where too much waits for a login."""
        if not self._is_logged_in and self.requests_waiting > MOST_BEHIND_LOGIN:
            raise Goodbye(f"{self.requests_waiting} requests behind a login, expected at most {MOST_BEHIND_LOGIN}")
        self._transport.pause_reading()

    def _is_blocked(self) -> bool:
        """Tell whether a parked request must be answered before anything else is served."""
        return self._parked.is_full(logged_in=self._is_logged_in)

    @property
    def _is_logged_in(self) -> bool:
        return self.session.login.acting is not None

    def _park(self, parked: Parked, event: ReceiveEvent | _Again) -> None:
        request = _request_of(event)

        def answer_request(answer: Answer | StatusError | RemoteProtocolError | Finished) -> None:
            if isinstance(answer, Finished):
                self._requests = iter([_Again(request, answer), *self._requests])
            elif isinstance(answer, StatusError | RemoteProtocolError):
                self._replies.append(self._refusal(request, answer))
            else:
                self._replies.append(answer)
            if self.paused:
                self.guarded(self._flush)
            elif not self._turn_is_due:
                self.guarded(self._serve)

        self._parked.park(parked, len(request.value), answer_request)

    def _serve_again(self, again: _Again) -> Answer:
        """Serve a request for which a thread has worked."""
        self.session.finished = again.finished
        try:
            return serve(self.session, again.request)
        finally:
            self.session.finished = None

    def _refusal(self, event: ReceiveEvent | _Again, error: StatusError | RemoteProtocolError) -> bytes:
        request = _request_of(event)
        logger.debug("%s", error)
        status = error.status if self.session.xerror else classic_status(request.opcode, error.status)
        return refusal(self.session, request, status, error)

    def _flush(self) -> None:
        try:
            data = b"".join(self._replies)  # type: ignore[arg-type]  # a check of each would cost all the others
        except TypeError:
            self._send_pieces(self._replies)
        else:
            self.write(data)
        self._replies.clear()
        session = self.session
        if session.changed and session.bucket is not None:
            session.bucket.notify()

    def _send_pieces(self, replies: Iterable[Answer]) -> None:
        """Send replies of which some are in pieces."""
        if self._transport.is_closing():
            return
        for answer in replies:
            self._outflow.add(answer.parts if isinstance(answer, Pieces) else (answer,))
            self._unread.written += len(answer)
        self._unread.start()  # also without a stream: large values pin the log until they are sent
        self._hold()

    def _answer_to_no_frame(self, event: ReceiveEvent) -> bytes:
        """Answer a frame whose parts do not fit. Raises Goodbye where there is no answer, or nothing follows."""
        if isinstance(event, Malformed) and event.magic in (Magic.REQUEST, Magic.ALT_REQUEST):
            logger.debug("%s", event.error)
            return answer_malformed(self.session, event)
        error = event.error if isinstance(event, Malformed | Broken) else event
        raise Goodbye(str(error))

    def _give_up(self) -> None:
        self._closing = True
        self._requests = iter(())
        self._parked.give_up()
        self.session.map.stop()
        if self.session.producer is not None:
            self.session.producer.stop()


class _Again(NamedTuple):
    """A request that was parked, and the work that was done for it meanwhile."""

    request: Frame
    finished: Finished


def _request_of(event: ReceiveEvent | _Again) -> Frame:
    request = event.request if isinstance(event, _Again) else event
    assert isinstance(request, Frame), "nothing else is refused or parked"
    return request


def _keep_alive(sock: socket.socket) -> None:
    """Let the system find out whether the peer lives, where the dialect has no messages for it."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _address(peername: tuple[str, int] | tuple[str, int, int, int] | None) -> str:
    if peername is None:
        return ""  # it is gone already
    host, port, *_ = peername
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
