"""Commits: what was appended to a log is written to its files and synced."""

from __future__ import annotations

from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.disk_faults import DiskFaults
from penstock.store.disk.inventory_writer import InventoryWriter
from penstock.store.disk.log_file import LogFile, make_log_name
from penstock.store.disk.pending_files import PendingFiles
from penstock.store.disk.segment_drafts import SegmentDrafts
from penstock.store.log.log_room import LogRoom

__all__ = ["LogCommits"]


class LogCommits:
    """Brings to disk what was appended, on a thread of its own if the caller likes: one commit at a time."""

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
        self._taken = 0  # records, by commits: written by the thread that commits
        self._committed = 0  # of them, by commits that have ended well: likewise

    @property
    def is_broken(self) -> bool:
        return self._faults.is_broken

    @property
    def uncommitted_records(self) -> int:
        return self._pending.active.appended - self._taken

    @property
    def unpersisted_records(self) -> int:
        return self._pending.active.appended - self._committed

    def run(self) -> None:
        """Write and sync all that was appended before, unless `fault` of the room says that it could not be done."""
        if self.is_broken:
            return
        before, self._taken = self._taken, self._pending.active.appended
        unnamed = self._drafts.unnamed_count  # those whose notes are on disk when all that was appended by now is
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
        """Write the inventory, unless `fault` of the room says that it could not be done.

        clean: the bucket is closed, and all it has is on disk.
        """
        try:
            self._inventory.write(self._inventory.newest._replace(is_clean=clean))
        except OSError as error:
            self._faults.refuse_changes(error)
