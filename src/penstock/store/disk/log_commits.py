"""Commits: records that were appended to a log are written to its files and synced."""

from __future__ import annotations

from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.disk_faults import DiskFaults
from penstock.store.disk.inventory_writer import InventoryWriter
from penstock.store.disk.log_file import LogFile, make_log_name
from penstock.store.disk.pending_files import PendingFiles
from penstock.store.disk.segment_drafts import SegmentDrafts
from penstock.store.log.log_room import LogRoom


class LogCommits:
    """Writes and syncs appended records, one commit at a time. A commit may run on a separate thread."""

    def __init__(
        self,
        directory: Directory,
        room: LogRoom,
        *,
        pending: PendingFiles,
        inventory: InventoryWriter,
        drafts: SegmentDrafts,
        faults: DiskFaults,
    ) -> None:
        self._directory = directory
        self._room = room
        self._pending = pending
        self._inventory = inventory
        self._drafts = drafts
        self._faults = faults
        # Both count records. Only the thread that commits writes them.
        self._taken = 0  # records that a commit has taken
        self._committed = 0  # records of commits that succeeded

    @property
    def is_broken(self) -> bool:
        """Whether the content of the disk is unknown, so that the log accepts no changes."""
        return self._faults.is_broken

    @property
    def uncommitted_records(self) -> int:
        """How many records no commit has taken yet."""
        return self._pending.active.appended - self._taken

    @property
    def unpersisted_records(self) -> int:
        """How many records are not on disk yet, those of a running commit included."""
        return self._pending.active.appended - self._committed

    def run(self) -> None:
        """Write and sync all records that were appended before the call.

        If that fails, `fault` of the room has the reason, and the log refuses changes.
        """
        if self.is_broken:
            return
        before, self._taken = self._taken, self._pending.active.appended
        unnamed = self._drafts.unnamed_count  # their notes are among the records of this commit
        try:
            for file in tuple(self._pending.files):
                self._commit_file(file)
            self._drafts.name_files(unnamed)
        except OSError as error:
            self._taken = before
            self._faults.refuse_changes(error)
            return
        self._committed = self._taken
        self._room.accept_changes()

    def _commit_file(self, file: LogFile) -> None:
        end, descriptor = file.end, file.descriptor
        if descriptor is None:
            descriptor = file.create(self._directory)
            self._faults.run_sync(self._directory.sync_names)
        file.write(self._directory, descriptor, end)
        if file.synced < end:
            self._faults.run_sync(self._directory.sync, descriptor)
            if not file.has_name():
                self._faults.fail_for_lost_file(self._directory.path / make_log_name(file.number))
            file.synced = end
        if not file.is_listed:
            self._inventory.write(self._inventory.newest)
            file.is_listed = True
        if file is not self._pending.active and file.synced == file.end:
            self._inventory.close_log(file)
            self._directory.close(descriptor)
            self._pending.files.remove(file)

    def write_inventory(self, *, clean: bool = False) -> None:
        """Write the inventory. If that fails, `fault` of the room has the reason.

        Args:
            clean: the bucket is closed, and all its records are on disk.
        """
        try:
            self._inventory.write(self._inventory.newest._replace(is_clean=clean))
        except OSError as error:
            self._faults.refuse_changes(error)
