"""What differs between the dialects that stream by vbucket: how to ask, and what an answer means. No state, no socket.

Which event a message of a stream is stands in `stream_state`. Sources: kv_engine docs/dcp; UPR transport
specification, "Failover Log Request", "Stream Request" and "Stream End"; UPR draft, "Request and Response Messages".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from penstock.client.feeds.stream_position import Position, make_stream_request
from penstock.errors import RemoteProtocolError
from penstock.store.history.failover_log import FailoverLog, find_branch, sanitise_log
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import Message, Request, decode_frame
from penstock.wire.codec.opcodes import DraftCode, Magic, Opcode, UprOpcode
from penstock.wire.codec.statuses import Status, StreamEndReason, UprEndReason
from penstock.wire.messages.dcp import CloseStream, StreamEnd, unpack_rollback
from penstock.wire.messages.kv import FailoverEntry, unpack_failover_log
from penstock.wire.messages.upr import UprGetFailoverLog, UprStreamEnd, UprStreamReply, UprStreamReq
from penstock.wire.messages.upr_draft import DraftGetFailoverLog, DraftRollback, DraftStateChanged, DraftStreamReq
from penstock.wire.protocol.stream_state import StreamEvent, classify_reply

_NO_BRANCH = FailoverEntry(0, 0)


class AcceptedAnswer(NamedTuple):
    """The stream begins. log: the producer's, newest entry first; empty where the answer does not hold it."""

    log: FailoverLog


class RollbackAnswer(NamedTuple):
    """The consumer has to go back before it can have the stream."""

    seqno: int


class UnknownBranchAnswer(NamedTuple):
    """The producer has no branch of this vbuuid."""


class RefusedAnswer(NamedTuple):
    """There is no stream, or no log. status: that of the answer, or the one that means the same."""

    status: int


Answer = AcceptedAnswer | RollbackAnswer | UnknownBranchAnswer | RefusedAnswer


class DialectRules(ABC):
    """One dialect.

    noop: the producer gives a sign of life when there is nothing else. flow_control: it counts what was consumed.
    """

    dialect: ClassVar[Dialect]
    noop: ClassVar[bool] = False
    flow_control: ClassVar[bool] = False

    @abstractmethod
    def make_stream_request(
        self, vbucket: int, position: Position, end_seqno: int, opaque: int, log: FailoverLog
    ) -> Request:
        """Ask for what follows `position`. log: the producer's, where it was asked for."""

    def is_answer(self, frame: Frame) -> bool:
        """Tell an answer to a request from a message of a stream."""
        return frame.magic == Magic.RESPONSE

    @abstractmethod
    def read_stream_answer(self, frame: Frame) -> Answer | None:
        """Return the answer to a stream request; None if it answers another request.

        Raises RemoteProtocolError for a malformed one.
        """

    def encode_close_request(self, vbucket: int) -> bytes:
        """Return the message that closes a stream; nothing in a dialect that has none."""
        return b""

    @abstractmethod
    def describe_end(self, message: Any) -> str:
        """Return why a stream ended before its end; empty if everything that was asked for has been sent.

        message: the dialect's end of a stream.
        """


class LogFirstRules(DialectRules):
    """A dialect whose accepted streams do not say which branches the producer has: the consumer asks beforehand."""

    _log_request_type: ClassVar[type[UprGetFailoverLog | DraftGetFailoverLog]]
    _stream_request_type: ClassVar[type[UprStreamReq | DraftStreamReq]]

    def make_log_request(self, vbucket: int, opaque: int) -> Request:
        """Ask which branches the producer has."""
        return self._log_request_type(vbucket=vbucket, opaque=opaque)

    @abstractmethod
    def read_log_answer(self, frame: Frame) -> FailoverLog | RefusedAnswer:
        """Return the failover log that a producer answers with. Raises RemoteProtocolError for one that cannot be."""

    def make_stream_request(
        self, vbucket: int, position: Position, end_seqno: int, opaque: int, log: FailoverLog
    ) -> Request:
        # The branch of the seqno, or the oldest one that the producer still has; nothing for a stream from 0.
        vbuuid, high_seqno = find_branch(log, position.seqno) if position.seqno else _NO_BRANCH
        return self._stream_request_type(
            vbucket=vbucket,
            opaque=opaque,
            start_seqno=position.seqno,
            end_seqno=max(end_seqno, position.seqno),
            vbuuid=vbuuid,
            high_seqno=high_seqno,
        )


