"""The life of a stream: every event in every state."""

import itertools

import pytest

from penstock.errors import RemoteProtocolError
from penstock.wire.constants import Status
from penstock.wire.stream import TRANSITIONS, StreamEvent, StreamState, advance, reply_event

E, S = StreamEvent, StreamState

# Rows: what has happened so far; columns: what happens next. A blank breaks the protocol.
EXPECTED = {
    #               ACCEPTED ROLLBACK REFUSED  MARKER         DATA           END      CLOSED
    S.REQUESTED: (S.OPEN, S.ENDED, S.ENDED, None, None, None, None),
    S.OPEN: (None, None, None, S.IN_SNAPSHOT, None, S.ENDED, S.ENDED),
    S.IN_SNAPSHOT: (None, None, None, S.IN_SNAPSHOT, S.IN_SNAPSHOT, S.ENDED, S.ENDED),
    S.ENDED: (None,) * 7,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(StreamState, StreamEvent)))
def test_every_state_and_event(state: StreamState, event: StreamEvent) -> None:
    following = EXPECTED[state][list(StreamEvent).index(event)]
    if following is not None:
        assert advance(state, event, 7) is following
        return
    with pytest.raises(RemoteProtocolError, match=f"^vbucket 7: {event.value} while the stream is {state.value}$"):
        advance(state, event, 7)


def test_every_state_has_a_row() -> None:
    assert set(TRANSITIONS) == set(StreamState)


REPLIES = [(Status.SUCCESS, E.ACCEPTED), (Status.ROLLBACK, E.ROLLBACK), (Status.NOT_MY_VBUCKET, E.REFUSED)]


@pytest.mark.parametrize(("status", "event"), [*REPLIES, (0x7777, E.REFUSED)])
def test_replies(status: int, event: StreamEvent) -> None:
    assert reply_event(status) is event
