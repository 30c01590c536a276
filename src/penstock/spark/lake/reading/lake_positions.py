"""Positions of a lake in the bucket's history, and waiting until the lake holds given writes.

A changelog commit names its batch. The query's checkpoint has the end of that batch, from which Spark plans the next
batch. Spark keeps only the ends of the newest batches: 100 by default.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.documents.mutation_tokens import MutationToken
from penstock.errors import OperationTimeout, UsageError, WriteLost
from penstock.spark.lake.changelog.merge_rules import ROLLBACK_EVENTS
from penstock.spark.lake.reading.lake_readers import scan_changelog
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.source.offsets import Offset
from penstock.spark.storage.object_path import LakePath
from penstock.wire.columns.schema import unsigned64

_POLL_SECONDS = 0.1
"""Seconds between two checks for a new batch."""


@dataclass(frozen=True, slots=True)
class LakePosition:
    """The end of a batch in the changelog.

    Attributes:
        batch: the number of the batch, from 0.
        offset: the position in the bucket.
        committed: when the batch was committed, None if the checkpoint no longer has it.
    """

    batch: int
    offset: Offset
    committed: datetime | None = None


def read_position(lake: LakeDirectory, batch: int | None = None) -> LakePosition | None:
    """Return the bucket position at which the changelog ends, None before its first batch.

    Args:
        lake: the lake of the changelog.
        batch: an older batch; None for the newest.

    Returns:
        The position with its batch.

    Raises:
        UsageError: the changelog does not have the batch, or the checkpoint no longer has it.
    """
    newest = _find_newest_batch(lake)
    if newest is None:
        return None
    if batch is not None and not 0 <= batch <= newest:
        raise UsageError(f"{lake.path} has no batch {batch}; expected one from 0 to {newest}")
    number = newest if batch is None else batch
    return LakePosition(number, _read_end(lake, number), _read_commit_time(lake, number))


def read_planned_end(lake: LakeDirectory) -> Offset | None:
    """Return the end of the newest planned batch, which the changelog may lack yet; None before the first plan."""
    planned = _list_batches(lake.checkpoint / "offsets")
    return _read_end(lake, max(planned)) if planned else None


def find_position_at(lake: LakeDirectory, when: datetime) -> LakePosition | None:
    """Return the newest position that the changelog had at a time, None if the checkpoint no longer has it.

    Args:
        lake: the lake of the changelog.
        when: a time with a time zone.

    Returns:
        The position with its batch.
    """
    for batch in sorted(_list_batches(lake.checkpoint / "commits"), reverse=True):
        committed = _read_commit_time(lake, batch)
        if committed is not None and committed <= when and (lake.checkpoint / "offsets" / str(batch)).exists():
            return LakePosition(batch, _read_end(lake, batch), committed)
    return None


def _find_newest_batch(lake: LakeDirectory) -> int | None:
    """Return the number of the changelog's newest batch, None before the first."""
    changelog, query = lake.changelog_table.open(), lake.read_query_id()
    return changelog.transaction_version(query) if changelog is not None and query is not None else None


def _list_batches(log: LakePath) -> list[int]:
    """Return the batches in one of the logs of a checkpoint."""
    return [int(entry.name) for entry in log.iterdir() if entry.name.isdigit()] if log.is_dir() else []


def _read_end(lake: LakeDirectory, batch: int) -> Offset:
    """Return the offset at the end of a batch, from the checkpoint.

    Raises:
        UsageError: the checkpoint does not have the batch, or its file cannot be read.
    """
    path = lake.checkpoint / "offsets" / str(batch)
    try:
        *_, last = path.read_text().split("\n")
        return Offset.from_json(json.loads(last))
    except FileNotFoundError:
        oldest = min(_list_batches(path.parent), default=None)
        raise UsageError(f"{path} does not exist; the oldest batch in the checkpoint is {oldest}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}), expected the end of a batch") from None
    except ValueError:
        raise UsageError(f"{path} is not an offset file of Spark, expected the end of a batch") from None


def _read_commit_time(lake: LakeDirectory, batch: int) -> datetime | None:
    """Return when a batch ended: Spark writes this file a moment after the changelog's commit."""
    try:
        return datetime.fromtimestamp((lake.checkpoint / "commits" / str(batch)).stat().st_mtime, UTC)
    except FileNotFoundError:
        return None


# Waiting for writes


@dataclass(frozen=True, slots=True)
class BranchHistory:
    """The branches of a vbucket, as the changelog knows them.

    Attributes:
        last_read: for each vbuuid the history in which the branch was read last, and the newest seqno read there.
        rollbacks: (history, common seqno) of each rollback. It voids rows of older histories above the common seqno.
    """

    last_read: dict[int, tuple[int, int]]
    rollbacks: tuple[tuple[int, int], ...] = ()

    def find_common_seqno(self, vbuuid: int) -> int | None:
        """Return the seqno up to which the branch's changes still count; None for all or unknown."""
        if vbuuid not in self.last_read:
            return None
        history, _ = self.last_read[vbuuid]
        return min((seqno for later, seqno in self.rollbacks if later > history), default=None)