class _DcpRules(DialectRules):
    dialect = Dialect.DCP
    noop = flow_control = True

    def make_stream_request(
        self, vbucket: int, position: Position, end_seqno: int, opaque: int, log: FailoverLog
    ) -> Request:
        return make_stream_request(vbucket, position, end_seqno, opaque)

    def read_stream_answer(self, frame: Frame) -> Answer | None:
        if frame.opcode != Opcode.DCP_STREAM_REQ:
            return None
        return _make_answer(frame, lambda: unpack_rollback(frame.value))

    def encode_close_request(self, vbucket: int) -> bytes:
        return CloseStream(vbucket=vbucket).encode()

    def describe_end(self, message: StreamEnd) -> str:
        return _name_reason(StreamEndReason, message.reason)


class _UprRules(LogFirstRules):
    dialect = Dialect.UPR
    _log_request_type = UprGetFailoverLog
    _stream_request_type = UprStreamReq

    def read_log_answer(self, frame: Frame) -> FailoverLog | RefusedAnswer:
        return _read_log(frame.value) if frame.specific == Status.SUCCESS else RefusedAnswer(frame.specific)

    def read_stream_answer(self, frame: Frame) -> Answer | None:
        if frame.opcode != UprOpcode.UPR_STREAM_REQ:
            return None
        if frame.specific == Status.KEY_ENOENT:
            return UnknownBranchAnswer()
        if frame.specific == Status.SUCCESS and not frame.value:
            return AcceptedAnswer(())
        return _make_answer(frame, lambda: self._rollback_seqno(frame))

    def _rollback_seqno(self, frame: Frame) -> int:
        reply = decode_frame(frame, self.dialect)
        assert isinstance(reply, UprStreamReply)
        return reply.rollback()

    def describe_end(self, message: UprStreamEnd) -> str:
        return _name_reason(UprEndReason, message.reason)


class _DraftRules(LogFirstRules):
    """An answer's kind stands in byte 5, and its vbucket where others have a status."""

    dialect = Dialect.UPR_DRAFT
    _log_request_type = DraftGetFailoverLog
    _stream_request_type = DraftStreamReq

    def is_answer(self, frame: Frame) -> bool:
        return frame.magic == Magic.RESPONSE and frame.opcode == DraftCode.DRAFT_OK >> 8

    def read_log_answer(self, frame: Frame) -> FailoverLog | RefusedAnswer:
        code = _read_draft_code(frame)
        if code == DraftCode.DRAFT_NOT_MY_VBUCKET and frame.value:
            return _read_log(frame.value)
        return RefusedAnswer(_DRAFT_STATUS.get(code, Status.EINVAL))

    def read_stream_answer(self, frame: Frame) -> Answer | None:
        code = _read_draft_code(frame)
        if code == DraftCode.DRAFT_OK:
            return AcceptedAnswer(())
        if code == DraftCode.DRAFT_ROLLBACK:
            reply = decode_frame(frame, self.dialect)
            assert isinstance(reply, DraftRollback)
            return RollbackAnswer(reply.rollback_seqno)
        return RefusedAnswer(_DRAFT_STATUS.get(code, Status.EINVAL))

    def describe_end(self, message: Message) -> str:
        return UprEndReason.STATE_CHANGED.name if isinstance(message, DraftStateChanged) else ""


_DRAFT_STATUS: dict[int, Status] = {
    DraftCode.DRAFT_NOT_MY_VBUCKET: Status.NOT_MY_VBUCKET,
    DraftCode.DRAFT_MALFORMED: Status.EINVAL,
}

LOG_FIRST_RULES: dict[Dialect, LogFirstRules] = {rules.dialect: rules for rules in (_DraftRules(), _UprRules())}

DIALECT_RULES: dict[Dialect, DialectRules] = {**LOG_FIRST_RULES, Dialect.DCP: _DcpRules()}
"""The dialects that stream by vbucket: all but TAP."""


def _make_answer(frame: Frame, rollback_seqno: Callable[[], int]) -> Answer:
    """Return the answer to a stream request, as its status says. rollback_seqno: reads the seqno of a rollback."""
    event = classify_reply(frame.specific)
    if event is StreamEvent.ACCEPTED:
        return AcceptedAnswer(_read_log(frame.value))
    return RollbackAnswer(rollback_seqno()) if event is StreamEvent.ROLLBACK else RefusedAnswer(frame.specific)


def _read_log(value: bytes) -> FailoverLog:
    log = sanitise_log(unpack_failover_log(value))
    if not log:
        raise RemoteProtocolError(f"failover log of {len(value)} bytes without a branch")
    return log


def _read_draft_code(frame: Frame) -> int:
    return frame.opcode << 8 | frame.datatype


def _name_reason(reasons: type[StreamEndReason] | type[UprEndReason], reason: int) -> str:
    if not reason:
        return ""
    return reasons(reason).name if reason in reasons._value2member_map_ else f"reason {reason}"
