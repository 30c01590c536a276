"""The states of a takeover: every event in every state."""

import itertools

import pytest

from penstock.errors import OrderViolation
from penstock.wire.codec.constants import VbucketState
from penstock.wire.protocol.takeover_state import (
    ANNOUNCEMENTS,
    TakeoverEvent,
    TakeoverState,
    advance_takeover,
)

E, T = TakeoverEvent, TakeoverState

# Event -> next states from COPYING, ANNOUNCED, STORING, FINISHING, ACTIVATING, COMPLETE, each by its number there; a
# dash breaks the protocol.
EXPECTED = {
    E.MARKER: "0-23--",
    E.MARKER_ANSWER: "0-23--",
    E.STATE: "1--4--",
    E.STATE_ANSWER: "-2--5-",
    E.STORED: "--3---",
}
STATES = list(TakeoverState)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(TakeoverState, TakeoverEvent)))
def test_every_state_and_event(state: TakeoverState, event: TakeoverEvent) -> None:
    following = EXPECTED[event][STATES.index(state)]
    if following != "-":
        assert advance_takeover(state, event, 7) is STATES[int(following)]
        return
    with pytest.raises(OrderViolation, match=f"^vbucket 7: {event.value} while the takeover is {state.value}$"):
        advance_takeover(state, event, 7)


def test_states_are_announced_where_the_table_allows_it() -> None:
    assert ANNOUNCEMENTS == {T.COPYING: VbucketState.PENDING, T.FINISHING: VbucketState.ACTIVE}
    assert all(EXPECTED[E.STATE][STATES.index(state)] != "-" for state in ANNOUNCEMENTS)
