import pytest

from penstock.store.history.failover_log import (
    MAX_ENTRIES,
    FailoverLog,
    create_entry,
    find_branch,
    prune_log,
    sanitise_log,
)
from penstock.wire.messages.kv import FailoverEntry


def make_entries(*pairs: tuple[int, int]) -> FailoverLog:
    return tuple(FailoverEntry(*pair) for pair in pairs)


CREATED = [
    ("a new vbucket", (), (7, 0), ((7, 0),)),
    ("a failover", ((7, 0),), (8, 5), ((8, 5), (7, 0))),
    ("two at the same seqno", ((8, 5), (7, 0)), (9, 5), ((9, 5), (8, 5), (7, 0))),
    ("below an earlier branch, which is forgotten", ((8, 5), (7, 0)), (9, 4), ((9, 4), (7, 0))),
    ("below all of them", ((8, 5), (7, 3)), (9, 2), ((9, 2),)),
]


@pytest.mark.parametrize(("case", "log", "new", "result"), CREATED)
def test_new_entry_drops_entries_above_its_seqno(
    case: str, log: tuple[tuple[int, int], ...], new: tuple[int, int], result: tuple[tuple[int, int], ...]
) -> None:
    assert create_entry(make_entries(*log), *new) == make_entries(*result)


def test_the_oldest_entries_are_forgotten() -> None:
    log: FailoverLog = ()
    for seqno in range(100):
        log = create_entry(log, 1000 + seqno, seqno)
    assert len(log) == MAX_ENTRIES
    assert log == make_entries(*((1000 + seqno, seqno) for seqno in reversed(range(75, 100))))


def test_vbuuid_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^vbuuid 0 means"):
        create_entry((), 0, 0)


PRUNED = [(10, ((8, 5), (7, 0))), (5, ((8, 5), (7, 0))), (4, ((7, 0),)), (0, ((7, 0),))]


@pytest.mark.parametrize(("seqno", "result"), PRUNED)
def test_prune_drops_entries_above_the_seqno(seqno: int, result: tuple[tuple[int, int], ...]) -> None:
    assert prune_log(make_entries((8, 5), (7, 0)), seqno) == make_entries(*result)


def test_prune_may_leave_nothing() -> None:
    assert prune_log(make_entries((8, 5)), 4) == ()


SANITISED = [
    ("nothing to mend", ((8, 5), (7, 0)), ((8, 5), (7, 0))),
    ("no entry", (), ()),
    ("vbuuid 0 in front", ((0, 9), (7, 0)), ((7, 0),)),
    ("vbuuid 0 behind", ((8, 5), (0, 3)), ((8, 5),)),
    ("nothing but vbuuid 0", ((0, 0),), ()),
    ("two at the same seqno", ((8, 5), (7, 5)), ((8, 5), (7, 5))),
    ("above the one in front", ((9, 5), (8, 6), (7, 0)), ((9, 5), (7, 0))),
    ("above the one in front, not above the first", ((9, 5), (8, 2), (7, 3), (6, 1)), ((9, 5), (8, 2), (6, 1))),
]


@pytest.mark.parametrize(("case", "log", "result"), SANITISED)
def test_sanitise_drops_invalid_entries(
    case: str, log: tuple[tuple[int, int], ...], result: tuple[tuple[int, int], ...]
) -> None:
    assert sanitise_log(log) == make_entries(*result)


def test_sanitise_keeps_the_newest_entries() -> None:
    log = [(seqno, seqno) for seqno in range(MAX_ENTRIES + 2, 0, -1)]
    assert sanitise_log(log) == make_entries(*log[:MAX_ENTRIES])


BRANCHES = make_entries((33, 20), (22, 10), (11, 0))


@pytest.mark.parametrize(
    ("seqno", "vbuuid"), [(0, 11), (1, 11), (10, 11), (11, 22), (20, 22), (21, 33), (2**64 - 1, 33)]
)
def test_branch_of_a_seqno_is_found(seqno: int, vbuuid: int) -> None:
    assert find_branch(BRANCHES, seqno).vbuuid == vbuuid


def test_seqno_older_than_the_log_belongs_to_the_oldest_branch() -> None:
    assert find_branch(BRANCHES[:2], 5) == FailoverEntry(22, 10)
