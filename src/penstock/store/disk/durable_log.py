"""The change log of a bucket on disk.

Changes are packed into the active log file's buffer in the order of commits, as records; a commit writes what has
gathered and syncs it. A log file that is full is sealed: the next one begins with a note of how things stand with every
vbucket, so that the log can be read from there, and a compaction clusters its frames in a segment of their own.

On disk there are therefore segments, oldest first, then log files, each numbered on from the one before. The numbers of
a segment are those of the log files that it was made from; one whose numbers lie within another's is a left-over.

One thread owns the log; LogCommits.run and Compaction.run may be called beside it, from one other thread each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import TemporaryFailure
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.disk_faults import DiskFaults
from penstock.store.disk.inventory_writer import InventoryWriter
from penstock.store.disk.log_commits import LogCommits
from penstock.store.disk.log_file import LogFile, reopen_synced
from penstock.store.disk.log_notes import CLEAN, MARK_BYTES, pack_note
from penstock.store.disk.pending_files import PendingFiles
from penstock.store.disk.retention_window import RetentionWindow
from penstock.store.disk.segment_drafts import SegmentDrafts
from penstock.store.log.compaction import CompactionPlanner
from penstock.store.log.log_room import LogRoom
from penstock.store.log.log_segments import LoggedVbucket, LogSegments
from penstock.store.log.quota import Quota
from penstock.store.log.records import RECORD_BYTES, pack_file_header, read_seed
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Segment, new_active_buffer

__all__ = ["DurableLog"]


class DurableLog:
    """The log in a directory.

    Attributes as of Log, and:
        directory: what does all reading and writing.
        pending: log files of which something is not on disk yet, with the active one.
        inventory: which files there must be.
        drafts: new segments whose files have no names yet.
        commits: writes and syncs.
    """

    durable = True

    def __init__(
        self,
        indexes: Sequence[RowIndex],
        directory: Directory,
        settings: BucketSettings,
        *,
        uuid: bytes,
        clock: Callable[[], int],
    ) -> None:
        self.directory = directory
        self._uuid = uuid
        self._clock = clock
        self.quota = Quota(settings.memory_bytes, settings.segment_bytes)
        self.pending = PendingFiles()
        self.segments = LogSegments(indexes, self.pending.active)
        self.room = LogRoom(self)
        faults = DiskFaults(self.room)
        self.inventory = InventoryWriter(directory, uuid, self.pending, faults)
        self.drafts = SegmentDrafts(
            directory,
            uuid,
            segments=self.segments,
            pending=self.pending,
            inventory=self.inventory,
            faults=faults,
            append_note=self._append_note,
        )
        self.commits = LogCommits(
            directory,
            self.room,
            pending=self.pending,
            inventory=self.inventory,
            drafts=self.drafts,
            faults=faults,
        )
        self._retention = RetentionWindow(settings, self.segments, self.pending, clock)
        self.compactions = CompactionPlanner(
            self.segments, self.quota, settings, storage=self.drafts, retention=self._retention, clock=clock
        )

    def set_settings(self, settings: BucketSettings) -> None:
        self.compactions.settings = self._retention.settings = settings
        self.quota.nbytes = settings.memory_bytes
        self.quota.usual_segment_bytes = settings.segment_bytes
        self.quota.invalidate()

    # Log files

    def roll(self, nbytes: int) -> None:
        number = self.pending.active.number
        file = self._make_file(number + 1, nbytes)  # first: where there is no memory for it, nothing changes
        if number:
            self.segments.seal(self._clock(), keeps_empty=True)
        self._append_to(file)

    def begin_file(self, number: int) -> None:
        """Begin a log file; the one before, if there is one, must be sealed."""
        self._append_to(self._make_file(number, 0))

    def _make_file(self, number: int, nbytes: int) -> LogFile:
        """Return a log file that begins with how things stand with every vbucket, and the size of the file before.

        nbytes: the file has room for a record of so many bytes more.
        """
        if not self.drafts.unnamed_count:  # otherwise files are there of which some are older than the oldest segment
            sealed = self.segments.sealed
            oldest = sealed[0].ids[1] if sealed else number
            for index in self.segments.indexes:
                index.cuts = [cut for cut in index.cuts if cut[0] > oldest]
        before = self.pending.active
        described = [history.to_dict() for history in self.segments.histories]
        head = pack_note({"head": described, "behind": before.end, **self._make_identity()})
        header = pack_file_header(self._uuid, number)
        needed = len(header) + len(head) + nbytes + 2 * RECORD_BYTES
        file = LogFile(number, new_active_buffer(max(self.quota.segment_bytes, needed)), appended=before.appended)
        file.write_head(header, head)
        return file

    def _append_to(self, file: LogFile) -> None:
        self.segments.begin_active(file)
        self.pending.add(file)
        self.room.raise_limit(0)

    def resume_file(self, sealed: list[Segment], active: Segment, end: int) -> None:
        """Append to a log file that is there, behind its first `end` bytes; active: what it holds.

        The inventory lists that file last.
        """
        for segment in sealed:
            if not segment.is_clustered:
                segment.sealed_at = self._clock()
                self.directory.close(reopen_synced(self.directory, segment.ids[0], len(segment.buffer)))
        self.segments.sealed = sealed
        number = active.ids[0]
        file = LogFile(number, new_active_buffer(max(self.quota.segment_bytes, end)), end=end)
        file.buffer[:end] = active.buffer[:end]
        file.seed = read_seed(pack_file_header(self._uuid, number))
        file.identity = self.inventory.newest.logs[-1].identity
        file.is_listed = True
        file.reopen(self.directory)
        self._append_to(file)
        fate = active.fates
        for index in self.segments.indexes:
            rows = slice(active.starts[index.vbucket], active.starts[index.vbucket + 1])
            index.fill_tail(active, rows, int(active.lengths[rows][fate[rows] > 0].sum()))

    def check_backlog(self, most: int) -> None:
        if max(self.segments.unclustered_bytes, self.pending.sealed_bytes) > most:
            raise TemporaryFailure("too many changes wait for the disk: it is too slow, or persistence is stopped")

    def find_persisted_seqno(self, index: RowIndex) -> int:
        return self.pending.find_persisted_seqno(index)

    # Notes

    def make_room_for_note(self, history: LoggedVbucket) -> None:
        self.room.check_fault()
        self._make_note_room(2 * len(pack_note(history.to_dict())))

    def write_note(self, history: LoggedVbucket, cut: int | None = None) -> None:
        said: dict[str, Any] = {}
        if cut is not None:
            self.quota.invalidate()
            index = history.index
            index.cuts = [(number, seqno) for number, seqno in index.cuts if seqno < cut]
            index.cuts.append((self.pending.active.number, cut))
            said = {"cut": cut}
        self._append_note(pack_note({**history.to_dict(), **said}))

    def write_cas_note(self, vbucket: int, cas: int) -> None:
        text = pack_note({"cas": [vbucket, cas]})
        self.room.check_fault()
        if not self.pending.active.has_room(len(text)):
            self.room.check_backlog()
        self._append_note(text)

    def mark_opened(self) -> None:
        """Write that the bucket is open, so that a clean stop before this one is not the last word."""
        self._make_note_room(MARK_BYTES)
        self.pending.active.append_identifying_note(pack_note({"opened": True, **self._make_identity()}))

    def _make_identity(self) -> dict[str, int]:
        """Return what tells this log file, and this opening of the bucket, from all others."""
        return {"at": self._clock(), "generation": self.inventory.newest.generation}

    def _append_note(self, text: bytes) -> None:
        self._make_note_room(len(text))
        self.pending.active.append(text, 0)

    def _make_note_room(self, nbytes: int) -> None:
        """See to it that a record of nbytes fits, whatever the disk says."""
        if not self.pending.active.has_room(nbytes):
            self.roll(nbytes)

    # Its end

    def close(self) -> None:
        """Commit, with the mark of a clean stop; then let others have the directory."""
        self.commits.run()
        if self.room.fault is None:
            self._mark_closed()
        self.release()

    def _mark_closed(self) -> None:
        self._make_note_room(MARK_BYTES)
        self.pending.active.append(CLEAN, 0)
        self.commits.run()
        if self.room.fault is None:
            self.commits.write_inventory(clean=True)

    def release(self) -> None:
        """Let others have the directory, whatever is not on disk."""
        for file in self.pending.files:
            if file.descriptor is not None:
                self.directory.close(file.descriptor)
        self.pending.files.clear()
        self.directory.unlock()
