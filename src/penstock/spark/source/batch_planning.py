"""Plan micro-batches: pure functions over failover logs, seqnos and offsets.

Spark plans the end of a batch before a producer chooses its snapshots. In a snapshot, deduplication can hide a version
that a later change replaces. So an end is at first only *planned*. A later plan *proves* it under two conditions. The
branch of the batch is still the newest, and no tombstone was purged that the batch may have missed.

A proven end is stored with `high`, the high seqno of the plan that proved it. Each change that hid a version below the
end is at or below `high`. So a rollback to `high` or above restores no version, and the end stays valid. Any other
rollback must go to an older proven end, or to 0.

A limit is one of rows; the module row_allocation finds them among the seqnos. Any end within the backlog is valid, so
it does not matter to the rules above how the rows were counted.

`infos` may hold only some of the vbuckets. The others keep their positions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import NamedTuple

from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.errors import Error, UsageError
from penstock.spark.source.limits.row_allocation import SEQNO_COUNTER, Backlog, RowCounter, allocate_rows
from penstock.spark.source.offsets import (
    MAX_PROVEN,
    Offset,
    ProvenEnd,
    VbucketOffset,
    VbucketRead,
    check_vbucket_count,
    sort_vbuckets,
)
from penstock.store.history.rollback import StreamRequest, find_rollback_point


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """The knowledge of a running query beyond its offset. Each plan returns one for the next plan.

    A new proof alone makes no new offset while changes may follow soon; otherwise each small batch would have an empty
    one after it. The next batch stores the proofs. So do the end of an AvailableNow run, and `store_proofs` for an idle
    query, in a batch without rows. If the process ends before that, the proofs are lost. Then a new branch makes the
    next query read the last batch again.

    Attributes:
        offset: the offset that the last plan returned; None if it had no proofs beyond it.
        proven_offset: `offset` with the proofs of the last plan.
        target: the end of an AvailableNow run as (vbuuid, seqno) by vbucket, otherwise None.
    """

    offset: Offset | None = None
    proven_offset: Offset | None = None
    target: Mapping[int, tuple[int, int]] | None = None


class PlannedRollback(NamedTuple):
    """A vbucket that a plan rolls back.

    Attributes:
        vbucket: the vbucket.
        seqno: the end of the previous offset.
        target_seqno: the seqno to which the plan goes back.
        by_purge: whether the cause is a purge: the branch continues, but tombstones were purged before they were read.
    """

    vbucket: int
    seqno: int
    target_seqno: int
    by_purge: bool


def prepare_available_now(infos: Mapping[int, VbucketInfo]) -> PlanMemory:
    """Return the memory for the first plan of an AvailableNow run, which ends at the present ends of the vbuckets.

    The run is over when a plan returns its `previous`. It does so only when the offset has the proof of the last batch.
    """
    return PlanMemory(target={vb: (info.vbuuid, info.end_seqno) for vb, info in infos.items()})


def plan_batch(
    previous: Offset,
    infos: Mapping[int, VbucketInfo],
    limit: int | None = None,
    memory: PlanMemory | None = None,
    requested: Mapping[int, int] | None = None,
    *,
    counter: RowCounter = SEQNO_COUNTER,
) -> tuple[Offset, PlanMemory]:
    """Return the end of the next batch, and the memory for the next plan.

    The batch that ends at `previous` must be completely read before `infos` are requested.

    Args:
        previous: the end of the last batch.
        infos: the state of the vbuckets.
        limit: the most rows to plan, at least 1; None for no limit. A vbucket that starts from 0 must be read up to
            its purge seqno at once, and may exceed the limit.
        memory: the memory of the last plan; None for the first plan of a query.
        requested: vbuckets to read again from 0, with the history at which each was requested. A vbucket is read again
            in one batch, and waits for a later plan if it does not fit into the limit.
        counter: counts the rows among the seqnos; by default, each seqno is a row.

    Returns:
        The end, which is `previous` itself if there is nothing to do, and the memory.

    Raises:
        UsageError: `previous` does not have one of the vbuckets.
    """
    memory = memory or PlanMemory()
    chosen = sort_vbuckets(infos, len(previous.vbuckets))
    states = [infos[vb] for vb in chosen]
    target = _update_target(memory.target, infos)
    if not previous.pinned:
        return replace(previous, pinned=True), PlanMemory(target=target)
    known = memory.proven_offset if memory.proven_offset and memory.offset == previous else previous
    settled = [_settle_vbucket(known.vbuckets[vb], infos[vb]) for vb in chosen]
    again = find_requested(previous, requested or {})
    bases = [
        _restart_vbucket(known.vbuckets[vb], infos[vb]) if vb in again else base
        for vb, base in zip(chosen, settled, strict=True)
    ]
    ends = [infos[vb].end_seqno if target is None else target[vb][1] for vb in chosen]
    backlogs = [
        _find_backlog(vb, base, infos[vb], end, is_whole=vb in again)
        for vb, base, end in zip(chosen, bases, ends, strict=True)
    ]
    granted = _allocate_seqnos(backlogs, limit, counter)
    # Not in parts: until it is complete, the tables would lack the rest of its documents.
    bases = [
        _wait_for_restart(known.vbuckets[vb], before) if vb in again and end and not more else base
        for vb, base, more, end, before in zip(chosen, bases, granted, ends, settled, strict=True)
    ]
    planned = _replace_vbuckets(known, zip(chosen, map(_advance_vbucket, bases, states, granted), strict=True))
    if planned.vbuckets == previous.vbuckets:
        return previous, PlanMemory(target=target)
    if target is None and _have_same_ends(previous, planned):
        return previous, PlanMemory(previous, planned)
    return planned, PlanMemory(target=target)


def store_proofs(previous: Offset, memory: PlanMemory) -> tuple[Offset, PlanMemory]:
    """Return the end of a batch without rows that stores the proofs of an idle query, and the memory after it.

    Args:
        previous: the end of the last batch.
        memory: the memory of the last plan.

    Returns:
        The end, which is `previous` itself if it has all proofs, and the memory.
    """
    if memory.proven_offset is None or memory.offset != previous:
        return previous, memory
    return memory.proven_offset, PlanMemory(target=memory.target)


def plan_batch_until(previous: Offset, end: Offset, infos: Mapping[int, VbucketInfo]) -> Offset:
    """Return the end of a single batch from `previous` to the seqnos of `end`.

    Args:
        previous: the start of the batch.
        end: the seqnos at which the batch ends.
        infos: the state of the vbuckets to read.

    Returns:
        The end of the batch.

    Raises:
        UsageError: the start is after the end, or the numbers of vbuckets differ.
        Error: the bucket's history no longer has the end.
    """
    check_vbucket_count(end, len(previous.vbuckets))
    planned: dict[int, VbucketOffset] = {}
    for vb in sort_vbuckets(infos, len(previous.vbuckets)):
        base, info, last = _settle_vbucket(previous.vbuckets[vb], infos[vb]), infos[vb], end.vbuckets[vb]
        if _find_rollback_point(last.seqno, last.vbuuid, info, purge_seqno=0) is not None:
            raise Error(f"vbucket {vb}: the bucket's history no longer has the end, seqno {last.seqno}, that was given")
        if base.seqno > last.seqno:
            raise UsageError(f"vbucket {vb}: the start, seqno {base.seqno}, is behind the end, seqno {last.seqno}")
        planned[vb] = _advance_vbucket(base, info, last.seqno - base.seqno)
    return _replace_vbuckets(previous, planned.items())


def find_rollbacks(previous: Offset, planned: Offset, infos: Mapping[int, VbucketInfo]) -> list[PlannedRollback]:
    """Return the rollbacks of a plan, ordered by vbucket.

    Args:
        previous: the offset before the plan.
        planned: the offset that the plan returned.
        infos: the state that the plan used.
    """
    found: list[PlannedRollback] = []
    for vb in sorted(infos):
        a, b = previous.vbuckets[vb], planned.vbuckets[vb]
        if b.history > a.history:
            unpurged = _settle_vbucket(a, replace(infos[vb], purge_seqno=0))
            found.append(PlannedRollback(vb, a.seqno, b.start, by_purge=unpurged.seqno > b.start))
    return found


def find_settled_vbuckets(previous: Offset, infos: Mapping[int, VbucketInfo], memory: PlanMemory) -> set[int]:
    """Return the vbuckets whose purge seqno cannot matter to the next plan while the rest of `infos` stays the same.

    They are completely read, and a plan has proven that.

    Args:
        previous: the offset of the next plan.
        infos: the state of the vbuckets.
        memory: the memory of the last plan.
    """
    known = memory.proven_offset if memory.proven_offset and memory.offset == previous else previous
    vbuckets = [(vb, known.vbuckets[vb]) for vb in infos if vb < len(known.vbuckets)]
    return {vb for vb, v in vbuckets if v.start == v.seqno == infos[vb].high_seqno}


def can_start_at(seqno: int, info: VbucketInfo) -> bool:
    """Return whether the producer accepts a stream of its newest branch that starts after `seqno`."""
    return _find_rollback_point(seqno, info.vbuuid, info, info.purge_seqno) is None


def _settle_vbucket(v: VbucketOffset, info: VbucketInfo) -> VbucketOffset:
    """Return `v` with its last batch proven, or rolled back to the newest valid proven end."""
    proven = v.proven
    if v.seqno > v.start and _is_complete(v, info):
        proven = (*proven, ProvenEnd(v.seqno, info.high_seqno))[-MAX_PROVEN:]
    while proven and not _is_valid(proven[-1], v.vbuuid, info):
        proven = proven[:-1]
    at = proven[-1].end if proven else 0
    if at == v.seqno:
        return VbucketOffset(v.history, v.vbuuid, v.seqno, proven)
    demanded = _find_rollback_point(v.seqno, v.vbuuid, info, info.purge_seqno)
    return VbucketOffset(v.history + 1, info.vbuuid, at, proven, requested=v.seqno if demanded is None else demanded)


def find_requested(previous: Offset, requested: Mapping[int, int]) -> set[int]:
    """Return the vbuckets whose request is not fulfilled yet: they are still at the history of the request."""
    count = len(previous.vbuckets)
    return {vb for vb, history in requested.items() if vb < count and previous.vbuckets[vb].history == history}


def _restart_vbucket(v: VbucketOffset, info: VbucketInfo) -> VbucketOffset:
    """Return the start of a new history of `v` at seqno 0, for a read that was requested."""
    return VbucketOffset(v.history + 1, info.vbuuid, 0, (), requested=v.seqno)


def _wait_for_restart(v: VbucketOffset, settled: VbucketOffset) -> VbucketOffset:
    """Return the state of `v` while its requested read does not fit into a batch.

    A rollback waits too: a request is fulfilled by a new history, and that of the rollback does not start at 0.
    """
    return settled if settled.history == v.history else v


def _is_complete(v: VbucketOffset, info: VbucketInfo) -> bool:
    """Return whether the last batch of `v` was read completely, and missed no deletion.

    The branch was the newest before and after the batch, so it was the newest in between. A purge at or below the start
    concerns only older readers. A reader from 0 has no rows that a purged deletion could have removed, except for a
    purge during the batch.
    """
    return v.vbuuid == info.vbuuid and info.purge_seqno <= max(v.start, v.purge_seqno)


def _is_valid(proven: ProvenEnd, vbuuid: int, info: VbucketInfo) -> bool:
    """Return whether the producer accepts a stream of `vbuuid` from the proven end.

    The producer must also have hidden no version below the end since.
    """
    if vbuuid == info.vbuuid:  # the usual case, and faster; the rule below gives the same result
        return info.purge_seqno <= proven.end and proven.high <= info.high_seqno
    return (
        _find_rollback_point(proven.end, vbuuid, info, info.purge_seqno) is None
        and _find_rollback_point(proven.high, vbuuid, info, purge_seqno=0) is None
    )


def _find_rollback_point(seqno: int, vbuuid: int, info: VbucketInfo, purge_seqno: int) -> int | None:
    """Return the seqno to which the producer rolls back a reader that has all changes up to `seqno`, or None."""
    request = StreamRequest(start_seqno=seqno, vbuuid=vbuuid, snap_start=seqno, snap_end=seqno)
    return find_rollback_point(info.failover_log, info.high_seqno, purge_seqno, request)


def _advance_vbucket(base: VbucketOffset, info: VbucketInfo, granted: int) -> VbucketOffset:
    """Return `base` with `granted` more seqnos planned.

    If `granted` is 0, the branch stays the one on which the end was read.
    """
    if not granted:
        return base
    purge_seqno = 0 if base.seqno else info.purge_seqno
    # Not with `replace`, which takes as long as the rest of a plan.
    seqno = base.seqno + granted
    return VbucketOffset(base.history, info.vbuuid, seqno, base.proven, purge_seqno, base.requested)


def _have_same_ends(a: Offset, b: Offset) -> bool:
    """Return whether two offsets have the same seqnos and histories."""
    pairs = zip(a.vbuckets, b.vbuckets, strict=True)
    return all(one.seqno == other.seqno and one.history == other.history for one, other in pairs)


def _update_target(
    target: Mapping[int, tuple[int, int]] | None, infos: Mapping[int, VbucketInfo]
) -> Mapping[int, tuple[int, int]] | None:
    """Return the target, with new seqnos for vbuckets that have a new branch: the old seqno means nothing there.

    A vbucket without a target was not served when the run started. Its present end becomes the target.
    """
    if target is None:
        return None
    return {
        vb: target[vb] if vb in target and target[vb][0] == info.vbuuid else (info.vbuuid, info.end_seqno)
        for vb, info in infos.items()
    }


def _find_backlog(vbucket: int, base: VbucketOffset, info: VbucketInfo, end: int, *, is_whole: bool) -> Backlog:
    """Return the changes of a vbucket after its base.

    Args:
        vbucket: the vbucket.
        base: its start.
        info: its state.
        end: its last seqno.
        is_whole: whether it is read completely or not at all.
    """
    # A producer refuses streams that start between 0 and the purge seqno. A reader from 0 that stops there would
    # restart from 0 without end.
    purge_seqno = info.purge_seqno if end > base.seqno == 0 else 0
    last = max(base.seqno, end, purge_seqno)
    read = VbucketRead(vbucket, base.history, info.vbuuid, base.seqno, last, purge_seqno)
    return Backlog(read, last if is_whole and last > base.seqno else purge_seqno)


def _allocate_seqnos(backlogs: Sequence[Backlog], limit: int | None, counter: RowCounter) -> list[int]:
    """Return the number of seqnos by which each vbucket advances.

    Args:
        backlogs: the changes of each vbucket.
        limit: the most rows; None for no limit.
        counter: counts the rows.
    """
    starts = [each.read.start_seqno for each in backlogs]
    wanted = [each.read.end_seqno - start for each, start in zip(backlogs, starts, strict=True)]
    if limit is None or sum(wanted) <= limit:
        return wanted
    open_ = [backlogs[at] for at in _order_vbuckets(len(backlogs), sum(starts)) if wanted[at]]
    ends = allocate_rows(open_, limit, counter)
    if all(ends.get(each.read.vbucket, start) == start for each, start in zip(backlogs, starts, strict=True)):
        # All branches changed while the rows were counted. An idle plan would end an AvailableNow run.
        ends = allocate_rows(open_, limit, SEQNO_COUNTER)
    return [ends.get(each.read.vbucket, start) - start for each, start in zip(backlogs, starts, strict=True)]


def _order_vbuckets(count: int, turn: int) -> list[int]:
    """Return the order in which vbuckets are served.

    The first vbucket differs from batch to batch, so all are served even if the limit is below their number. A node
    has consecutive vbuckets, so those that follow each other are far apart: all nodes work on a batch.

    Args:
        count: the number of vbuckets.
        turn: a number that differs from batch to batch.
    """
    stride = next(each for each in range(max(1, round(count * 0.618)), count + 2) if gcd(each, count) == 1)
    return [(turn + at) * stride % count for at in range(count)]


def _replace_vbuckets(offset: Offset, changed: Iterable[tuple[int, VbucketOffset]]) -> Offset:
    """Return the offset with some vbuckets replaced."""
    vbuckets = list(offset.vbuckets)
    for vbucket, each in changed:
        vbuckets[vbucket] = each
    return replace(offset, vbuckets=tuple(vbuckets), pinned=True)
