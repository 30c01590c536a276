"""The planning of the Spark source, rule by rule; test_offsets_model.py shows that the rules suffice."""

import ast
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.errors import Error, UsageError
from penstock.spark.source import batch_planning, offsets
from penstock.spark.source.batch_planning import (
    PlanMemory,
    PlannedRollback,
    can_start_at,
    find_rollbacks,
    find_settled_vbuckets,
    plan_batch,
    plan_batch_until,
    prepare_available_now,
    store_proofs,
)
from penstock.spark.source.limits import row_allocation
from penstock.spark.source.offsets import (
    Offset,
    ProvenEnd,
    RollbackRow,
    VbucketRead,
    derive_reads,
    make_current_offset,
    make_first_offset,
    make_proven_offset,
)
from penstock.store.history.rollback import StreamRequest, find_rollback_point
from tests.spark.plan_builders import BRANCHED, A, B, C, at, info, log, partitions

PLANS = [
    # name, offset before, the vbucket info that the producer reports, offset after
    ("first batch", at(0, 0, 0), info(7), at(0, A, 7)),
    ("proven, and more to read", at(0, A, 7), info(9), at(0, A, 9, (7, 9))),
    ("the last four proofs are kept", at(0, A, 9, (1, 2), (3, 3), (4, 5), (6, 7)), info(10),
     at(0, A, 10, (3, 3), (4, 5), (6, 7), (9, 10))),
    ("new branch, nothing lost, end proven: no rollback", at(0, A, 8, (8, 10)), VbucketInfo(BRANCHED, 12, 0),
     at(0, B, 12, (8, 10))),
    ("new branch below the high seqno that proved the end", at(0, A, 8, (3, 4), (8, 11)),
     VbucketInfo(BRANCHED, 12, 0), at(1, B, 12, (3, 4), requested=8)),
    ("new branch below the end", at(0, A, 12, (8, 10), (12, 12)), VbucketInfo(BRANCHED, 11, 0),
     at(1, B, 11, (8, 10), requested=10)),
    ("new branch before the last batch was proven", at(2, A, 9, (5, 6)), VbucketInfo(BRANCHED, 12, 0),
     at(3, B, 12, (5, 6), requested=9)),
    ("no proof is left: to 0", at(0, A, 12, (11, 12)), VbucketInfo(BRANCHED, 12, 0), at(1, B, 12, requested=10)),
    ("all data lost", at(0, A, 12, (8, 10)), info(3, vbuuid=C), at(1, C, 3, requested=0)),
    ("all data lost, far more written since", at(0, A, 12, (8, 10)), info(99, vbuuid=C), at(1, C, 99, requested=0)),
    ("all data lost, nothing written since", at(0, A, 12, (8, 10)), info(0, vbuuid=C), at(1, C, 0, requested=0)),
    ("nothing had been read: no rollback", at(0, A, 0), info(3, vbuuid=C), at(0, C, 3)),
    ("the branch is forgotten", at(0, A, 9, (9, 9)), VbucketInfo(log((C, 20), (B, 15)), 21, 0),
     at(1, C, 21, requested=0)),
    ("branches that began at the same seqno", at(0, A, 9, (9, 10)), VbucketInfo(log((C, 10), (B, 10), (A, 0)), 11, 0),
     at(0, C, 11, (9, 10))),
    ("a branch at the high seqno", at(0, A, 9, (9, 9)), VbucketInfo(log((B, 9), (A, 0)), 10, 0),
     at(0, B, 10, (9, 9))),
    ("purged above the start of the last batch", at(0, A, 9, (5, 6)), info(9, 7),
     at(1, A, 9, purge_seqno=7, requested=9)),
    ("purged up to the start of the last batch", at(0, A, 9, (5, 6)), info(10, 5), at(0, A, 10, (5, 6), (9, 10))),
    ("purged above a proven end", at(0, A, 9, (9, 9)), info(12, 10), at(1, A, 12, purge_seqno=10, requested=0)),
    ("purged before a read from 0", at(0, A, 9, purge_seqno=7), info(12, 7), at(0, A, 12, (9, 12))),
    ("purged during a read from 0", at(0, A, 9, purge_seqno=7), info(12, 8), at(1, A, 12, purge_seqno=8, requested=9)),
    ("the rollback of the last batch is over", at(1, A, 9, (5, 6), requested=7), info(12),
     at(1, A, 12, (5, 6), (9, 12))),
]  # fmt: skip


