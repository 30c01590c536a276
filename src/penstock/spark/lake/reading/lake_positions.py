"""Where a lake stands in the bucket's history, and waiting until it holds given writes.

A changelog commit names its batch, and the query's checkpoint has the end of that batch: the plan of the next one is
made from it. Spark keeps the ends of the newest batches only (100, unless it is told otherwise).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.documents.mutation_tokens import MutationToken
from penstock.errors import OperationTimeout, UsageError, WriteLost
from penstock.spark.lake.changelog.merge_rules import CUTTING_EVENTS
from penstock.spark.lake.reading.lake_readers import changelog
from penstock.spark.lake.tables import plain_manifests
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.source.offsets import Offset
from penstock.wire.columns.schema import unsigned64

__all__ = ["BranchHistory", "LakePosition", "position", "position_at", "verdict", "wait_for"]

_LOOK_SECONDS = 0.1
"""How often a waiter looks whether the changelog has a new batch."""


@dataclass(frozen=True, slots=True)
class LakePosition:
    """The end of a batch that the changelog holds. committed: when it was; None where that is not known any more."""

    batch: int
    offset: Offset
    committed: datetime | None = None


def position(lake: LakeDirectory, batch: int | None = None) -> LakePosition | None:
    """Return where the changelog ends, or ended with an older batch; None before its first batch.

    Raises UsageError for a batch that there is not, or that the checkpoint has forgotten.
    """
    newest = _newest_batch(lake)
    if newest is None:
        return None
    if batch is not None and not 0 <= batch <= newest:
        raise UsageError(f"{lake.path} has no batch {batch}; expected one from 0 to {newest}")
    wanted = newest if batch is None else batch
    return LakePosition(wanted, _end_of(lake, wanted), _committed(lake, wanted))


def position_at(lake: LakeDirectory, when: datetime) -> LakePosition | None:
    """Return the newest position that the changelog had at a time, None if the checkpoint does not know it any more.

    when: with a time zone.
    """
    for batch in sorted(_entries(lake.checkpoint / "commits"), reverse=True):
        committed = _committed(lake, batch)
        if committed is not None and committed <= when and (lake.checkpoint / "offsets" / str(batch)).exists():
            return LakePosition(batch, _end_of(lake, batch), committed)
    return None


def _newest_batch(lake: LakeDirectory) -> int | None:
    if (batch := plain_manifests.newest_batch(lake.changelog_table.path)) is not None:
        return batch
    changelog, query = lake.changelog_table.open(), lake.query_id()
    found = changelog.transaction_version(query) if changelog is not None and query is not None else None
    return None if found is None else int(found)


def _entries(log: Path) -> list[int]:
    return [int(entry.name) for entry in log.iterdir() if entry.name.isdigit()] if log.is_dir() else []


def _end_of(lake: LakeDirectory, batch: int) -> Offset:
    path = lake.checkpoint / "offsets" / str(batch)
    try:
        *_, last = path.read_text().splitlines()
        return Offset.from_json(json.loads(last))
    except FileNotFoundError:
        oldest = min(_entries(path.parent), default=None)
        raise UsageError(f"{path} is gone; the oldest batch that the checkpoint knows is {oldest}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}), expected the end of a batch") from None
    except ValueError:
        raise UsageError(f"{path} is not what Spark writes, expected the end of a batch") from None


def _committed(lake: LakeDirectory, batch: int) -> datetime | None:
    """Return when a batch ended: Spark notes it a moment after the changelog's commit."""
    try:
        return datetime.fromtimestamp((lake.checkpoint / "commits" / str(batch)).stat().st_mtime, UTC)
    except FileNotFoundError:
        return None


# Waiting for writes


@dataclass(frozen=True, slots=True)
class BranchHistory:
    """What the changelog says of a vbucket's branches. read: the history in which each was read last, and the newest
    seqno read there, by vbuuid.

    rollbacks: (history, requested_seqno) of each: what was behind requested_seqno in an older history is gone.
    """

    read: dict[int, tuple[int, int]]
    rollbacks: tuple[tuple[int, int], ...] = ()

    def common(self, vbuuid: int) -> int | None:
        """Return up to where the branch's changes still count; None if all do, or if it is unknown."""
        if vbuuid not in self.read:
            return None
        history, _ = self.read[vbuuid]
        return min((seqno for later, seqno in self.rollbacks if later > history), default=None)


