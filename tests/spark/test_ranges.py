"""The changes between two offsets, and their division among Spark's tasks."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.errors import UsageError
from penstock.spark.source.batch_planning import (
    plan_batch,
)
from penstock.spark.source.offsets import (
    Offset,
    RollbackRow,
    VbucketRead,
    derive_reads,
    make_first_offset,
)
from penstock.spark.source.ranges import divide_reads
from tests.spark.plan_builders import BRANCHED, A, B, at, info, partitions


class TestPartitions:
    def test_are_balanced_contiguous_and_complete(self):
        sizes = [10_000, 0, 30_000, 5_000, 5_000, 10_000, 0, 20_000]
        end, _ = plan_batch(make_first_offset(8), {v: info(size) for v, size in enumerate(sizes)})
        parts = partitions(make_first_offset(8), end, 2)
        assert [[read.vbucket for read in part.reads] for part in parts] == [[0, 2], [3, 4, 5, 7]]
        assert all(read == VbucketRead(read.vbucket, 0, A, 0, sizes[read.vbucket]) for p in parts for read in p.reads)

    def test_are_few_when_there_is_little_to_read(self):
        end, _ = plan_batch(make_first_offset(8), {v: info(5) for v in range(8)})
        assert len(partitions(make_first_offset(8), end, 4)) == 1

    @given(st.lists(st.integers(0, 100_000), min_size=1, max_size=40), st.integers(1, 8))
    def test_are_complete_and_balanced_for_any_sizes(self, sizes, count):
        end, _ = plan_batch(make_first_offset(len(sizes)), {v: info(size) for v, size in enumerate(sizes)})
        parts = partitions(make_first_offset(len(sizes)), end, count)
        loads = [sum(read.end_seqno for read in part.reads) for part in parts]
        order = [read.vbucket for part in parts for read in part.reads]
        assert len(parts) <= count
        assert order == [v for v, size in enumerate(sizes) if size]
        assert max(loads, default=0) <= max(sum(sizes) / count, 20_000) + 2 * max(sizes) + len(sizes)

    def test_depend_only_on_the_two_offsets(self):
        start = Offset((at(0, A, 12, (8, 10), (12, 12)),))
        end, _ = plan_batch(start, {0: VbucketInfo(BRANCHED, 15, 0)})
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


class TestPartitionOwners:
    def test_each_task_reads_from_one_node(self):
        end, _ = plan_batch(make_first_offset(8), {v: info(100_000) for v in range(8)})
        parts = divide_reads(derive_reads(make_first_offset(8), end), 4, owners=[0, 1] * 4)
        assert [(part.owner, [read.vbucket for read in part.reads]) for part in parts] == [
            (0, [0, 2]), (0, [4, 6]), (1, [1, 3]), (1, [5, 7])
        ]  # fmt: skip

    def test_with_more_to_read_get_more_tasks(self):
        end, _ = plan_batch(make_first_offset(8), {v: info(10_000 if v % 2 else 90_000) for v in range(8)})
        parts = divide_reads(derive_reads(make_first_offset(8), end), 5, owners=[0, 1] * 4)
        assert [part.owner for part in parts] == [0, 0, 0, 0, 1]

    def test_each_node_gets_a_task_if_there_are_more_nodes_than_tasks(self):
        end, _ = plan_batch(make_first_offset(4), {v: info(5) for v in range(4)})
        assert [
            part.owner for part in divide_reads(derive_reads(make_first_offset(4), end), 2, owners=[2, 1, 0, 1])
        ] == [2, 1, 0]

    @given(
        st.lists(st.tuples(st.integers(0, 100_000), st.integers(-1, 3)), min_size=1, max_size=40),
        st.integers(1, 12),
        st.integers(0, 12),
    )
    def test_tasks_are_complete_for_any_sizes(self, vbuckets, least, more):
        highs, owners = zip(*vbuckets, strict=True)
        end, _ = plan_batch(make_first_offset(len(highs)), {v: info(high) for v, high in enumerate(highs)})
        wanted = derive_reads(make_first_offset(len(highs)), end)
        parts = divide_reads(wanted, least + more, least, owners)
        assert sorted((read for part in parts for read in part.reads), key=lambda read: read.vbucket) == wanted
        assert all(owners[read.vbucket] == part.owner for part in parts for read in part.reads)
        nodes = {owners[read.vbucket] for read in wanted}
        assert min(least, len(wanted)) <= len(parts) <= max(least + more, len(nodes))
