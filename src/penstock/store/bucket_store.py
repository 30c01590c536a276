"""A bucket: its vbuckets, over one log."""

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
from penstock.store.bucket.bucket_opening import finish_opening, opening, recover_vbuckets
from penstock.store.bucket.bucket_record import BucketRecord
from penstock.store.bucket.expiry_pager import ExpiryPager
from penstock.store.bucket.key_loader import KeyLoader
from penstock.store.bucket.rollout import Rollout
from penstock.store.definition.bucket_settings import Settings
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.durable_log import DurableLog
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.vbucket_changes import REFUSED, VbucketChanges
from penstock.store.history.vbucket_history import History
from penstock.store.log.change_log import Log, MemoryLog
from penstock.store.log.quota import SEGMENT_BYTES
from penstock.store.log.row_index import RowIndex
from penstock.store.recovery import bucket_directory
from penstock.store.recovery.file_scan import look
from penstock.store.recovery.found_files import Found
from penstock.wire.codec.constants import VbucketState

__all__ = ["BucketStats", "BucketStore"]


class BucketStats(NamedTuple):
    """The totals over all vbuckets of a bucket.

    Attributes:
        items: documents.
        index_bytes: an estimate of what keys and rows occupy in memory; a part of memory_bytes.
        live_bytes: frames that count.
        dead_bytes: frames that were superseded.
        segments: sealed ones and the active one.
        memory_bytes: what is in memory; segments that are mapped from their files do not count.
    """

    items: int
    index_bytes: int
    live_bytes: int
    dead_bytes: int
    segments: int
    memory_bytes: int


class BucketStore:
    """A bucket, in memory or, where `open` made it, on disk; at first all of its vbuckets are active.

    Attributes:
        vbuckets: by number. How many there are is a power of two up to 65536.
        log: their changes, in memory or on disk: what is committed, what is not, and why nothing can be stored.
        settings: in memory those about files and retention do not matter.
        changed: numbers of vbuckets in which an access has found a document expired, so that its deletion is the
            newest change; for the caller to take out.
        recovered: what opening it found, in words; empty where there was nothing.
        uuid: of the bucket on disk, in hexadecimal, else empty.
        record: what is written down of it beside its changes.
        manifests: which scopes and collections there are.
        rollout: brings a new manifest, or a flush, to all vbuckets.
        eraser: erases what dropped collections have left.
        pager: ends documents whose time is over.
        keys: loads the keys of a bucket that was opened.
        compactor: chooses what of the log is rewritten.
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
        settings: Settings | None = None,
    ) -> None:
        """Make a bucket in memory.

        clock: nanoseconds since the epoch. new_vbuuid: a random number from 1 to 2^48-1 at each call. Raises
        ValueError for another number of vbuckets or segments over 1 GiB.
        """
        log = MemoryLog(new_indexes(vbuckets), settings or Settings(), segment_bytes=segment_bytes, clock=clock)
        self._set_up(name, log, BucketRecord(log), clock=clock, new_vbuuid=new_vbuuid)
        log.room.compact = self.memory.compact_here

    def _set_up(
        self, name: str, log: Log, record: BucketRecord, *, clock: Callable[[], int], new_vbuuid: Callable[[], int]
    ) -> None:
        self.name = name
        self.settings = log.compactions.settings
        self.log = log
        self.record = record
        self.changed: set[int] = set()
        self.recovered = ""
        self.uuid: str = record.said.get("uuid", "")
        changes = [VbucketChanges(index, log, clock=clock, changed=self.changed) for index in log.segments.indexes]
        self.vbuckets = [Vbucket(History(one, new_vbuuid=new_vbuuid)) for one in changes]
        log.segments.histories = [vbucket.history for vbucket in self.vbuckets]
        log.quota.measure = lambda: self.stats().memory_bytes
        self.manifests = BucketManifest(log, record, self.vbuckets)
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
        settings: Settings | None = None,
        directory: Callable[[Path], Directory] = Directory,
    ) -> BucketStore:
        """Return the bucket in a directory, which is made if there is none. Only one process can have it open.

        After a stop that was not clean all active vbuckets begin a branch at the newest change that was on disk.
        directory: what does all reading and writing. Raises StoreRefused if the directory is another bucket's, in use,
        of another format, or cannot be read and written to; StoreDamaged.
        """
        indexes = new_indexes(vbuckets)
        files = directory(path)
        with opening(files) as undo:
            said = bucket_directory.said_by(files)
            if said is None:
                uuid = b"".join(new_vbuuid().to_bytes(8, "big") for _ in range(2))
                said = bucket_directory.make(files, name=name, uuid=uuid, vbuckets=vbuckets)
            bucket_directory.check_same(said, path, name=name, vbuckets=vbuckets)
            log = DurableLog(indexes, files, settings or Settings(), uuid=bytes.fromhex(said["uuid"]), clock=clock)
            undo.callback(log.let_go)
            log.inventory.revision = said.get("revision", 0)
            bucket = cls.__new__(cls)
            bucket._set_up(name, log, BucketRecord(log, files, said), clock=clock, new_vbuuid=new_vbuuid)
            bucket._recover(look(files, said), log)
            bucket_directory.keep_copy(files, bucket.record.said)
        return bucket

    def _recover(self, found: Found, log: DurableLog) -> None:
        self.recovered = recover_vbuckets(log, self.vbuckets, found)
        for vbucket in self.vbuckets:
            if vbucket.history.state is VbucketState.ACTIVE:
                with suppress(*REFUSED):  # then the vbucket stays behind
                    self.rollout.catch_up(vbucket.id)
            elif vbucket.collections.manifest_uid is None:
                vbucket.collections.relearn()
        finish_opening(log, self.record, found)

    def find(self, vbucket: int) -> Vbucket:
        """Return an active vbucket. Raises NotMyVbucket if there is none of that number."""
        if vbucket < len(self.vbuckets) and (found := self.vbuckets[vbucket]).history.state is VbucketState.ACTIVE:
            return found
        raise NotMyVbucket(vbucket=vbucket)

    def existing(self, vbucket: int) -> Vbucket:
        """Return a vbucket in whatever state. Raises NotMyVbucket if it is deleted or there is none of that number."""
        if vbucket < len(self.vbuckets) and (found := self.vbuckets[vbucket]).history.state is not None:
            return found
        raise NotMyVbucket(vbucket=vbucket)

    def stats(self) -> BucketStats:
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

    def set_settings(self, settings: Settings) -> None:
        """Take other settings from now on: of segments those that are begun, of expiry times those that are set."""
        self.settings = settings
        self.log.set_settings(settings)
        for vbucket in self.vbuckets:
            vbucket.incoming.conflict_resolution = settings.conflict_resolution
        self.manifests.limit_times()

    def close(self) -> None:
        """Commit, and let others have the directory. The bucket must not be used any more."""
        self.log.close()


def new_indexes(vbuckets: int) -> list[RowIndex]:
    """Return an empty index for each vbucket. Raises ValueError unless their number is a power of two up to 65536."""
    if not 1 <= vbuckets <= 65536 or vbuckets & (vbuckets - 1):
        raise ValueError(f"{vbuckets} vbuckets, expected a power of two from 1 to 65536")
    return [RowIndex(vbucket) for vbucket in range(vbuckets)]
