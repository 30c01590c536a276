"""The planning of the Spark source, rule by rule; test_offsets_model.py has the proof that the rules suffice."""

import ast
import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.feeds.resume_policy import PinnedBranch
from penstock.client.feeds.stream_position import Position
from penstock.errors import Error, UsageError
from penstock.spark.source import offsets
from penstock.spark.source.offsets import (
    Memory,
    Offset,
    Proven,
    RollbackRow,
    Setback,
    VbucketInfo,
    VbucketOffset,
    VbucketRange,
    VbucketRead,
    beginning,
    can_begin_at,
    check_size,
    now,
    plan,
    plan_until,
    prepare,
    reads,
    setbacks,
    settled,
    settled_at,
)
from penstock.spark.source.ranges import cut
from penstock.spark.source.runs import brief
from penstock.store.history.failover_log import FailoverEntry, FailoverLog
from penstock.store.history.rollback import StreamRequest, rollback_point

A, B, C = 0xA, 0xB, 0xC


def log(*entries: tuple[int, int]) -> FailoverLog:
    return tuple(FailoverEntry(*entry) for entry in entries)


def info(high: int, purge: int = 0, vbuuid: int = A) -> VbucketInfo:
    return VbucketInfo(log((vbuuid, 0)), high, purge)


def at(history: int, vbuuid: int, seqno: int, *proven: tuple[int, int], **more: int) -> VbucketOffset:
    return VbucketOffset(history, vbuuid, seqno, tuple(Proven(*pair) for pair in proven), **more)


def partitions(start: Offset, end: Offset, most: int) -> list[VbucketRange]:
    return cut(reads(start, end), most)


BRANCHED = log((B, 10), (A, 0))  # A up to 10, then B

