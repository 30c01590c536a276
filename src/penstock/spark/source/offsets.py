"""Positions of a Spark read in all vbuckets, and the reads between two of them.

An offset is the end of a planned batch. It is compact JSON, the same text for equal offsets, because Spark compares
offsets as text. The module batch_planning makes offsets. Two offsets alone decide the reads of a batch, so a replay of
the batch reads the same.

- latestOffset calls `plan_batch`, which proves the last batch, rolls back where that fails, and plans new ends.
- partitions calls `derive_reads`, which returns rollback rows and ranges of seqnos from two offsets.
- read starts streams from each `VbucketRead`, with its resume policy.

A rollback makes rows that a task has already returned invalid, but no rows are missing: the rollback row cuts them off.
So a task whose branch no longer exists stops, and leaves the rest to the next plan.

The first offset fixes the number of vbuckets. Seqnos, purge seqnos and vbuuids are 0 to 2^64-1.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from penstock.client.feeds.resume_policy import PinnedBranch
from penstock.client.feeds.stream_position import Position
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.digits import read_u64
from penstock.errors import UsageError
from penstock.spark.source.run_lengths import decode_numbers, decode_runs, encode_runs, shorten_text

VERSION = 1
MAX_PROVEN = 4  # proven ends in an offset, for each vbucket

JsonObject: TypeAlias = dict[str, str | int | bool]


class ProvenEnd(NamedTuple):
    """The end of a completely read batch.

    Attributes:
        end: the last seqno of the batch.
        high: the high seqno that the plan saw which proved the end.
    """

    end: int
    high: int


@dataclass(frozen=True, slots=True)
class VbucketOffset:
    """The planned position in a vbucket.

    Attributes:
        history: number of rollbacks so far.
        vbuuid: the newest branch when the end was planned; 0 before the first plan.
        seqno: the end.
        proven: the newest proven ends, oldest first, at most MAX_PROVEN. Ends and high seqnos never fall.
        purge_seqno: the producer's purge seqno when a batch from seqno 0 was planned, otherwise 0.
        requested: the seqno that the producer demanded, if the batch begins with a rollback; otherwise None.
    """

    history: int = 0
    vbuuid: int = 0
    seqno: int = 0
    proven: tuple[ProvenEnd, ...] = ()
    purge_seqno: int = 0
    requested: int | None = None

    @property
    def start(self) -> int:
        """The seqno after which the last batch starts; equal to `seqno` if the vbucket was not in that batch."""
        return self.proven[-1].end if self.proven else 0


@dataclass(frozen=True, slots=True)
class Offset:
    """A position in all vbuckets.

    Attributes:
        vbuckets: the position in each vbucket, indexed by vbucket.
        pinned: False only for an offset "from now" that no plan has seen. Such an offset differs at each call.
        bucket_uuid: the uuid of the bucket when the end was planned; empty if it is unknown.
        collection_ids: the ids of the selected collections when the end was planned, ascending; None for a read that
            selects none.
    """

    vbuckets: tuple[VbucketOffset, ...]
    pinned: bool = True
    bucket_uuid: str = ""
    collection_ids: tuple[int, ...] | None = None

    def to_json(self) -> JsonObject:
        """Return the offset as columns of text, the same for equal offsets."""
        return {
            "version": VERSION,
            "history": encode_runs(str(v.history) for v in self.vbuckets),
            "vbuuid": encode_runs(str(v.vbuuid) for v in self.vbuckets),
            "seqno": encode_runs(str(v.seqno) for v in self.vbuckets),
            "proven": encode_runs(_encode_proven(v) for v in self.vbuckets),
            "purge": encode_runs(str(v.purge_seqno) for v in self.vbuckets),
            "requested": encode_runs("-" if v.requested is None else str(v.requested) for v in self.vbuckets),
            **({} if self.pinned else {"pinned": False}),
            **({"bucket_uuid": self.bucket_uuid} if self.bucket_uuid else {}),
            **({} if self.collection_ids is None else {"collections": ",".join(map(str, self.collection_ids))}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> "Offset":
        """Return the offset of its JSON.

        Args:
            value: the decoded JSON object.

        Raises:
            UsageError: `to_json` cannot have made it.
        """
        if value.get("version") != VERSION:
            raise UsageError(f"offset of version {value.get('version')!r}, expected {VERSION}: {shorten_text(value)}")
        try:
            columns = [
                decode_numbers(value["history"]),
                decode_numbers(value["vbuuid"]),
                seqnos := decode_numbers(value["seqno"]),
                [_decode_proven(text, seqno) for text, seqno in zip(decode_runs(value["proven"]), seqnos, strict=True)],
                decode_numbers(value["purge"]),
                [None if text == "-" else read_u64(text) for text in decode_runs(value["requested"])],
            ]
            vbuckets = tuple(VbucketOffset(*row) for row in zip(*columns, strict=True))
            ids = tuple(map(read_u64, filter(None, str(value.get("collections", "")).split(","))))
        except (KeyError, ValueError) as error:
            raise UsageError(f"not an offset of this source ({error}): {shorten_text(value)}") from None
        known_ids = ids if "collections" in value else None
        return cls(vbuckets, value.get("pinned", True) is True, str(value.get("bucket_uuid", "")), known_ids)


class RollbackRow(NamedTuple):
    """The row that voids all rows of a vbucket with a lower history and a seqno above `seqno`.

    Attributes:
        vbucket: the vbucket.
        history: the number of rollbacks, this one included.
        vbuuid: the branch that is valid from here.
        seqno: the newest proven end that is still valid, not above requested_seqno.
        requested_seqno: the seqno that the producer demanded. If the producer demanded none: the end that was not
            proven.
    """

    vbucket: int
    history: int
    vbuuid: int
    seqno: int
    requested_seqno: int


@dataclass(frozen=True, slots=True)
class VbucketRead:
    """One vbucket's part of a batch: its rollback row, if any, then the changes in (start_seqno, end_seqno].

    If both seqnos are equal, no stream is opened.

    Attributes:
        vbucket: the vbucket.
        history: the number of rollbacks, for its rows.
        vbuuid: the only branch whose changes are valid.
        start_seqno: the seqno after which the changes start.
        end_seqno: the last seqno.
        purge_seqno: the purge seqno of the plan for a read from 0, otherwise 0.
        rollback: the rollback row; None without a rollback.
        ended: the ids of selected collections that no longer exist. Their rows no longer count, see `derive_reads`.
    """

    vbucket: int
    history: int
    vbuuid: int
    start_seqno: int
    end_seqno: int
    purge_seqno: int = 0
    rollback: RollbackRow | None = None
    ended: tuple[int, ...] = ()

    @property
    def policy(self) -> PinnedBranch:
        """The policy for the producer's answers: if the branch is not the planned one, the read is given up."""
        return PinnedBranch(self.vbuuid, self.purge_seqno)

    @property
    def start(self) -> Position:
        """The start of the stream, as a complete snapshot: the plan has decided that it is one."""
        seqno, vbuuid = self.start_seqno, self.vbuuid if self.start_seqno else 0
        return Position(seqno=seqno, vbuuid=vbuuid, snap_start=seqno, snap_end=seqno, history=self.history)


