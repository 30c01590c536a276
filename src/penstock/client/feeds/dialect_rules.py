"""Differences between the dialects with one stream for each vbucket: requests, and the meaning of their answers.

No state, no socket. `stream_state` maps the messages of a stream to events. Sources: kv_engine docs/dcp; UPR transport
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
    """The producer accepted the stream.

    Attributes:
        log: the producer's failover log, newest entry first; empty if the answer does not contain it.
    """

    log: FailoverLog


class RollbackAnswer(NamedTuple):
    """The consumer must roll back before the producer accepts the stream.

    Attributes:
        seqno: the seqno in the producer's answer.
    """

    seqno: int


class UnknownBranchAnswer(NamedTuple):
    """The producer has no branch with the requested vbuuid."""


class RefusedAnswer(NamedTuple):
    """The producer refused the stream, or the failover log.

    Attributes:
        status: the status of the answer; in the UPR draft, the status that means the same.
    """

    status: int


Answer = AcceptedAnswer | RollbackAnswer | UnknownBranchAnswer | RefusedAnswer


class DialectRules(ABC):
    """The rules of one dialect.

    Attributes:
        dialect: the dialect.
        noop: whether the producer sends signs of life when it has nothing else to send.
        flow_control: whether the producer counts the bytes that the consumer acknowledges.
    """

    dialect: ClassVar[Dialect]
    noop: ClassVar[bool] = False
    flow_control: ClassVar[bool] = False

    @abstractmethod
    def make_stream_request(
        self, vbucket: int, position: Position, end_seqno: int, opaque: int, log: FailoverLog
    ) -> Request:
        """Return the request for the changes after `position`.

        Args:
            vbucket: the vbucket.
            position: the position to continue from.
            end_seqno: the last seqno to read.
            opaque: the opaque of the request and of the stream's messages.
            log: the producer's failover log, if the dialect requests it first.
        """

    def is_answer(self, frame: Frame) -> bool:
        """Return whether a frame answers a request. If not, it is a message of a stream."""
        return frame.magic == Magic.RESPONSE

    @abstractmethod
    def read_stream_answer(self, frame: Frame) -> Answer | None:
        """Return the answer to a stream request; None if the frame answers another request.

        Raises RemoteProtocolError for a malformed answer.
        """

    def encode_close_request(self, vbucket: int) -> bytes:
        """Return the message that closes a stream; empty in a dialect without such a message."""
        return b""

    @abstractmethod
    def describe_end(self, message: Any) -> str:
        """Return why a stream ended early; empty if the producer has sent all requested changes.

        Args:
            message: the dialect's message for the end of a stream.
        """


class LogFirstRules(DialectRules):
    """A dialect without the producer's failover log in its accepting answer: the consumer requests the log first."""

    _log_request_type: ClassVar[type[UprGetFailoverLog | DraftGetFailoverLog]]
    _stream_request_type: ClassVar[type[UprStreamReq | DraftStreamReq]]

    def make_log_request(self, vbucket: int, opaque: int) -> Request:
        """Return the request for the producer's failover log, which names its branches."""
        return self._log_request_type(vbucket=vbucket, opaque=opaque)

    @abstractmethod
    def read_log_answer(self, frame: Frame) -> FailoverLog | RefusedAnswer:
        """Return the failover log in an answer, or the refusal. Raises RemoteProtocolError for an invalid log."""

    def make_stream_request(
        self, vbucket: int, position: Position, end_seqno: int, opaque: int, log: FailoverLog
    ) -> Request:
        """Return the request for the changes after `position`, in the branch that the log has for its seqno."""
        # The branch of the seqno, or the oldest branch that the producer still has. A stream from 0 names no branch.
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
    """The rules of the UPR draft: byte 5 of an answer is its kind, and the vbucket is in the place of the status."""

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
"""The dialects with one stream for each vbucket: all except TAP."""


def _make_answer(frame: Frame, rollback_seqno: Callable[[], int]) -> Answer:
    """Return the answer to a stream request, according to its status.

    Args:
        frame: the answer.
        rollback_seqno: reads the seqno of a rollback.
    """
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
