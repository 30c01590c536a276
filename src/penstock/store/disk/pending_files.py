"""Log files of which something is not on disk yet."""

from __future__ import annotations

from bisect import bisect_left

from penstock.store.disk.inventory import ListedLog
from penstock.store.disk.log_file import LogFile
from penstock.store.log.row_index import RowIndex

__all__ = ["PendingFiles"]


class PendingFiles:
    """Log files that are not on disk as a whole.

    The thread that owns the log adds files, the one that commits removes them.

    Attributes:
        files: oldest first; the last one is the active one.
        active: the file to which records are appended.
    """

    def __init__(self) -> None:
        self.files: list[LogFile] = []
        self.active = LogFile(0, memoryview(b""))

    def add(self, file: LogFile) -> None:
        """Let a file be the active one. A commit may look at it from now on."""
        self.active = file
        self.files.append(file)

    def list_numbers(self) -> set[int]:
        return {file.number for file in tuple(self.files)}  # a commit may remove one meanwhile

    @property
    def sealed_bytes(self) -> int:
        """Bytes of all but the active file, also of those with notes alone."""
        return sum(len(file.buffer) for file in self.files[:-1])

    def list_logs(self) -> list[ListedLog]:
        """Return what an inventory says of the files that are there."""
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
