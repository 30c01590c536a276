"""States of a takeover on the side of the producer: its consumer becomes the owner of a vbucket, in two phases.

The table is complete: an answer that the current state does not list breaks the protocol. Only `advance_takeover`
raises that error. In TAP, the consumer becomes pending before the first change, and there are no markers.

Source: docs/dcp/documentation/rebalance.md of kv_engine, and its active_stream.cc; ep-engine 2.5 tapconnection.cc.
"""

from __future__ import annotations

from enum import Enum

from penstock.errors import OrderViolation
from penstock.wire.codec.constants import Dialect, VbucketState


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
    CAUGHT_UP = "last few changes"
    MARKER_ANSWER = "answer to a snapshot marker"
    STATE = "vbucket state"
    STATE_ANSWER = "answer to a vbucket state"
    STORED = "dead state on disk"


T, E = TakeoverState, TakeoverEvent

_DCP: dict[TakeoverState, dict[TakeoverEvent, TakeoverState]] = {
    T.COPYING: {E.MARKER: T.COPYING, E.MARKER_ANSWER: T.COPYING, E.STATE: T.ANNOUNCED},
    T.ANNOUNCED: {E.STATE_ANSWER: T.STORING},
    T.STORING: {E.MARKER: T.STORING, E.MARKER_ANSWER: T.STORING, E.STORED: T.FINISHING},
    T.FINISHING: {E.MARKER: T.FINISHING, E.MARKER_ANSWER: T.FINISHING, E.STATE: T.ACTIVATING},
    T.ACTIVATING: {E.STATE_ANSWER: T.COMPLETE},
    T.COMPLETE: {},
}

_TAP: dict[TakeoverState, dict[TakeoverEvent, TakeoverState]] = {
    T.COPYING: {E.CAUGHT_UP: T.STORING},
    T.STORING: {E.STORED: T.FINISHING},
    T.FINISHING: {E.STATE: T.ACTIVATING},
    T.ACTIVATING: {E.STATE_ANSWER: T.COMPLETE},
    T.COMPLETE: {},
}

TAKEOVER_TRANSITIONS = {Dialect.DCP: _DCP, Dialect.TAP: _TAP}
"""Dialect -> state -> event -> next state. The vbucket of the producer is dead from STORING on."""

ANNOUNCEMENTS: dict[TakeoverState, VbucketState] = {
    T.COPYING: VbucketState.PENDING,
    T.FINISHING: VbucketState.ACTIVE,
}
"""State of DCP -> the vbucket state that the producer announces next."""


def advance_takeover(
    state: TakeoverState, event: TakeoverEvent, vbucket: int, dialect: Dialect = Dialect.DCP
) -> TakeoverState:
    """Return the state that follows.

    Raises:
        OrderViolation: the state does not allow the event.
    """
    following = TAKEOVER_TRANSITIONS[dialect].get(state, {}).get(event)
    if following is None:
        raise OrderViolation(f"vbucket {vbucket}: {event.value} while the takeover is {state.value}", vbucket=vbucket)
    return following
