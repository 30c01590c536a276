"""The takeover of a vbucket by the consumer of a stream: connects its steps with the stream and the node."""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import OrderViolation
from penstock.node.answers import CloseConnection
from penstock.node.session.session import Session
from penstock.node.streams.change_producer import AnswerDeadline
from penstock.node.streams.takeover_steps import TakeoverSteps
from penstock.node.streams.vbucket_handover import VbucketHandover
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.frame import Frame, name_opcode
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.protocol.takeover_state import TakeoverEvent, TakeoverState

ANSWERS: dict[int, TakeoverEvent] = {
    Opcode.DCP_SNAPSHOT_MARKER: TakeoverEvent.MARKER_ANSWER,
    Opcode.DCP_SET_VBUCKET_STATE: TakeoverEvent.STATE_ANSWER,
}
"""Opcode of an answer -> its event."""

_DEAD = frozenset(TakeoverState) - {TakeoverState.COPYING, TakeoverState.ANNOUNCED}


class StreamTakeover:
    """The takeover of one stream.

    Attributes:
        steps: choose the next message.
    """

    def __init__(
        self, session: Session, vbucket: Vbucket, handover: VbucketHandover, resume_stream: Callable[[], None]
    ) -> None:
        """Create a takeover at its start.

        Args:
            session: the session of the connection.
            vbucket: the active vbucket that the consumer takes over.
            handover: makes the vbucket dead.
            resume_stream: schedules the stream after an answer.
        """
        self.steps = TakeoverSteps(vbucket.id)
        self._vbucket = vbucket
        self._resume_stream = resume_stream
        self._handover = handover
        self._answer = AnswerDeadline(session)
        self._timeout = session.node.idle_timeout

    @property
    def has_handed_over(self) -> bool:
        """Whether the vbucket is dead on this node by this takeover."""
        return self.steps.state in _DEAD

    def wait(self) -> None:
        """Start the time limits, since nothing can be sent before the next change or answer."""
        if self.steps.state in (TakeoverState.COPYING, TakeoverState.ANNOUNCED):
            self._handover.limit_writes()
        if self.steps.is_answer_due:
            self._answer.start(self._timeout, f"takeover of vbucket {self._vbucket.id} unanswered")

    def handle_answer(self, frame: Frame) -> None:
        """Apply the consumer's answer to a marker or to a vbucket state.

        Raises:
            CloseConnection: the consumer refuses the message, or has answered it before.
        """
        if frame.specific != Status.SUCCESS:
            raise CloseConnection(
                f"vbucket {self._vbucket.id}: {name_opcode(frame.opcode)} of a takeover refused with status "
                f"0x{frame.specific:02x}"
            )
        try:
            self.steps.record(ANSWERS[frame.opcode])
        except OrderViolation as error:
            raise CloseConnection(str(error)) from None
        self._answer.stop()
        if self.steps.state is TakeoverState.STORING and ANSWERS[frame.opcode] is TakeoverEvent.STATE_ANSWER:
            self._handover.end_service(self._record_stored)
        self._resume_stream()

    def stop(self) -> None:
        """End the takeover, since its stream ends."""
        self._answer.stop()
        self._handover.stop()

    def _record_stored(self) -> None:
        self.steps.record(TakeoverEvent.STORED)
        self._resume_stream()
