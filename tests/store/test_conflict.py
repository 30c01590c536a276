"""Conflict resolution: a table of decisions, and that all clusters choose the same version."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.store.documents.conflict import Meta, is_winner

HERE = Meta(cas=50, rev_seqno=5, flags=5, expiry=5)
WITH_XATTRS = HERE._replace(datatype=4)
DELETED = Meta(cas=50, rev_seqno=5, expiry=500, deleted=True)

ROWS = [
    # incoming version, existing version, whether the incoming one wins by seqno, and whether it wins by last write
    (HERE._replace(rev_seqno=6, cas=49), HERE, True, False),
    (HERE._replace(rev_seqno=4, cas=51), HERE, False, True),
    (HERE._replace(cas=51), HERE, True, True),
    (HERE._replace(cas=49, expiry=9, flags=9), HERE, False, False),
    (HERE._replace(rev_seqno=6), HERE, True, True),
    (HERE._replace(rev_seqno=4, expiry=9, flags=9), HERE, False, False),
    (HERE._replace(expiry=6, flags=0), HERE, True, True),
    (HERE._replace(expiry=4, flags=9), HERE, False, False),
    (HERE._replace(flags=6), HERE, True, True),
    (HERE._replace(flags=4), HERE, False, False),
    (HERE._replace(flags=2**31 + 5), HERE, True, True),  # flags are compared as an unsigned number
    (HERE, HERE, False, False),
    (WITH_XATTRS, HERE, True, True),
    (HERE, WITH_XATTRS, False, False),
    (WITH_XATTRS, WITH_XATTRS, False, False),
    (HERE._replace(datatype=1), HERE, False, False),
    (DELETED._replace(rev_seqno=6, cas=49), HERE, True, False),
    (DELETED._replace(rev_seqno=4, cas=51), HERE, False, True),
    (DELETED, HERE, False, False),
    (DELETED._replace(datatype=4), HERE, False, False),
    (DELETED._replace(expiry=501), DELETED, False, False),
    (HERE, DELETED, True, True),
    (HERE._replace(expiry=0, flags=0), DELETED, False, False),
    (HERE._replace(expiry=1, flags=0), DELETED, True, True),
    (HERE._replace(expiry=0, flags=1), DELETED, True, True),
    (HERE._replace(rev_seqno=4, cas=49), DELETED, False, False),
]


@pytest.mark.parametrize(("incoming", "existing", "by_seqno", "by_last_write"), ROWS)
def test_greater_version_wins(incoming: Meta, existing: Meta, by_seqno: bool, by_last_write: bool) -> None:
    assert is_winner(incoming, existing, "seqno") is by_seqno
    assert is_winner(incoming, existing, "lww") is by_last_write


few = st.integers(0, 2)
versions = st.builds(Meta, few, few, few, few, st.sampled_from([0, 1, 4]), st.booleans())
resolutions = st.sampled_from(["seqno", "lww"])


@given(versions, versions, resolutions)
def test_two_versions_never_win_against_each_other(one: Meta, other: Meta, resolution: str) -> None:
    assert not (is_winner(one, other, resolution) and is_winner(other, one, resolution))


@given(st.lists(versions, min_size=1, max_size=4, unique_by=lambda meta: meta[:2]), resolutions)
def test_winner_does_not_depend_on_the_order(found: list[Meta], resolution: str) -> None:
    stayed = set()
    for first, *others in permutations(found):
        for incoming in others:
            first = incoming if is_winner(incoming, first, resolution) else first
        stayed.add(first)
    assert len(stayed) == 1
