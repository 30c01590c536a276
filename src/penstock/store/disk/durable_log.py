"""The change log of a bucket on disk.

Changes are packed as records into the buffer of the active log file, in the order of commits. A commit writes the
records since the last commit and syncs the file. A full log file is sealed. The next log file begins with a note of
the state of every vbucket, so that the log can be read from there. A compaction clusters the frames of sealed files in
a segment.

The files on disk are therefore segments, oldest first, and then log files, with consecutive numbers. The numbers of a
segment are those of the log files that it was made from. A segment whose numbers lie within those of another segment
is left over from a compaction.

One thread owns the log. LogCommits.run and Compaction.run may be called at the same time, from one other thread each.
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
from penstock.store.disk.segment_drafts import SegmentDrafts
from penstock.store.log.compaction import CompactionPlanner, RetentionWindow
from penstock.store.log.log_room import LogRoom
from penstock.store.log.log_segments import LoggedVbucket, LogSegments
from penstock.store.log.quota import Quota
from penstock.store.log.records import RECORD_BYTES, pack_file_header, read_seed
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Segment, new_active_buffer


class DurableLog:
    """The log of a bucket in a directory. It also has the attributes of Log.

    Attributes:
        directory: reads and writes all files.
        pending: the log files that are not completely on disk, and the active one.
        inventory: writes the list of files that the directory must have.
        drafts: new segments whose files have no names yet.
        commits: writes and syncs appended records.
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
        """Apply other settings from now on."""
        self.compactions.settings = self._retention.settings = settings
        self.quota.nbytes = settings.memory_bytes
        self.quota.usual_segment_bytes = settings.segment_bytes
        self.quota.invalidate()

    # Log files

    def roll(self, nbytes: int) -> None:
        """Seal the active log file, if there is one, and begin the next one with room for a record of nbytes."""
        number = self.pending.active.number
        file = self._make_file(number + 1, nbytes)  # first: where there is no memory for it, nothing changes
        if number:
            self.segments.seal(self._clock(), keeps_empty=True)
        self._append_to(file)

    def begin_file(self, number: int) -> None:
        """Begin a log file. The previous log file, if there is one, must be sealed."""
        self._append_to(self._make_file(number, 0))

    def _make_file(self, number: int, nbytes: int) -> LogFile:
        """Return a log file that begins with a note of every vbucket's state and of the previous file's size.

        Args:
            number: the number of the new file.
            nbytes: the file has room for the note and for a record of this size.
        """
        # While drafts have no names, files that are older than the oldest segment are on disk. They need their cuts.
        if not self.drafts.unnamed_count:
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
        """Append to an existing log file, after its first `end` bytes. It is the last file of the inventory.

        Args:
            sealed: all older segments and log files, oldest first.
            active: the content of the file to append to.
            end: the number of its bytes that are valid.

        Raises:
            OSError: a log file could not be opened or synced.
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
        """Check how many bytes wait for compaction or for the disk.

        Raises:
            TemporaryFailure: more than `most` bytes wait for either.
        """
        if max(self.segments.unclustered_bytes, self.pending.sealed_bytes) > most:
            raise TemporaryFailure("too many changes wait for the disk: it is too slow, or persistence is stopped")

    def find_persisted_seqno(self, index: RowIndex) -> int:
        """Return the seqno up to which a vbucket's changes are on disk."""
        return self.pending.find_persisted_seqno(index)

    # Notes

    def make_room_for_note(self, history: LoggedVbucket) -> None:
        """Make sure that a note about a vbucket can be written.

        Raises:
            TemporaryFailure: the log accepts no records at the moment.
        """
        self.room.check_fault()
        self._make_note_room(2 * len(pack_note(history.to_dict())))

    def write_note(self, history: LoggedVbucket, cut: int | None = None) -> None:
        """Write a note of a vbucket's state.

        Args:
            history: the vbucket.
            cut: a seqno; the vbucket's earlier records above it no longer count. None: no such cut.
        """
        fields: dict[str, Any] = {}
        if cut is not None:
            self.quota.invalidate()
            index = history.index
            index.cuts = [(number, seqno) for number, seqno in index.cuts if seqno < cut]
            index.cuts.append((self.pending.active.number, cut))
            fields = {"cut": cut}
        self._append_note(pack_note({**history.to_dict(), **fields}))

    def write_cas_note(self, vbucket: int, cas: int) -> None:
        """Write a note of a cas that was assigned without a change.

        Raises:
            TemporaryFailure: the log accepts no records at the moment.
        """
        text = pack_note({"cas": [vbucket, cas]})
        self.room.check_fault()
        if not self.pending.active.has_room(len(text)):
            self.room.check_backlog()
        self._append_note(text)

    def mark_opened(self) -> None:
        """Write a note that the bucket was opened. An earlier note of a clean end is no longer the last note then."""
        self._make_note_room(MARK_BYTES)
        self.pending.active.append_identifying_note(pack_note({"opened": True, **self._make_identity()}))

    def _make_identity(self) -> dict[str, int]:
        """Return the fields that distinguish this log file, and this opening of the bucket, from all others."""
        return {"at": self._clock(), "generation": self.inventory.newest.generation}

    def _append_note(self, text: bytes) -> None:
        self._make_note_room(len(text))
        self.pending.active.append(text, 0)

    def _make_note_room(self, nbytes: int) -> None:
        """Make sure that a record of nbytes fits. Notes are accepted even while the disk has a fault."""
        if not self.pending.active.has_room(nbytes):
            self.roll(nbytes)

    # Closing

    def close(self) -> None:
        """Commit all records, mark a clean end of the log, and release the directory for other processes."""
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
        """Release the directory for other processes, without a commit."""
        for file in self.pending.files:
            if file.descriptor is not None:
                self.directory.close(file.descriptor)
        self.pending.files.clear()
        self.directory.unlock()
