"""What a micro-batch reads: pure planning over failover logs and offsets.

Spark plans a batch's end before a producer chooses its snapshots, and deduplication lets a snapshot hide a version
that a later change replaces. So an end is at first only *planned*. It is *proven* by a later plan that finds the
branch the batch was planned on still the newest, and no tombstone purged that the batch might have missed. With a
proven end goes `high`, the high seqno of that plan: every change that hid a version below the end lies at or below
it, so a rollback to `high` or above brings nothing back, and the end may be kept. Any other rollback must go to an
older proven end, or to 0.

    latestOffset   plan(previous, infos, ...)   settle the last batch, roll back where that fails, plan new ends
    partitions     partitions(start, end, ...)  rollback rows and ranges to read, from the two offsets alone
    read           VbucketRead                  what to ask the producer, and what its answer means

A rollback makes rows that a task has already given worthless, never missing: the row that announces it cuts them
off. That is why a task whose branch is gone simply stops, and leaves the rest to the next plan.

The set of vbuckets, 0 to n-1, is fixed by the first offset. Seqnos, purge seqnos and vbuuids are 0..2^64-1.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, repeat
from typing import NamedTuple, TypeAlias

from penstock.client.position import VbucketInfo
from penstock.errors import UsageError
from penstock.store.failover import FailoverLog
from penstock.store.rollback import StreamRequest, rollback_point

__all__ = [
    "Memory",
    "Offset",
    "Proven",
    "RollbackRow",
    "VbucketInfo",
    "VbucketOffset",
    "VbucketRange",
    "VbucketRead",
    "beginning",
    "now",
    "partitions",
    "plan",
    "prepare",
]

VERSION = 1
KEEP_PROVEN = 4  # proven ends in an offset, for each vbucket
MAX_VBUCKETS = 65536  # the wire names a vbucket by 16 bits
LEAST_SEQNOS = 20_000  # a Spark task costs about 34 ms however little it reads; this many changes take about as long

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
            "history": _join(str(v.history) for v in self.vbuckets),
            "vbuuid": _join(str(v.vbuuid) for v in self.vbuckets),
            "seqno": _join(str(v.seqno) for v in self.vbuckets),
            "proven": _join(_proven_text(v) for v in self.vbuckets),
            "purge": _join(str(v.purge_seqno) for v in self.vbuckets),
            "requested": _join("-" if v.requested is None else str(v.requested) for v in self.vbuckets),
            **({} if self.pinned else {"pinned": False}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> "Offset":
        """Raises UsageError for what to_json cannot have made."""
        if value.get("version") != VERSION:
            raise UsageError(f"offset of version {value.get('version')!r}, expected {VERSION}: {_brief(value)}")
        try:
            columns = [
                _numbers(value["history"]),
                _numbers(value["vbuuid"]),
                seqnos := _numbers(value["seqno"]),
                [_proven(text, seqno) for text, seqno in zip(_split(value["proven"]), seqnos, strict=True)],
                _numbers(value["purge"]),
                [None if text == "-" else _number(text) for text in _split(value["requested"])],
            ]
            vbuckets = tuple(VbucketOffset(*row) for row in zip(*columns, strict=True))
        except (KeyError, ValueError) as error:
            raise UsageError(f"not an offset of this source ({error}): {_brief(value)}") from None
        return cls(vbuckets, pinned=value.get("pinned", True) is True)


@dataclass(frozen=True, slots=True)
class Memory:
    """What a running query knows beyond its offset; pass each plan what the one before it returned.

    A new proof alone makes no new offset, or an idle query would plan batches for ever; `settled` is `offset` with
    those proofs. Losing them with the process costs at most reading more after a rollback. target: the end of an
    AvailableNow run as (vbuuid, seqno) of each vbucket, None when there is none.
    """

    offset: Offset | None = None
    settled: Offset | None = None
    target: tuple[tuple[int, int], ...] | None = None


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

    def request(self, received: int | None = None) -> StreamRequest:
        """Return what to ask for, at first or, when a stream broke off, after the last seqno that was `received`.

        The start counts as a complete snapshot: whether it does is what `plan` decides, not the producer. Below the
        purge seqno a producer serves only readers that start at 0; such a read goes there again, and the caller
        drops the rows it has, those up to `received`.
        """
        start = self.start_seqno if received is None or received < self.purge_seqno else received
        vbuuid = self.vbuuid if start else 0
        return StreamRequest(
            start_seqno=start, end_seqno=self.end_seqno, vbuuid=vbuuid, snap_start=start, snap_end=start
        )

    def goes_on_with(self, log: FailoverLog) -> bool:
        """Tell whether a stream accepted with this failover log may be read; if not, give nothing more."""
        return log[0].vbuuid == self.vbuuid

    def goes_on_after_rollback(self, received: int) -> bool:
        """Tell whether to ask again, by `request(received)`, when told to roll back; if not, give nothing more.

        Told either by the answer to a request or by the end of a stream.
        """
        return received < self.purge_seqno


@dataclass(frozen=True, slots=True)
class VbucketRange:
    """What one Spark task reads: vbuckets in order."""

    reads: tuple[VbucketRead, ...]


def beginning(count: int) -> Offset:
    """Return the offset before the first change of `count` vbuckets."""
    return Offset((VbucketOffset(),) * count)


def now(infos: Mapping[int, VbucketInfo]) -> Offset:
    """Return the offset behind the last change.

    It is different at every call, so a reader must keep the first one. The first plan makes an offset of the same
    position that Spark takes for a new one and writes down, with an empty batch.
    """
    vbuckets = (
        VbucketOffset(0, info.vbuuid, high, (Proven(high, high),) if high else ())
        for info in _in_order(infos, len(infos))
        for high in (info.high_seqno,)
    )
    return Offset(tuple(vbuckets), pinned=False)


def prepare(infos: Mapping[int, VbucketInfo]) -> Memory:
    """Return what an AvailableNow run begins with: it ends at the high seqnos of this moment.

    It is over when a plan returns its `previous`, which it does only when it has proven the last batch.
    """
    return Memory(target=tuple((info.vbuuid, info.high_seqno) for info in _in_order(infos, len(infos))))


def plan(
    previous: Offset, infos: Mapping[int, VbucketInfo], limit: int | None = None, memory: Memory | None = None
) -> tuple[Offset, Memory]:
    """Return the next batch's end and what to remember; `previous` itself if there is nothing to do.

    The batch that ends at `previous` must have been read to its end before `infos` were fetched. limit: how many
    seqnos to plan at most, at least 1; a vbucket that starts over must be read up to its purge seqno at once, and may
    exceed it. Raises UsageError if the vbuckets are not those of `previous`.
    """
    memory = memory or Memory()
    states = _in_order(infos, len(previous.vbuckets))
    target = _follow(memory.target, states)
    if not previous.pinned:
        return replace(previous, pinned=True), Memory(target=target)
    known = memory.settled if memory.settled and memory.offset == previous else previous
    bases = [_settle(v, info) for v, info in zip(known.vbuckets, states, strict=True)]
    ends = [info.high_seqno for info in states] if target is None else [seqno for _, seqno in target]
    granted = _grant(bases, states, ends, limit)
    planned = tuple(map(_advance, bases, states, granted))
    if all(a.seqno == b.seqno and a.history == b.history for a, b in zip(planned, previous.vbuckets, strict=True)):
        return previous, Memory(previous, Offset(planned), target)
    return Offset(planned), Memory(target=target)


def partitions(start: Offset, end: Offset, count: int) -> list[VbucketRange]:
    """Cut the batch between two offsets into at most `count` ranges of about as many seqnos; fewer if it is small.

    end: what `plan` returned for `start`. Raises UsageError if it cannot be.
    """
    pairs = _same_vbuckets(start, end)
    reads = [read for vbucket, (a, b) in enumerate(pairs) if (read := _read(vbucket, a, b))]
    sizes = [1 + read.end_seqno - read.start_seqno for read in reads]
    total = sum(sizes)
    count = max(1, min(count, -(-total // LEAST_SEQNOS)))
    ranges: list[list[VbucketRead]] = [[] for _ in range(count)]
    before = 0
    for read, size in zip(reads, sizes, strict=True):
        ranges[(2 * before + size) * count // (2 * total)].append(read)  # where the middle of its seqnos falls
        before += size
    return [VbucketRange(tuple(part)) for part in ranges if part]


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
        return replace(v, proven=proven, purge_seqno=0, requested=None)
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
    return replace(base, vbuuid=info.vbuuid, seqno=base.seqno + granted, purge_seqno=purge_seqno)


def _follow(
    target: tuple[tuple[int, int], ...] | None, states: Sequence[VbucketInfo]
) -> tuple[tuple[int, int], ...] | None:
    """Set the target anew where a new branch has begun: the old seqno means nothing there."""
    if target is None:
        return None
    return tuple(
        old if old[0] == info.vbuuid else (info.vbuuid, info.high_seqno)
        for old, info in zip(target, states, strict=True)
    )


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


def _same_vbuckets(start: Offset, end: Offset) -> list[tuple[VbucketOffset, VbucketOffset]]:
    if len(start.vbuckets) != len(end.vbuckets):
        raise UsageError(f"offsets of {len(start.vbuckets)} and {len(end.vbuckets)} vbuckets make no batch")
    return list(zip(start.vbuckets, end.vbuckets, strict=True))


def _in_order(infos: Mapping[int, VbucketInfo], count: int) -> list[VbucketInfo]:
    if infos.keys() != set(range(count)):
        raise UsageError(f"the bucket has {len(infos)} vbuckets, expected {count} (0 to {count - 1}) as in the offset")
    return [infos[vbucket] for vbucket in range(count)]


# Columns of text: values with a space between them, `value*n` for n equal ones in a row


def _join(values: Iterable[str]) -> str:
    runs = ((value, sum(1 for _ in run)) for value, run in groupby(values))
    return " ".join(f"{value}*{count}" if count > 1 else value for value, count in runs)


def _split(column: object) -> list[str]:
    """Raises ValueError."""
    if not isinstance(column, str):
        raise ValueError(f"{column!r} is not a column")
    values: list[str] = []
    for run in column.split():
        value, star, count = run.partition("*")
        times = _number(count) if star else 1
        if len(values) + times > MAX_VBUCKETS:
            raise ValueError(f"more than {MAX_VBUCKETS} vbuckets")
        values += repeat(value, times)
    return values


def _numbers(column: object) -> list[int]:
    return [_number(text) for text in _split(column)]


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) < 2**64):
        raise ValueError(f"{text!r} is not a number from 0 to 2^64-1")
    return int(text)


def _proven_text(v: VbucketOffset) -> str:
    """Write each proven end by its distance below the seqno, and its high by that above the end: `120+7,35+9,0+0`."""
    return ",".join(f"{v.seqno - end}+{high - end}" for end, high in v.proven) or "-"


def _proven(text: str, seqno: int) -> tuple[Proven, ...]:
    if text == "-":
        return ()
    proven = []
    for pair in text.split(","):
        below, _, above = pair.partition("+")
        end = seqno - _number(below)
        proven.append(Proven(end, end + _number(above)))
    if any(p.end <= 0 for p in proven) or len(proven) > KEEP_PROVEN or proven != sorted(proven):
        raise ValueError(f"{text!r} are not the proven ends of seqno {seqno}")
    return tuple(proven)


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
