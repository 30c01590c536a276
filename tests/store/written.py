"""Files of buckets, and what the bucket was after each record of the last log file."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from penstock.store.bucket_store import BucketStore
from penstock.store.disk.durable_log import DurableLog
from penstock.store.log.records import FILE_HEADER
from penstock.wire.codec.constants import VbucketState
from tests.store.failing import Place, contents, directory_in_memory, shown

__all__ = ["Record", "Written", "flipped", "of_all_kinds", "of_one_file", "put"]


class Record(NamedTuple):
    """Of a log file: where it lies, how far the file had been synced when it was made, what the bucket was after it."""

    start: int
    end: int
    synced: int
    state: list[Any]


class Written(NamedTuple):
    """The files of a bucket, and the records of the last log file. state: what the bucket was before the first one.

    as_of: where the last log file ended when the segment was made, or the inventory was written.
    """

    files: dict[str, bytes]
    records: list[Record]
    state: list[Any]
    as_of: int

    @property
    def last(self) -> str:
        return max(name for name in self.files if name.startswith("log-"))

    def start_of(self, offset: int) -> int:
        """Return where what lies at an offset begins: a record, the header, or what is behind the end."""
        bounds = [0, *(record.start for record in self.records), self.records[-1].end]
        return max(bound for bound in bounds if bound <= offset)

    def is_proven(self, offset: int) -> bool:
        """Tell whether a later record, or the segment, says that this byte had been on disk."""
        start = self.start_of(offset)
        return start < self.as_of or any(record.synced > start for record in self.records if record.start > start)

    def before(self, offset: int) -> list[Any]:
        """Return what the bucket was before a record."""
        return next((record.state for record in reversed(self.records) if record.end <= offset), self.state)


class Writer:
    """Changes a bucket step by step, and notes what it is after each record."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.bucket = place(segment_bytes=3500)
        assert isinstance(self.bucket.log, DurableLog)
        self.log = self.bucket.log
        self.records: list[Record] = []
        self.state = shown(self.bucket)
        self.as_of = 0
        self._note(FILE_HEADER.size, 0)

    def _note(self, start: int, synced: int) -> None:
        self.records.append(Record(start, self.log.pending.active.end, synced, shown(self.bucket)))

    @contextmanager
    def step(self) -> Iterator[BucketStore]:
        number, start, synced = (
            self.log.pending.active.number,
            self.log.pending.active.end,
            self.log.pending.active.synced,
        )
        state = shown(self.bucket)
        yield self.bucket
        if self.log.pending.active.number != number:
            self.records.clear()
            self.state = state
            self._note(FILE_HEADER.size, 0)
            self._split_head()
        elif self.log.pending.active.end > start:
            self._note(start, synced)

    def _split_head(self) -> None:
        """A change that began a log file came behind its note, with a record of its own."""
        head_end = self.log.pending.active.head_end
        if self.log.pending.active.end > head_end:
            (both,) = self.records
            self.records[:] = [both._replace(end=head_end, state=[]), both._replace(start=head_end)]

    def end(self) -> Written:
        self.bucket.log.commits.run()
        self.place.directory.let_go()
        as_of = max(self.as_of, self.log.inventory.newest.logs[-1].synced)
        return Written(contents(self.place.path), self.records, self.state, as_of)


def change(writer: Writer, number: int) -> None:
    with writer.step() as bucket:
        vbucket = bucket.vbuckets[number % 3]
        key = b"key %d" % (number % 7 if number % 4 else number)
        if number % 11 == 10 and vbucket.get(key) is not None:
            vbucket.delete(key)
        else:
            vbucket.set(key, b"value %d" % number)


@cache
def of_one_file() -> Written:
    """Write three commits of changes into a first log file."""
    with directory_in_memory() as path:
        return _write_one_file(Writer(Place(path)))


def _write_one_file(writer: Writer) -> Written:
    for number in range(12):
        change(writer, number)
        if number in {3, 8}:
            writer.bucket.log.commits.run()
    return writer.end()


@cache
def of_all_kinds() -> Written:
    """Write a segment, a sealed log file, and an active one of several commits."""
    with directory_in_memory() as path:
        return _write_all_kinds(Writer(Place(path)))


def _write_all_kinds(writer: Writer) -> Written:
    number = 0
    while len(writer.bucket.log.segments.sealed) < 2:
        change(writer, number)
        number += 1
    writer.bucket.log.commits.run()
    with writer.step() as bucket:
        bucket.vbuckets[2].set_state(VbucketState.REPLICA)
    with writer.step() as bucket:
        compaction = bucket.compactor.next_piece()
        assert compaction is not None
        writer.as_of = writer.log.pending.active.end
        compaction.run()
        assert compaction.finish()
    writer.bucket.log.commits.run()
    for more in range(number, number + 10):
        change(writer, more)
        if more % 4 == 3:
            writer.bucket.log.commits.run()
    with writer.step() as bucket:
        bucket.vbuckets[0].rollback(bucket.vbuckets[0].changes.high_seqno - 1)
    written = writer.end()
    assert [name[:3] for name in written.files] == ["buc", "buc", "inv", "log", "log", "seg"]
    return written


def put(path: Path, files: dict[str, bytes]) -> None:
    """Let a directory hold these files, and no others."""
    path.mkdir(exist_ok=True)
    for file in path.iterdir():
        file.unlink()
    for name, content in files.items():
        (path / name).write_bytes(content)


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]