@pytest.mark.parametrize(("before", "reported", "after"), [row[1:] for row in PLANS], ids=[row[0] for row in PLANS])
def test_plan_of_one_vbucket(before, reported, after):
    planned, _ = plan_batch(Offset((before,)), {0: reported})
    assert planned == Offset((after,))


def test_rollback_without_changes_is_a_batch_with_a_rollback_row():
    before = Offset((at(0, A, 12, (8, 10)), at(0, A, 5)))
    end, memory = plan_batch(before, {0: info(0, vbuuid=C), 1: info(5)})
    (part,) = partitions(before, end, 4)
    assert part.reads == (VbucketRead(0, 1, C, 0, 0, rollback=RollbackRow(0, 1, C, 0, 0)),)
    assert plan_batch(end, {0: info(0, vbuuid=C), 1: info(5)}, None, memory)[0] is end


def test_a_rollback_waits_with_the_requested_read():
    """The new history of a rollback to 3 would pass for the requested one, which starts at 0."""
    before, infos = Offset((at(0, A, 12, (3, 4)),) * 2), dict.fromkeys(range(2), VbucketInfo(BRANCHED, 12, 0))
    first, memory = plan_batch(before, infos, 5, requested={0: 0, 1: 0})
    assert first.vbuckets == (at(1, B, 12, requested=12), before.vbuckets[1])
    second, _ = plan_batch(first, infos, 5, memory, {0: 0, 1: 0})
    assert second.vbuckets[1] == at(1, B, 12, requested=12)


class TestProofs:
    def test_alone_make_no_new_offset(self):
        end, memory = plan_batch(make_first_offset(1), {0: info(7)})
        again, memory = plan_batch(end, {0: info(7)}, None, memory)
        assert again is end
        assert memory.proven_offset == Offset((at(0, A, 7, (7, 7)),))

    def test_are_remembered_while_idle(self):
        """A proven end stays valid after a purge and a new branch. Without the proof, the vbucket is read from 0."""
        end, memory = plan_batch(make_first_offset(1), {0: info(7)})
        _, memory = plan_batch(end, {0: info(7)}, None, memory)
        moved = VbucketInfo(log((B, 7), (A, 0)), 9, 7)
        assert plan_batch(end, {0: moved}, None, memory)[0] == Offset((at(0, B, 9, (7, 7)),))
        assert plan_batch(end, {0: moved})[0] == Offset((at(1, B, 9, purge_seqno=7, requested=7),))

    def test_of_an_idle_query_are_stored_once(self):
        """A query that starts again after a crash of the server reads on if the server kept all its changes."""
        end, memory = plan_batch(make_first_offset(1), {0: info(7)})
        assert store_proofs(end, memory) == (end, memory)  # the batch is not read yet
        end, memory = plan_batch(end, {0: info(7)}, None, memory)
        stored, memory = store_proofs(end, memory)
        assert stored == Offset((at(0, A, 7, (7, 7)),))
        assert partitions(end, stored, 1) == []
        assert store_proofs(stored, memory)[0] is stored
        assert plan_batch(stored, {0: info(7)}, None, memory)[0] is stored
        crashed = VbucketInfo(log((B, 7), (A, 0)), 9, 0)
        assert plan_batch(Offset.from_json(stored.to_json()), {0: crashed})[0] == Offset((at(0, B, 9, (7, 7)),))

    def test_of_another_offset_are_ignored(self):
        first, memory = plan_batch(make_first_offset(1), {0: info(7)})
        _, memory = plan_batch(first, {0: info(7)}, None, memory)
        other = Offset((at(3, A, 7),))
        assert plan_batch(other, {0: info(8, vbuuid=B)}, None, memory)[0].vbuckets[0].history == 4

    def test_are_stored_when_another_vbucket_advances(self):
        end, memory = plan_batch(make_first_offset(2), {0: info(7), 1: info(7)})
        end, memory = plan_batch(end, {0: info(7), 1: info(8)}, None, memory)
        assert end == Offset((at(0, A, 7, (7, 7)), at(0, A, 8, (7, 8))))


