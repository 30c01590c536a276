"""The decision of each policy on a producer's answers. Models in test_position and test_offsets_model test both."""

from dataclasses import replace

import pytest

from penstock.client.feeds.resume_policy import FOLLOW, PinnedBranch, Resumption, is_complete_end
from penstock.client.feeds.stream_position import BEGINNING, Position, SnapshotEnd
from penstock.wire.messages.kv import FailoverEntry

NEWER = FailoverEntry(33, 12)
LOG = (FailoverEntry(22, 10), FailoverEntry(11, 0))
ENDS = (SnapshotEnd(3, 11), SnapshotEnd(15, 22))
COMPLETE = Position(seqno=15, vbuuid=22, snap_start=15, snap_end=15, history=2, ends=ENDS)
INSIDE = replace(COMPLETE, seqno=20, snap_end=30)
AT_3 = Position(seqno=3, vbuuid=11, snap_start=3, snap_end=3, history=2, ends=ENDS[:1])
ZERO = Position(history=2)
PINNED = PinnedBranch(22)
FROM_0 = PinnedBranch(22, purge_seqno=20)


@pytest.mark.parametrize(
    ("policy", "log", "accepted"),
    [
        (FOLLOW, LOG, True),
        (PINNED, LOG, True),
        (PINNED, LOG[1:], False),
        (PINNED, (NEWER, *LOG), False),
    ],
)
def test_policy_accepts_only_its_history(policy, log, accepted):
    assert policy.accepts(log) is accepted


@pytest.mark.parametrize(
    ("policy", "position", "seqno", "decision"),
    [
        (FOLLOW, COMPLETE, 14, Resumption(AT_3, 14)),
        (FOLLOW, COMPLETE, 2, Resumption(ZERO, 2)),
        (FOLLOW, INSIDE, 15, Resumption(COMPLETE, 15)),
        (PINNED, COMPLETE, 14, None),
        (FROM_0, COMPLETE, 14, Resumption(ZERO, received=15)),
        (FROM_0, replace(COMPLETE, seqno=19), 0, Resumption(ZERO, received=19)),
        (FROM_0, replace(COMPLETE, seqno=20), 0, None),
    ],
)
def test_policy_decides_on_a_rollback(policy, position, seqno, decision):
    assert policy.decide_on_rollback(position, seqno) == decision


@pytest.mark.parametrize(
    ("policy", "position", "decision"),
    [
        (FOLLOW, COMPLETE, Resumption(AT_3, 3)),
        (FOLLOW, AT_3, Resumption(ZERO, 0)),
        (PINNED, COMPLETE, None),
        (FROM_0, COMPLETE, Resumption(ZERO, received=15)),
    ],
)
def test_policy_decides_on_an_unknown_branch(policy, position, decision):
    assert policy.decide_on_unknown_branch(position) == decision


@pytest.mark.parametrize(
    ("policy", "position", "log", "decision"),
    [
        (FOLLOW, COMPLETE, LOG, Resumption(COMPLETE)),
        (FOLLOW, COMPLETE, LOG[1:], Resumption(AT_3, 3)),
        (PINNED, COMPLETE, LOG, Resumption(COMPLETE)),
        (PINNED, COMPLETE, (FailoverEntry(33, 15), *LOG), None),
        (PINNED, BEGINNING, LOG, Resumption(BEGINNING)),
        (PinnedBranch(33), COMPLETE, (FailoverEntry(33, 15), *LOG), Resumption(COMPLETE)),
        (PinnedBranch(33), COMPLETE, (NEWER, *LOG), None),
    ],
)
def test_policy_decides_on_the_log_before_the_request(policy, position, log, decision):
    assert policy.decide_on_log(position, log) == decision


@pytest.mark.parametrize(("policy", "decision"), [(FOLLOW, Resumption(COMPLETE)), (PINNED, None), (FROM_0, None)])
def test_policy_decides_on_a_log_that_changed_at_the_start_of_the_stream(policy, decision):
    assert policy.decide_on_new_log(COMPLETE) == decision


@pytest.mark.parametrize(("policy", "decision"), [(FOLLOW, Resumption(ZERO, 0)), (PINNED, None), (FROM_0, None)])
def test_policy_decides_on_a_flush(policy, decision):
    assert policy.decide_on_flush(COMPLETE) == decision


@pytest.mark.parametrize(
    ("position", "end_seqno", "is_whole", "ended"),
    [
        (INSIDE, 20, False, True),
        (INSIDE, 19, False, True),
        (INSIDE, 21, False, False),
        (INSIDE, 21, True, True),
        (COMPLETE, 21, False, True),
    ],
)
def test_end_of_a_stream_is_complete_or_early(position, end_seqno, is_whole, ended):
    assert is_complete_end(position, end_seqno, is_whole=is_whole) is ended
