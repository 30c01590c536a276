"""What a micro-batch reads: pure planning over failover logs and offsets.

Spark plans a batch's end before a producer chooses its snapshots, and deduplication lets a snapshot hide a version
that a later change replaces. So an end is at first only *planned*. It is *proven* by a later plan that finds the
branch the batch was planned on still the newest, and no tombstone purged that the batch might have missed. With a
proven end goes `high`, the high seqno of that plan: every change that hid a version below the end lies at or below
it, so a rollback to `high` or above brings nothing back, and the end may be kept. Any other rollback must go to an
older proven end, or to 0.

    latestOffset   plan(previous, infos, ...)   settle the last batch, roll back where that fails, plan new ends
    partitions     reads(start, end)            rollback rows and what to read, from the two offsets alone
    read           VbucketRead                  where to begin, and by which ResumePolicy

A rollback makes rows that a task has already given worthless, never missing: the row that announces it cuts them
off. That is why a task whose branch is gone simply stops, and leaves the rest to the next plan.

The number of vbuckets is fixed by the first offset. `infos` may have some of them only: the others stay where they
are. Seqnos, purge seqnos and vbuuids are 0..2^64-1.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from penstock.client.feeds.resume_policy import PinnedBranch
from penstock.client.feeds.stream_position import Position
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.errors import Error, UsageError
from penstock.spark.source.runs import brief, join, number, numbers, split
from penstock.store.history.rollback import StreamRequest, rollback_point

__all__ = [
    "Memory",
    "Offset",
    "Proven",
    "RollbackRow",
    "Setback",
    "VbucketInfo",
    "VbucketOffset",
    "VbucketRange",
    "VbucketRead",
    "beginning",
    "can_begin_at",
    "check_size",
    "now",
    "plan",
    "plan_until",
    "prepare",
    "reads",
    "setbacks",
    "settled",
    "settled_at",
]

VERSION = 1
KEEP_PROVEN = 4  # proven ends in an offset, for each vbucket

JsonObject: TypeAlias = dict[str, str | int | bool]


class Proven(NamedTuple):
    """The end of a batch that has been read completely, and the high seqno of the plan that found this out."""

    end: int
    high: int


@dataclass(frozen=True, slots=True)
class VbucketOffset:
    """How far a vbucket has been planned.

    history: rollbacks passed so far. vbuuid: the newest branch when `seqno`, the end, was planned; 0 before anything
    was. proven: oldest first, at most KEEP_PROVEN, ends and highs never falling. purge_seqno: the producer's when a
    batch from 0 was planned, else 0. requested: what the producer demanded, if the batch begins with a rollback.
    """

    history: int = 0
    vbuuid: int = 0
    seqno: int = 0
    proven: tuple[Proven, ...] = ()
    purge_seqno: int = 0
    requested: int | None = None

    @property
    def start(self) -> int:
        """The seqno after which the last batch begins; `seqno` itself if the vbucket had no part in it."""
        return self.proven[-1].end if self.proven else 0


@dataclass(frozen=True, slots=True)
class Offset:
    """A position in all vbuckets; the index is the vbucket.

    pinned: False only in an offset "from now" that no plan has seen, because the next call would give another.
    """

    vbuckets: tuple[VbucketOffset, ...]
    pinned: bool = True

    def to_json(self) -> JsonObject:
        """Return the offset in columns of text, the same for equal offsets: Spark compares offsets as text."""
        return {
            "version": VERSION,
            "history": join(str(v.history) for v in self.vbuckets),
            "vbuuid": join(str(v.vbuuid) for v in self.vbuckets),
            "seqno": join(str(v.seqno) for v in self.vbuckets),
            "proven": join(_proven_text(v) for v in self.vbuckets),
            "purge": join(str(v.purge_seqno) for v in self.vbuckets),
            "requested": join("-" if v.requested is None else str(v.requested) for v in self.vbuckets),
            **({} if self.pinned else {"pinned": False}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> "Offset":
        """Raises UsageError for what to_json cannot have made."""
        if value.get("version") != VERSION:
            raise UsageError(f"offset of version {value.get('version')!r}, expected {VERSION}: {brief(value)}")
        try:
            columns = [
                numbers(value["history"]),
                numbers(value["vbuuid"]),
                seqnos := numbers(value["seqno"]),
                [_proven(text, seqno) for text, seqno in zip(split(value["proven"]), seqnos, strict=True)],
                numbers(value["purge"]),
                [None if text == "-" else number(text) for text in split(value["requested"])],
            ]
            vbuckets = tuple(VbucketOffset(*row) for row in zip(*columns, strict=True))
        except (KeyError, ValueError) as error:
            raise UsageError(f"not an offset of this source ({error}): {brief(value)}") from None
        return cls(vbuckets, pinned=value.get("pinned", True) is True)


@dataclass(frozen=True, slots=True)
class Memory:
    """What a running query knows beyond its offset; pass each plan what the one before it returned.

    A new proof alone makes no new offset, or an idle query would plan batches for ever; `settled` is `offset` with
    those proofs. Losing them with the process costs at most reading more after a rollback. target: the end of an
    AvailableNow run as (vbuuid, seqno) by vbucket, None when there is none.
    """

    offset: Offset | None = None
    settled: Offset | None = None
    target: Mapping[int, tuple[int, int]] | None = None


class RollbackRow(NamedTuple):
    """The row that cuts off every row of `vbucket` with a lower history and a seqno above `seqno`.

    vbuuid: the branch that counts from here on. requested_seqno: how far the producer's rule demanded to go back, or
    the end it was asked about where it demanded nothing; `seqno` is not above it.
    """

    vbucket: int
    history: int
    vbuuid: int
    seqno: int
    requested_seqno: int


@dataclass(frozen=True, slots=True)
class VbucketRead:
    """One vbucket's part of a batch: its rollback row, if any, then the changes in (start_seqno, end_seqno].

    Nothing is to be read, and no stream to be opened, where the two are equal. vbuuid: the only branch whose changes
    count. purge_seqno: the one planned with, in a read from 0; else 0.
    """

    vbucket: int
    history: int
    vbuuid: int
    start_seqno: int
    end_seqno: int
    purge_seqno: int = 0
    rollback: RollbackRow | None = None

    @property
    def policy(self) -> PinnedBranch:
        """What the producer's answers mean to the read: it is of the planned branch, or it is given up."""
        return PinnedBranch(self.vbuuid, self.purge_seqno)

    @property
    def start(self) -> Position:
        """Where the stream begins: a complete snapshot, since `plan` decides whether it is one, not the producer."""
        seqno, vbuuid = self.start_seqno, self.vbuuid if self.start_seqno else 0
        return Position(seqno=seqno, vbuuid=vbuuid, snap_start=seqno, snap_end=seqno, history=self.history)


