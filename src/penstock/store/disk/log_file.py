"""A log file while it is written: the active segment of a log on disk."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.inventory import ListedLog, extend_identity
from penstock.store.log.logged_frames import Frame, FrameRun
from penstock.store.log.records import RECORD_BYTES, pack_record, pack_record_head, read_seed
from penstock.store.log.segment import Column

_NAME = re.compile(r"log-(\d{10})")


def make_log_name(number: int) -> str:
    """Return the name of the log file with this number."""
    return f"log-{number:010d}"


def parse_log_number(name: str) -> int | None:
    """Return the number in the name of a log file; None for other names."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


class LogFile:
    """Records in a buffer, and how many bytes of them are in the file. It also has the attributes of ActiveSegment.

    The thread that owns the log appends to the buffer. The thread that commits writes the file.

    Attributes:
        appended: how many records the log had received when the newest record here was appended. A new segment counts
            like a record, because a commit has to name its file.
        seed: the seed of the records' checksums.
        written: how many bytes are in the file.
        synced: how many of these bytes are certainly on disk.
        head_end: the end of the note at the beginning of the file.
        identity: the identity that the inventory lists, see `extend_identity`.
        descriptor: the open file, None before it is created.
        has_name: returns whether the open file still has its name.
        is_listed: the inventory lists the file.
    """

    __slots__ = (
        "appended",
        "buffer",
        "descriptor",
        "end",
        "has_name",
        "head_end",
        "identity",
        "is_listed",
        "limit",
        "number",
        "seed",
        "synced",
        "written",
    )

    overhead = RECORD_BYTES

    def __init__(self, number: int, buffer: memoryview, *, end: int = 0, appended: int = 0) -> None:
        self.number = number
        self.buffer = buffer
        self.end = self.written = self.synced = end
        self.limit = 0
        self.appended = appended
        self.seed = self.head_end = self.identity = 0
        self.descriptor: int | None = None
        self.has_name: Callable[[], bool] = lambda: True
        self.is_listed = False

    def append(self, frame: Frame, supersedes: int) -> int:
        """Write a record to the buffer, which must have room for it.

        Args:
            frame: a frame or a note.
            supersedes: the seqno of the change that the frame replaces, 0 for none.

        Returns:
            The offset of the frame in the buffer, after the head of its record.
        """
        start = self.end
        body = start + RECORD_BYTES
        end = body + len(frame)
        if isinstance(frame, bytes):
            self.buffer[start:end] = pack_record(frame, supersedes, self.synced, self.seed ^ start)
        else:
            written = self.buffer[body:end]
            frame.write_to(written)
            self.buffer[start:body] = pack_record_head(written, supersedes, self.synced, self.seed ^ start)
        self.end = end  # last: a commit on another thread may read it at any time
        self.appended += 1
        return body

    def append_run(self, run: FrameRun, supersedes: Column) -> Column:
        """Write a record for each frame of a run, with one copy into the buffer.

        Args:
            run: the changes. The buffer has room for them.
            supersedes: as of `append`, for each change.

        Returns:
            As `append`, for each change.
        """
        starts: Column = run.bounds - run.bounds[0] + RECORD_BYTES * np.arange(run.change_count + 1) + self.end
        end, bounds = int(starts[-1]), pairwise(run.bounds.tolist())
        records = [
            pack_record(run.data[first:last], replaced, self.synced, self.seed ^ start)
            for (first, last), replaced, start in zip(bounds, supersedes.tolist(), starts[:-1].tolist(), strict=True)
        ]
        self.buffer[self.end : end] = b"".join(records)
        self.end = end  # last, as in `append`
        self.appended += run.change_count
        return starts[:-1] + RECORD_BYTES

    def write_head(self, header: bytes, head: bytes) -> None:
        """Write the beginning of the file: its header, and a note of every vbucket's state."""
        self.buffer[: len(header)] = header
        self.seed = read_seed(header)
        self.end = len(header)
        self.append_identifying_note(head)
        self.head_end = self.end

    def append_identifying_note(self, note: bytes) -> None:
        """Write a note that distinguishes this file, or this opening of it, from all others."""
        at = self.append(note, 0) - RECORD_BYTES
        self.identity = extend_identity(self.identity, self.buffer, at)

    def has_room(self, nbytes: int) -> bool:
        """Return whether a record of nbytes fits into the buffer."""
        return self.end + RECORD_BYTES + nbytes <= len(self.buffer)

    def create(self, directory: Directory) -> int:
        """Create the file.

        Returns:
            The open descriptor.

        Raises:
            OSError: the file could not be created.
        """
        self.descriptor = directory.create(make_log_name(self.number))
        self.has_name = directory.watch(self.descriptor, make_log_name(self.number))
        return self.descriptor

    def reopen(self, directory: Directory) -> None:
        """Open the existing file, to append to it.

        Raises:
            OSError: the file could not be opened or synced.
        """
        self.descriptor = reopen_synced(directory, self.number, self.end)
        self.has_name = directory.watch(self.descriptor, make_log_name(self.number))

    def write(self, directory: Directory, descriptor: int, end: int) -> None:
        """Write the bytes of the buffer up to `end` that are not in the file yet.

        Raises:
            OSError: the disk does not accept the bytes.
        """
        while self.written < end:
            self.written += directory.write(descriptor, self.buffer[self.written : end], self.written)

    @property
    def listing(self) -> ListedLog:
        """The entry of the file in an inventory."""
        return ListedLog(self.number, self.synced, self.identity)


def reopen_synced(directory: Directory, number: int, size: int) -> int:
    """Open an existing log file and sync it: the process that wrote it may have ended before its sync.

    Args:
        directory: the directory of the file.
        number: the number of the file.
        size: the number of valid bytes; the file is truncated to it.

    Returns:
        The open descriptor.

    Raises:
        OSError: the file could not be opened or synced.
    """
    descriptor = directory.reopen(make_log_name(number), size)
    directory.sync(descriptor)
    return descriptor
