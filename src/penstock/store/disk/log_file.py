"""A log file that is being written: the active segment of a log on disk."""

from __future__ import annotations

import re
from collections.abc import Callable

from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.inventory import ListedLog, extend_identity
from penstock.store.log.long_frame import Frame
from penstock.store.log.records import RECORD_BYTES, pack_record, pack_record_head, read_seed

__all__ = ["LogFile", "make_log_name", "parse_log_number", "reopen_synced"]

_NAME = re.compile(r"log-(\d{10})")


def make_log_name(number: int) -> str:
    return f"log-{number:010d}"


def parse_log_number(name: str) -> int | None:
    """Return the number in a log file's name, None of another name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


class LogFile:
    """Records in a buffer, and how much of them is in the file.

    The thread that owns the log appends, the one that commits writes.

    Attributes:
        number, buffer, end, limit: as of ActiveSegment.
        appended: how many records the log had been given with the newest one here. Segments that take the place of
            others count like a record: a commit has to name their files.
        seed: of the records' checksums.
        written: how much is in the file.
        synced: how much of that is on disk for certain.
        head_end: the end of the note that the file begins with.
        identity: as the inventory lists it.
        descriptor: of the file, None as long as there is none.
        has_name: tells whether the file that is open still has its name.
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
        start = self.end
        body = start + RECORD_BYTES
        end = body + len(frame)
        if isinstance(frame, bytes):
            self.buffer[start:end] = pack_record(frame, supersedes, self.synced, self.seed ^ start)
        else:
            written = self.buffer[body:end]
            frame.write_to(written)
            self.buffer[start:body] = pack_record_head(written, supersedes, self.synced, self.seed ^ start)
        self.end = end  # only now: a commit may look at any time
        self.appended += 1
        return body

    def write_head(self, header: bytes, head: bytes) -> None:
        """Write what the file begins with: its header, and a note of how things stand."""
        self.buffer[: len(header)] = header
        self.seed = read_seed(header)
        self.end = len(header)
        self.append_identifying_note(head)
        self.head_end = self.end

    def append_identifying_note(self, note: bytes) -> None:
        """Write a note that tells the file, or this opening of it, from all others."""
        at = self.append(note, 0) - RECORD_BYTES
        self.identity = extend_identity(self.identity, self.buffer, at)

    def has_room(self, nbytes: int) -> bool:
        """Tell whether a record of nbytes fits."""
        return self.end + RECORD_BYTES + nbytes <= len(self.buffer)

    def create(self, directory: Directory) -> int:
        """Make the file and return its descriptor."""
        self.descriptor = directory.create(make_log_name(self.number))
        self.has_name = directory.watch(self.descriptor, make_log_name(self.number))
        return self.descriptor

    def reopen(self, directory: Directory) -> None:
        """Go on with a file that is there."""
        self.descriptor = reopen_synced(directory, self.number, self.end)
        self.has_name = directory.watch(self.descriptor, make_log_name(self.number))

    def write(self, directory: Directory, descriptor: int, end: int) -> None:
        """Write what was appended up to there and is not in the file yet."""
        while self.written < end:
            self.written += directory.write(descriptor, self.buffer[self.written : end], self.written)

    @property
    def listing(self) -> ListedLog:
        """What an inventory says of the file."""
        return ListedLog(self.number, self.synced, self.identity)


def reopen_synced(directory: Directory, number: int, size: int) -> int:
    """Sync a log file that was found: its writer may have been stopped before that. Returns its descriptor."""
    descriptor = directory.reopen(make_log_name(number), size)
    directory.sync(descriptor)
    return descriptor