@dataclass(frozen=True, slots=True)
class VbucketRange:
    """What one Spark task reads: vbuckets in order, all of which one node has. owner: its number in the cluster map."""

    reads: tuple[VbucketRead, ...]
    owner: int = 0


class Setback(NamedTuple):
    """A vbucket that a plan takes back from `seqno` to `to`.

    by_purge: the history goes on, but tombstones behind the reader were purged before it had read them.
    """

    vbucket: int
    seqno: int
    to: int
    by_purge: bool


def beginning(count: int) -> Offset:
    """Return the offset before the first change of `count` vbuckets."""
    return Offset((VbucketOffset(),) * count)


def now(infos: Mapping[int, VbucketInfo], count: int) -> Offset:
    """Return the offset behind the last change of these of `count` vbuckets; the others are at their beginning.

    It is different at every call, so a reader must keep the first one. The first plan makes an offset of the same
    position that Spark takes for a new one and writes down, with an empty batch.
    """
    return replace(settled_at({vb: (info.vbuuid, info.high_seqno) for vb, info in infos.items()}, count), pinned=False)


def settled_at(positions: Mapping[int, tuple[int, int]], count: int) -> Offset:
    """Return the offset of a reader that stands at (vbuuid, seqno) in some of `count` vbuckets, all before it proven.

    Raises UsageError for a vbucket that there is not.
    """
    vbuckets = list(beginning(count).vbuckets)
    for vbucket in _chosen(positions, count):
        vbuuid, seqno = positions[vbucket]
        vbuckets[vbucket] = VbucketOffset(0, vbuuid, seqno, (Proven(seqno, seqno),) if seqno else ())
    return Offset(tuple(vbuckets))


