"""The requests of one connection: serves them in order and in turns, and parks requests that have to wait.

All requests of one read are answered with one write. A read with much work is served in turns of a few milliseconds,
so that other connections are served in between. The connection reads again once all requests of the read are served.
Therefore it holds at most one read, the replies of one turn, and one reply more than its transport buffers.

A request that has to wait, for the disk for instance, is *parked*. The requests behind it wait too, and one more read
is held. A client that accepts unordered replies may have many parked requests at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from operator import length_hint
from typing import Final, NamedTuple, Protocol

from penstock.errors import RemoteProtocolError, StatusError
from penstock.node.answers import Answer, CloseConnection, FinishedWork, Parked, ReplyPieces, WaitForParked
from penstock.node.replication.received_run import FEW_MESSAGES
from penstock.node.server.connection_limits import MAX_REQUESTS_BEHIND_LOGIN, TURN_BYTES
from penstock.node.server.dispatch import RETRIED_LOCK_OPCODES, answer_malformed, serve_frame, serve_unusual
from penstock.node.session.replies import encode_refusal, get_classic_status
from penstock.node.session.session import Session
from penstock.node.timing.request_timer import RequestTimer, TimedRead
from penstock.wire.codec.frame import Buffer, Frame
from penstock.wire.codec.opcodes import Magic
from penstock.wire.columns.heads import Run
from penstock.wire.protocol.frame_receiver import BrokenInput, MalformedFrame, ReceiveEvent, cut_run, split_run

logger = logging.getLogger("penstock.node")

# Costs in bytes of replies: a turn serves at most 2048 requests, and reads the clock at most every 16 requests.
_REQUEST_BYTES: Final = 256
_TURN_SECONDS: Final = 0.005  # a connection may have a turn for its requests and one for its streams in one round
_CLOCK_BYTES: Final = 4 * 1024
_RUN_MESSAGES: Final = 1024
"""Messages that are served together: about a millisecond."""


class QueueConnection(Protocol):
    """The connection of a queue."""

    @property
    def paused(self) -> bool:
        """Whether the peer does not read its replies."""

    def send(self, replies: Sequence[Buffer], *, joined: bool) -> None:
        """Send replies, as one buffer if they are `joined`."""

    def update_reading(self) -> None:
        """Read only while no request waits and the peer reads its replies."""

    def run_guarded(self, work: Callable[[], None]) -> None:
        """Run some work of this connection. An exception ends this connection, never the node."""


class RequestQueue:
    """Received requests that were not served yet, and replies that were not sent yet.

    Attributes:
        turn_bytes: bytes of replies after which other connections are served.
        replies: the replies for the next `send_replies`, some perhaps in pieces.
        failed_request: the request whose handler has raised an exception that ends the connection; else None.
    """

    def __init__(self, session: Session, connection: QueueConnection) -> None:
        self.turn_bytes = TURN_BYTES
        self.replies: list[Buffer] = []
        self._has_pieces = False
        self.failed_request: Frame | None = None
        self._session = session
        self._connection = connection
        self._waiting: Iterator[ReceiveEvent | _ResumedRequest] = iter(())
        self._timer = RequestTimer(session.node.loop.time)
        self._is_turn_scheduled = False

    def __len__(self) -> int:
        """Return the number of requests that wait to be served."""
        return length_hint(self._waiting)

    def receive(self, events: list[ReceiveEvent]) -> None:
        """Add the events of one read, and serve them as far as possible."""
        # One read is accepted behind a parked request: only reading shows that the peer has disconnected.
        if length_hint(self._waiting):  # rare and short after the read before, whose time is kept
            self._waiting = iter([*self._waiting, *events])
        else:
            self._waiting = iter(events)
            timer = self._timer
            timer.reads_left -= 1
            if timer.reads_left <= 0 or timer.read is not None:
                timer.begin_read()
        self._connection.run_guarded(self._serve)

    def schedule_turn(self) -> None:
        """Serve in a turn of its own, after other connections. At most one turn is scheduled."""
        # One turn for all parked requests that end: a turn for each would hold the event loop for seconds.
        if not self._is_turn_scheduled:
            self._is_turn_scheduled = True
            self._session.node.loop.call_soon(self._run_turn)

    def send_replies(self) -> None:
        """Send the replies, and wake the streams that follow the changed vbuckets."""
        self._connection.send(self.replies, joined=not self._has_pieces)
        self.replies.clear()
        self._has_pieces = False
        session = self._session
        if self._timer.read is not None or self._timer.late:
            self._timer.record(None if session.bucket is None else session.bucket.command_times)
        if session.changed and session.bucket is not None:
            session.bucket.notify()

    def clear(self) -> None:
        """Drop all requests, waiting or parked, since the connection ends."""
        self._waiting = iter(())
        self._session.parked.cancel_all()

    # Turns

    def _run_turn(self) -> None:
        self._is_turn_scheduled = False
        self._connection.run_guarded(self._serve)

    def _serve(self) -> None:
        """Serve as many requests as one turn allows, and send their replies."""
        if not self._is_blocked():
            self._serve_requests()
        self.send_replies()
        self._connection.update_reading()
        if length_hint(self._waiting):  # len(self) without a Python call
            if self._is_blocked():
                self._limit_requests_behind_login()
            elif not self._connection.paused:
                self.schedule_turn()

    def _serve_requests(self) -> None:
        """Serve requests until one blocks the others, or the turn ends."""
        session, share, clock = self._session, self.turn_bytes, self._session.node.loop.time
        add, timer, is_timed = self.replies.append, self._timer, self._timer.read is not None
        look_at, deadline = max(share - _CLOCK_BYTES, 0), clock() + _TURN_SECONDS
        event: ReceiveEvent | _ResumedRequest | None = None
        try:
            for event in self._waiting:
                try:
                    if type(event) is Frame:  # dispatch.serve_frame inline: saves a call
                        magic, opcode, _, datatype, _, cas, extras, key, value, _ = event
                        shape = (magic, datatype, opcode, len(extras), not key, not value, not cas)
                        answer = session.handlers.get(shape, serve_unusual)(session, event)
                        if is_timed:
                            timer.answered.append(opcode)
                    elif type(event) is Run:
                        answer, share = self._serve_run(session, event), share - _CLOCK_BYTES
                    else:
                        answer = self._serve_other(session, event)
                except (StatusError, RemoteProtocolError) as error:
                    answer = self._refuse_request(event, error)
                except Parked as parked:
                    self._park_request(parked, event)
                    if self._is_blocked():
                        break
                    continue
                # HELLO, SELECT_BUCKET and logins wait: a request that is served again must find the same session.
                except WaitForParked:
                    session.parked.is_draining = True
                    self._requeue(event)
                    break
                if type(answer) is ReplyPieces:
                    self._add_pieces(answer)
                else:
                    add(answer)
                share -= len(answer) + _REQUEST_BYTES
                if share <= look_at:
                    if share <= 0 or clock() >= deadline:
                        break
                    look_at = max(share - _CLOCK_BYTES, 0)
            event = None
        finally:
            self.failed_request = _get_request(event) if isinstance(event, Frame | _ResumedRequest) else None

    def _serve_run(self, session: Session, run: Run) -> bytes:
        """Serve consecutive data messages. If one is not served, it and a few more are served alone before the rest.

        Returns:
            The bytes to send.
        """
        assert session.endpoint is not None, "a consumer receives runs"
        served, answer = session.endpoint.store_run(run)
        if served < len(run.offsets):
            alone, rest = cut_run(run._replace(offsets=run.offsets[served:]), FEW_MESSAGES)
            self._requeue(*alone, *([rest] if len(rest.offsets) else ()))
        return answer

    def _serve_other(self, session: Session, event: ReceiveEvent | _ResumedRequest) -> Answer:
        answer = _serve_other(session, event)
        self._note_answered(event)
        return answer

    def _refuse_request(self, event: ReceiveEvent | _ResumedRequest, error: StatusError | RemoteProtocolError) -> bytes:
        self._note_answered(event)
        request = _get_request(event)
        if self._session.endpoint is not None and isinstance(request, Frame):
            self._session.endpoint.record_refusal(request)
        return _encode_refusal(self._session, request, error)

    def _note_answered(self, event: ReceiveEvent | _ResumedRequest) -> None:
        """Time a request. A request that was parked has the time of its own read. Malformed ones have none."""
        if isinstance(event, _ResumedRequest):
            self._timer.note_late(event.request.opcode, event.read)
        elif isinstance(event, Frame) and self._timer.read is not None:
            self._timer.answered.append(event.opcode)

    def _add_pieces(self, reply: ReplyPieces) -> None:
        self.replies += reply.parts
        self._has_pieces = True

    def _requeue(self, *events: ReceiveEvent | _ResumedRequest) -> None:
        self._waiting = iter([*events, *self._waiting])

    # Parked requests

    def _is_blocked(self) -> bool:
        """Return whether a parked request must be answered before any other request is served."""
        session = self._session
        return session.parked.is_full(logged_in=session.login.effective_user is not None)

    def _limit_requests_behind_login(self) -> None:
        """Raise CloseConnection if too many requests wait behind a login."""
        if self._session.login.effective_user is None and len(self) > MAX_REQUESTS_BEHIND_LOGIN:
            raise CloseConnection(f"{len(self)} requests behind a login, expected at most {MAX_REQUESTS_BEHIND_LOGIN}")

    def _park_request(self, parked: Parked, event: ReceiveEvent | _ResumedRequest) -> None:
        request = _get_request(event)
        read = event.read if isinstance(event, _ResumedRequest) else self._timer.read

        def answer_request(answer: Answer | StatusError | RemoteProtocolError | FinishedWork) -> None:
            if isinstance(answer, FinishedWork):
                self._requeue(_ResumedRequest(request, answer, read))
            else:
                self._timer.note_late(request.opcode, read)
                self._add_late_reply(request, answer)
            if self._connection.paused:
                self._connection.run_guarded(self.send_replies)
            elif not self._is_turn_scheduled:
                self._connection.run_guarded(self._serve)

        self._session.parked.park(parked, len(request.value), answer_request)

    def _add_late_reply(self, request: Frame, answer: Answer | StatusError | RemoteProtocolError) -> None:
        if isinstance(answer, StatusError | RemoteProtocolError):
            self.replies.append(_encode_refusal(self._session, request, answer))
        elif isinstance(answer, ReplyPieces):
            self._add_pieces(answer)
        else:
            self.replies.append(answer)


def own_runs(events: list[ReceiveEvent]) -> list[ReceiveEvent]:
    """Return events that stay valid while they wait: runs are copied out of the slab, and neither short nor long."""
    found: list[ReceiveEvent] = []
    for event in events:
        if not isinstance(event, Run):
            found.append(event)
        elif len(event.offsets) < FEW_MESSAGES:
            found += cut_run(event, FEW_MESSAGES)[0]
        else:
            found += split_run(event, _RUN_MESSAGES)
    return found


class _ResumedRequest(NamedTuple):
    """A parked request, and the work that a thread has done for it.

    Attributes:
        request: the request.
        finished: the work.
        read: the read that has received the request; None if it is not timed.
    """

    request: Frame
    finished: FinishedWork
    read: TimedRead | None


def _get_request(event: ReceiveEvent | _ResumedRequest) -> Frame:
    request = event.request if isinstance(event, _ResumedRequest) else event
    assert isinstance(request, Frame), "nothing else is refused or parked"
    return request


def _serve_other(session: Session, event: ReceiveEvent | _ResumedRequest) -> Answer:
    """Serve an event that is not a new frame: a request that was parked, or malformed bytes.

    Returns:
        The reply.

    Raises:
        CloseConnection: the bytes cannot be answered, or no frame can follow them.
    """
    if isinstance(event, _ResumedRequest):
        session.finished_work = event.finished
        try:
            return serve_frame(session, event.request)
        finally:
            session.finished_work = None
    if isinstance(event, MalformedFrame) and event.magic in (Magic.REQUEST, Magic.ALT_REQUEST):
        logger.debug("%s", event.error)
        return answer_malformed(session, event)
    error = event.error if isinstance(event, MalformedFrame | BrokenInput) else event
    raise CloseConnection(str(error))


def _encode_refusal(session: Session, request: Frame, error: StatusError | RemoteProtocolError) -> bytes:
    logger.debug("%s", error)
    session.node.connections.refusals[error.status] += 1
    status = (
        error.status
        if session.xerror
        else get_classic_status(error.status, retried_lock=request.opcode in RETRIED_LOCK_OPCODES)
    )
    return encode_refusal(session, request, status, error)
