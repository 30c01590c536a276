"""A bucket: its vbuckets and the change log that they share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from penstock.errors import NotMyVbucket
from penstock.store.bucket.bucket_compactor import BucketCompactor
from penstock.store.bucket.bucket_eraser import BucketEraser
from penstock.store.bucket.bucket_manifest import BucketManifest
from penstock.store.bucket.bucket_memory import BucketMemory
from penstock.store.bucket.bucket_opening import finish_opening, lock_while_opening, recover_vbuckets
from penstock.store.bucket.bucket_record import BucketRecord
from penstock.store.bucket.expiry_pager import ExpiryPager
from penstock.store.bucket.key_loader import KeyLoader
from penstock.store.bucket.rollout import Rollout
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.durable_log import DurableLog
from penstock.store.documents.document_writer import DocumentWriter
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.vbucket_changes import REFUSED, VbucketChanges
from penstock.store.history.vbucket_history import VbucketHistory
from penstock.store.log.change_log import Log, MemoryLog
from penstock.store.log.quota import SEGMENT_BYTES
from penstock.store.log.row_index import RowIndex
from penstock.store.recovery import bucket_directory
from penstock.store.recovery.file_scan import scan_files
from penstock.store.recovery.found_files import FoundFiles
from penstock.wire.codec.constants import VbucketState


class BucketStats(NamedTuple):
    """The totals over all vbuckets of a bucket.

    Attributes:
        items: documents.
        index_bytes: an estimate of the memory that keys and rows take; a part of memory_bytes.
        live_bytes: bytes of frames that count.
        dead_bytes: bytes of superseded frames.
        segments: sealed segments and the active one.
        memory_bytes: bytes in memory; segments that are mapped from files do not count.
    """

    items: int
    index_bytes: int
    live_bytes: int
    dead_bytes: int
    segments: int
    memory_bytes: int


class BucketStore:
    """A bucket in memory, or on disk if `open` made it. A new bucket's vbuckets are all active.

    Attributes:
        vbuckets: the vbuckets by number; their number is a power of two up to 65536.
        log: the changes of all vbuckets, in memory or on disk.
        settings: the bucket's settings. A bucket in memory ignores those about files.
        changed: numbers of vbuckets in which reading a document expired it, so that its tombstone is the newest change.
            The caller removes them from the set.
        recovery_summary: a sentence about the files that were found at opening; empty if there were none.
        uuid: the uuid of a bucket on disk, in hexadecimal; empty in memory.
        record: the content of `bucket.json`.
        manifests: the bucket's scopes and collections.
        rollout: brings a new manifest, or a flush, to all vbuckets.
        eraser: erases the documents of dropped collections.
        pager: deletes expired documents.
        keys: loads the keys of a bucket that was opened.
        compactor: chooses which segments of the log are rewritten.
        memory: frees memory near the quota.
    """

    def __init__(
        self,
        name: str,
        *,
        vbuckets: int = 1024,
        clock: Callable[[], int],
        new_vbuuid: Callable[[], int],
        segment_bytes: int = SEGMENT_BYTES,
        settings: BucketSettings | None = None,
    ) -> None:
        """Make a bucket in memory.

        Args:
            name: the bucket's name.
            vbuckets: how many vbuckets the bucket has.
            clock: returns nanoseconds since the epoch.
            new_vbuuid: returns a random number from 1 to 2^48-1 at each call.
            segment_bytes: the size of a log segment, at most 1 GiB.
            settings: the bucket's settings; None: the defaults.

        Raises:
            ValueError: the number of vbuckets or segment_bytes is not allowed.
        """
        log = MemoryLog(make_indexes(vbuckets), settings or BucketSettings(), segment_bytes=segment_bytes, clock=clock)
        self._set_up(name, log, BucketRecord(log), clock=clock, new_vbuuid=new_vbuuid)
        log.room.compact = self.memory.compact_now

    def _set_up(
        self, name: str, log: Log, record: BucketRecord, *, clock: Callable[[], int], new_vbuuid: Callable[[], int]
    ) -> None:
        self.name = name
        self.settings = log.compactions.settings
        self.log = log
        self.record = record
        self.changed: set[int] = set()
        self.recovery_summary = ""
        self.uuid: str = record.content.get("uuid", "")
        changes = [VbucketChanges(index, log, clock=clock, changed=self.changed) for index in log.segments.indexes]
        writer = DocumentWriter()
        self.vbuckets = [Vbucket(VbucketHistory(one, new_vbuuid=new_vbuuid), writer) for one in changes]
        log.segments.histories = [vbucket.history for vbucket in self.vbuckets]
        log.quota.measure = lambda: self.collect_stats().memory_bytes
        self.manifests = BucketManifest(log, record, writer)
        self.rollout = Rollout(log, self.vbuckets, self.manifests)
        self.eraser = BucketEraser(self.vbuckets, self.rollout)
        self.pager = ExpiryPager(self.vbuckets, self.eraser, clock)
        self.keys = KeyLoader(self.vbuckets)
        self.compactor = BucketCompactor(log, self.vbuckets, self.eraser)
        self.memory = BucketMemory(log, self.vbuckets, self.compactor, self.changed)
        self.set_settings(self.settings)

    @classmethod
    def open(
        cls,
        path: Path,
        name: str,
        *,
        vbuckets: int = 1024,
        clock: Callable[[], int],
        new_vbuuid: Callable[[], int],
        settings: BucketSettings | None = None,
        directory: Callable[[Path], Directory] = Directory,
    ) -> BucketStore:
        """Return the bucket in a directory, which is created if it is missing.

        Only one process can have a bucket open. After an unclean stop, all active vbuckets begin a branch at the newest
        change that was on disk.

        Args:
            path: the bucket's directory.
            name: the bucket's name.
            vbuckets: how many vbuckets the bucket has.
            clock: returns nanoseconds since the epoch.
            new_vbuuid: returns a random number from 1 to 2^48-1 at each call.
            settings: the bucket's settings; None: the defaults.
            directory: makes the object that reads and writes the files.

        Raises:
            StoreRefused: the directory belongs to another bucket, is in use, has an unknown format, or cannot be read
                or written.
            StoreDamaged: files of the bucket are damaged.
        """
        indexes = make_indexes(vbuckets)
        files = directory(path)
        with lock_while_opening(files) as undo:
            record = bucket_directory.read_record(files)
            if record is None:
                uuid = b"".join(new_vbuuid().to_bytes(8, "big") for _ in range(2))
                record = bucket_directory.create_record(files, name=name, uuid=uuid, vbuckets=vbuckets)
            bucket_directory.check_identity(record, path, name=name, vbuckets=vbuckets)
            log = DurableLog(
                indexes, files, settings or BucketSettings(), uuid=bytes.fromhex(record["uuid"]), clock=clock
            )
            undo.callback(log.release)
            log.inventory.revision = record.get("revision", 0)
            bucket = cls.__new__(cls)
            bucket._set_up(name, log, BucketRecord(log, files, record), clock=clock, new_vbuuid=new_vbuuid)
            bucket._recover(scan_files(files, record), log)
            bucket_directory.write_copy(files, bucket.record.content)
        return bucket

    def _recover(self, found: FoundFiles, log: DurableLog) -> None:
        self.recovery_summary = recover_vbuckets(log, self.vbuckets, found)
        for vbucket in self.vbuckets:
            if vbucket.history.state is VbucketState.ACTIVE:
                with suppress(*REFUSED):  # then the vbucket stays behind
                    self.rollout.catch_up(vbucket.id)
            elif vbucket.collections.manifest_uid is None:
                vbucket.collections.rebuild_state()
        finish_opening(log, self.record, found)

    def find(self, vbucket: int) -> Vbucket:
        """Return a vbucket that clients may use.

        Raises:
            NotMyVbucket: no active vbucket of this node has this number.
        """
        vbuckets = self.vbuckets
        if vbucket < len(vbuckets) and (found := vbuckets[vbucket]).history.is_served:
            return found
        raise NotMyVbucket(vbucket=vbucket)

    def find_existing(self, vbucket: int) -> Vbucket:
        """Return a vbucket in any state.

        Raises:
            NotMyVbucket: no vbucket has this number, or it is deleted.
        """
        if vbucket < len(self.vbuckets) and (found := self.vbuckets[vbucket]).history.state is not None:
            return found
        raise NotMyVbucket(vbucket=vbucket)

    def collect_stats(self) -> BucketStats:
        """Return the totals over all vbuckets. Takes time in proportion to their number."""
        segments = self.log.segments
        index_bytes = segments.index_bytes + sum(vbucket.changes.keys.nbytes for vbucket in self.vbuckets)
        return BucketStats(
            items=sum(vbucket.changes.items for vbucket in self.vbuckets),
            index_bytes=index_bytes,
            live_bytes=segments.frame_bytes - segments.dead_bytes,
            dead_bytes=segments.dead_bytes,
            segments=len(segments.sealed) + 1,
            memory_bytes=index_bytes + segments.frame_bytes - segments.mapped_bytes,
        )

    def set_settings(self, settings: BucketSettings) -> None:
        """Apply other settings from now on.

        The segment size applies to segments that begin later, the time limits to expiry times that are set later.
        """
        self.settings = settings
        self.log.set_settings(settings)
        for vbucket in self.vbuckets:
            vbucket.incoming.conflict_resolution = settings.conflict_resolution
        self.manifests.update_time_limits()

    def close(self) -> None:
        """Commit, and release the directory. The bucket must not be used afterwards."""
        self.log.close()


def make_indexes(vbuckets: int) -> list[RowIndex]:
    """Return an empty index for each vbucket.

    Raises:
        ValueError: the number of vbuckets is not a power of two from 1 to 65536.
    """
    if not 1 <= vbuckets <= 65536 or vbuckets & (vbuckets - 1):
        raise ValueError(f"{vbuckets} vbuckets, expected a power of two from 1 to 65536")
    return [RowIndex(vbucket) for vbucket in range(vbuckets)]
