"""The owner of a vbucket, and the branches of other nodes that it continues."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.cluster.replica_choice import is_replaced
from penstock.wire.messages.kv import FailoverEntry

A, B, C = 1, 2, 3
SHARED = FailoverEntry(A, 0)
OWNER = (FailoverEntry(B, 10), SHARED)


def test_owner_continues_the_branch_of_a_node_that_was_failed_over():
    assert is_replaced((SHARED,), 12, OWNER)


def test_branches_without_changes_do_not_matter():
    assert is_replaced((FailoverEntry(C, 12), SHARED), 12, OWNER)


def test_changes_of_an_own_branch_are_no_older_ones():
    assert not is_replaced((FailoverEntry(C, 12), SHARED), 13, OWNER)


def test_newest_branch_of_the_owner_is_not_replaced():
    assert not is_replaced(OWNER, 12, OWNER)


@given(st.integers(0, 20))
def test_other_history_is_never_replaced(seqno):
    assert not is_replaced((FailoverEntry(C, 0),), seqno, OWNER)
