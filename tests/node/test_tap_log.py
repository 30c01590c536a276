"""Sequence numbers, window and acknowledgements of a TAP connection, against lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.node.tap.tap_log import SEQUENCES, TapLog
from penstock.node.tap_state.tap_hops import MOST, Hops


def log_of(*counts, acks=True, interval=1000, window=10_000, sent=0):
    log: TapLog[object] = TapLog(acks, interval, window)
    log.sent = log.acked = sent
    for number, count in enumerate(counts):
        log.number(count, number, asks=False)
    return log


def test_sequences_begin_at_one():
    sequences, flags = log_of().number(3, "a", asks=False)
    assert sequences.tolist() == [1, 2, 3]
    assert flags.tolist() == [1, 0, 0], "the first of every interval asks for an answer"


def test_every_interval_asks_for_an_answer():
    _, flags = log_of(interval=4, sent=2).number(10, "a", asks=False)
    assert np.flatnonzero(flags).tolist() == [2, 6]  # sequences 5 and 9


def test_the_last_may_ask_whatever_its_number():
    log = log_of(sent=1)
    assert log.number(2, "a", asks=True)[1].tolist() == [0, 1]
    assert log.answer_due
    log.take(3)
    assert not log.answer_due


def test_sequences_wrap_to_one():
    log = log_of(sent=SEQUENCES - 2)
    sequences, _ = log.number(4, "a", asks=False)
    assert sequences.tolist() == [2**32 - 2, 2**32 - 1, 1, 2]
    assert [log.find(int(each)) for each in sequences] == list(range(SEQUENCES - 2, SEQUENCES + 2))
    assert log.find(3) is None
    assert log.find(0) is None


def test_an_acknowledgement_counts_for_everything_before():
    log = log_of(3, 4, 2)
    assert log.take(5) == [(0, 0, 3), (1, 0, 2)]
    assert (log.acked, log.unacked) == (5, 4)
    assert log.take(9) == [(1, 2, 4), (2, 0, 2)]


@pytest.mark.parametrize("sequence", [0, 1, 2, 10, 0x7777, 2**32 - 1])
def test_what_was_not_sent_or_is_acknowledged_is_unknown(sequence):
    log = log_of(3, 4, 2)
    log.take(2)
    assert log.find(sequence) is None


def test_without_acknowledgements_nothing_is_kept():
    log = log_of(5000, acks=False)
    assert (log.sent, log.unacked, log.answer_due, log.barred, log.find(3)) == (5000, 0, False, False, None)
    assert log.take(5000) == []


def test_a_barrier_stands_until_it_is_answered():
    log = log_of()
    log.number(1, "opaque", asks=True, barrier=True)
    log.number(1, "opaque", asks=True, barrier=True)
    log.take(1)
    assert log.barred
    log.take(2)
    assert not log.barred


def test_a_nack_takes_one_message_out():
    log = log_of(4)
    assert log.take(2) == [(0, 0, 2)]
    assert log.take(3) == [(0, 2, 3)]
    assert log.find(3) is None
    assert log.find(4) == 3


@given(
    st.integers(0, 3 * SEQUENCES),
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 60)), max_size=40),
)
def test_every_message_is_taken_once_and_in_order(start, steps):
    log = log_of(sent=start, interval=7, window=100)
    sent, taken = [], []
    for run, (count, answered) in enumerate(steps):
        if (count := min(count, log.room)) > 0:
            sequences, _ = log.number(count, run, asks=False)
            assert (sequences >= 1).all()
            assert (sequences <= SEQUENCES).all()
            sent += [(run, row) for row in range(count)]
        assert 0 <= log.unacked <= 100
        if log.unacked:
            number = log.acked + answered % log.unacked
            assert log.find(number % SEQUENCES + 1) == number
            taken += [(run, row) for run, low, high in log.take(number + 1) for row in range(low, high)]
    taken += [(run, row) for run, low, high in log.take(log.sent) for row in range(low, high)]
    assert taken == sent
    assert log.unacked == 0


@given(st.dictionaries(st.integers(1, 60), st.integers(0, 255), max_size=30))
def test_hops_are_those_that_were_noted(noted):
    hops = Hops()
    for seqno in sorted(noted):
        hops.note(seqno, noted[seqno])
    assert hops.of(np.arange(1, 70)).tolist() == [noted.get(seqno, MOST) for seqno in range(1, 70)]


def test_changes_of_one_producer_are_one_step():
    hops = Hops()
    for seqno in range(1, 100_000):
        hops.note(seqno, 254)
    assert len(hops._starts) == 3
    assert hops.of(np.array([1, 99_999, 100_000])).tolist() == [254, 254, MOST]


def test_the_oldest_steps_are_given_up():
    hops = Hops()
    for seqno in range(1, 20_000, 2):
        hops.note(seqno, 254)
    assert len(hops._starts) <= 8192
    assert hops.of(np.array([19_998, 19_999, 20_000])).tolist() == [MOST, 254, MOST]