PLANS = [
    # name, before, the producer's word, after
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


@pytest.mark.parametrize(("before", "word", "after"), [row[1:] for row in PLANS], ids=[row[0] for row in PLANS])
def test_one_vbucket(before, word, after):
    planned, _ = plan(Offset((before,)), {0: word})
    assert planned == Offset((after,))


def test_a_rollback_with_nothing_to_read_is_a_batch_with_its_row():
    before = Offset((at(0, A, 12, (8, 10)), at(0, A, 5)))
    end, memory = plan(before, {0: info(0, vbuuid=C), 1: info(5)})
    (part,) = partitions(before, end, 4)
    assert part.reads == (VbucketRead(0, 1, C, 0, 0, rollback=RollbackRow(0, 1, C, 0, 0)),)
    assert plan(end, {0: info(0, vbuuid=C), 1: info(5)}, None, memory)[0] is end


class TestProofs:
    def test_alone_make_no_new_offset(self):
        end, memory = plan(beginning(1), {0: info(7)})
        again, memory = plan(end, {0: info(7)}, None, memory)
        assert again is end
        assert memory.settled == Offset((at(0, A, 7, (7, 7)),))

    def test_are_remembered_while_idle(self):
        """Known to be proven, the end outlives a purge and a new branch that would else send it back to 0."""
        end, memory = plan(beginning(1), {0: info(7)})
        _, memory = plan(end, {0: info(7)}, None, memory)
        moved = VbucketInfo(log((B, 7), (A, 0)), 9, 7)
        assert plan(end, {0: moved}, None, memory)[0] == Offset((at(0, B, 9, (7, 7)),))
        assert plan(end, {0: moved})[0] == Offset((at(1, B, 9, purge_seqno=7, requested=7),))

    def test_of_another_offset_do_not_count(self):
        first, memory = plan(beginning(1), {0: info(7)})
        _, memory = plan(first, {0: info(7)}, None, memory)
        other = Offset((at(3, A, 7),))
        assert plan(other, {0: info(8, vbuuid=B)}, None, memory)[0].vbuckets[0].history == 4

    def test_come_along_when_another_vbucket_moves(self):
        end, memory = plan(beginning(2), {0: info(7), 1: info(7)})
        end, memory = plan(end, {0: info(7), 1: info(8)}, None, memory)
        assert end == Offset((at(0, A, 7, (7, 7)), at(0, A, 8, (7, 8))))


class TestNow:
    def test_is_pinned_by_the_first_plan(self):
        start = now({0: info(7), 1: info(0)}, 2)
        pinned, memory = plan(start, {0: info(9), 1: info(1)})
        assert pinned.to_json() != start.to_json()
        assert pinned.vbuckets == start.vbuckets
        assert partitions(start, pinned, 2) == []
        end, _ = plan(pinned, {0: info(9), 1: info(1)}, None, memory)
        assert end == Offset((at(0, A, 9, (7, 7)), at(0, A, 1)))

    def test_survives_json(self):
        start = now({0: info(7)}, 1)
        assert Offset.from_json(json.loads(json.dumps(start.to_json()))) == start


class TestAvailableNow:
    def test_ends_where_the_data_ended_when_it_began(self):
        memory = prepare({0: info(7)})
        end, memory = plan(beginning(1), {0: info(9)}, None, memory)
        assert end == Offset((at(0, A, 7),))
        again, memory = plan(end, {0: info(20)}, None, memory)
        assert again is end
        assert plan(again, {0: info(30)}, None, memory)[0] is end

    def test_from_now_on_ends_there_too(self):
        memory = prepare({0: info(7)})
        pinned, memory = plan(now({0: info(7)}, 1), {0: info(9)}, None, memory)
        assert plan(pinned, {0: info(9)}, None, memory)[0] is pinned

    def test_goes_on_until_the_last_batch_is_proven(self):
        memory = prepare({0: info(7)})
        end, memory = plan(beginning(1), {0: info(7)}, None, memory)
        again, memory = plan(end, {0: info(9, vbuuid=B)}, None, memory)
        assert again == Offset((at(1, B, 9, requested=0),))
        assert plan(again, {0: info(15, vbuuid=B)}, None, memory)[0] is again

    def test_a_rollback_before_the_first_plan(self):
        memory = prepare({0: info(7)})
        end, _ = plan(beginning(1), {0: info(3, vbuuid=B)}, None, memory)
        assert end == Offset((at(0, B, 3),))

    def test_a_read_from_0_goes_past_its_target_to_the_purge_seqno(self):
        memory = prepare({0: info(5), 1: info(0)})
        end, memory = plan(beginning(2), {0: info(9, 8), 1: info(9, 8)}, None, memory)
        assert [v.seqno for v in end.vbuckets] == [8, 0]
        assert plan(end, {0: info(9, 8), 1: info(9, 8)}, None, memory)[0] is end


class TestLimit:
    @pytest.mark.parametrize(
        ("highs", "limit", "ends"),
        [
            ([100, 100, 100], 30, [10, 10, 10]),
            ([4, 100, 100], 30, [4, 13, 13]),
            ([100, 100, 100], 31, [11, 10, 10]),
            ([1, 2, 3], 6, [1, 2, 3]),
            ([1, 2, 3], 100, [1, 2, 3]),
            ([9, 9, 9], 2, [1, 1, 0]),
            ([0, 0, 9], 2, [0, 0, 2]),
        ],
    )
    def test_is_shared_in_equal_parts(self, highs, limit, ends):
        end, _ = plan(beginning(len(highs)), {v: info(high) for v, high in enumerate(highs)}, limit)
        assert [v.seqno for v in end.vbuckets] == ends

    @pytest.mark.parametrize(("count", "limit"), [(8, 3), (8, 4), (7, 5), (16, 1), (6, 6), (5, 7)])
    def test_no_vbucket_starves_however_much_the_others_write(self, count, limit):
        offset = beginning(count)
        for turn in range(-(-count // limit) + 1):
            offset, _ = plan(offset, {v: info(1000 * (turn + 1)) for v in range(count)}, limit)
        assert all(v.seqno for v in offset.vbuckets)

    @given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 50), st.booleans()), min_size=1), st.integers(1, 500))
    def test_is_kept_and_used(self, vbuckets, limit):
        infos = {v: info(start + more) for v, (start, more, _) in enumerate(vbuckets)}
        previous = Offset(tuple(at(0, A, s, *([(s, s)] if s else [])) for s, _, _ in vbuckets))
        end, _ = plan(previous, infos, limit)
        granted = [b.seqno - a.seqno for a, b in zip(previous.vbuckets, end.vbuckets, strict=True)]
        assert sum(granted) == min(limit, sum(more for _, more, _ in vbuckets))
        assert all(0 <= got <= more for got, (_, more, _) in zip(granted, vbuckets, strict=True))
        hungry = [got for got, (_, more, _) in zip(granted, vbuckets, strict=True) if got < more]
        assert max(granted) - min(hungry, default=max(granted)) <= 1

    def test_vbuckets_that_must_reach_their_purge_seqno_wait_for_each_other(self):
        infos = {0: info(50, 40), 1: info(50, 40), 2: info(50)}
        seen, previous, memory = [], beginning(3), Memory()
        for _ in range(3):
            previous, memory = plan(previous, infos, 45, memory)
            seen.append([v.seqno for v in previous.vbuckets])
        assert seen == [[43, 0, 2], [45, 42, 3], [50, 50, 35]]

    def test_a_purge_seqno_that_is_just_what_is_left_is_read(self):
        end, _ = plan(beginning(2), {0: info(4, 4), 1: info(8, 6)}, 10)
        assert [v.seqno for v in end.vbuckets] == [4, 6]

    def test_behind_its_purge_seqno_a_vbucket_gets_no_more_than_there_is(self):
        end, _ = plan(beginning(2), {0: info(5, 4), 1: info(20)}, 15)
        assert [v.seqno for v in end.vbuckets] == [5, 10]

    def test_a_purge_seqno_above_the_limit_is_read_in_one_batch(self):
        end, _ = plan(beginning(2), {0: info(50, 40), 1: info(50)}, 10)
        assert [v.seqno for v in end.vbuckets] == [40, 0]


