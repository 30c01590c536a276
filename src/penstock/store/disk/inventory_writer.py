"""The inventory of an open bucket: a new one is written whenever the set of files changes."""

from __future__ import annotations

from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.disk_faults import DiskFaults
from penstock.store.disk.inventory import Inventory, ListedLog, ListedSegment, write_inventory
from penstock.store.disk.log_file import LogFile
from penstock.store.disk.pending_files import PendingFiles


class InventoryWriter:
    """Writes the inventory of an open bucket.

    Attributes:
        newest: the inventory in the directory.
        revision: the revision of `bucket.json` that the next inventory contains.
    """

    def __init__(self, directory: Directory, uuid: bytes, pending: PendingFiles, faults: DiskFaults) -> None:
        self.newest = Inventory()
        self.revision = 0
        self._directory = directory
        self._uuid = uuid
        self._pending = pending
        self._faults = faults
        self._closed: list[ListedLog] = []  # closed since the newest inventory was written

    def close_log(self, file: LogFile) -> None:
        """Remember the final size of a log file that is completely on disk, for the next inventory."""
        self._closed.append(file.listing)

    def add_segment(self, listed: ListedSegment) -> None:
        """Add a segment to the inventory, and write it unless the segment is listed.

        Raises:
            OSError: the inventory could not be written.
        """
        inventory = self.newest.with_segment(listed)
        if inventory != self.newest:
            self.write(inventory)

    def write(self, inventory: Inventory) -> None:
        """Write an inventory, with the present sizes of the log files added.

        Raises:
            OSError: the inventory could not be written or synced.
        """
        replaced = max((one.ids[1] for one in inventory.segments), default=0)
        logs = [one for one in (*self._closed, *self._pending.list_logs()) if one.number > replaced]
        inventory = inventory.with_logs(logs)
        inventory = inventory._replace(generation=self.newest.generation + 1, revision=self.revision)
        write_inventory(self._directory, self._uuid, inventory)
        self._faults.run_sync(self._directory.sync_names)
        self.newest = inventory
        self._closed.clear()