def prepare(infos: Mapping[int, VbucketInfo]) -> Memory:
    """Return what an AvailableNow run begins with: it ends at the high seqnos of this moment.

    It is over when a plan returns its `previous`, which it does only when it has proven the last batch.
    """
    return Memory(target={vb: (info.vbuuid, info.high_seqno) for vb, info in infos.items()})


def check_size(offset: Offset, count: int) -> None:
    """Raises UsageError unless the offset is one of a bucket with `count` vbuckets."""
    known = len(offset.vbuckets)
    if known != count:
        raise UsageError(f"the bucket has {count} vbuckets, expected {known} (0 to {known - 1}) as in the offset")


def plan(
    previous: Offset, infos: Mapping[int, VbucketInfo], limit: int | None = None, memory: Memory | None = None
) -> tuple[Offset, Memory]:
    """Return the next batch's end and what to remember; `previous` itself if there is nothing to do.

    The batch that ends at `previous` must have been read to its end before `infos` were fetched. limit: how many
    seqnos to plan at most, at least 1; a vbucket that starts over must be read up to its purge seqno at once, and may
    exceed it. Raises UsageError for a vbucket that `previous` does not have.
    """
    memory = memory or Memory()
    chosen = _chosen(infos, len(previous.vbuckets))
    states = [infos[vb] for vb in chosen]
    target = _follow(memory.target, infos)
    if not previous.pinned:
        return replace(previous, pinned=True), Memory(target=target)
    known = memory.settled if memory.settled and memory.offset == previous else previous
    bases = [_settle(known.vbuckets[vb], infos[vb]) for vb in chosen]
    ends = [infos[vb].high_seqno if target is None else target[vb][1] for vb in chosen]
    granted = _grant(bases, states, ends, limit)
    planned = _with(known, zip(chosen, map(_advance, bases, states, granted), strict=True))
    if all(
        a.seqno == b.seqno and a.history == b.history for a, b in zip(planned.vbuckets, previous.vbuckets, strict=True)
    ):
        return previous, Memory(previous, planned, target)
    return planned, Memory(target=target)


def plan_until(previous: Offset, end: Offset, infos: Mapping[int, VbucketInfo]) -> Offset:
    """Return the end of a single batch from `previous` to the seqnos of `end`, of the vbuckets in `infos`.

    Raises UsageError if it is behind the end, or of another number of vbuckets; Error if the bucket's history no longer
    has that end.
    """
    check_size(end, len(previous.vbuckets))
    planned: dict[int, VbucketOffset] = {}
    for vb in _chosen(infos, len(previous.vbuckets)):
        base, info, last = _settle(previous.vbuckets[vb], infos[vb]), infos[vb], end.vbuckets[vb]
        if _demanded(last.seqno, last.vbuuid, info, purge_seqno=0) is not None:
            raise Error(f"vbucket {vb}: the bucket's history no longer has the end, seqno {last.seqno}, that was given")
        if base.seqno > last.seqno:
            raise UsageError(f"vbucket {vb}: the start, seqno {base.seqno}, is behind the end, seqno {last.seqno}")
        planned[vb] = _advance(base, info, last.seqno - base.seqno)
    return _with(previous, planned.items())


def setbacks(previous: Offset, planned: Offset, infos: Mapping[int, VbucketInfo]) -> list[Setback]:
    """Return which vbuckets the plan that made `planned` of `previous` and `infos` took back, and why."""
    found: list[Setback] = []
    for vb in sorted(infos):
        a, b = previous.vbuckets[vb], planned.vbuckets[vb]
        if b.history > a.history:
            unpurged = _settle(a, replace(infos[vb], purge_seqno=0))
            found.append(Setback(vb, a.seqno, b.start, by_purge=unpurged.seqno > b.start))
    return found


