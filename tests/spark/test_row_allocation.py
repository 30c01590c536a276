"""Limits of rows, against logs in which most seqnos have no row."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.spark.source.limits.row_allocation import SEQNO_COUNTER, SHARES, Backlog, RowCount, allocate_rows
from penstock.spark.source.offsets import VbucketRead

Log = list[int]
"""The key of each change; the first one has seqno 1."""


@dataclass
class LogCounter:
    """Counts the rows of logs as a bucket does.

    Attributes:
        logs: the log of each vbucket.
        is_exact: whether a stream ends with a snapshot of its end seqno, as those of Penstock's node. kv_engine's
            streams omit changes that a later change replaces, also one after the end.
        counted: keys that were read.
    """

    logs: Sequence[Log]
    is_exact: bool
    counted: int = 0
    seqnos_per_row: float = math.inf

    def list_rows(self, read: VbucketRead) -> list[int]:
        """Return the seqnos with a row."""
        log = self.logs[read.vbucket]
        newest = {key: seqno for seqno, key in enumerate(log[: read.end_seqno] if self.is_exact else log, 1)}
        return sorted(seqno for seqno in newest.values() if read.start_seqno < seqno <= read.end_seqno)

    def bound_rows(self, read: VbucketRead) -> int | None:
        return min(read.end_seqno - read.start_seqno, len({*self.logs[read.vbucket]}))

    def is_dense(self, read: VbucketRead, seqnos: int) -> bool:
        return read.end_seqno - len({*self.logs[read.vbucket]}) <= seqnos // SHARES

    def count_rows(self, reads: Sequence[VbucketRead], limit: int) -> RowCount:
        rows = [(each.vbucket, seqno) for each in reads for seqno in self.list_rows(each)]
        self.counted += min(len(rows), limit + 1)
        if 0 < len(rows) <= limit:
            self.seqnos_per_row = sum(each.end_seqno - each.start_seqno for each in reads) / len(rows)
        return RowCount(min(len(rows), limit), len(rows) <= limit, dict(rows[:limit]))


def make_backlogs(logs: Sequence[Log], starts: Sequence[int] = ()) -> list[Backlog]:
    pairs = enumerate(zip(logs, starts or [0] * len(logs), strict=True))
    return [Backlog(VbucketRead(vb, 0, 1, start, len(log))) for vb, (log, start) in pairs if start < len(log)]


def read_all(counter: LogCounter, limit: int) -> list[int]:
    """Read all logs in batches, and return the rows of each batch."""
    starts, sizes = [0] * len(counter.logs), []
    while backlogs := make_backlogs(counter.logs, starts):
        ends = allocate_rows(backlogs, limit, counter)
        parts = [replace(each, end_seqno=ends.get(each.vbucket, each.start_seqno)) for each, _ in backlogs]
        assert all(
            part.start_seqno <= part.end_seqno <= each.end_seqno
            for part, (each, _) in zip(parts, backlogs, strict=True)
        )
        sizes.append(sum(len(counter.list_rows(part)) for part in parts))
        for part in parts:
            starts[part.vbucket] = part.end_seqno
    return sizes


phases = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 300)), min_size=1, max_size=4)
"""Phases of writing: how many keys are written in turn, and how many changes that makes."""


def make_log(parts: list[tuple[int, int]]) -> Log:
    return list(chain.from_iterable((at % keys for at in range(changes)) for keys, changes in parts))


@example(written=[[(57, 576)], [(47, 400)], [(50, 406)], [(18, 195)]], limit=7, is_exact=False)
@example(written=[[(11, 104)]], limit=1, is_exact=False)  # a limit of 1 must not make the search slower and slower
@given(st.lists(phases, min_size=1, max_size=12), st.integers(1, 200), st.booleans())
def test_batches_have_rows_and_keep_the_limit(written, limit, is_exact):
    sizes = read_all(LogCounter([make_log(parts) for parts in written], is_exact), limit)
    assert all(0 < rows <= limit for rows in sizes)


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("count", [1, 16, 256])
def test_a_log_of_overwritten_documents_has_few_full_batches(count, is_exact):
    documents, overwrites, limit = 4_096 // count, 40_000 // count, 500
    log = [*range(documents), *[7] * overwrites, *range(documents // 2)]
    counter = LogCounter([log] * count, is_exact)
    sizes = read_all(counter, limit)
    rows = sum(sizes)
    assert rows <= 1.6 * 4_096  # a document may be in two batches, before it was written again and after
    assert len(sizes) <= 1.5 * rows / limit + 1
    assert counter.counted <= 5 * rows


def test_documents_that_fit_need_no_search():
    counter = LogCounter([[*range(10), *[3] * 1_000]] * 64, is_exact=True)
    assert read_all(counter, 100) == [100] * 6 + [40]
    assert counter.counted == 0


def test_documents_that_were_never_overwritten_need_no_search():
    counter = LogCounter([[*range(1_000), 3, 3, 3]] * 4, is_exact=True)
    sizes = read_all(counter, 400)
    assert len(sizes) == 11
    assert min(sizes[:-1]) >= 350
    assert counter.counted == 0


class TestVbucketsThatMustBeReadTo:
    """A vbucket must be read up to a least end."""

    @staticmethod
    def backlog(vbucket: int, seqnos: int, least_end: int = 0) -> Backlog:
        return Backlog(VbucketRead(vbucket, 0, 1, 0, seqnos), least_end)

    def test_come_first_and_completely(self):
        ends = allocate_rows(
            [self.backlog(0, 90), self.backlog(1, 50, 40), self.backlog(2, 50, 50)], 100, SEQNO_COUNTER
        )
        assert ends == {1: 50, 2: 50}

    def test_may_exceed_the_limit_alone(self):
        assert allocate_rows([self.backlog(0, 90), self.backlog(1, 50, 40)], 30, SEQNO_COUNTER) == {1: 40}

    def test_wait_if_they_do_not_fit(self):
        backlogs = [self.backlog(vb, 90, 80) for vb in range(100)]
        assert allocate_rows([self.backlog(100, 20, 20), *backlogs], 90, SEQNO_COUNTER) == {100: 20}
        assert allocate_rows([*backlogs, self.backlog(100, 5)], 90, SEQNO_COUNTER) == {0: 90}

    def test_count_their_documents_only(self):
        counter = LogCounter([[*range(20), *[1] * 500], [*range(20), *[1] * 500]], is_exact=True)
        backlogs = [Backlog(each.read, least_end=400) for each in make_backlogs(counter.logs)]
        assert allocate_rows(backlogs, 50, counter) == {0: 520, 1: 520}


def test_a_lost_branch_waits_for_the_next_plan():
    class Losing(LogCounter):
        def bound_rows(self, read):
            return None

        def is_dense(self, read, seqnos):
            return False

        def count_rows(self, reads, limit):
            return (
                super()
                .count_rows([each for each in reads if each.vbucket], limit)
                ._replace(lost=frozenset(each.vbucket for each in reads if not each.vbucket))
            )

    counter = Losing([[*range(50)]] * 3, is_exact=True)
    ends = allocate_rows(make_backlogs(counter.logs), 60, counter)
    assert ends.keys() == {1, 2}
    assert 60 - 60 // SHARES <= sum(ends.values()) <= 60


class DenseCounter(LogCounter):
    """Knows that there are fewer rows than seqnos, and that nearly each seqno of a part has a row."""

    def is_dense(self, read: VbucketRead, seqnos: int) -> bool:
        return True


@pytest.mark.parametrize("limit", range(1, 12))
def test_a_dense_part_of_a_sparse_read_keeps_the_limit(limit):
    """The expected seqnos for each row are too many then. They made a batch above the limit, or an end before 0."""
    counter = DenseCounter([[*range(14), *[0] * 28], [*range(12), *[0] * 24], [*range(12), *[0] * 24]], is_exact=True)
    ends = allocate_rows(make_backlogs(counter.logs), limit, counter)
    assert min(ends.values()) >= 0
    assert 0 < sum(ends.values()) <= limit
