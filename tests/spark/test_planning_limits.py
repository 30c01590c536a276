"""How a limit of rows is divided among the vbuckets of a micro-batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.source.batch_planning import (
    PlanMemory,
    plan_batch,
)
from penstock.spark.source.offsets import (
    Offset,
    make_first_offset,
)
from tests.spark.plan_builders import A, at, info


class TestLimit:
    @pytest.mark.parametrize(
        ("highs", "limit", "ends"),
        [
            ([100, 100, 100], 30, [10, 10, 10]),
            ([4, 100, 100], 30, [4, 13, 13]),
            ([100, 100, 100], 31, [11, 10, 10]),
            ([1, 2, 3], 6, [1, 2, 3]),
            ([1, 2, 3], 100, [1, 2, 3]),
            ([9, 9, 9], 2, [1, 0, 1]),
            ([0, 0, 9], 2, [0, 0, 2]),
        ],
    )
    def test_is_shared_in_equal_parts(self, highs, limit, ends):
        end, _ = plan_batch(make_first_offset(len(highs)), {v: info(high) for v, high in enumerate(highs)}, limit)
        assert [v.seqno for v in end.vbuckets] == ends

    @pytest.mark.parametrize(("count", "limit"), [(8, 3), (8, 4), (7, 5), (16, 1), (6, 6), (5, 7)])
    def test_lets_no_vbucket_starve_while_others_write(self, count, limit):
        offset = make_first_offset(count)
        for turn in range(-(-count // limit) + 1):
            offset, _ = plan_batch(offset, {v: info(1000 * (turn + 1)) for v in range(count)}, limit)
        assert all(v.seqno for v in offset.vbuckets)

    @given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 50), st.booleans()), min_size=1), st.integers(1, 500))
    def test_is_used_completely_and_not_exceeded(self, vbuckets, limit):
        infos = {v: info(start + more) for v, (start, more, _) in enumerate(vbuckets)}
        previous = Offset(tuple(at(0, A, s, *([(s, s)] if s else [])) for s, _, _ in vbuckets))
        end, _ = plan_batch(previous, infos, limit)
        granted = [b.seqno - a.seqno for a, b in zip(previous.vbuckets, end.vbuckets, strict=True)]
        assert sum(granted) == min(limit, sum(more for _, more, _ in vbuckets))
        assert all(0 <= got <= more for got, (_, more, _) in zip(granted, vbuckets, strict=True))

    def test_vbuckets_that_must_reach_their_purge_seqno_wait_for_each_other(self):
        infos = {0: info(50, 40), 1: info(50, 40), 2: info(50)}
        seen, previous, memory = [], make_first_offset(3), PlanMemory()
        for _ in range(3):
            previous, memory = plan_batch(previous, infos, 45, memory)
            seen.append([v.seqno for v in previous.vbuckets])
        assert seen == [[40, 0, 5], [45, 40, 5], [50, 50, 35]]

    def test_a_purge_seqno_equal_to_the_remaining_limit_is_read(self):
        end, _ = plan_batch(make_first_offset(2), {0: info(4, 4), 1: info(8, 6)}, 10)
        assert [v.seqno for v in end.vbuckets] == [4, 6]

    def test_a_vbucket_above_its_purge_seqno_is_read_to_its_high_seqno(self):
        end, _ = plan_batch(make_first_offset(2), {0: info(5, 4), 1: info(20)}, 15)
        assert [v.seqno for v in end.vbuckets] == [5, 10]

    def test_a_purge_seqno_above_the_limit_is_read_in_one_batch(self):
        end, _ = plan_batch(make_first_offset(2), {0: info(50, 40), 1: info(50)}, 10)
        assert [v.seqno for v in end.vbuckets] == [40, 0]