def settled(previous: Offset, infos: Mapping[int, VbucketInfo], memory: Memory) -> set[int]:
    """Return the vbuckets whose purge seqno cannot matter to the next plan while nothing else of `infos` has changed.

    They are read to their end, and that this was complete is proven.
    """
    known = memory.settled if memory.settled and memory.offset == previous else previous
    vbuckets = [(vb, known.vbuckets[vb]) for vb in infos if vb < len(known.vbuckets)]
    return {vb for vb, v in vbuckets if v.start == v.seqno == infos[vb].high_seqno}


def reads(start: Offset, end: Offset) -> list[VbucketRead]:
    """Return what lies between two offsets, by vbucket.

    end: what `plan` returned for `start`. Raises UsageError if it cannot be.
    """
    if len(start.vbuckets) != len(end.vbuckets):
        raise UsageError(f"offsets of {len(start.vbuckets)} and {len(end.vbuckets)} vbuckets make no batch")
    pairs = enumerate(zip(start.vbuckets, end.vbuckets, strict=True))
    return [read for vbucket, (a, b) in pairs if (read := _read(vbucket, a, b))]


def can_begin_at(seqno: int, info: VbucketInfo) -> bool:
    """Tell whether the producer serves a reader of its newest branch that begins behind `seqno`."""
    return _demanded(seqno, info.vbuuid, info, info.purge_seqno) is None


# Planning one vbucket


def _settle(v: VbucketOffset, info: VbucketInfo) -> VbucketOffset:
    """Prove the last batch of `v`, or roll back to the newest proven end that stands. The result has no open batch."""
    proven = v.proven
    if v.seqno > v.start and _complete(v, info):
        proven = (*proven, Proven(v.seqno, info.high_seqno))[-KEEP_PROVEN:]
    while proven and not _stands(proven[-1], v.vbuuid, info):
        proven = proven[:-1]
    at = proven[-1].end if proven else 0
    if at == v.seqno:
        return VbucketOffset(v.history, v.vbuuid, v.seqno, proven)
    demanded = _demanded(v.seqno, v.vbuuid, info, info.purge_seqno)
    return VbucketOffset(v.history + 1, info.vbuuid, at, proven, requested=v.seqno if demanded is None else demanded)


def _complete(v: VbucketOffset, info: VbucketInfo) -> bool:
    """Tell whether the task that read the last batch of `v` got everything and left no deletion out.

    The branch is the newest before and after, so it was in between. What was purged at or below the start concerns
    only readers that were there before; a reader from 0 has no row that a purged deletion could have taken away,
    unless it was purged while the batch was read.
    """
    return v.vbuuid == info.vbuuid and info.purge_seqno <= max(v.start, v.purge_seqno)


def _stands(proven: Proven, vbuuid: int, info: VbucketInfo) -> bool:
    """Tell whether the producer lets a reader of `vbuuid` go on from the proven end, and hid nothing below it since."""
    if vbuuid == info.vbuuid:  # by far the most; the rule below comes to the same
        return info.purge_seqno <= proven.end and proven.high <= info.high_seqno
    return (
        _demanded(proven.end, vbuuid, info, info.purge_seqno) is None
        and _demanded(proven.high, vbuuid, info, purge_seqno=0) is None
    )


def _demanded(seqno: int, vbuuid: int, info: VbucketInfo, purge_seqno: int) -> int | None:
    """Return where the producer would send a reader who has everything up to `seqno`, None if it may go on."""
    request = StreamRequest(start_seqno=seqno, vbuuid=vbuuid, snap_start=seqno, snap_end=seqno)
    return rollback_point(info.failover_log, info.high_seqno, purge_seqno, request)


def _advance(base: VbucketOffset, info: VbucketInfo, granted: int) -> VbucketOffset:
    """Plan `granted` more seqnos. Without any, the branch stays the one that the end was read on."""
    if not granted:
        return base
    purge_seqno = 0 if base.seqno else info.purge_seqno
    # Not by `replace`, which takes as long as all the rest of a plan.
    seqno = base.seqno + granted
    return VbucketOffset(base.history, info.vbuuid, seqno, base.proven, purge_seqno, base.requested)


def _follow(
    target: Mapping[int, tuple[int, int]] | None, infos: Mapping[int, VbucketInfo]
) -> Mapping[int, tuple[int, int]] | None:
    """Set the target anew where a new branch has begun: the old seqno means nothing there.

    A vbucket without a target was not served when the run began; what it has now counts.
    """
    if target is None:
        return None
    return {
        vb: target[vb] if vb in target and target[vb][0] == info.vbuuid else (info.vbuuid, info.high_seqno)
        for vb, info in infos.items()
    }