class TestCurrentOffset:
    def test_is_pinned_by_the_first_plan(self):
        start = make_current_offset({0: info(7), 1: info(0)}, 2)
        pinned, memory = plan_batch(start, {0: info(9), 1: info(1)})
        assert pinned.to_json() != start.to_json()
        assert pinned.vbuckets == start.vbuckets
        assert partitions(start, pinned, 2) == []
        end, _ = plan_batch(pinned, {0: info(9), 1: info(1)}, None, memory)
        assert end == Offset((at(0, A, 9, (7, 7)), at(0, A, 1)))

    def test_survives_json(self):
        start = make_current_offset({0: info(7)}, 1)
        assert Offset.from_json(json.loads(json.dumps(start.to_json()))) == start


class TestAvailableNow:
    def test_ends_at_the_high_seqno_of_its_start(self):
        memory = prepare_available_now({0: info(7)})
        end, memory = plan_batch(make_first_offset(1), {0: info(9)}, None, memory)
        assert end == Offset((at(0, A, 7),))
        proven, memory = plan_batch(end, {0: info(20)}, None, memory)
        assert proven == Offset((at(0, A, 7, (7, 20)),))
        assert plan_batch(proven, {0: info(30)}, None, memory)[0] is proven

    def test_stores_the_proof_of_its_last_batch(self):
        """The next run continues after a crash of the server that lost nothing. It does not read from 0."""
        end, memory = plan_batch(make_first_offset(1), {0: info(7)}, None, prepare_available_now({0: info(7)}))
        proven, memory = plan_batch(end, {0: info(7)}, None, memory)
        assert partitions(end, proven, 1) == []
        crashed = {0: VbucketInfo(log((B, 7), (A, 0)), 7, 0)}
        assert plan_batch(proven, crashed, None, prepare_available_now(crashed))[0] is proven

    def test_read_from_the_current_offset_ends_there_too(self):
        memory = prepare_available_now({0: info(7)})
        pinned, memory = plan_batch(make_current_offset({0: info(7)}, 1), {0: info(9)}, None, memory)
        assert plan_batch(pinned, {0: info(9)}, None, memory)[0] is pinned

    def test_continues_until_the_last_batch_is_proven(self):
        memory = prepare_available_now({0: info(7)})
        end, memory = plan_batch(make_first_offset(1), {0: info(7)}, None, memory)
        again, memory = plan_batch(end, {0: info(9, vbuuid=B)}, None, memory)
        assert again == Offset((at(1, B, 9, requested=0),))
        proven, memory = plan_batch(again, {0: info(15, vbuuid=B)}, None, memory)
        assert proven == Offset((at(1, B, 9, (9, 15)),))
        assert plan_batch(proven, {0: info(15, vbuuid=B)}, None, memory)[0] is proven

    def test_a_rollback_before_the_first_plan(self):
        memory = prepare_available_now({0: info(7)})
        end, _ = plan_batch(make_first_offset(1), {0: info(3, vbuuid=B)}, None, memory)
        assert end == Offset((at(0, B, 3),))

    def test_a_read_from_0_continues_beyond_its_target_to_the_purge_seqno(self):
        memory = prepare_available_now({0: info(5), 1: info(0)})
        end, memory = plan_batch(make_first_offset(2), {0: info(9, 8), 1: info(9, 8)}, None, memory)
        assert [v.seqno for v in end.vbuckets] == [8, 0]
        proven, memory = plan_batch(end, {0: info(9, 8), 1: info(9, 8)}, None, memory)
        assert [v.seqno for v in proven.vbuckets] == [8, 0]
        assert plan_batch(proven, {0: info(9, 8), 1: info(9, 8)}, None, memory)[0] is proven


