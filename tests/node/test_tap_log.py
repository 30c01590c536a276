"""Sequence numbers, window and acknowledgements of a TAP connection, and TTLs of changes, compared with lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.node.tap.tap_log import SEQUENCES, TapLog
from penstock.node.tap_state.tap_ttls import MAX_TTL, TapTtls


def make_log(*counts, acks=True, interval=1000, window=10_000, sent=0):
    log: TapLog[object] = TapLog(acks, interval, window)
    log.sent = log.acked = sent
    for number, count in enumerate(counts):
        log.number_messages(count, number, asks_answer=False)
    return log


def test_sequences_start_at_one():
    sequences, flags = make_log().number_messages(3, "a", asks_answer=False)
    assert sequences.tolist() == [1, 2, 3]
    assert flags.tolist() == [1, 0, 0], "the first message of every interval requests an answer"


def test_every_interval_requests_an_answer():
    _, flags = make_log(interval=4, sent=2).number_messages(10, "a", asks_answer=False)
    assert np.flatnonzero(flags).tolist() == [2, 6]  # sequences 5 and 9


def test_last_message_can_request_an_answer():
    log = make_log(sent=1)
    assert log.number_messages(2, "a", asks_answer=True)[1].tolist() == [0, 1]
    assert log.is_answer_due
    log.remove_before(3)
    assert not log.is_answer_due


def test_sequences_wrap_to_one():
    log = make_log(sent=SEQUENCES - 2)
    sequences, _ = log.number_messages(4, "a", asks_answer=False)
    assert sequences.tolist() == [2**32 - 2, 2**32 - 1, 1, 2]
    assert [log.find_message(int(each)) for each in sequences] == list(range(SEQUENCES - 2, SEQUENCES + 2))
    assert log.find_message(3) is None
    assert log.find_message(0) is None


def test_acknowledgement_applies_to_all_earlier_messages():
    log = make_log(3, 4, 2)
    assert log.remove_before(5) == [(0, 0, 3), (1, 0, 2)]
    assert (log.acked, log.unacked) == (5, 4)
    assert log.remove_before(9) == [(1, 2, 4), (2, 0, 2)]


@pytest.mark.parametrize("sequence", [0, 1, 2, 10, 0x7777, 2**32 - 1])
def test_unsent_and_acknowledged_messages_are_unknown(sequence):
    log = make_log(3, 4, 2)
    log.remove_before(2)
    assert log.find_message(sequence) is None


def test_log_without_acknowledgements_keeps_nothing():
    log = make_log(5000, acks=False)
    assert (log.sent, log.unacked, log.is_answer_due, log.is_data_blocked, log.find_message(3)) == (
        5000,
        0,
        False,
        False,
        None,
    )
    assert log.remove_before(5000) == []


def test_blocking_message_blocks_data_until_its_answer():
    log = make_log()
    log.number_messages(1, "opaque", asks_answer=True, blocks_data=True)
    log.number_messages(1, "opaque", asks_answer=True, blocks_data=True)
    log.remove_before(1)
    assert log.is_data_blocked
    log.remove_before(2)
    assert not log.is_data_blocked


def test_refusal_removes_one_message():
    log = make_log(4)
    assert log.remove_before(2) == [(0, 0, 2)]
    assert log.remove_before(3) == [(0, 2, 3)]
    assert log.find_message(3) is None
    assert log.find_message(4) == 3


@given(
    st.integers(0, 3 * SEQUENCES),
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 60)), max_size=40),
)
def test_each_message_is_removed_once_and_in_order(start, steps):
    log = make_log(sent=start, interval=7, window=100)
    sent, removed = [], []
    for run, (count, answered) in enumerate(steps):
        if (count := min(count, log.room)) > 0:
            sequences, _ = log.number_messages(count, run, asks_answer=False)
            assert (sequences >= 1).all()
            assert (sequences <= SEQUENCES).all()
            sent += [(run, row) for row in range(count)]
        assert 0 <= log.unacked <= 100
        if log.unacked:
            number = log.acked + answered % log.unacked
            assert log.find_message(number % SEQUENCES + 1) == number
            removed += [(run, row) for run, low, high in log.remove_before(number + 1) for row in range(low, high)]
    removed += [(run, row) for run, low, high in log.remove_before(log.sent) for row in range(low, high)]
    assert removed == sent
    assert log.unacked == 0


@given(st.dictionaries(st.integers(1, 60), st.integers(0, 255), max_size=30))
def test_ttls_are_those_recorded(ttls):
    recorded = TapTtls()
    for seqno in sorted(ttls):
        recorded.record(seqno, ttls[seqno])
    assert recorded.get_ttls(np.arange(1, 70)).tolist() == [ttls.get(seqno, MAX_TTL) for seqno in range(1, 70)]


def test_changes_of_one_producer_share_a_step():
    recorded = TapTtls()
    for seqno in range(1, 100_000):
        recorded.record(seqno, 254)
    assert len(recorded._starts) == 3
    assert recorded.get_ttls(np.array([1, 99_999, 100_000])).tolist() == [254, 254, MAX_TTL]


def test_oldest_steps_are_dropped():
    recorded = TapTtls()
    for seqno in range(1, 20_000, 2):
        recorded.record(seqno, 254)
    assert len(recorded._starts) <= 8192
    assert recorded.get_ttls(np.array([19_998, 19_999, 20_000])).tolist() == [MAX_TTL, 254, MAX_TTL]