# Sharing the limit


def _grant(
    bases: Sequence[VbucketOffset], states: Sequence[VbucketInfo], ends: Sequence[int], limit: int | None
) -> list[int]:
    """Return how many seqnos each vbucket advances."""
    wanted = [max(0, end - base.seqno) for base, end in zip(bases, ends, strict=True)]
    # A producer serves nobody between 0 and the purge seqno: a reader from 0 that stops there starts over for ever.
    least = [
        info.purge_seqno if want and base.seqno == 0 else 0
        for want, base, info in zip(wanted, bases, states, strict=True)
    ]
    wanted = list(map(max, wanted, least))
    if limit is None or sum(wanted) <= limit:
        return wanted
    # Whoever comes first differs from batch to batch, so that all are served even if the limit is below their number.
    first = sum(base.seqno for base in bases) % len(bases)
    return _share(wanted, least, limit, [*range(first, len(bases)), *range(first)])


def _share(wanted: list[int], least: Sequence[int], limit: int, order: Sequence[int]) -> list[int]:
    """Share `limit` out: all-or-nothing minimums first, then in equal parts; what is left by ones, in `order`."""
    granted = [0] * len(wanted)
    left = limit
    for index in order:
        if least[index] and (least[index] <= left or left == limit):
            granted[index] = least[index]
            left = max(0, left - least[index])
    open_ = [i for i in order if wanted[i] > granted[i] and (granted[i] or not least[i])]
    while open_ and (part := left // len(open_)):
        for index in open_:
            more = min(part, wanted[index] - granted[index])
            granted[index] += more
            left -= more
        open_ = [i for i in open_ if wanted[i] > granted[i]]
    for index in open_[:left]:
        granted[index] += 1
    return granted


# Reading between two offsets


def _read(vbucket: int, a: VbucketOffset, b: VbucketOffset) -> VbucketRead | None:
    """Return what lies between `a` and `b`, None if nothing does."""
    if b.history == a.history and b.seqno >= a.seqno:
        start, rollback = a.seqno, None
    elif b.history == a.history + 1 and b.requested is not None:
        start = b.start
        rollback = RollbackRow(vbucket, b.history, b.vbuuid, start, b.requested)
    else:
        raise UsageError(
            f"vbucket {vbucket}: history {b.history}, seqno {b.seqno} cannot follow history {a.history}, "
            f"seqno {a.seqno} in one batch"
        )
    if start == b.seqno and rollback is None:
        return None
    return VbucketRead(vbucket, b.history, b.vbuuid, start, b.seqno, b.purge_seqno, rollback)


def _chosen(by_vbucket: Iterable[int], count: int) -> list[int]:
    chosen = sorted(by_vbucket)
    if chosen and not 0 <= chosen[0] <= chosen[-1] < count:
        raise UsageError(f"vbucket {chosen[-1]}, expected one below {count}")
    return chosen


def _with(offset: Offset, changed: Iterable[tuple[int, VbucketOffset]]) -> Offset:
    vbuckets = list(offset.vbuckets)
    for vbucket, each in changed:
        vbuckets[vbucket] = each
    return Offset(tuple(vbuckets))


# A column's values that are pairs


def _proven_text(v: VbucketOffset) -> str:
    """Write each proven end by its distance below the seqno, and its high by that above the end: `120+7,35+9,0+0`."""
    return ",".join(f"{v.seqno - end}+{high - end}" for end, high in v.proven) or "-"


def _proven(text: str, seqno: int) -> tuple[Proven, ...]:
    if text == "-":
        return ()
    proven = []
    for pair in text.split(","):
        below, _, above = pair.partition("+")
        end = seqno - number(below)
        proven.append(Proven(end, end + number(above)))
    if any(p.end <= 0 for p in proven) or len(proven) > KEEP_PROVEN or proven != sorted(proven):
        raise ValueError(f"{text!r} are not the proven ends of seqno {seqno}")
    return tuple(proven)