@dataclass(frozen=True, slots=True)
class VbucketRange:
    """The reads of one Spark task, whose vbuckets are all on one node.

    Attributes:
        reads: the reads, ordered by vbucket.
        owner: the node's number in the cluster map.
    """

    reads: tuple[VbucketRead, ...]
    owner: int = 0


def make_first_offset(count: int) -> Offset:
    """Return the offset before the first change of `count` vbuckets."""
    return Offset((VbucketOffset(),) * count)


def make_current_offset(infos: Mapping[int, VbucketInfo], count: int) -> Offset:
    """Return the offset after the last change of these vbuckets.

    The result differs at each call, so a reader must keep the first one. The first plan makes an offset of the same
    position that is new to Spark. So Spark stores it with an empty batch.

    Args:
        infos: the state of some vbuckets; the others are at seqno 0.
        count: the number of vbuckets of the bucket.
    """
    return replace(
        make_proven_offset({vb: (info.vbuuid, info.high_seqno) for vb, info in infos.items()}, count), pinned=False
    )


def make_proven_offset(positions: Mapping[int, tuple[int, int]], count: int) -> Offset:
    """Return the offset of a reader that has all changes up to some positions, all of them proven.

    Args:
        positions: (vbuuid, seqno) by vbucket; the other vbuckets are at seqno 0.
        count: the number of vbuckets of the bucket.

    Returns:
        The offset.

    Raises:
        UsageError: a vbucket is not in the bucket.
    """
    vbuckets = list(make_first_offset(count).vbuckets)
    for vbucket in sort_vbuckets(positions, count):
        vbuuid, seqno = positions[vbucket]
        vbuckets[vbucket] = VbucketOffset(0, vbuuid, seqno, (ProvenEnd(seqno, seqno),) if seqno else ())
    return Offset(tuple(vbuckets))


