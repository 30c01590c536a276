"""A bucket: its vbuckets, over one log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import NotMyVbucket, StoreDamaged, StoreRefused, TemporaryFailure
from penstock.store.definition.bucket_settings import Settings
from penstock.store.definition.manifest import DEFAULT_MANIFEST, Manifest, changes_between, subjects_of
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.durable_log import DurableLog
from penstock.store.documents.deleter import Deleter
from penstock.store.documents.time_to_live import time_limits
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.event_frames import EventFrame, packed_events, room_for
from penstock.store.history.scoped_history import REFUSED
from penstock.store.log.change_log import Log, MemoryLog
from penstock.store.log.compaction import Compaction
from penstock.store.log.frame_fields import expiries, keys
from penstock.store.log.quota import SEGMENT_BYTES
from penstock.store.log.rewrite import PurgeRequest
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Column
from penstock.store.recovery import bucket_directory
from penstock.store.recovery.file_scan import complete, look
from penstock.store.recovery.found_files import Found
from penstock.store.recovery.log_replay import recover
from penstock.wire.codec.constants import VbucketState

__all__ = ["BucketStats", "BucketStore"]

_NANOSECONDS = 10**9
_ROWS_AT_ONCE = 16 * 1024  # a few milliseconds of work
_ERASED_AT_ONCE = 8 * 1024  # as many
_EVENTS_AT_ONCE = 256  # a millisecond of work
_EVENTS_PER_VBUCKET = 8  # that take as long as what is written about a vbucket beside its events
_EVENTS_PER_VBUCKET_SEALED = 2  # that take as long as to seal a vbucket's part of a segment
_EXPIRED_AT_ONCE = 256  # tombstones, about a millisecond of work
_ROWS_PER_EXPIRED = 32  # that are looked at in the time that a tombstone takes
_ROWS_PER_CALL = 256  # that take as long as to begin and end with a vbucket, or its part of a segment


class BucketStats(NamedTuple):
    """items: documents. index_bytes: an estimate. segments: sealed ones and the active one.

    memory_bytes: what is in memory; segments that are mapped from their files do not count. index_bytes: of keys and
    rows in memory, a part of it.
    """

    items: int
    index_bytes: int
    live_bytes: int
    dead_bytes: int
    segments: int
    memory_bytes: int


class ManifestStep(NamedTuple):
    """A change of the manifest.

    Attributes:
        before: uid of the manifest that it changed.
        uid: of the manifest that it made.
        events: what each active vbucket writes about it.
    """

    before: int
    uid: int
    events: Sequence[EventFrame]


class BucketStore:
    """A bucket, in memory or, where `open` made it, on disk; at first all of its vbuckets are active.

    changed: numbers of vbuckets in which an access has found a document expired, so that its deletion is the newest
    change; for the caller to take out. recovered: what opening it found, in words; empty where there was nothing.
    uuid: of the bucket on disk, in hexadecimal, else empty. manifest: which scopes and collections there are.
    auto_deleted: how many documents were deleted because memory was short. on_flush: called with each vbucket that a
    flush has emptied, at once.

    vbuckets: how many, a power of two up to 65536. clock: nanoseconds since the epoch. new_vbuuid: a random number
    from 1 to 2^48-1 at each call. settings: in memory those about files and retention do not matter. Raises
    ValueError for another number of vbuckets or segments over 1 GiB.
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
        indexes = _indexes(vbuckets)
        settings = settings or Settings()
        log = MemoryLog(indexes, settings, segment_bytes=segment_bytes, clock=clock)
        log.room.compact = self._compact_here
        self._set_up(settings, log, name=name, clock=clock, new_vbuuid=new_vbuuid)

    def _set_up(
        self,
        settings: Settings,
        log: Log,
        *,
        name: str,
        clock: Callable[[], int],
        new_vbuuid: Callable[[], int],
    ) -> None:
        self.name = name
        self.settings = settings
        self.log = log
        self.changed: set[int] = set()
        self.manifest = DEFAULT_MANIFEST
        self.recovered = ""
        self.uuid = ""
        self.vbuckets = [
            Vbucket(index, log, clock=clock, new_vbuuid=new_vbuuid, changed=self.changed)
            for index in log.segments.indexes
        ]
        for vbucket in self.vbuckets:
            vbucket.conflict_resolution = settings.conflict_resolution
            vbucket.catch_up = self._catch_up
        self._directory: Directory | None = None
        self._said: dict[str, Any] = {"properties": {}}
        self._untold: dict[int, list[ManifestStep]] = {}  # of each vbucket that is behind
        self._unflushed: set[int] = set()  # vbuckets, of those that are behind
        self._first = 0, packed_events(())  # a manifest's uid, and what a vbucket without a history writes of it
        self.on_flush: Callable[[Vbucket], None] = lambda _: None
        self._limit_times()
        log.segments.histories = self.vbuckets
        log.room.can_delete = self._can_delete
        log.quota.measure = lambda: self.stats().memory_bytes
        self._clock = clock
        self._unloaded = iter(self.vbuckets)
        self._pager: Iterator[int] | None = None
        self._deleter: Deleter | None = None
        self.auto_deleted = 0

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
        indexes = _indexes(vbuckets)
        settings = settings or Settings()
        files = directory(path)
        bucket_directory.enter(files)
        with ExitStack() as undo:
            undo.callback(files.unlock)
            try:
                said = bucket_directory.said_by(files)
                if said is None:
                    uuid = b"".join(new_vbuuid().to_bytes(8, "big") for _ in range(2))
                    said = bucket_directory.make(files, name=name, uuid=uuid, vbuckets=vbuckets)
                bucket_directory.check_same(said, path, name=name, vbuckets=vbuckets)
                uuid = bytes.fromhex(said["uuid"])
                log = DurableLog(indexes, files, settings, uuid=uuid, clock=clock)
                undo.callback(log.let_go)
                bucket = cls.__new__(cls)
                bucket._set_up(settings, log, name=name, clock=clock, new_vbuuid=new_vbuuid)
                bucket.uuid = said["uuid"]
                bucket._directory, bucket._said = files, dict(said)
                bucket.manifest = Manifest.restored(said["manifest"])
                bucket._limit_times()
                log.inventory.revision = said.get("revision", 0)
                bucket._recover(look(files, said), log)
                bucket._write_format()
                bucket_directory.keep_copy(files, bucket._said)
            except TemporaryFailure as error:
                raise StoreRefused(f"{path}: {error}") from error
            except OSError as error:
                raise StoreRefused(bucket_directory.refusal(path, "read and written to", error)) from error
            undo.pop_all()
        return bucket

    def _recover(self, found: Found, log: DurableLog) -> None:
        if found.damage:
            more = f", and {len(found.damage) - 1} more" if len(found.damage) > 1 else ""
            raise StoreDamaged(
                f"{log.directory.path}: {found.damage[0]}{more}; `penstock check` says what can be saved, and "
                "`penstock check --repair` saves it"
            )
        if found.logs:
            recover(log, self.vbuckets, found)
            log.commits.relist()  # from here on the log may be longer than it says
            _check_fault(log)  # files that are not listed may neither get their names nor replace others
            complete(log.directory, found)
            self.recovered = found.summary
            if not found.clean:
                for vbucket in self.vbuckets:
                    if vbucket.state is VbucketState.ACTIVE:
                        vbucket.begin_branch()
            log.mark_opened()
        else:
            self.recovered = found.summary if found.torn else ""
            log.begin_file(1, 0)
        for vbucket in self.vbuckets:
            if vbucket.state is VbucketState.ACTIVE:
                with suppress(*REFUSED):  # then the vbucket stays behind
                    self._catch_up(vbucket.id)
            elif vbucket.manifest_uid is None:
                vbucket.relearn()
        for left_over in found.obsolete:
            log.directory.remove(left_over)
        if found.logs:
            self._write_format()  # before a note that an older release cannot read, behind the inventory
        log.commits.run()
        if log.room.fault is None and found.logs:
            log.commits.relist()  # with the mark of this opening
        _check_fault(log)

    def find(self, vbucket: int) -> Vbucket:
        """Return an active vbucket. Raises NotMyVbucket if there is none of that number."""
        if vbucket < len(self.vbuckets) and (found := self.vbuckets[vbucket]).state is VbucketState.ACTIVE:
            return found
        raise NotMyVbucket(vbucket=vbucket)

    def existing(self, vbucket: int) -> Vbucket:
        """Return a vbucket in whatever state. Raises NotMyVbucket if it is deleted or there is none of that number."""
        if vbucket < len(self.vbuckets) and (found := self.vbuckets[vbucket]).state is not None:
            return found
        raise NotMyVbucket(vbucket=vbucket)

    def stats(self) -> BucketStats:
        """Return the totals over all vbuckets. Takes time in proportion to their number."""
        log = self.log
        index_bytes = log.segments.index_bytes + sum(vbucket.index_bytes for vbucket in self.vbuckets)
        return BucketStats(
            items=sum(vbucket.items for vbucket in self.vbuckets),
            index_bytes=index_bytes,
            live_bytes=log.segments.frame_bytes - log.segments.dead_bytes,
            dead_bytes=log.segments.dead_bytes,
            segments=len(log.segments.sealed) + 1,
            memory_bytes=index_bytes + log.segments.frame_bytes - log.segments.mapped_bytes,
        )

    # What it is to be like

    def set_manifest(self, manifest: Manifest) -> None:
        """Let these be the scopes and collections: on disk first, then all active vbuckets tell of what has changed.

        What was in a dropped collection goes with `erase`. Raises as Manifest.followed_by does, and TemporaryFailure,
        with nothing changed, where the disk does not take it.
        """
        self.begin_manifest(manifest)
        while self.spread_manifest(len(self.vbuckets)):
            pass

    def begin_manifest(self, manifest: Manifest) -> None:
        """As `set_manifest`, but the vbuckets are behind.

        Each writes its events before its next change, before a document is read from it, or when `spread_manifest`
        comes to it. What it holds is the same in all three cases.
        """
        old, new = self.manifest, self.manifest.followed_by(manifest)
        if new.uid == old.uid:
            return
        if self.fault is not None:
            raise TemporaryFailure(self.fault)
        self._write_down("manifest", new.described())
        self.manifest = new
        self._limit_times()
        events = packed_events(subjects_of(changes_between(old, new), old.uid, new.uid))
        step = ManifestStep(old.uid, new.uid, events)
        for vbucket in self.vbuckets:
            if vbucket.state is VbucketState.ACTIVE:
                self._untold.setdefault(vbucket.id, []).append(step)
                vbucket.behind = True

    def begin_flush(self) -> None:
        """Empty all active vbuckets, as `Vbucket.reset` does. They are behind until then, as with `begin_manifest`.

        So commands on documents find the whole bucket empty from now on. Until `is_behind` is false, all else may still
        find the old history of a vbucket. Raises TemporaryFailure, with nothing changed, while the log takes nothing.
        """
        self.log.room.check()
        for vbucket in self.vbuckets:
            if vbucket.state is VbucketState.ACTIVE:
                self._unflushed.add(vbucket.id)
                self._untold.setdefault(vbucket.id, [])
                vbucket.behind = True

    def abandon_flush(self) -> bool:
        """Let the vbuckets that a flush has not emptied yet keep what they have; False: there are none."""
        abandoned = bool(self._unflushed)
        self._unflushed.clear()
        return abandoned

    def spread_manifest(self, events: int = _EVENTS_AT_ONCE) -> bool:
        """Let the next vbuckets that are behind catch up; False: none is behind, or the log takes nothing.

        events: how many they write, all vbuckets together; at least one vbucket's, or a segment is begun for them.
        """
        while events > 0 and self._untold:
            number, steps = next(iter(self._untold.items()))
            due = [event for step in steps for event in step.events]
            if number in self._unflushed:
                due = self._first_events()
            if due and self.log.room.begin_segment_for(room_for(due)):
                events -= _EVENTS_PER_VBUCKET_SEALED * len(self.vbuckets)
                continue
            events -= _EVENTS_PER_VBUCKET + len(due)
            try:
                self._catch_up(number)
            except REFUSED:
                return False
        return bool(self._untold)

    def set_settings(self, settings: Settings) -> None:
        """Take other settings from now on: of segments those that are begun, of expiry times those that are set."""
        self.settings = settings
        self.log.set_settings(settings)
        for vbucket in self.vbuckets:
            vbucket.conflict_resolution = settings.conflict_resolution
        self._limit_times()

    def _limit_times(self) -> None:
        limits = time_limits(self.manifest, self.settings.max_ttl)
        for vbucket in self.vbuckets:
            vbucket.time_limits = limits

    @property
    def is_behind(self) -> bool:
        """Whether a vbucket has yet to write events of the manifest, or to be flushed."""
        return bool(self._untold)

    def _catch_up(self, number: int) -> None:
        """Let a vbucket be flushed, if that is due, and write the system events that it lacks, if it is active.

        A vbucket that has a newer manifest, from where it is a copy of, keeps that. Raises TemporaryFailure or
        OutOfMemory; then the vbucket stays behind.
        """
        vbucket, steps = self.vbuckets[number], self._untold.pop(number, [])
        vbucket.behind = False
        if vbucket.state is not VbucketState.ACTIVE:
            self._unflushed.discard(number)
            return
        try:
            if number in self._unflushed:
                self._flush(vbucket)
                return
            if vbucket.manifest_uid == self.manifest.uid:
                return
            for step in steps:
                if vbucket.manifest_uid == step.before:
                    vbucket.tell(step.events)
                    vbucket.up_to(step.uid)
            if vbucket.manifest_uid != self.manifest.uid:
                self._compare(vbucket)
        except REFUSED:
            self._leave_behind(number)
            raise

    def _flush(self, vbucket: Vbucket) -> None:
        """Empty a vbucket, which then has the newest manifest, too. Raises TemporaryFailure; then it stays due.

        Above the quota it stays behind the manifest: each try would measure how much memory is in use.
        """
        self._unflushed.discard(vbucket.id)
        vbucket.catch_up = self._leave_behind
        try:
            vbucket.reset()
        except REFUSED:
            self._unflushed.add(vbucket.id)
            raise
        finally:
            vbucket.catch_up = self._catch_up
        if not self.log.quota.is_exceeded:
            with suppress(*REFUSED):
                self._catch_up(vbucket.id)
        self.on_flush(vbucket)

    def _leave_behind(self, number: int) -> None:
        self._untold[number] = []
        self.vbuckets[number].behind = True

    def _compare(self, vbucket: Vbucket) -> None:
        """Let a vbucket write events of which it has to be found out first whether it lacks them."""
        doubtful = vbucket.manifest_uid is None
        if doubtful:
            vbucket.relearn()
        before, manifest = vbucket.manifest_uid or 0, self.manifest
        if before > manifest.uid:
            return
        if vbucket.ledger is None:
            events = self._first_events()
        else:
            events = packed_events(subjects_of(changes_between(vbucket.manifest(), manifest), before, manifest.uid))
        if events:
            vbucket.tell(events)
            if doubtful:
                vbucket.relearn()  # what is in collections whose beginning was lost counts, too
        vbucket.up_to(manifest.uid)

    def _first_events(self) -> list[EventFrame]:
        """Return what a vbucket without a history writes of the manifest."""
        manifest = self.manifest
        if self._first[0] != manifest.uid:
            changes = changes_between(DEFAULT_MANIFEST, manifest)
            self._first = manifest.uid, packed_events(subjects_of(changes, 0, manifest.uid))
        return self._first[1]

    def erase(self) -> bool:
        """Go on with what is left of dropped collections, a few milliseconds' worth; False: nothing is left."""
        if self.spread_manifest():
            return True  # nothing may be erased that an event, which is yet to be written, is about
        rows = 0
        for vbucket in self.vbuckets:
            while rows < _ERASED_AT_ONCE and (taken := vbucket.erase_some(_ERASED_AT_ONCE - rows)):
                rows += taken + _ROWS_PER_CALL
        return rows >= _ERASED_AT_ONCE

    @property
    def properties(self) -> Mapping[str, Any]:
        """What `set_properties` was given last; at first there are none."""
        return dict(self._said["properties"])

    def set_properties(self, properties: Mapping[str, Any]) -> None:
        """Keep a JSON object for the caller. Raises TemporaryFailure where the disk does not take it."""
        self._write_down("properties", json.loads(json.dumps(properties)))

    def _write_format(self) -> None:
        if self._said["format"] != bucket_directory.FORMAT:
            self._write_down("format", bucket_directory.FORMAT)

    def _write_down(self, name: str, what: object) -> None:
        said = {**self._said, name: what, "revision": self._said.get("revision", 0) + 1}
        if self._directory is not None:
            try:
                bucket_directory.write(self._directory, said)
            except OSError as error:
                raise TemporaryFailure(f"the disk does not take it: {error.strerror or error}") from error
        self._said = said
        if isinstance(self.log, DurableLog):
            self.log.inventory.revision = said["revision"]

    # On disk

    @property
    def durable(self) -> bool:
        return self.log.durable

    @property
    def uncommitted(self) -> int:
        """How many changes no commit has taken yet; 0 in memory."""
        return self.log.commits.uncommitted

    @property
    def unpersisted(self) -> int:
        """How many changes are not on disk yet, those of the commit under way included; 0 in memory."""
        return self.log.commits.unpersisted

    @property
    def fault(self) -> str | None:
        """Why nothing can be stored just now, None if it can. A commit that succeeds ends it, unless it is `broken`."""
        return self.log.room.fault

    @property
    def broken(self) -> bool:
        """Nobody knows what is on disk: nothing is stored any more, and nothing acknowledged as persisted."""
        return self.log.commits.broken

    def commit(self) -> None:
        """Write to disk all that was changed before; in memory nothing happens.

        May be called on another thread than that which changes the bucket, one call at a time. What goes wrong shows
        in `fault`.
        """
        self.log.commits.run()

    def compaction(self, everything: bool = False, purge: PurgeRequest | None = None) -> Compaction | None:
        """Return the next piece of rewriting that is worth doing; None while there is none, or one is under way.

        Call its `run` on any thread, then its `finish` on this one. everything: also where there is little to gain,
        each segment once, until None is returned; `seal` first, and commit, lest the newest changes are left out.
        purge: tombstones to drop before their time.
        """
        purged = self.log.compactions.purged
        for vbucket, key, seqno, _ in purged[-_ROWS_AT_ONCE:]:
            self.vbuckets[vbucket].forget_key(key, seqno)
        del purged[-_ROWS_AT_ONCE:]
        if any(vbucket.erasing for vbucket in self.vbuckets):
            return None  # the event that ended a collection stays until nothing of it counts
        return self.log.compactions.next_piece(everything, purge)

    def _compact_here(self) -> None:
        """Rewrite the next piece now; where memory is short, free as much as can be.

        A caller that compacts on a thread sets another `log.room.compact`.
        """
        if self._deleter is not None:
            return  # its deletions ask for room
        while (piece := self.compaction()) is not None:
            piece.run()
            piece.finish()
            self.log.quota.look()
            if not self.log.quota.is_pressed:
                return
        while self.free_memory():
            pass

    def _can_delete(self) -> bool:
        return self.settings.auto_delete and any(
            vbucket.items for vbucket in self.vbuckets if vbucket.state is VbucketState.ACTIVE
        )

    def free_memory(self) -> bool:
        """Delete old documents while memory is short, a few milliseconds' worth; False: enough, or none may be deleted.

        Compaction then drops what they have left. Only active vbuckets delete; copies of them follow.
        """
        if self._deleter is None:
            quota = self.log.quota
            if not (quota.is_pressed and self._can_delete()):
                return False
            wanted = quota.measure() - self.log.segments.dead_bytes - quota.low_water
            if wanted <= 0:
                return False
            self._deleter = Deleter(self.log, self.vbuckets, wanted)
        deleted = self._deleter.delete_some()
        self.auto_deleted += len(deleted)
        self.changed.update(deleted)
        if self._deleter.is_done:
            self._deleter = None
        return self._deleter is not None

    def seal(self) -> None:
        """Let the active segment be rewritten like others."""
        self.log.room.seal()

    def compact(self) -> None:
        """Rewrite everything, here and now. Raises TemporaryFailure where the disk does not take it."""
        while self.erase():
            pass
        self.seal()
        self.commit()
        while (compaction := self.compaction(everything=True)) is not None:
            compaction.run()
            compaction.finish()
            if compaction.error is not None:
                raise TemporaryFailure(f"the disk does not take it: {compaction.error.strerror or compaction.error}")
            self.commit()
        if self.fault is not None:
            raise TemporaryFailure(self.fault)

    def load_keys(self) -> bool:
        """Go on with keys that are left to be loaded or freed, a few milliseconds' worth; False: that was all.

        A command on a vbucket whose keys are not there yet waits for them.
        """
        rows = 0
        while rows < _ROWS_AT_ONCE:
            vbucket = next(self._unloaded, None)
            if vbucket is None:
                self._unloaded = iter(self.vbuckets)
                return False
            while rows < _ROWS_AT_ONCE and (taken := vbucket.load_some_keys()):
                rows += taken
            if rows >= _ROWS_AT_ONCE:
                self._unloaded = iter([vbucket, *self._unloaded])
        return True

    def expire(self) -> bool:
        """Turn documents whose time is over into tombstones, a few milliseconds' worth; False: that was the last."""
        if self.erase():
            return True  # nothing may come of a collection behind the event that it has ended
        if self._pager is None:
            self._pager = self._expiring()
        rows = 0
        for looked_at in self._pager:
            rows += looked_at
            if rows >= _ROWS_AT_ONCE:
                return True
        self._pager = None
        return False

    def _expiring(self) -> Iterator[int]:
        now = self._clock() // _NANOSECONDS
        for vbucket in self.vbuckets:
            if vbucket.state is VbucketState.ACTIVE:
                for buffer, offsets, _ in vbucket.index.live():
                    for first in range(0, len(offsets), _ROWS_AT_ONCE):
                        yield from _expire(vbucket, buffer, offsets[first : first + _ROWS_AT_ONCE], now)
                    yield _ROWS_PER_CALL

    def close(self) -> None:
        """Commit, and let others have the directory. The bucket must not be used any more."""
        self.log.close()


def _expire(vbucket: Vbucket, buffer: memoryview, offsets: Column, now: int) -> Iterator[int]:
    """End the documents in some frames whose time is over. Yields the work that this was, in rows, piece by piece."""
    times = expiries(buffer, offsets)
    over = offsets[(times > 0) & (times <= now)]
    for first in range(0, len(over), _EXPIRED_AT_ONCE):
        some = over[first : first + _EXPIRED_AT_ONCE]
        for key in keys(buffer, some):
            vbucket.get(key)
        yield len(some) * _ROWS_PER_EXPIRED
    yield len(offsets)


def _check_fault(log: DurableLog) -> None:
    """Raise StoreRefused if the disk did not take what was written."""
    if log.room.fault is not None:
        raise StoreRefused(f"{log.directory.path}: {log.room.fault}")


def _indexes(vbuckets: int) -> list[RowIndex]:
    if not 1 <= vbuckets <= 65536 or vbuckets & (vbuckets - 1):
        raise ValueError(f"{vbuckets} vbuckets, expected a power of two from 1 to 65536")
    return [RowIndex(vbucket) for vbucket in range(vbuckets)]
