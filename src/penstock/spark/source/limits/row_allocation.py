"""Divide a limit of rows among the vbuckets of a micro-batch.

A seqno has a row only while its change is the newest of its document. A bucket with 10^9 seqnos may have 10^7 rows, at
places that no statistic knows. So a plan does not only count seqnos. Three facts bound the rows of a vbucket:

- A vbucket has at most as many rows as seqnos, and as many as documents and tombstones. If these few fit into its
  share, the vbucket is read to its end. The places of the rows do not matter then.
- Where nearly all seqnos have a row, seqnos are counted.
- Otherwise the keys of a part are counted before the part is planned. Several parts together have at least as many rows
  as one read of the same seqnos, which omits more overwritten changes. So a read never has more rows than were counted.

A change between the plan and the read can only hide a row of the range. So the limit holds for the rows that are read,
also if a batch is replayed.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from types import MappingProxyType
from typing import NamedTuple, Protocol

from penstock.spark.source.offsets import VbucketRead

SHARES = 8
"""A vbucket gets at most this part of the limit, so that several tasks work on a batch. A batch that is filled up to
one such part is full enough."""

_MOST_COUNTS, _MOST_COUNTS_OF_NOTHING = 8, 64
"""Counts of keys in a search, and in a search that has found no rows yet. A count halves a part that was too long."""

_MOST_GROWTH = 16
"""How much longer a part may be than the last one, if the last one had few rows."""

_AIM = 0.9
"""The part of the limit that a search aims at. A count above the limit is lost work."""


class Backlog(NamedTuple):
    """The changes of a vbucket that are left to read.

    Attributes:
        read: all of them.
        least_end: the first seqno at which a batch may end; 0 if it may end anywhere.
    """

    read: VbucketRead
    least_end: int = 0


class RowCount(NamedTuple):
    """The rows of some reads.

    Attributes:
        rows: their number; of an incomplete count, the limit.
        is_complete: whether all rows were counted, because the limit suffices for them.
        reached: the seqno of the last row within the limit, by vbucket.
        lost: vbuckets whose branch is no longer the planned one.
    """

    rows: int
    is_complete: bool
    reached: Mapping[int, int] = MappingProxyType({})
    lost: frozenset[int] = frozenset()


class RowCounter(Protocol):
    """The rows among seqnos.

    Attributes:
        seqnos_per_row: seqnos for each row in the last part that was counted; infinite before.
    """

    seqnos_per_row: float

    def bound_rows(self, read: VbucketRead) -> int | None:
        """Return a number that the rows of a read do not exceed; None if there is none that is worth to use."""

    def is_dense(self, read: VbucketRead, seqnos: int) -> bool:
        """Return whether nearly each of so many seqnos anywhere in a read has a row, so that a count gains little."""

    def count_rows(self, reads: Sequence[VbucketRead], limit: int) -> RowCount:
        """Return the number of rows of some reads. The count stops at the first row above the limit."""


class _SeqnoCounter:
    """Counts each seqno as a row, which needs no request."""

    seqnos_per_row = 1.0

    def bound_rows(self, read: VbucketRead) -> int | None:
        """Return the number of seqnos."""
        return _count_seqnos(read)

    def is_dense(self, read: VbucketRead, seqnos: int) -> bool:
        """Return that each seqno has a row."""
        return True

    def count_rows(self, reads: Sequence[VbucketRead], limit: int) -> RowCount:
        """Return the number of seqnos."""
        seqnos = sum(map(_count_seqnos, reads))
        return RowCount(min(seqnos, limit), is_complete=seqnos <= limit)


SEQNO_COUNTER: RowCounter = _SeqnoCounter()
"""Counts each seqno as a row."""


def allocate_rows(backlogs: Sequence[Backlog], limit: int, counter: RowCounter) -> dict[int, int]:
    """Return where a batch ends, by vbucket. Vbuckets without a place in the batch are left out.

    The batch has at most `limit` rows. There is one exception: if the first vbucket may not end within the limit, the
    batch is that vbucket up to its `least_end`.

    Args:
        backlogs: the vbuckets with changes, in the order in which they are served.
        limit: the most rows, at least 1.
        counter: knows or finds the rows.
    """
    waiting = deque(sorted(backlogs, key=lambda each: not each.least_end))
    part = max(1, limit // max(1, min(SHARES, len(waiting))))
    ends: dict[int, int] = {}
    left, refused = limit, 0
    while waiting and left > limit // SHARES and refused < SHARES:
        searched: dict[VbucketRead, float] = {}
        free = left
        while waiting and free > 0 and refused < SHARES:
            read, least_end = waiting.popleft()
            seqnos, bound = _count_seqnos(read), counter.bound_rows(read)
            rows = seqnos if bound is None else bound
            least = min(rows, least_end - read.start_seqno)
            if bound is not None and rows <= (free if least_end else min(part, free)):
                ends[read.vbucket], taken = read.end_seqno, rows
            elif not least_end:
                searched[read] = min(counter.seqnos_per_row, seqnos / max(1, rows))
                free -= min(part, free)
                continue
            elif least <= free or not ends:
                ends[read.vbucket], taken = least_end, least
            else:
                refused += 1  # it waits for a batch with more space; a few are enough to look at
                continue
            free, left = free - taken, left - taken
        if searched and left > 0:
            is_dense = all(counter.is_dense(each, part) for each in searched)
            found, rows = _search_rows(searched, left, SEQNO_COUNTER if is_dense else counter)
            ends |= found
            left -= rows
        part = max(1, part // 2)  # few rows were found, so more vbuckets at a time
    return ends


def _search_rows(sparsity: Mapping[VbucketRead, float], limit: int, counter: RowCounter) -> tuple[dict[int, int], int]:
    """Return where some reads end so that they have at most `limit` rows, and the rows that this takes of the limit.

    Args:
        sparsity: the reads, with the expected number of seqnos for each row.
        limit: the most rows.
        counter: counts the rows.
    """
    rests = {each.vbucket: each for each in sparsity}
    steps = {each.vbucket: seqnos * _AIM for each, seqnos in sparsity.items()}
    left, narrowing = limit, 1
    for count in range(_MOST_COUNTS_OF_NOTHING):
        is_enough = left <= limit // SHARES or (count >= _MOST_COUNTS and left < limit)
        if is_enough or not (parts := _cut_parts(rests, left, steps)):
            break
        counted = counter.count_rows(parts, left)
        for vbucket in counted.lost:
            del rests[vbucket]
        if counted.is_complete:
            left, narrowing = left - counted.rows, 1
            _advance(rests, parts)
            step = _AIM * sum(map(_count_seqnos, parts)) / counted.rows if counted.rows else inf
            steps = {vb: min(step, _MOST_GROWTH * max(1.0, before)) for vb, before in steps.items()}
        else:
            for part, share in zip(parts, _divide_evenly(left, len(parts)), strict=True):
                most = _count_seqnos(part) / narrowing
                reached = counted.reached.get(part.vbucket, part.start_seqno + most / 2)
                steps[part.vbucket] = min(most, reached - part.start_seqno) / share
            # A node's snapshot of an earlier end has other rows. So the last row within the limit may be too far.
            narrowing = 2
    # Not more rows than seqnos, so there is nothing to count.
    final = _cut_parts(rests, left, {})
    _advance(rests, final)
    ends = {each.vbucket: rests[each.vbucket].start_seqno for each in sparsity if each.vbucket in rests}
    return ends, limit - left + sum(map(_count_seqnos, final))


def _cut_parts(rests: Mapping[int, VbucketRead], limit: int, steps: Mapping[int, float]) -> list[VbucketRead]:
    """Return the first part of each read that is expected to have an equal share of the limit."""
    open_ = [each for each in rests.values() if _count_seqnos(each)]
    shares = _divide_evenly(limit, len(open_))
    return [
        replace(each, end_seqno=min(each.end_seqno, each.start_seqno + int(share * max(1, steps.get(each.vbucket, 1)))))
        for each, share in zip(open_, shares, strict=True)
        if share
    ]


def _advance(rests: dict[int, VbucketRead], parts: Sequence[VbucketRead]) -> None:
    """Shorten the reads by their parts."""
    for part in parts:
        if part.vbucket in rests:
            rests[part.vbucket] = replace(rests[part.vbucket], start_seqno=part.end_seqno)


def _count_seqnos(read: VbucketRead) -> int:
    return read.end_seqno - read.start_seqno


def _divide_evenly(total: int, count: int) -> list[int]:
    """Return `count` shares that differ by at most one; the first ones are larger."""
    share, more = divmod(total, count) if count else (0, 0)
    return [share + (at < more) for at in range(count)]
