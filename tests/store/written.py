"""Files of buckets, with the bucket's state after each record of the last log file."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from penstock.store.bucket_store import BucketStore
from penstock.store.disk.durable_log import DurableLog
from penstock.store.log.records import FILE_HEADER
from penstock.wire.codec.constants import VbucketState
from tests.store.failing import Place, capture_state, directory_in_memory, read_files


class WrittenRecord(NamedTuple):
    """A record of a log file, with the bucket's state after it.

    Attributes:
        start: offset of its first byte in the file.
        end: offset behind its last byte.
        synced: bytes of the file that had been synced when the record was made.
        state: the bucket after the record, as `capture_state` returns it.
    """

    start: int
    end: int
    synced: int
    state: list[Any]


class WrittenBucket(NamedTuple):
    """The files of a bucket, and the records of its last log file.

    Attributes:
        files: content of each file by name.
        records: the records of the last log file, in order.
        state: the bucket before the first of these records.
        proven_end: end of the last log file when the segment was made or the inventory was written. Either of them
            proves that the bytes before this offset had been on disk.
    """

    files: dict[str, bytes]
    records: list[WrittenRecord]
    state: list[Any]
    proven_end: int

    @property
    def last_log(self) -> str:
        """Name of the last log file."""
        return max(name for name in self.files if name.startswith("log-"))

    def find_start(self, offset: int) -> int:
        """Return where the part with the byte at `offset` starts: the header, a record, or the bytes behind them."""
        bounds = [0, *(record.start for record in self.records), self.records[-1].end]
        return max(bound for bound in bounds if bound <= offset)

    def is_proven(self, offset: int) -> bool:
        """Return whether a later record, the segment or the inventory proves that this byte had been on disk."""
        start = self.find_start(offset)
        return start < self.proven_end or any(record.synced > start for record in self.records if record.start > start)

    def find_state_before(self, offset: int) -> list[Any]:
        """Return the state of the bucket before the record that starts at `offset`."""
        return next((record.state for record in reversed(self.records) if record.end <= offset), self.state)


class BucketWriter:
    """Changes a bucket step by step, and keeps its state after each record.

    Attributes:
        records: records of the active log file so far.
        state: the bucket before the first of these records.
        proven_end: set by the caller when a segment is made; see `WrittenBucket`.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.bucket = place(segment_bytes=3500)
        assert isinstance(self.bucket.log, DurableLog)
        self.log = self.bucket.log
        self.records: list[WrittenRecord] = []
        self.state = capture_state(self.bucket)
        self.proven_end = 0
        self._add_record(FILE_HEADER.size, 0)

    def _add_record(self, start: int, synced: int) -> None:
        """Keep a record that ends at the present end of the log, with the bucket's state."""
        self.records.append(WrittenRecord(start, self.log.pending.active.end, synced, capture_state(self.bucket)))

    @contextmanager
    def record_step(self) -> Iterator[BucketStore]:
        """Yield the bucket for one change, and keep the record that the change makes."""
        number, start, synced = (
            self.log.pending.active.number,
            self.log.pending.active.end,
            self.log.pending.active.synced,
        )
        state = capture_state(self.bucket)
        yield self.bucket
        if self.log.pending.active.number != number:
            self.records.clear()
            self.state = state
            self._add_record(FILE_HEADER.size, 0)
            self._split_head()
        elif self.log.pending.active.end > start:
            self._add_record(start, synced)

    def _split_head(self) -> None:
        """Divide the only record: a change that starts a log file comes behind the file's first note."""
        head_end = self.log.pending.active.head_end
        if self.log.pending.active.end > head_end:
            (both,) = self.records
            self.records[:] = [both._replace(end=head_end, state=[]), both._replace(start=head_end)]

    def finish(self) -> WrittenBucket:
        """Commit, end as a killed process does, and return the files."""
        self.bucket.log.commits.run()
        self.place.directory.kill()
        proven_end = max(self.proven_end, self.log.inventory.newest.logs[-1].synced)
        return WrittenBucket(read_files(self.place.path), self.records, self.state, proven_end)


def write_change(writer: BucketWriter, number: int) -> None:
    """Store or delete one of a few documents; `number` chooses it."""
    with writer.record_step() as bucket:
        vbucket = bucket.vbuckets[number % 3]
        key = b"key %d" % (number % 7 if number % 4 else number)
        if number % 11 == 10 and vbucket.get(key) is not None:
            vbucket.delete(key)
        else:
            vbucket.set(key, b"value %d" % number)


@cache
def write_one_log_file() -> WrittenBucket:
    """Return a bucket with one log file that holds three commits."""
    with directory_in_memory() as path:
        return _fill_one_log_file(BucketWriter(Place(path)))


def _fill_one_log_file(writer: BucketWriter) -> WrittenBucket:
    for number in range(12):
        write_change(writer, number)
        if number in {3, 8}:
            writer.bucket.log.commits.run()
    return writer.finish()


@cache
def write_all_file_kinds() -> WrittenBucket:
    """Return a bucket with a segment, a sealed log file, and an active log file of several commits."""
    with directory_in_memory() as path:
        return _fill_all_file_kinds(BucketWriter(Place(path)))


def _fill_all_file_kinds(writer: BucketWriter) -> WrittenBucket:
    number = 0
    while len(writer.bucket.log.segments.sealed) < 2:
        write_change(writer, number)
        number += 1
    writer.bucket.log.commits.run()
    with writer.record_step() as bucket:
        bucket.vbuckets[2].set_state(VbucketState.REPLICA)
    with writer.record_step() as bucket:
        compaction = bucket.compactor.next_piece()
        assert compaction is not None
        writer.proven_end = writer.log.pending.active.end
        compaction.run()
        assert compaction.finish()
    writer.bucket.log.commits.run()
    for more in range(number, number + 10):
        write_change(writer, more)
        if more % 4 == 3:
            writer.bucket.log.commits.run()
    with writer.record_step() as bucket:
        bucket.vbuckets[0].rollback(bucket.vbuckets[0].changes.high_seqno - 1)
    written = writer.finish()
    assert [name[:3] for name in written.files] == ["buc", "buc", "inv", "log", "log", "seg"]
    return written


def write_files(path: Path, files: dict[str, bytes]) -> None:
    """Write these files to a directory, and delete all others."""
    path.mkdir(exist_ok=True)
    for file in path.iterdir():
        file.unlink()
    for name, content in files.items():
        (path / name).write_bytes(content)


def flip_bit(content: bytes, at: int) -> bytes:
    """Return the content with one bit of the byte at offset `at` inverted."""
    return content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]
