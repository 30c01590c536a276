"""The states of a takeover: every event in every state."""

import itertools

import pytest

from penstock.errors import OrderViolation
from penstock.wire.codec.constants import Dialect, VbucketState
from penstock.wire.protocol.takeover_state import (
    ANNOUNCEMENTS,
    TakeoverEvent,
    TakeoverState,
    advance_takeover,
)

E, T = TakeoverEvent, TakeoverState

# Dialect -> event -> next states from COPYING, ANNOUNCED, STORING, FINISHING, ACTIVATING, COMPLETE, each by its number
# there; a dash breaks the protocol.
EXPECTED = {
    Dialect.DCP: {
        E.MARKER: "0-23--",
        E.MARKER_ANSWER: "0-23--",
        E.STATE: "1--4--",
        E.STATE_ANSWER: "-2--5-",
        E.STORED: "--3---",
    },
    Dialect.TAP: {E.CAUGHT_UP: "2-----", E.STATE: "---4--", E.STATE_ANSWER: "----5-", E.STORED: "--3---"},
}
STATES = list(TakeoverState)


@pytest.mark.parametrize("dialect", EXPECTED)
def test_every_state_and_event(dialect: Dialect) -> None:
    for state, event in itertools.product(TakeoverState, TakeoverEvent):
        following = EXPECTED[dialect].get(event, "------")[STATES.index(state)]
        if following != "-":
            assert advance_takeover(state, event, 7, dialect) is STATES[int(following)], (state, event)
            continue
        with pytest.raises(OrderViolation) as caught:
            advance_takeover(state, event, 7, dialect)
        assert str(caught.value) == f"vbucket 7: {event.value} while the takeover is {state.value}"


def test_states_are_announced_where_the_table_allows_it() -> None:
    assert ANNOUNCEMENTS == {T.COPYING: VbucketState.PENDING, T.FINISHING: VbucketState.ACTIVE}
    assert all(EXPECTED[Dialect.DCP][E.STATE][STATES.index(state)] != "-" for state in ANNOUNCEMENTS)