def test_unknown_vbucket_is_refused():
    with pytest.raises(UsageError, match=r"^vbucket 7, expected one below 2$"):
        plan_batch(make_first_offset(2), {0: info(1), 1: info(1), 7: info(1)})


class TestChosenVbuckets:
    def test_are_the_only_ones_that_advance(self):
        end, memory = plan_batch(make_first_offset(4), {1: info(7), 3: info(9)}, 10)
        assert [v.seqno for v in end.vbuckets] == [0, 5, 0, 5]
        end, _ = plan_batch(end, {1: info(7), 3: info(9)}, None, memory)
        assert [v.seqno for v in end.vbuckets] == [0, 7, 0, 9]
        assert [read.vbucket for read in derive_reads(make_first_offset(4), end)] == [1, 3]

    def test_may_change_at_a_restart(self):
        end, _ = plan_batch(make_first_offset(3), {0: info(7), 1: info(7)})
        end, _ = plan_batch(end, {1: info(9), 2: info(4)})
        assert [v.seqno for v in end.vbuckets] == [7, 9, 4]
        assert plan_batch(end, {0: info(7)})[0] is end  # the position of vbucket 0 is kept
        assert plan_batch(end, {0: info(3, vbuuid=B)})[0].vbuckets == (at(1, B, 3, requested=0), *end.vbuckets[1:])

    def test_end_at_their_high_seqnos_with_available_now(self):
        memory = prepare_available_now({1: info(7)})
        end, memory = plan_batch(make_first_offset(2), {1: info(9)}, None, memory)
        assert [v.seqno for v in end.vbuckets] == [0, 7]
        proven, memory = plan_batch(end, {1: info(20)}, None, memory)
        assert [v.seqno for v in proven.vbuckets] == [0, 7]
        assert plan_batch(proven, {1: info(20)}, None, memory)[0] is proven

    def test_start_at_their_high_seqnos_with_the_current_offset(self):
        assert [v.seqno for v in make_current_offset({1: info(7)}, 3).vbuckets] == [0, 7, 0]


class TestBatchUntilAnEnd:
    END = Offset((at(0, A, 7), at(0, A, 5), at(0, 0, 0)))
    INFOS: Mapping[int, VbucketInfo] = MappingProxyType({0: info(9), 1: info(5), 2: info(3)})

    def test_stops_at_the_end_although_there_are_later_changes(self):
        end = plan_batch_until(make_first_offset(3), self.END, self.INFOS)
        assert [v.seqno for v in end.vbuckets] == [7, 5, 0]
        assert [(r.start_seqno, r.end_seqno) for r in derive_reads(make_first_offset(3), end)] == [(0, 7), (0, 5)]

    def test_leaves_later_changes_to_a_read_from_the_end(self):
        followed, _ = plan_batch(self.END, self.INFOS)
        assert [(r.start_seqno, r.end_seqno) for r in derive_reads(self.END, followed)] == [(7, 9), (0, 3)]

    def test_may_start_at_any_offset_before_the_end(self):
        start = make_proven_offset({0: (A, 4), 1: (A, 5)}, 3)
        end = plan_batch_until(start, self.END, self.INFOS)
        assert [(r.start_seqno, r.end_seqno) for r in derive_reads(start, end)] == [(4, 7)]

    def test_remembers_the_purge_seqno_of_a_read_from_0(self):
        (read,) = derive_reads(
            make_first_offset(1), plan_batch_until(make_first_offset(1), Offset((at(0, A, 7),)), {0: info(9, 8)})
        )
        assert read == VbucketRead(0, 0, A, 0, 7, purge_seqno=8)

    def test_reads_a_newer_branch_that_contains_the_end(self):
        end = plan_batch_until(make_first_offset(1), Offset((at(0, A, 9),)), {0: VbucketInfo(BRANCHED, 15, 0)})
        assert end == Offset((at(0, B, 9),))

    @pytest.mark.parametrize("lost", [info(9, vbuuid=B), info(6), VbucketInfo(BRANCHED, 20, 0)])
    def test_refuses_an_end_that_the_history_has_lost(self, lost):
        with pytest.raises(Error, match=r"vbucket 0: the bucket's history no longer has the end, seqno 11,|seqno 7,"):
            plan_batch_until(make_first_offset(1), Offset((at(0, A, 11 if lost.high_seqno == 20 else 7),)), {0: lost})

    def test_refuses_an_end_before_the_start(self):
        with pytest.raises(UsageError, match="vbucket 0: the start, seqno 9, is behind the end, seqno 7"):
            plan_batch_until(make_proven_offset({0: (A, 9)}, 3), self.END, self.INFOS)
        with pytest.raises(UsageError, match="the bucket has 2 vbuckets, expected 3"):
            plan_batch_until(make_first_offset(2), self.END, self.INFOS)