def check_vbucket_count(offset: Offset, count: int) -> None:
    """Check that the offset is one of a bucket with `count` vbuckets.

    Raises:
        UsageError: the numbers differ.
    """
    known = len(offset.vbuckets)
    if known != count:
        raise UsageError(f"the bucket has {count} vbuckets, expected {known} (0 to {known - 1}) as in the offset")


def derive_reads(start: Offset, end: Offset) -> list[VbucketRead]:
    """Return the reads between two offsets, ordered by vbucket.

    The streams of a selection by name have only the collections that have these names now. They have no events of those
    that were dropped since the last plan. So each vbucket with rows gets the ids of these collections.

    Args:
        start: an offset.
        end: the offset that a plan returned for `start`.

    Raises:
        UsageError: no plan can have returned `end` for `start`.
    """
    if len(start.vbuckets) != len(end.vbuckets):
        raise UsageError(f"offsets of {len(start.vbuckets)} and {len(end.vbuckets)} vbuckets make no batch")
    pairs = enumerate(zip(start.vbuckets, end.vbuckets, strict=True))
    ended = find_ended_collections(start, end.collection_ids)
    return [read for vbucket, (a, b) in pairs if (read := _derive_read(vbucket, a, b, ended))]


def find_ended_collections(before: Offset, now: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the ids of an offset that the selected collections no longer have. Ids are never used again."""
    return tuple(each for each in before.collection_ids or () if now is not None and each not in now)


# Reading between two offsets


def _derive_read(vbucket: int, a: VbucketOffset, b: VbucketOffset, ended: tuple[int, ...] = ()) -> VbucketRead | None:
    """Return the read between two positions of a vbucket; None if there are no changes and no rollback.

    Raises:
        UsageError: no plan can have returned `b` for `a`.
    """
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
    ended = ended if start else ()
    if start == b.seqno and rollback is None and not ended:
        return None
    return VbucketRead(vbucket, b.history, b.vbuuid, start, b.seqno, b.purge_seqno, rollback, ended)


def sort_vbuckets(by_vbucket: Iterable[int], count: int) -> list[int]:
    """Return the vbuckets in ascending order.

    Raises:
        UsageError: a number is not below `count`.
    """
    chosen = sorted(by_vbucket)
    if chosen and not 0 <= chosen[0] <= chosen[-1] < count:
        raise UsageError(f"vbucket {chosen[-1]}, expected one below {count}")
    return chosen


# Pairs as text


def _encode_proven(v: VbucketOffset) -> str:
    """Return the proven ends as text: each end as distance below the seqno, its high as distance above the end.

    An example is `120+7,35+9,0+0`.
    """
    return ",".join(f"{v.seqno - end}+{high - end}" for end, high in v.proven) or "-"


def _decode_proven(text: str, seqno: int) -> tuple[ProvenEnd, ...]:
    if text == "-":
        return ()
    proven = []
    for pair in text.split(","):
        below, _, above = pair.partition("+")
        end = seqno - read_u64(below)
        proven.append(ProvenEnd(end, end + read_u64(above)))
    if any(p.end <= 0 for p in proven) or len(proven) > MAX_PROVEN or proven != sorted(proven):
        raise ValueError(f"{text!r} are not the proven ends of seqno {seqno}")
    return tuple(proven)
