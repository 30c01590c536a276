"""The states of a stream: every event in every state of every dialect, and every message in every state."""

import itertools

import pytest

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.layout import LAYOUTS, Message
from penstock.wire.codec.statuses import Status
from penstock.wire.protocol.stream_state import (
    EVENTS,
    TRANSITIONS,
    StreamEvent,
    StreamState,
    advance_state,
    classify_reply,
)

E, S, D = StreamEvent, StreamState, Dialect

# Dialect -> event -> next states from REQUESTED, ACCEPTED, OPEN, IN_SNAPSHOT, IN_BACKFILL, OUT_OF_ORDER, IN_CACHE. A
# dash breaks the protocol; each letter is one of LETTERS. From ENDED nothing follows.
LETTERS = {
    "R": S.REQUESTED,
    "A": S.ACCEPTED,
    "O": S.OPEN,
    "N": S.IN_SNAPSHOT,
    "B": S.IN_BACKFILL,
    "U": S.OUT_OF_ORDER,
    "C": S.IN_CACHE,
    "E": S.ENDED,
}
EXPECTED = {
    D.DCP: {
        **{E.ACCEPTED: "O----", E.ROLLBACK: "E----", E.REFUSED: "E----", E.MARKER: "--NN-", E.DATA: "---N-U"},
        **{E.STATE: "--ON-", E.END: "--EE-EE", E.CLOSED: "--EE-EE"},
        **{E.OUT_OF_ORDER_START: "--U---", E.OUT_OF_ORDER_END: "-----O"},
        **{E.CACHED: "--C---C", E.CACHE_END: "--O---O"},
    },
    D.UPR: {
        **{E.ACCEPTED: "A----", E.ROLLBACK: "E----", E.REFUSED: "E----", E.START: "-O---"},
        **{E.SNAPSHOT_START: "--N--", E.DATA: "---N-", E.SNAPSHOT_END: "---O-", E.FLUSH: "--OO-"},
        **{E.STATE: "--ON-", E.END: "-EEE-", E.CLOSED: "-EEE-"},
    },
    D.TAP: {
        **{E.ACCEPTED: "O----", E.REFUSED: "E----", E.DATA: "--ONB", E.BACKFILL_START: "--BBB"},
        **{E.BACKFILL_END: "----O", E.SNAPSHOT_START: "--NNN", E.SNAPSHOT_END: "---O-", E.FLUSH: "--ONB"},
        **{E.STATE: "--ONB", E.END: "--EEE", E.CLOSED: "--EEE"},
    },
}
EXPECTED[D.UPR_DRAFT] = EXPECTED[D.UPR]
STATES = [S.REQUESTED, S.ACCEPTED, S.OPEN, S.IN_SNAPSHOT, S.IN_BACKFILL, S.OUT_OF_ORDER, S.IN_CACHE, S.ENDED]


def expected(dialect: Dialect, state: StreamState, event: StreamEvent) -> StreamState | None:
    return LETTERS.get((EXPECTED[dialect].get(event, "") + "--------")[STATES.index(state)])


@pytest.mark.parametrize("dialect", Dialect)
def test_every_state_and_event(dialect: Dialect) -> None:
    for state, event in itertools.product(StreamState, StreamEvent):
        following = expected(dialect, state, event)
        if following is not None:
            assert advance_state(state, event, 7, dialect) is following, (state, event)
            continue
        with pytest.raises(RemoteProtocolError) as caught:
            advance_state(state, event, 7, dialect)
        assert str(caught.value) == f"vbucket 7: {event.value} while the stream is {state.value}"


MESSAGES = [(dialect, message) for dialect, messages in EVENTS.items() for message in messages]


@pytest.mark.parametrize(("dialect", "message"), MESSAGES)
def test_every_message_in_every_state(dialect: Dialect, message: type[Message]) -> None:
    event = EVENTS[dialect][message]
    allowed = {state for state in StreamState if expected(dialect, state, event)}
    assert allowed, "a message that no state takes"
    assert {state for state, row in TRANSITIONS[dialect].items() if event in row} == allowed
    assert S.ENDED not in allowed
    assert S.REQUESTED not in allowed


@pytest.mark.parametrize("dialect", Dialect)
def test_every_state_can_be_reached_and_left(dialect: Dialect) -> None:
    rows = TRANSITIONS[dialect]
    reached = {following for row in rows.values() for following in row.values()}
    assert reached | {S.REQUESTED} == set(rows)
    assert [state for state, row in rows.items() if not row] == [S.ENDED]


@pytest.mark.parametrize("dialect", [D.UPR, D.UPR_DRAFT])
def test_every_message_of_a_producer_is_an_event(dialect: Dialect) -> None:
    declared = {
        layout.cls for table in LAYOUTS[dialect].values() for forms in table.values() for layout in forms.values()
    }
    others = {cls for cls in declared if "Req" in cls.__name__ or "FailoverLog" in cls.__name__}
    answers = {cls for cls in declared - others if cls.__name__ in ANSWERS}
    assert declared - others - answers == set(EVENTS[dialect])


ANSWERS = {"UprStreamReply", "DraftOk", "DraftRollback", "DraftMalformed"}

REPLIES = [(Status.SUCCESS, E.ACCEPTED), (Status.ROLLBACK, E.ROLLBACK), (Status.NOT_MY_VBUCKET, E.REFUSED)]


@pytest.mark.parametrize(("status", "event"), [*REPLIES, (0x7777, E.REFUSED)])
def test_replies(status: int, event: StreamEvent) -> None:
    assert classify_reply(status) is event