ROLLBACKS = [
    ("none", at(0, A, 7), info(9), []),
    ("a lost branch", at(0, A, 12, (8, 10)), VbucketInfo(BRANCHED, 11, 0), [PlannedRollback(0, 12, 8, by_purge=False)]),
    ("everything lost", at(2, A, 12, (8, 10)), info(3, vbuuid=C), [PlannedRollback(0, 12, 0, by_purge=False)]),
    (
        "purged above the reader",
        at(0, A, 12, (8, 10), (12, 12)),
        info(20, 15),
        [PlannedRollback(0, 12, 0, by_purge=True)],
    ),
    ("purged while the batch was read", at(0, A, 12, (8, 8)), info(20, 10), [PlannedRollback(0, 12, 0, by_purge=True)]),
    ("purged below the reader", at(0, A, 12, (8, 10), (12, 12)), info(20, 11), []),
    (
        "purged, and everything lost",
        at(0, A, 12, (8, 8)),
        info(20, 15, vbuuid=C),
        [PlannedRollback(0, 12, 0, by_purge=False)],
    ),
]


@pytest.mark.parametrize(
    ("before", "reported", "expected"), [row[1:] for row in ROLLBACKS], ids=[row[0] for row in ROLLBACKS]
)
def test_rollbacks_have_their_reason(before, reported, expected):
    previous = Offset((before,))
    planned, _ = plan_batch(previous, {0: reported})
    assert find_rollbacks(previous, planned, {0: reported}) == expected


@given(*[st.integers(0, 12)] * 4, st.sampled_from([A, B]), st.integers(1, 9))
def test_plan_rolls_back_exactly_if_a_producer_does(end, above, high, purge, newest, begin):
    """The planner has a shortcut for readers of the newest branch, which must give the same result."""
    proven, reported = (
        ProvenEnd(1 + end, 1 + end + above),
        VbucketInfo(log((newest, begin), (C, 0)), max(high, begin), purge),
    )
    planned, _ = plan_batch(Offset((at(0, A, proven.end, proven),)), {0: reported})
    can_resume = [
        find_rollback_point(reported.failover_log, reported.high_seqno, purged, make_request(seqno)) is None
        for seqno, purged in ((proven.end, purge), (proven.high, 0))
    ]
    assert (planned.vbuckets[0].history == 0) == all(can_resume)


def make_request(seqno: int) -> StreamRequest:
    return StreamRequest(start_seqno=seqno, vbuuid=A, snap_start=seqno, snap_end=seqno)