def contains_write(token: MutationToken, vbuuid: int, seqno: int, history: BranchHistory | None) -> bool:
    """Return whether a lake at (vbuuid, seqno) of the token's vbucket holds the token's write.

    The write also counts as held if a later version overwrote it before it was read.

    Args:
        token: the token of the write.
        vbuuid: the branch that the lake has read last.
        seqno: the newest seqno that the lake has read.
        history: the branches of the vbucket; None if they were not read. Then the result for a token of another branch
            is False.

    Returns:
        True if the tables hold the write.

    Raises:
        WriteLost: the write was rolled back, or the tables do not show whether it was.
    """
    if token.vbuuid == vbuuid:
        return seqno >= token.seqno
    if history is None:
        return False
    common = history.find_common_seqno(token.vbuuid)
    if common is not None:
        if token.seqno > common:
            raise WriteLost(
                f"vbucket {token.vbucket} was rolled back to {common} on another branch, which does not have change"
                f" {token.seqno} of the older one"
            )
        return seqno >= token.seqno
    _, read = history.last_read.get(token.vbuuid, (0, 0))
    if token.seqno <= read:
        return True
    # The bucket changed to another branch before the lake read this seqno, and no row has the seqno where they part.
    if read and seqno >= token.seqno:
        raise WriteLost(
            f"vbucket {token.vbucket} changed to another branch before change {token.seqno} was read, and the tables"
            " do not show whether the new branch has the change; look it up in the bucket"
        )
    return False


def wait_for_writes(lake: LakeDirectory, tokens: Iterable[MutationToken], timeout: float = 60.0) -> None:
    """Wait until the lake's tables hold the writes of some tokens.

    Raises WriteLost at once for a write that was rolled back, and UsageError for a vbucket that the bucket does not
    have.

    Args:
        lake: the lake of the tables.
        tokens: mutation tokens.
        timeout: seconds; 0 to check once.

    Raises:
        OperationTimeout: the timeout has passed.
    """
    missing = [MutationToken(*token) for token in tokens]
    deadline = time.monotonic() + timeout
    seen = -1
    while missing:
        batch = _find_newest_batch(lake)
        if batch is not None and batch != seen:
            seen = batch
            missing = _select_missing(lake, _read_end(lake, batch), missing)
            if not missing:
                return
        if time.monotonic() >= deadline:
            raise OperationTimeout(_describe_timeout(lake, missing, timeout))
        time.sleep(max(0.0, min(_POLL_SECONDS, deadline - time.monotonic())))


def _describe_timeout(lake: LakeDirectory, missing: Sequence[MutationToken], timeout: float) -> str:
    """Return the message of a timeout: the first missing write, and the end of the changelog."""
    token = missing[0]
    end = read_position(lake)
    stands = "which nothing was written to yet"
    if end is not None:
        vbucket = end.offset.vbuckets[token.vbucket]
        other = "" if vbucket.vbuuid == token.vbuuid else ", on another branch"
        stands = f"which ends at {vbucket.seqno}{other}"
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"after {timeout:g} s change {token.seqno} of vbucket {token.vbucket}{more} is not in {lake.path}, {stands}"


def _select_missing(lake: LakeDirectory, end: Offset, tokens: Sequence[MutationToken]) -> list[MutationToken]:
    """Return the tokens whose writes the lake does not hold yet.

    Raises:
        UsageError: a vbucket that the bucket does not have.
    """
    count = len(end.vbuckets)
    if foreign := [token for token in tokens if not 0 <= token.vbucket < count]:
        raise UsageError(f"a write in vbucket {foreign[0].vbucket}, and {lake.path} is of a bucket with {count}")
    ends = [(token, end.vbuckets[token.vbucket]) for token in tokens]
    # Only a token of another branch needs the changelog's rows; vbuuid 0 means that nothing was planned yet.
    others = sorted({token.vbucket for token, at in ends if at.vbuuid not in (token.vbuuid, 0)})
    histories = _read_branches(lake, others) if others else {}
    return [token for token, at in ends if not contains_write(token, at.vbuuid, at.seqno, histories.get(token.vbucket))]


def _read_branches(lake: LakeDirectory, vbuckets: Sequence[int]) -> dict[int, BranchHistory]:
    """Return the branches of some vbuckets, from the rows of the changelog."""
    columns = ["vbucket", "vbuuid", "history", "event", "requested_seqno", "seqno"]
    rows = scan_changelog(lake, columns, pc.field("vbucket").isin(list(vbuckets)))
    branches = rows.group_by(["vbucket", "vbuuid", "history"]).aggregate([("seqno", "max")]).sort_by("history")
    read: dict[int, dict[int, tuple[int, int]]] = {vbucket: {} for vbucket in vbuckets}
    for vbucket, vbuuid, history, seqno in zip(
        *_list_columns(branches, "vbucket", "vbuuid", "history", "seqno_max"), strict=True
    ):
        if vbuuid is not None:
            read[vbucket][unsigned64(vbuuid)] = (history, seqno or 0)
    rollback_rows = rows.filter(pc.is_in(rows["event"], value_set=ROLLBACK_EVENTS))
    common_seqnos = pc.coalesce(rollback_rows["requested_seqno"], rollback_rows["seqno"], pa.scalar(0, pa.int64()))
    rollbacks: dict[int, list[tuple[int, int]]] = {vbucket: [] for vbucket in vbuckets}
    for vbucket, history, seqno in zip(
        *_list_columns(rollback_rows, "vbucket", "history"), common_seqnos.to_pylist(), strict=True
    ):
        rollbacks[vbucket].append((history, unsigned64(seqno)))
    return {vbucket: BranchHistory(read[vbucket], tuple(sorted(rollbacks[vbucket]))) for vbucket in vbuckets}


def _list_columns(rows: pa.Table, *names: str) -> list[list[int]]:
    return [rows[name].to_pylist() for name in names]