class TestPartitions:
    def test_are_balanced_contiguous_and_complete(self):
        sizes = [10_000, 0, 30_000, 5_000, 5_000, 10_000, 0, 20_000]
        end, _ = plan(beginning(8), {v: info(size) for v, size in enumerate(sizes)})
        parts = partitions(beginning(8), end, 2)
        assert [[read.vbucket for read in part.reads] for part in parts] == [[0, 2], [3, 4, 5, 7]]
        assert all(read == VbucketRead(read.vbucket, 0, A, 0, sizes[read.vbucket]) for p in parts for read in p.reads)

    def test_are_few_when_there_is_little_to_read(self):
        end, _ = plan(beginning(8), {v: info(5) for v in range(8)})
        assert len(partitions(beginning(8), end, 4)) == 1

    @given(st.lists(st.integers(0, 100_000), min_size=1, max_size=40), st.integers(1, 8))
    def test_any_sizes(self, sizes, count):
        end, _ = plan(beginning(len(sizes)), {v: info(size) for v, size in enumerate(sizes)})
        parts = partitions(beginning(len(sizes)), end, count)
        loads = [sum(read.end_seqno for read in part.reads) for part in parts]
        order = [read.vbucket for part in parts for read in part.reads]
        assert len(parts) <= count
        assert order == [v for v, size in enumerate(sizes) if size]
        assert max(loads, default=0) <= max(sum(sizes) / count, 20_000) + 2 * max(sizes) + len(sizes)

    def test_come_from_the_two_offsets_alone(self):
        start = Offset((at(0, A, 12, (8, 10), (12, 12)),))
        end, _ = plan(start, {0: VbucketInfo(BRANCHED, 15, 0)})
        start_again, end_again = (Offset.from_json(json.loads(json.dumps(o.to_json()))) for o in (start, end))
        (part,) = partitions(start_again, end_again, 2)
        assert partitions(start, end, 2) == [part]
        assert part.reads == (VbucketRead(0, 1, B, 8, 15, rollback=RollbackRow(0, 1, B, 8, 10)),)

    @pytest.mark.parametrize(
        ("start", "end"),
        [
            (at(0, A, 5), at(0, A, 4)),
            (at(1, A, 5), at(0, A, 9)),
            (at(0, A, 5), at(2, A, 9, requested=0)),
            (at(0, A, 5), at(1, A, 9)),
        ],
    )
    def test_refuse_offsets_that_do_not_follow_each_other(self, start, end):
        with pytest.raises(UsageError, match="vbucket 0: history"):
            partitions(Offset((start,)), Offset((end,)), 1)