def verdict(token: MutationToken, vbuuid: int, seqno: int, history: BranchHistory | None) -> bool:
    """Return whether a lake that stands at (vbuuid, seqno) of the token's vbucket holds its write.

    history: None if it has not been looked at; then of a token of another branch nothing is said but False. A seqno
    that moved on counts also where it left no row: the version was overwritten. Raises WriteLost if the write was
    rolled back, or if that cannot be told from the tables.
    """
    if token.vbuuid == vbuuid:
        return seqno >= token.seqno
    if history is None:
        return False
    common = history.common(token.vbuuid)
    if common is not None:
        if token.seqno > common:
            raise WriteLost(
                f"vbucket {token.vbucket} was rolled back to {common} on another branch, which does not have change"
                f" {token.seqno} of the older one"
            )
        return seqno >= token.seqno
    _, read = history.read.get(token.vbuuid, (0, 0))
    if token.seqno <= read:
        return True
    # The bucket went over to another branch before the lake came to this; where the two part, it was never told.
    if read and seqno >= token.seqno:
        raise WriteLost(
            f"vbucket {token.vbucket} went on in another branch before change {token.seqno} was read, and the tables"
            " cannot tell whether it is part of that; look it up in the bucket"
        )
    return False


def wait_for(lake: LakeDirectory, tokens: Iterable[MutationToken], timeout: float = 60.0) -> None:
    """Return once the lake's tables hold the writes that tokens stand for. timeout: seconds.

    Raises WriteLost at once for a write that was rolled back, OperationTimeout after the timeout (with 0, after one
    look), UsageError for a vbucket that the bucket does not have.
    """
    left = [MutationToken(*token) for token in tokens]
    deadline = time.monotonic() + timeout
    seen = -1
    while left:
        batch = _newest_batch(lake)
        if batch is not None and batch != seen:
            seen = batch
            left = _missing(lake, _end_of(lake, batch), left)
            if not left:
                return
        if time.monotonic() >= deadline:
            raise OperationTimeout(_waited(lake, left, timeout))
        time.sleep(max(0.0, min(_LOOK_SECONDS, deadline - time.monotonic())))


def _waited(lake: LakeDirectory, left: Sequence[MutationToken], timeout: float) -> str:
    token = left[0]
    end = position(lake)
    stands = "which nothing was written to yet"
    if end is not None:
        vbucket = end.offset.vbuckets[token.vbucket]
        other = "" if vbucket.vbuuid == token.vbuuid else ", on another branch"
        stands = f"which ends at {vbucket.seqno}{other}"
    more = f" and {len(left) - 1} more" if len(left) > 1 else ""
    return f"after {timeout:g} s change {token.seqno} of vbucket {token.vbucket}{more} is not in {lake.path}, {stands}"


def _missing(lake: LakeDirectory, end: Offset, tokens: Sequence[MutationToken]) -> list[MutationToken]:
    count = len(end.vbuckets)
    if foreign := [token for token in tokens if not 0 <= token.vbucket < count]:
        raise UsageError(f"a write in vbucket {foreign[0].vbucket}, and {lake.path} is of a bucket with {count}")
    stands = [(token, end.vbuckets[token.vbucket]) for token in tokens]
    others = sorted({token.vbucket for token, at in stands if at.vbuuid not in (token.vbuuid, 0)})
    histories = _histories(lake, others) if others else {}
    return [token for token, at in stands if not verdict(token, at.vbuuid, at.seqno, histories.get(token.vbucket))]


def _histories(lake: LakeDirectory, vbuckets: Sequence[int]) -> dict[int, BranchHistory]:
    """Read what the changelog says of the branches of these vbuckets."""
    columns = ["vbucket", "vbuuid", "history", "event", "requested_seqno", "seqno"]
    rows = changelog(lake, columns, pc.field("vbucket").isin(list(vbuckets)))
    branches = rows.group_by(["vbucket", "vbuuid", "history"]).aggregate([("seqno", "max")]).sort_by("history")
    read: dict[int, dict[int, tuple[int, int]]] = {vbucket: {} for vbucket in vbuckets}
    for vbucket, vbuuid, history, seqno in zip(
        *_lists(branches, "vbucket", "vbuuid", "history", "seqno_max"), strict=True
    ):
        if vbuuid is not None:
            read[vbucket][unsigned64(vbuuid)] = (history, seqno or 0)
    cuts = rows.filter(pc.is_in(rows["event"], value_set=CUTTING_EVENTS))
    agreed = pc.coalesce(cuts["requested_seqno"], cuts["seqno"], pa.scalar(0, pa.int64()))
    rollbacks: dict[int, list[tuple[int, int]]] = {vbucket: [] for vbucket in vbuckets}
    for vbucket, history, seqno in zip(*_lists(cuts, "vbucket", "history"), agreed.to_pylist(), strict=True):
        rollbacks[vbucket].append((history, unsigned64(seqno)))
    return {vbucket: BranchHistory(read[vbucket], tuple(sorted(rollbacks[vbucket]))) for vbucket in vbuckets}


def _lists(rows: pa.Table, *names: str) -> list[list[int]]:
    return [rows[name].to_pylist() for name in names]
