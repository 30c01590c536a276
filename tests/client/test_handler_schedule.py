"""The schedule of handlers against a model: order per document, the limit, and the changes that a commit contains."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.consumers.handler_failures import HandlerRetry
from penstock.client.consumers.handler_schedule import HandlerSchedule
from penstock.errors import UsageError
from penstock.wire.columns.schema import Change, Event

EVENTS = st.sampled_from([Event.MUTATION, Event.DELETION, Event.EXPIRATION, Event.ROLLBACK, Event.FLUSH])
CHANGES = st.builds(
    lambda vbucket, key, event, collection: Change(vbucket, 1, 1, event=event, key=key, collection_id=collection),
    st.integers(0, 2),
    st.sampled_from([b"a", b"b", b"c"]),
    EVENTS,
    st.sampled_from([0, 8]),
)
DOCUMENT_EVENTS = {Event.MUTATION, Event.DELETION, Event.EXPIRATION}


def must_wait(later, earlier):
    """Return whether a change must not start before an earlier one is finished."""
    if later.vbucket != earlier.vbucket:
        return False
    if not {later.event, earlier.event} <= DOCUMENT_EVENTS:
        return True
    return (later.collection_id, later.key) == (earlier.collection_id, earlier.key)


@given(st.data(), st.integers(1, 4), st.lists(st.lists(CHANGES, max_size=8), max_size=5))
def test_schedule_behaves_as_its_model(data, concurrency, arrivals):
    schedule, waiting = HandlerSchedule(concurrency), deque(arrivals)
    known, started, finished = [], set(), set()  # the two sets have positions in `known`
    running, committed = {}, 0
    while waiting or schedule.unfinished:
        if waiting and (not schedule.unfinished or data.draw(st.booleans(), "arrive")):
            arrived = waiting.popleft()
            known += arrived
            schedule.add(arrived)
        due = schedule.start_due()
        for job in due:
            index = next(n for n, change in enumerate(known) if change is job.change and n not in started)
            assert not any(must_wait(job.change, known[n]) for n in range(index) if n not in finished)
            started.add(index)
            running[index] = job
        assert len(running) <= concurrency
        startable = [
            n
            for n, change in enumerate(known)
            if n not in started and not any(must_wait(change, known[m]) for m in range(n) if m not in finished)
        ]
        assert not startable or len(running) == concurrency
        if running:
            index = data.draw(st.sampled_from(sorted(running)), "finish")
            schedule.finish(running.pop(index))
            finished.add(index)
        committed += schedule.take_finished()
        first_unfinished = next((n for n in range(len(known)) if n not in finished), len(known))
        assert committed == first_unfinished
        assert schedule.unfinished == len(known) - len(finished)
    assert finished == set(range(sum(map(len, arrivals))))


def test_delays_double_up_to_the_longest():
    retry = HandlerRetry(attempts=6, first_seconds=1, longest_seconds=5)
    assert [retry.find_delay(failures) for failures in range(1, 7)] == [1, 2, 4, 5, 5, None]
    assert HandlerRetry(attempts=10**6).find_delay(10**5) == HandlerRetry().longest_seconds


@pytest.mark.parametrize(("field", "value"), [("attempts", 0), ("first_seconds", -1), ("longest_seconds", -0.1)])
def test_retries_need_possible_numbers(field, value):
    with pytest.raises(UsageError, match=f"{field} of a handler's retry is {value}"):
        HandlerRetry(**{field: value})