class TestTheTask:
    @pytest.mark.parametrize(
        ("read", "start", "vbuuid"),
        [
            (VbucketRead(0, 0, A, 0, 9), 0, 0),
            (VbucketRead(0, 2, A, 5, 9), 5, A),
            (VbucketRead(0, 0, A, 0, 9, purge_seqno=6), 0, 0),
        ],
    )
    def test_starts_at_a_complete_snapshot(self, read, start, vbuuid):
        expected = Position(seqno=start, vbuuid=vbuuid, snap_start=start, snap_end=start, history=read.history)
        assert read.start == expected

    def test_reads_only_the_planned_branch(self):
        assert VbucketRead(0, 0, A, 0, 9, purge_seqno=6).policy == PinnedBranch(A, 6)


def test_a_vbucket_that_there_is_not():
    with pytest.raises(UsageError, match=r"^vbucket 7, expected one below 2$"):
        plan(beginning(2), {0: info(1), 1: info(1), 7: info(1)})


def test_the_number_of_vbuckets_is_that_of_the_first_offset():
    with pytest.raises(UsageError, match=r"has 32 vbuckets, expected 16 \(0 to 15\)"):
        check_size(beginning(16), 32)
    with pytest.raises(UsageError, match="vbucket 2, expected one below 2"):
        plan(beginning(2), {0: info(1), 2: info(1)})
    with pytest.raises(UsageError, match="1 and 2 vbuckets"):
        reads(beginning(1), beginning(2))


class TestSomeVbuckets:
    def test_are_all_that_moves(self):
        end, memory = plan(beginning(4), {1: info(7), 3: info(9)}, 10)
        assert [v.seqno for v in end.vbuckets] == [0, 5, 0, 5]
        end, _ = plan(end, {1: info(7), 3: info(9)}, None, memory)
        assert [v.seqno for v in end.vbuckets] == [0, 7, 0, 9]
        assert [read.vbucket for read in reads(beginning(4), end)] == [1, 3]

    def test_may_change_when_a_query_starts_again(self):
        end, _ = plan(beginning(3), {0: info(7), 1: info(7)})
        end, _ = plan(end, {1: info(9), 2: info(4)})
        assert [v.seqno for v in end.vbuckets] == [7, 9, 4]
        assert plan(end, {0: info(7)})[0] is end  # what 0 had is not forgotten
        assert plan(end, {0: info(3, vbuuid=B)})[0].vbuckets == (at(1, B, 3, requested=0), *end.vbuckets[1:])

    def test_end_together_with_what_there_was(self):
        memory = prepare({1: info(7)})
        end, memory = plan(beginning(2), {1: info(9)}, None, memory)
        assert [v.seqno for v in end.vbuckets] == [0, 7]
        assert plan(end, {1: info(20)}, None, memory)[0] is end

    def test_now_is_their_end(self):
        assert [v.seqno for v in now({1: info(7)}, 3).vbuckets] == [0, 7, 0]


