"""The requests of one connection: served in order, in turns, some of them parked meanwhile.

All requests that one read brought are answered with one write. A read that asks for much is served in turns of a few
milliseconds, so that other connections are served in between. The connection reads nothing more before all of it is
served. So it never holds more than one read, the replies of one turn and one reply more than its transport buffers.

A request may have to wait, for the disk for instance: it is *parked*, and the requests behind it wait with it; then one
read more is held. A client that takes replies in any order has many parked requests at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from operator import length_hint
from typing import Final, NamedTuple, Protocol

from penstock.errors import RemoteProtocolError, StatusError
from penstock.node.answers import Answer, Barrier, Finished, Goodbye, Parked
from penstock.node.server.connection_limits import MOST_BEHIND_LOGIN, TURN_BYTES
from penstock.node.server.dispatch import answer_malformed, serve, unusual
from penstock.node.session.replies import classic_status, refusal
from penstock.node.session.session import Session
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Magic
from penstock.wire.protocol.frame_receiver import Broken, Malformed, ReceiveEvent

__all__ = ["QueueConnection", "RequestQueue"]

logger = logging.getLogger("penstock.node")

_REQUEST_BYTES: Final = 256  # what it costs to serve a request, in bytes of replies: at most 2048 in a turn
_TURN_SECONDS: Final = 0.005  # requests that take long end the turn before its bytes do
_CLOCK_BYTES: Final = 4 * 1024  # of replies between two looks at the clock: at most 16 requests


class QueueConnection(Protocol):
    """The connection of a queue."""

    @property
    def paused(self) -> bool:
        """Whether the peer does not take what is sent."""

    def send(self, replies: Sequence[Answer]) -> None: ...

    def update_reading(self) -> None:
        """Read only while no request waits, and the peer takes what is sent."""

    def guarded(self, work: Callable[[], None]) -> None:
        """Do some work for this connection. Whatever it raises ends the connection at most, never the node."""


class RequestQueue:
    """Requests that were received and are yet to be served, and the replies that are yet to be sent.

    Attributes:
        turn_bytes: bytes of replies that end a turn.
        replies: those that the next `flush` sends.
        failed: the request whose handler has raised an exception that ends the connection; None before that.
    """

    def __init__(self, session: Session, connection: QueueConnection) -> None:
        self.turn_bytes = TURN_BYTES
        self.replies: list[Answer] = []
        self.failed: Frame | None = None
        self._session = session
        self._connection = connection
        self._waiting: Iterator[ReceiveEvent | _Resumed] = iter(())
        self._turn_is_due = False

    def __len__(self) -> int:
        """Return how many requests wait to be served."""
        return length_hint(self._waiting)

    def receive(self, events: list[ReceiveEvent]) -> None:
        """Take what one read brought, and serve it as far as possible."""
        # Behind a parked request one more read is taken: so it is noticed when the peer goes away meanwhile.
        self._waiting = iter([*self._waiting, *events] if length_hint(self._waiting) else events)
        self._connection.guarded(self._serve)

    def serve_soon(self) -> None:
        """Take a turn after those of others; one is due at most, whatever ends meanwhile."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self._session.node.loop.call_soon(self._take_turn)

    def flush(self) -> None:
        """Send the replies, and let the streams of the bucket know of its changes."""
        self._connection.send(self.replies)
        self.replies.clear()
        session = self._session
        if session.changed and session.bucket is not None:
            session.bucket.notify()

    def clear(self) -> None:
        """Forget the requests that wait or are parked: the connection ends."""
        self._waiting = iter(())
        self._session.parked.give_up()

    # Turns

    def _take_turn(self) -> None:
        self._turn_is_due = False
        self._connection.guarded(self._serve)

    def _serve(self) -> None:
        """Serve what was received, or as much of it as one turn allows, and send the replies."""
        if not self._is_blocked():
            self._serve_requests()
        self.flush()
        self._connection.update_reading()
        if length_hint(self._waiting):  # as len(self), without a call of Python's for each read
            if self._is_blocked():
                self._check_behind_login()
            elif not self._connection.paused:
                self.serve_soon()

    def _serve_requests(self) -> None:
        """Serve requests until one blocks the others, or the turn is over."""
        session, add, share, clock = self._session, self.replies.append, self.turn_bytes, self._session.node.loop.time
        look_at, deadline = max(share - _CLOCK_BYTES, 0), clock() + _TURN_SECONDS
        event: ReceiveEvent | _Resumed | None = None
        answer: Answer
        try:
            for event in self._waiting:
                try:
                    if type(event) is Frame:  # as dispatch.serve does, without the call
                        magic, opcode, _, datatype, _, cas, extras, key, value, _ = event
                        shape = (magic, datatype, opcode, len(extras), not key, not value, not cas)
                        answer = session.handlers.get(shape, unusual)(session, event)
                    else:
                        answer = _serve_other(session, event)
                except (StatusError, RemoteProtocolError) as error:
                    answer = _refuse(session, _request_of(event), error)
                except Parked as parked:
                    self._park(parked, _request_of(event))
                    if self._is_blocked():
                        break
                    continue
                except Barrier:
                    session.parked.barrier = True
                    self._put_first(event)
                    break
                add(answer)
                share -= len(answer) + _REQUEST_BYTES
                if share <= look_at:
                    if share <= 0 or clock() >= deadline:
                        break
                    look_at = max(share - _CLOCK_BYTES, 0)
            event = None
        finally:
            self.failed = _request_of(event) if isinstance(event, Frame | _Resumed) else None

    def _put_first(self, event: ReceiveEvent | _Resumed) -> None:
        self._waiting = iter([event, *self._waiting])

    # Parked requests

    def _is_blocked(self) -> bool:
        """Tell whether a parked request must be answered before anything else is served."""
        session = self._session
        return session.parked.is_full(logged_in=session.login.acting is not None)

    def _check_behind_login(self) -> None:
        """Raise Goodbye where too much waits for a login."""
        if self._session.login.acting is None and len(self) > MOST_BEHIND_LOGIN:
            raise Goodbye(f"{len(self)} requests behind a login, expected at most {MOST_BEHIND_LOGIN}")

    def _park(self, parked: Parked, request: Frame) -> None:
        def answer_request(answer: Answer | StatusError | RemoteProtocolError | Finished) -> None:
            if isinstance(answer, Finished):
                self._put_first(_Resumed(request, answer))
            elif isinstance(answer, StatusError | RemoteProtocolError):
                self.replies.append(_refuse(self._session, request, answer))
            else:
                self.replies.append(answer)
            if self._connection.paused:
                self._connection.guarded(self.flush)
            elif not self._turn_is_due:
                self._connection.guarded(self._serve)

        self._session.parked.park(parked, len(request.value), answer_request)


class _Resumed(NamedTuple):
    """A request that was parked, and the work that a thread did for it meanwhile."""

    request: Frame
    finished: Finished


def _request_of(event: ReceiveEvent | _Resumed) -> Frame:
    request = event.request if isinstance(event, _Resumed) else event
    assert isinstance(request, Frame), "nothing else is refused or parked"
    return request


def _serve_other(session: Session, event: ReceiveEvent | _Resumed) -> Answer:
    """Serve what is no frame: a request that was parked, or bytes that are none.

    Raises as handlers do; and Goodbye where there is no answer, or nothing follows.
    """
    if isinstance(event, _Resumed):
        session.finished = event.finished
        try:
            return serve(session, event.request)
        finally:
            session.finished = None
    if isinstance(event, Malformed) and event.magic in (Magic.REQUEST, Magic.ALT_REQUEST):
        logger.debug("%s", event.error)
        return answer_malformed(session, event)
    error = event.error if isinstance(event, Malformed | Broken) else event
    raise Goodbye(str(error))


def _refuse(session: Session, request: Frame, error: StatusError | RemoteProtocolError) -> bytes:
    logger.debug("%s", error)
    status = error.status if session.xerror else classic_status(request.opcode, error.status)
    return refusal(session, request, status, error)
