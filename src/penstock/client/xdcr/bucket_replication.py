"""The replication of one bucket to another: reads, chooses and writes changes, and keeps checkpoints."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import pyarrow as pa

from penstock.argument_types import check_arguments
from penstock.client.bucket import Bucket
from penstock.client.bucket_identity import read_identity
from penstock.client.connect.address import Address, parse_address
from penstock.client.documents.bulk import BulkWriter
from penstock.client.documents.meta_requests import prepare_meta_writes
from penstock.client.documents.window_writer import AcceptedStatuses, RefusedRows, WindowResult, WindowWriter
from penstock.client.feeds.collection_selection import DEFAULT_COLLECTIONS, parse_manifest
from penstock.client.feeds.stream_position import BEGINNING, Position
from penstock.client.streams.persistence_gate import BranchLost, PersistenceGate
from penstock.client.xdcr.change_reader import ChangeReader, ChangeWindow
from penstock.client.xdcr.change_selector import ChangeSelector
from penstock.client.xdcr.checkpoint import Checkpoint, CheckpointTracker, find_lost_ends, forget_positions
from penstock.client.xdcr.state_file import StateFile
from penstock.client.xdcr.xdcr_options import XdcrOptions
from penstock.errors import STATUS_ERRORS, AccessDenied, Error, UnknownCollection, UnknownScope, Unreachable, UsageError
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.schema import CHANGE_SCHEMA

logger = logging.getLogger("penstock.client")

CHECKPOINT_SECONDS = 1.0
"""Seconds between checkpoints. A start after a kill sends the changes of this time again."""

_FIRST_DELAY, _MOST_DELAY = 0.01, 0.25
_WAIT_SECONDS = 1.0
"""Seconds between attempts to find a missing collection."""

_MOST_EXAMPLES = 100

_NO_CHANGES = CHANGE_SCHEMA.empty_table()

_UNKNOWN_NAMES = frozenset((Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE))
_BUCKET_STATUSES = frozenset(
    (
        *(status for status, error in STATUS_ERRORS.items() if error.retriable or error is AccessDenied),
        *(Status.NOT_SUPPORTED, Status.UNKNOWN_COMMAND, Status.NO_BUCKET),
    )
)
"""Refusals that do not depend on the document: the next document would be refused too."""


@dataclass(slots=True)
class XdcrProgress:
    """The numbers of a replication. Changes that are sent again after a failure are counted again.

    Attributes:
        received: changes of documents that the source has sent.
        filtered: changes that the options leave out.
        unreadable: changes whose documents the filter cannot read. They are not replicated, and not among `filtered`.
        written: changes that the target has stored.
        older: changes that lost against the target's version, for example because they came from there.
        missing: deletions of documents that the target did not have.
        refused: changes that the target refused for another reason.
        restarts: times that the replication resumed at its checkpoint after a crash or failover.
        refusals: key and reason of the first refused changes, at most 100.
        unreadable_examples: key and reason of the first unreadable changes, at most 100.
    """

    received: int = 0
    filtered: int = 0
    unreadable: int = 0
    written: int = 0
    older: int = 0
    missing: int = 0
    refused: int = 0
    restarts: int = 0
    refusals: list[str] = field(default_factory=list)
    unreadable_examples: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.received} changes: {self.written} written, {self.older} older than the target's, "
            f"{self.missing} missing, {self.filtered} filtered, {self.unreadable} unreadable, {self.refused} refused"
        )


class _CollectionMissing(Error):
    """The target does not have a collection."""


@check_arguments
class BucketReplication:
    """Replicates the changes of one bucket to another until it is cancelled, or until the source's current end.

        replication = BucketReplication("couchbase://a/beer", "couchbase://b/beer", XdcrOptions(until="now"))
        progress = await replication.run()

    Documents keep their metadata, and the target resolves conflicts. So two buckets that replicate to each other
    converge: a change that came from the peer is as new as the peer's version, and is not written back.

    Args:
        source: the bucket to read.
        target: the bucket to write.
        options: the choice of changes, the end, and the state file.
        on_refused: called with refused changes, before a checkpoint includes them.

    Attributes:
        progress: the numbers so far.

    Raises:
        UsageError: an option is invalid.
    """

    def __init__(
        self,
        source: Address | str,
        target: Address | str,
        options: XdcrOptions | None = None,
        *,
        on_refused: Callable[[RefusedRows], None] | None = None,
    ) -> None:
        self._options = options or XdcrOptions()
        self._source_address = parse_address(source) if isinstance(source, str) else source
        self._target_address = parse_address(target) if isinstance(target, str) else target
        self._selector = ChangeSelector(self._options)
        path = self._options.state_path
        self._state = None if path is None else StateFile(path, self._options.describe_selection())
        self._on_refused = on_refused
        self._source = Bucket(self._source_address)
        self._target = Bucket(self._target_address)
        self._tracker = CheckpointTracker(Checkpoint(), {}, is_persistent=True)
        self.progress = XdcrProgress()

    async def run(self) -> XdcrProgress:
        """Replicate. Raises the errors of change streams and of bulk writes, and Error for a missing collection."""
        async with AsyncExitStack() as stack:
            for bucket in (self._source, self._target):
                await stack.enter_async_context(bucket)
            await self._check_buckets()
            checkpoint = Checkpoint() if self._state is None else await self._state.read(await self._source.cluster())
            bulk = await stack.enter_async_context(BulkWriter(self._target_address))
            await self._check_mapping()
            resolution, is_source_persistent, is_target_persistent = await self._inspect_buckets()
            has_gate = is_source_persistent and not self._options.unpersisted
            start: Mapping[int, Position] | None = None
            while True:
                positions = await self._open_tracker(checkpoint, start, is_persistent=is_target_persistent)
                start = None
                try:
                    await self._run_attempt(bulk, resolution, positions, has_gate=has_gate)
                except BranchLost as lost:
                    logger.warning("%s: %s; resuming at the last checkpoint", self._target_address, lost)
                    self.progress.restarts += 1
                except _CollectionMissing as missing:
                    if self._options.missing_collection == "error":
                        raise
                    logger.info("%s; waiting for it", missing)
                    start = self._tracker.acknowledged
                    bulk.forget_collections()
                    await asyncio.sleep(_WAIT_SECONDS)
                else:
                    return self.progress
                checkpoint = self._tracker.committed

    async def count_lag(self) -> int:
        """Return how many seqnos the target is behind the source. Raises the errors of Bucket.high_seqnos."""
        high_seqnos, acknowledged = await self._source.high_seqnos(), self._tracker.acknowledged
        return sum(max(0, high - acknowledged.get(vb, BEGINNING).seqno) for vb, high in high_seqnos.items())

    async def _check_buckets(self) -> None:
        """Check that the target is another bucket: addresses may be spelt in many ways.

        Raises:
            UsageError: both are the same bucket, or copies with the same history.
        """
        if not self._selector.keeps_collections:
            return
        source, target = [await read_identity(bucket) for bucket in (self._source, self._target)]
        if source.is_same_bucket(target):
            raise UsageError(
                f"source {self._source_address} and target {self._target_address} are the same bucket,"
                " expected different buckets"
            )

    async def _check_mapping(self) -> None:
        """Check that the source has the mapped names, unless the replication waits for collections."""
        if self._selector.keeps_collections or self._options.missing_collection == "wait":
            return
        manifests = await self._source.node_reports.manifests()
        known = max(map(parse_manifest, manifests), key=lambda each: each.uid, default=DEFAULT_COLLECTIONS)
        self._selector.mapping.check_names(known, self._source_address)

    async def _inspect_buckets(self) -> tuple[str, bool, bool]:
        """Return the conflict resolution of both buckets, and whether source and target have a disk."""
        of_source, of_target = await self._source.stats("config"), await self._target.stats("config")
        resolutions = [stats.get("ep_conflict_resolution_type", "seqno") for stats in (of_source, of_target)]
        if resolutions[0] != resolutions[1]:
            raise UsageError(
                f"conflict resolution of the source is {resolutions[0]}, of the target {resolutions[1]}, "
                "expected the same: their versions cannot be compared"
            )
        persistent = [stats.get("ep_bucket_type") != "ephemeral" for stats in (of_source, of_target)]
        return resolutions[0], persistent[0], persistent[1]

    async def _open_tracker(
        self, checkpoint: Checkpoint, start: Mapping[int, Position] | None, *, is_persistent: bool
    ) -> dict[int, Position]:
        """Prepare an attempt, and return the positions where it starts.

        Args:
            checkpoint: the newest checkpoint.
            start: positions that the target has acknowledged; None: the target may have lost these changes.
            is_persistent: whether the target has a disk.
        """
        # The branches first: a branch that begins after this request makes the attempt start over.
        seqnos = await self._target.reports.persisted_seqnos()
        branches = {vbucket: each.vbuuid for vbucket, each in seqnos.items()}
        known = [vbucket for vbucket in sorted(checkpoint.target_ends) if vbucket < self._target.vbuckets]
        logs = await self._target.failover_logs(known) if known else {}
        lost = find_lost_ends(checkpoint, logs)
        if lost:
            logger.warning("%s: vbucket %d lost changes of the last checkpoint", self._target_address, lost[0])
        positions = forget_positions(checkpoint.positions, lost, self._source.vbuckets, self._target.vbuckets)
        kept = {vbucket: end for vbucket, end in checkpoint.target_ends.items() if vbucket not in lost}
        self._tracker = CheckpointTracker(Checkpoint(positions, kept), branches, is_persistent=is_persistent)
        if start is not None:
            self._tracker.acknowledge(start)
        return dict(self._tracker.acknowledged)

    async def _run_attempt(
        self, bulk: BulkWriter, resolution: str, positions: Mapping[int, Position], *, has_gate: bool
    ) -> None:
        """Replicate from these positions until the end, or until a bucket loses changes."""
        patience = self._source_address.options.retry_seconds
        gate = PersistenceGate(self._source.reports.persisted_seqnos, patience) if has_gate else None
        stop: Literal["now"] | None = "now" if self._options.until == "now" else None
        prepare = partial(prepare_meta_writes, conflict_resolution=resolution)
        writer = WindowWriter(bulk, prepare, accepted=AcceptedStatuses(missing=True, older=True))
        try:
            async with await self._source.stream(positions, stop, protocol="dcp", xattrs=True) as stream:
                reader = ChangeReader(stream, gate)
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(reader.read_stream()), group.create_task(self._keep_checkpoints())]
                    await self._write_windows(reader, writer)
                    tasks[1].cancel()
                await self._commit_all()
        except BaseExceptionGroup as failures:
            error = _find_first(failures)
            if isinstance(error, UnknownCollection | UnknownScope):
                error = _CollectionMissing(
                    f"{error}; create it, or map the source's collection to a collection of the target"
                )
            raise error from None
        finally:
            await writer.close()

    async def _write_windows(self, reader: ChangeReader, writer: WindowWriter) -> None:
        """Write windows until the end of the stream. One window is prepared while the one before is written."""
        under_way: dict[int, Position] = {}
        while True:
            if not reader.has_waiting:
                self._accept(await writer.finish(), under_way)
            if (window := await reader.take_window()) is None:
                break
            changes = self._select_changes(window)
            result = await (writer.submit(changes) if len(changes) else writer.finish())
            self._accept(result, under_way)
            under_way = window.positions
            if not len(changes):
                self._accept(None, under_way)
        self._accept(await writer.finish(), under_way)

    def _select_changes(self, window: ChangeWindow) -> pa.Table:
        """Return the changes of a window that are replicated, and count the others."""
        table = pa.Table.from_batches(window.batches) if window.batches else _NO_CHANGES
        changes, left_out = self._selector.select_changes(table)
        progress, unreadable = self.progress, self._selector.unreadable
        progress.received += len(changes) + left_out
        progress.filtered += left_out - (unreadable.count - progress.unreadable)
        progress.unreadable, progress.unreadable_examples = unreadable.count, unreadable.examples
        return changes

    def _accept(self, result: WindowResult | None, positions: dict[int, Position]) -> None:
        """Count the outcomes of a window, and acknowledge its positions.

        Raises:
            _CollectionMissing: the target lost a collection.
            Error: the target refuses every change.
        """
        if result is not None:
            if result.refused is not None:
                self._report_refused(result.refused)
            counts, progress = result.counts, self.progress
            progress.written += counts.written
            progress.older += counts.older
            progress.missing += counts.missing
            progress.refused += counts.failed
        self._tracker.acknowledge(positions)
        positions.clear()

    def _report_refused(self, refused: RefusedRows) -> None:
        keys = refused.rows["key"].to_pylist()
        for key, fault in zip(keys, refused.faults, strict=True):
            if fault.status in _UNKNOWN_NAMES:
                raise _CollectionMissing(f"{self._target_address}: {fault.text}, key {key!r}")
            if fault.status in _BUCKET_STATUSES:
                raise Error(f"{self._target_address} refuses changes: {fault.text}, key {key!r}")
        self.progress.refusals += refused.describe(_MOST_EXAMPLES - len(self.progress.refusals))
        if self._on_refused is not None:
            self._on_refused(refused)

    async def _keep_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_SECONDS)
            await self._observe_target()

    async def _commit_all(self) -> None:
        """Wait until the target has all acknowledged changes on disk. Raises Unreachable if it does not get there."""
        delay, waited = _FIRST_DELAY, 0.0
        while True:
            await self._observe_target()
            if self._tracker.is_complete:
                return
            if waited > self._target_address.options.retry_seconds:
                raise Unreachable(f"{self._target_address} has changes in memory that are not on its disk")
            await asyncio.sleep(delay)
            waited, delay = waited + delay, min(2 * delay, _MOST_DELAY)

    async def _observe_target(self) -> None:
        """Make a checkpoint if the target's disk has reached one. Raises BranchLost for a new branch."""
        if self._tracker.is_complete:
            return
        acknowledged = dict(self._tracker.acknowledged)
        seqnos = await self._target.reports.persisted_seqnos()
        if self._tracker.has_new_branch(seqnos):
            raise BranchLost("a vbucket of the target has a new branch")
        cluster = await self._source.cluster()  # before: a checkpoint that was made is written without a wait
        made = self._tracker.observe(acknowledged, seqnos)
        if made is not None and self._state is not None:
            await self._state.write(made, cluster)


def _find_first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group, which may be nested."""
    first: BaseException = failures
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