class TestABatchToAnEnd:
    END = Offset((at(0, A, 7), at(0, A, 5), at(0, 0, 0)))
    INFOS: Mapping[int, VbucketInfo] = MappingProxyType({0: info(9), 1: info(5), 2: info(3)})

    def test_stops_there_however_much_there_is(self):
        end = plan_until(beginning(3), self.END, self.INFOS)
        assert [v.seqno for v in end.vbuckets] == [7, 5, 0]
        assert [(r.start_seqno, r.end_seqno) for r in reads(beginning(3), end)] == [(0, 7), (0, 5)]

    def test_leaves_the_rest_to_whoever_begins_at_that_end(self):
        followed, _ = plan(self.END, self.INFOS)
        assert [(r.start_seqno, r.end_seqno) for r in reads(self.END, followed)] == [(7, 9), (0, 3)]

    def test_may_begin_anywhere_in_front(self):
        start = settled_at({0: (A, 4), 1: (A, 5)}, 3)
        end = plan_until(start, self.END, self.INFOS)
        assert [(r.start_seqno, r.end_seqno) for r in reads(start, end)] == [(4, 7)]

    def test_remembers_the_purge_seqno_of_a_read_from_0(self):
        (read,) = reads(beginning(1), plan_until(beginning(1), Offset((at(0, A, 7),)), {0: info(9, 8)}))
        assert read == VbucketRead(0, 0, A, 0, 7, purge_seqno=8)

    def test_of_a_newer_branch_that_kept_it(self):
        end = plan_until(beginning(1), Offset((at(0, A, 9),)), {0: VbucketInfo(BRANCHED, 15, 0)})
        assert end == Offset((at(0, B, 9),))

    @pytest.mark.parametrize("lost", [info(9, vbuuid=B), info(6), VbucketInfo(BRANCHED, 20, 0)])
    def test_that_is_on_no_history_any_more_is_refused(self, lost):
        with pytest.raises(Error, match=r"vbucket 0: the bucket's history no longer has the end, seqno 11,|seqno 7,"):
            plan_until(beginning(1), Offset((at(0, A, 11 if lost.high_seqno == 20 else 7),)), {0: lost})

    def test_in_front_of_its_start_is_refused(self):
        with pytest.raises(UsageError, match="vbucket 0: the start, seqno 9, is behind the end, seqno 7"):
            plan_until(settled_at({0: (A, 9)}, 3), self.END, self.INFOS)
        with pytest.raises(UsageError, match="the bucket has 2 vbuckets, expected 3"):
            plan_until(beginning(2), self.END, self.INFOS)


SETBACKS = [
    ("none", at(0, A, 7), info(9), []),
    ("a lost branch", at(0, A, 12, (8, 10)), VbucketInfo(BRANCHED, 11, 0), [Setback(0, 12, 8, by_purge=False)]),
    ("everything lost", at(2, A, 12, (8, 10)), info(3, vbuuid=C), [Setback(0, 12, 0, by_purge=False)]),
    ("purged behind the reader", at(0, A, 12, (8, 10), (12, 12)), info(20, 15), [Setback(0, 12, 0, by_purge=True)]),
    ("purged while the batch was read", at(0, A, 12, (8, 8)), info(20, 10), [Setback(0, 12, 0, by_purge=True)]),
    ("purged in front of the reader", at(0, A, 12, (8, 10), (12, 12)), info(20, 11), []),
    (
        "purged, and lost further back",
        at(0, A, 12, (8, 8)),
        info(20, 15, vbuuid=C),
        [Setback(0, 12, 0, by_purge=False)],
    ),
]


@pytest.mark.parametrize(
    ("before", "word", "expected"), [row[1:] for row in SETBACKS], ids=[row[0] for row in SETBACKS]
)
def test_why_a_reader_goes_back(before, word, expected):
    previous = Offset((before,))
    planned, _ = plan(previous, {0: word})
    assert setbacks(previous, planned, {0: word}) == expected


@given(*[st.integers(0, 12)] * 4, st.sampled_from([A, B]), st.integers(1, 9))
def test_what_stands_is_what_the_rule_of_a_producer_says(end, above, high, purge, newest, begin):
    """A reader of the newest branch is spared the rule."""
    proven, word = Proven(1 + end, 1 + end + above), VbucketInfo(log((newest, begin), (C, 0)), max(high, begin), purge)
    planned, _ = plan(Offset((at(0, A, proven.end, proven),)), {0: word})
    goes_on = [
        rollback_point(word.failover_log, word.high_seqno, purged, request_at(seqno)) is None
        for seqno, purged in ((proven.end, purge), (proven.high, 0))
    ]
    assert (planned.vbuckets[0].history == 0) == all(goes_on)


def request_at(seqno: int) -> StreamRequest:
    return StreamRequest(start_seqno=seqno, vbuuid=A, snap_start=seqno, snap_end=seqno)