class TestSettledVbuckets:
    INFOS: Mapping[int, VbucketInfo] = MappingProxyType({0: info(7), 1: info(5), 2: info(0)})

    def test_are_proven_and_read_to_their_end(self):
        end, memory = plan_batch(make_first_offset(3), self.INFOS)
        assert find_settled_vbuckets(end, self.INFOS, memory) == {2}
        again, memory = plan_batch(end, self.INFOS, None, memory)
        assert find_settled_vbuckets(again, self.INFOS, memory) == {0, 1, 2}
        assert find_settled_vbuckets(again, self.INFOS, PlanMemory()) == {2}
        assert find_settled_vbuckets(again, {**self.INFOS, 1: info(6)}, memory) == {0, 2}
        assert find_settled_vbuckets(again, {5: info(0)}, memory) == set()
        assert find_settled_vbuckets(again, {3: info(0)}, memory) == set()

    def test_proofs_of_another_offset_are_ignored(self):
        end, memory = plan_batch(make_first_offset(3), self.INFOS)
        again, memory = plan_batch(end, self.INFOS, None, memory)
        assert again == end
        assert find_settled_vbuckets(make_first_offset(3), {0: info(7), 2: info(0)}, memory) == {2}


STARTS = [
    # name, the seqno after which a reader starts, the vbucket info, whether the reader can start there
    ("at 0", 0, info(9, 6), True),
    ("below the purge seqno", 5, info(9, 6), False),
    ("at the purge seqno", 6, info(9, 6), True),
    ("at the end", 9, info(9), True),
    ("above the end", 10, info(9), False),
    ("on the newest of two branches", 12, VbucketInfo(BRANCHED, 15, 0), True),
    ("where the newest branch began", 10, VbucketInfo(BRANCHED, 15, 0), True),
]


@pytest.mark.parametrize(("name", "seqno", "known", "can"), STARTS)
def test_where_a_reader_can_start(name, seqno, known, can):
    assert can_start_at(seqno, known) is can


def test_idle_offset_keeps_its_text():
    infos = {0: info(7), 1: VbucketInfo(BRANCHED, 12, 3)}
    offset, memory = plan_batch(make_first_offset(2), infos)
    text = json.dumps(offset.to_json())
    for _ in range(3):
        offset, memory = plan_batch(Offset.from_json(json.loads(text)), infos, 5, memory)
        assert json.dumps(offset.to_json()) == text
        assert json.dumps(plan_batch(offset, infos)[0].to_json()) == text  # also after a restart


def test_a_new_branch_alone_makes_no_new_offset():
    offset, memory = plan_batch(make_first_offset(1), {0: info(7)})
    _, memory = plan_batch(offset, {0: info(7)}, None, memory)
    assert plan_batch(offset, {0: replace(info(7), failover_log=log((B, 7), (A, 0)))}, None, memory)[0] is offset


PURE_IMPORTS = [
    (
        batch_planning,
        {
            "collections.abc",
            "dataclasses",
            "math",
            "typing",
            "penstock.client.topology.vbucket_info",
            "penstock.errors",
            "penstock.spark.source.limits.row_allocation",
            "penstock.spark.source.offsets",
            "penstock.store.history.rollback",
        },
    ),
    (
        row_allocation,
        {"collections", "collections.abc", "dataclasses", "math", "types", "typing", "penstock.spark.source.offsets"},
    ),
    (
        offsets,
        {
            "collections.abc",
            "dataclasses",
            "typing",
            "penstock.client.feeds.resume_policy",
            "penstock.client.feeds.stream_position",
            "penstock.client.topology.vbucket_info",
            "penstock.digits",
            "penstock.errors",
            "penstock.spark.source.run_lengths",
        },
    ),
]


@pytest.mark.parametrize(("module", "expected"), PURE_IMPORTS)
def test_planning_is_pure(module, expected):
    tree = ast.parse(Path(module.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(isinstance(node, ast.Import) for node in ast.walk(tree))
    assert imported == expected
