"""States of a takeover on the side of the producer: its consumer becomes the owner of a vbucket, in two phases.

The table is complete: an answer that the current state does not list breaks the protocol. Only `advance_takeover`
raises that error. DCP and TAP have the same states, but messages of TAP have no markers.

Source: docs/dcp/documentation/rebalance.md of kv_engine, and its active_stream.cc; ep-engine 2.5 tapconnection.cc.
"""

from __future__ import annotations

from enum import Enum

from penstock.errors import OrderViolation
from penstock.wire.codec.constants import VbucketState

__all__ = ["ANNOUNCEMENTS", "TAKEOVER_TRANSITIONS", "TakeoverEvent", "TakeoverState", "advance_takeover"]


class TakeoverState(Enum):
    """The states of a takeover, in order."""

    COPYING = "copying"
    ANNOUNCED = "waiting for the consumer to become pending"
    STORING = "storing the dead state"
    FINISHING = "sending the last changes"
    ACTIVATING = "waiting for the consumer to become active"
    COMPLETE = "complete"


class TakeoverEvent(Enum):
    """The events of a takeover, from either side."""

    MARKER = "snapshot marker"
    MARKER_ANSWER = "answer to a snapshot marker"
    STATE = "vbucket state"
    STATE_ANSWER = "answer to a vbucket state"
    STORED = "dead state on disk"


T, E = TakeoverState, TakeoverEvent

TAKEOVER_TRANSITIONS: dict[TakeoverState, dict[TakeoverEvent, TakeoverState]] = {
    T.COPYING: {E.MARKER: T.COPYING, E.MARKER_ANSWER: T.COPYING, E.STATE: T.ANNOUNCED},
    T.ANNOUNCED: {E.STATE_ANSWER: T.STORING},
    T.STORING: {E.MARKER: T.STORING, E.MARKER_ANSWER: T.STORING, E.STORED: T.FINISHING},
    T.FINISHING: {E.MARKER: T.FINISHING, E.MARKER_ANSWER: T.FINISHING, E.STATE: T.ACTIVATING},
    T.ACTIVATING: {E.STATE_ANSWER: T.COMPLETE},
    T.COMPLETE: {},
}
"""State -> event -> next state. The vbucket of the producer is dead from STORING on."""

ANNOUNCEMENTS: dict[TakeoverState, VbucketState] = {
    T.COPYING: VbucketState.PENDING,
    T.FINISHING: VbucketState.ACTIVE,
}
"""State -> the vbucket state that the producer announces next."""


def advance_takeover(state: TakeoverState, event: TakeoverEvent, vbucket: int) -> TakeoverState:
    """Return the state that follows.

    Raises:
        OrderViolation: the state does not allow the event.
    """
    following = TAKEOVER_TRANSITIONS[state].get(event)
    if following is None:
        raise OrderViolation(f"vbucket {vbucket}: {event.value} while the takeover is {state.value}", vbucket=vbucket)
    return following