class TestWhatIsSettled:
    INFOS: Mapping[int, VbucketInfo] = MappingProxyType({0: info(7), 1: info(5), 2: info(0)})

    def test_is_proven_and_read_to_its_end(self):
        end, memory = plan(beginning(3), self.INFOS)
        assert settled(end, self.INFOS, memory) == {2}
        again, memory = plan(end, self.INFOS, None, memory)
        assert settled(again, self.INFOS, memory) == {0, 1, 2}
        assert settled(again, self.INFOS, Memory()) == {2}
        assert settled(again, {**self.INFOS, 1: info(6)}, memory) == {0, 2}
        assert settled(again, {5: info(0)}, memory) == set()
        assert settled(again, {3: info(0)}, memory) == set()

    def test_proofs_of_another_offset_do_not_count(self):
        end, memory = plan(beginning(3), self.INFOS)
        again, memory = plan(end, self.INFOS, None, memory)
        assert again == end
        assert settled(beginning(3), {0: info(7), 2: info(0)}, memory) == {2}


BEGINNINGS = [
    # what, the seqno behind which a reader begins, the vbucket, whether it can
    ("at 0", 0, info(9, 6), True),
    ("below the purge seqno", 5, info(9, 6), False),
    ("at the purge seqno", 6, info(9, 6), True),
    ("at the end", 9, info(9), True),
    ("above the end", 10, info(9), False),
    ("on the newest of two branches", 12, VbucketInfo(BRANCHED, 15, 0), True),
    ("where the newest branch began", 10, VbucketInfo(BRANCHED, 15, 0), True),
]


@pytest.mark.parametrize(("what", "seqno", "known", "can"), BEGINNINGS)
def test_where_a_reader_can_begin(what, seqno, known, can):
    assert can_begin_at(seqno, known) is can


class TestNodes:
    def test_each_task_talks_to_one(self):
        end, _ = plan(beginning(8), {v: info(100_000) for v in range(8)})
        parts = cut(reads(beginning(8), end), 4, owners=[0, 1] * 4)
        assert [(part.owner, [read.vbucket for read in part.reads]) for part in parts] == [
            (0, [0, 2]), (0, [4, 6]), (1, [1, 3]), (1, [5, 7])
        ]  # fmt: skip

    def test_with_more_to_read_get_more_tasks(self):
        end, _ = plan(beginning(8), {v: info(10_000 if v % 2 else 90_000) for v in range(8)})
        parts = cut(reads(beginning(8), end), 5, owners=[0, 1] * 4)
        assert [part.owner for part in parts] == [0, 0, 0, 0, 1]

    def test_of_which_there_are_more_than_tasks_get_one_each(self):
        end, _ = plan(beginning(4), {v: info(5) for v in range(4)})
        assert [part.owner for part in cut(reads(beginning(4), end), 2, owners=[2, 1, 0, 1])] == [2, 1, 0]

    @given(
        st.lists(st.tuples(st.integers(0, 100_000), st.integers(-1, 3)), min_size=1, max_size=40),
        st.integers(1, 12),
        st.integers(0, 12),
    )
    def test_any_sizes(self, vbuckets, least, more):
        highs, owners = zip(*vbuckets, strict=True)
        end, _ = plan(beginning(len(highs)), {v: info(high) for v, high in enumerate(highs)})
        wanted = reads(beginning(len(highs)), end)
        parts = cut(wanted, least + more, least, owners)
        assert sorted((read for part in parts for read in part.reads), key=lambda read: read.vbucket) == wanted
        assert all(owners[read.vbucket] == part.owner for part in parts for read in part.reads)
        nodes = {owners[read.vbucket] for read in wanted}
        assert min(least, len(wanted)) <= len(parts) <= max(least + more, len(nodes))


SEQNOS = st.integers(0, 2**64 - 1)


@st.composite
def vbucket_offsets(draw: st.DrawFn) -> VbucketOffset:
    numbers = sorted(draw(st.lists(st.integers(1, 2**64 - 1), max_size=8, unique=True)))
    proven = tuple(Proven(end, high) for end, high in pairwise(numbers))[::2]
    seqno = draw(st.integers(proven[-1].end if proven else 0, 2**64 - 1))
    requested = draw(st.none() | SEQNOS)
    return VbucketOffset(draw(st.integers(0, 99)), draw(SEQNOS), seqno, proven, draw(SEQNOS), requested)


