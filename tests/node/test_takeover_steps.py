"""The decisions of a takeover, driven by random writers and a consumer of any speed."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import OrderViolation
from penstock.node.streams.takeover_steps import FEW_CHANGES, MOST_MARKERS, TakeoverSteps
from penstock.wire.codec.constants import VbucketState
from penstock.wire.protocol.takeover_state import TakeoverEvent, TakeoverState
from tests.examples import scaled

E, T = TakeoverEvent, TakeoverState


class Simulation:
    """A producer, a writer and a consumer, without a network.

    Attributes:
        written: number of changes of the vbucket.
        sent: number of changes that were sent.
        announced: the announced states, each with the number of sent changes.
        late: number of changes that were left when the vbucket became dead.
    """

    def __init__(self, written: int) -> None:
        self.steps = TakeoverSteps(3)
        self.written, self.sent = written, 0
        self.announced: list[tuple[VbucketState, int]] = []
        self.owed: deque[TakeoverEvent] = deque()
        self.late = 0

    @property
    def remaining(self) -> int:
        return self.written - self.sent

    def write(self, count: int) -> None:
        """Write some changes, if the vbucket is not dead."""
        if self.steps.state in (T.COPYING, T.ANNOUNCED):
            self.written += count

    def send(self) -> bool:
        """Send the next message. Return whether there was one."""
        if self.steps.wants_changes(self.remaining):
            assert self.remaining
            assert self.steps.choose_announcement(self.remaining) is None
            self.sent = self.written
            self.steps.record(E.MARKER)
            self.owed.append(E.MARKER_ANSWER)
        elif (state := self.steps.choose_announcement(self.remaining)) is not None:
            assert not self.owed, "all markers are answered"
            self.announced.append((state, self.sent))
            self.steps.record(E.STATE)
            self.owed.append(E.STATE_ANSWER)
        else:
            return False
        return True

    def answer(self) -> None:
        """Answer the oldest message. The dead state is stored at once."""
        if self.owed:
            self.steps.record(self.owed.popleft())
            if self.steps.state is T.STORING:
                self.late = self.remaining
                self.steps.record(E.STORED)


@settings(max_examples=scaled(200))
@given(st.integers(0, 3000), st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 12), st.integers(0, 12))))
def test_all_changes_are_sent_before_the_consumer_is_active(written, rounds):
    simulation = Simulation(written)
    for writes, sends, answers in rounds:
        simulation.write(writes)
        for _ in range(sends):
            simulation.send()
        for _ in range(answers):
            simulation.answer()
        assert simulation.steps.unanswered <= MOST_MARKERS
    while not simulation.steps.is_complete:
        if not simulation.send():
            assert simulation.owed, "it never waits for nothing"
            simulation.answer()
    assert [state for state, _ in simulation.announced] == [VbucketState.PENDING, VbucketState.ACTIVE]
    assert simulation.announced[1][1] == simulation.written


@pytest.mark.parametrize("distance", [1, 3, 50])
def test_takeover_ends_although_the_writer_never_pauses(distance):
    """The consumer answers only after the writer has written again: the answers never catch up by themselves."""
    simulation = Simulation(100)
    messages = 0
    while not simulation.steps.is_complete:
        simulation.write(1)
        messages += simulation.send()
        if len(simulation.owed) > distance or not simulation.steps.wants_changes(simulation.remaining):
            simulation.write(1)
            simulation.answer()
        assert messages < 100
    assert simulation.late <= FEW_CHANGES


def test_many_changes_are_sent_before_the_vbucket_is_dead():
    simulation = Simulation(1)
    for _ in range(MOST_MARKERS):
        assert simulation.send()
        simulation.write(1)
    simulation.write(FEW_CHANGES)
    assert not simulation.send()
    while simulation.owed:
        simulation.answer()
    assert simulation.remaining == FEW_CHANGES + 1
    assert simulation.send()
    assert simulation.announced == []


def test_answer_to_no_marker_breaks_the_order():
    steps = TakeoverSteps(3)
    with pytest.raises(OrderViolation, match=r"^vbucket 3: answer to a snapshot marker that is not open$"):
        steps.record(E.MARKER_ANSWER)
    assert steps.state is T.COPYING
