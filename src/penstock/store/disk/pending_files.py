"""Log files that are not completely on disk yet."""

from __future__ import annotations

from bisect import bisect_left

from penstock.store.disk.inventory import ListedLog
from penstock.store.disk.log_file import LogFile
from penstock.store.log.row_index import RowIndex


class PendingFiles:
    """The log files that are not completely on disk.

    The thread that owns the log adds files. The thread that commits removes them.

    Attributes:
        files: oldest first; the last file is the active one.
        active: the file to which records are appended.
    """

    def __init__(self) -> None:
        self.files: list[LogFile] = []
        self.active = LogFile(0, memoryview(b""))

    def add(self, file: LogFile) -> None:
        """Make a file the active one. From now on, a commit on another thread may read it."""
        self.active = file
        self.files.append(file)

    def list_numbers(self) -> set[int]:
        """Return the numbers of the files."""
        return {file.number for file in tuple(self.files)}  # a copy: a commit may remove a file at the same time

    @property
    def sealed_bytes(self) -> int:
        """The size of the buffers of all files except the active one, in bytes. Files with only notes count as well."""
        return sum(len(file.buffer) for file in self.files[:-1])

    def list_logs(self) -> list[ListedLog]:
        """Return the inventory entries of the files that exist on disk."""
        return [file.listing for file in self.files if file.synced]

    def find_persisted_seqno(self, index: RowIndex) -> int:
        """Return the seqno up to which a vbucket's changes are on disk."""
        row = bisect_left(index.offsets_at, self.active.synced)
        if row:
            return index.seqnos_at[row - 1]
        unsynced = {file.number: file.synced for file in tuple(self.files)}
        for segment in reversed(index.segments):
            start, end = segment.starts[index.vbucket], segment.ends[index.vbucket]
            synced = None if segment.is_clustered else unsynced.get(segment.ids[1])
            row = end if synced is None else bisect_left(segment.offsets_at, synced, start, end)
            if row > start:
                return segment.seqnos_at[row - 1]
        return 0
