"""The decisions of a takeover: the message that the producer sends next. They have no clock, socket or history."""

from __future__ import annotations

from penstock.errors import OrderViolation
from penstock.wire.codec.constants import VbucketState
from penstock.wire.protocol.takeover_state import ANNOUNCEMENTS, TakeoverEvent, TakeoverState, advance_takeover

MOST_MARKERS = 8
"""Markers after which each further one waits for the answers to all. Otherwise writers could delay the end for ever."""

FEW_CHANGES = 100
"""Changes that may follow after the vbucket is dead: writers wait while they are sent, a few milliseconds."""


class TakeoverSteps:
    """Chooses the next message of a takeover.

    The consumer answers each marker. Once it has everything, its vbucket becomes pending. If writers go on, the last
    few changes follow later, when the vbucket of the producer is dead.

    Attributes:
        state: the state of the takeover.
        unanswered: number of snapshot markers without an answer.
    """

    def __init__(self, vbucket: int) -> None:
        self.state = TakeoverState.COPYING
        self.unanswered = 0
        self._vbucket = vbucket
        self._markers = 0  # that were sent

    @property
    def is_complete(self) -> bool:
        """Whether the consumer owns the vbucket."""
        return self.state is TakeoverState.COMPLETE

    @property
    def is_answer_due(self) -> bool:
        """Whether the consumer owes an answer."""
        return self.unanswered > 0 or self.state in (TakeoverState.ANNOUNCED, TakeoverState.ACTIVATING)

    def wants_changes(self, remaining: int) -> bool:
        """Return whether the next message is a snapshot marker.

        Args:
            remaining: number of changes that are left to send.
        """
        if self.state is TakeoverState.COPYING and self._markers >= MOST_MARKERS:
            return not self.unanswered and remaining > FEW_CHANGES
        return remaining > 0 and self.state in (
            TakeoverState.COPYING,
            TakeoverState.STORING,
            TakeoverState.FINISHING,
        )

    def choose_announcement(self, remaining: int) -> VbucketState | None:
        """Return the vbucket state that is announced next; None if it is not due.

        Args:
            remaining: number of changes that are left to send.
        """
        if self.unanswered or self.wants_changes(remaining):
            return None
        return ANNOUNCEMENTS.get(self.state)

    def record(self, event: TakeoverEvent) -> None:
        """Apply an event.

        Raises:
            OrderViolation: the state does not allow the event, or all markers are answered.
        """
        if event is TakeoverEvent.MARKER_ANSWER and not self.unanswered:
            raise OrderViolation(f"vbucket {self._vbucket}: {event.value} that is not open", vbucket=self._vbucket)
        self.state = advance_takeover(self.state, event, self._vbucket)
        if event is TakeoverEvent.MARKER:
            self._markers += 1
        self.unanswered += (event is TakeoverEvent.MARKER) - (event is TakeoverEvent.MARKER_ANSWER)