class TestJson:
    def test_in_columns(self):
        offset = Offset(
            (at(0, 2**64 - 1, 130, (10, 17), (130, 130)), at(1, 7, 5, requested=0), at(0, 0, 0), at(0, 0, 0))
        )
        assert offset.to_json() == {
            "version": 1,
            "history": "0 1 0*2",
            "vbuuid": "18446744073709551615 7 0*2",
            "seqno": "130 5 0*2",
            "proven": "120+7,0+0 -*3",
            "purge": "0*4",
            "requested": "- 0 -*2",
        }

    @given(st.lists(vbucket_offsets(), min_size=1, max_size=5), st.booleans())
    def test_round_trip(self, vbuckets, pinned):
        offset = Offset(tuple(vbuckets), pinned)
        text = json.dumps(offset.to_json())
        again = Offset.from_json(json.loads(text))
        assert again == offset
        assert json.dumps(again.to_json()) == text

    def test_1024_vbuckets_stay_small(self):
        offset, memory = beginning(1024), Memory()
        assert len(json.dumps(offset.to_json())) < 150
        for turn in range(1, 8):
            infos = {v: info(100_000 * turn + 37 * v, vbuuid=2**47 + v) for v in range(1024)}
            offset, memory = plan(offset, infos, None, memory)
        assert len(json.dumps(offset.to_json())) < 80_000

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"version": 2}, "offset of version 2, expected 1"),
            ({"version": None}, "offset of version None"),
            ({"seqno": "1"}, "shorter"),
            ({"seqno": "1*3"}, "longer"),
            ({"seqno": 7}, "7 is not a column"),
            ({"seqno": "1 x"}, "'x' is not a number"),
            ({"seqno": "1 -1"}, "'-1' is not a number"),
            ({"vbuuid": f"1 {2**64}"}, "is not a number from 0 to"),
            ({"history": "0*9999999999"}, "more than 65536 vbuckets"),
            ({"proven": "-*3"}, "shorter"),
            ({"purge": "0"}, "shorter"),
            ({"proven": "- 4"}, "'' is not a number"),
            ({"proven": "- 1+2+3"}, r"'2\+3' is not a number"),
            ({"proven": "- 5+0"}, "not the proven ends of seqno 5"),
            ({"proven": "- 9+0"}, "not the proven ends of seqno 5"),
            ({"proven": "- 0+0,1+0"}, "not the proven ends of seqno 5"),
            ({"proven": "- 4+0,3+0,2+0,1+0,0+0"}, "not the proven ends of seqno 5"),
        ],
    )
    def test_that_is_malformed_gets_one_sentence(self, change, message):
        good = Offset((at(0, A, 5), at(0, A, 5))).to_json()
        with pytest.raises(UsageError, match=message) as caught:
            Offset.from_json({**good, **change})
        assert "\n" not in str(caught.value)
        assert str(caught.value).endswith(f": {brief({**good, **change})}")

    def test_that_lacks_a_column(self):
        with pytest.raises(UsageError, match="not an offset of this source"):
            Offset.from_json({"version": 1, "history": "0"})


def test_an_idle_offset_is_the_same_text_for_ever():
    infos = {0: info(7), 1: VbucketInfo(BRANCHED, 12, 3)}
    offset, memory = plan(beginning(2), infos)
    text = json.dumps(offset.to_json())
    for _ in range(3):
        offset, memory = plan(Offset.from_json(json.loads(text)), infos, 5, memory)
        assert json.dumps(offset.to_json()) == text
        assert json.dumps(plan(offset, infos)[0].to_json()) == text  # after a restart as well


def test_a_new_branch_alone_makes_no_new_offset():
    offset, memory = plan(beginning(1), {0: info(7)})
    _, memory = plan(offset, {0: info(7)}, None, memory)
    assert plan(offset, {0: replace(info(7), failover_log=log((B, 7), (A, 0)))}, None, memory)[0] is offset


def test_planning_is_pure():
    tree = ast.parse(Path(offsets.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(isinstance(node, ast.Import) for node in ast.walk(tree))
    assert imported == {
        "collections.abc",
        "dataclasses",
        "typing",
        "penstock.client.feeds.resume_policy",
        "penstock.client.feeds.stream_position",
        "penstock.client.topology.vbucket_info",
        "penstock.errors",
        "penstock.spark.source.runs",
        "penstock.store.history.rollback",
    }
