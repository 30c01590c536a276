"""SQLite, LMDB and RocksDB as engines of a row store, configured as their users would do it.

A *place* is an integer made of a vbucket's number and a seqno, so that the places of a vbucket are consecutive and
ordered. An engine stores a frame at each place, and a short value for each name. Each engine opens within about a
second, for any size. Each `write` is one transaction, which is on disk when the call returns.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, Protocol

SEQNO_BITS = 48
"""Low bits of a place that hold the seqno. The bits above hold the vbucket's number."""

BLOCK = 512
"""Number of frames that are read at once."""

CACHE_BYTES = 256 * 1024 * 1024


class Batch(NamedTuple):
    """The changes of one transaction, in ascending order.

    Attributes:
        frames: (place, frame) to insert.
        names: (name, value) to insert or replace.
        deleted: places whose frames to delete.
    """

    frames: list[tuple[int, bytes]]
    names: list[tuple[bytes, bytes]]
    deleted: list[int]


class Engine(Protocol):
    """The operations of an embedded database that a row store needs."""

    def find_value(self, name: bytes) -> bytes | None:
        """Return the value of a name; None if there is none."""

    def find_frame(self, place: int) -> bytes | None:
        """Return the frame at a place; None if there is none."""

    def find_last_frame(self, place: int) -> bytes | None:
        """Return the frame at the highest place up to `place`; None if there is none."""

    def read_frames(self, first: int, last: int) -> Iterator[list[bytes]]:
        """Return the frames at the places from `first` to `last` of one vbucket, as a snapshot, in blocks."""

    def write(self, batch: Batch) -> None:
        """Apply a batch as one transaction, and return when it is on disk."""

    def compact(self) -> None:
        """Compact the files, if the engine needs that."""

    def close(self) -> None: ...


class SqliteRows:
    """The engine SQLite: two tables in WAL mode, with synchronous=FULL.

    A checkpoint every 40 MB instead of 4 MB saves a third of the writes. Readers have separate connections. So a lookup
    does not wait for a running sync, and a snapshot does not change during writes.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "rows.sqlite"
        self._connection = self._connect()
        self._execute = self._connection.execute
        self._looking = self._connect()
        self._look = self._looking.execute
        self._readers: list[sqlite3.Connection] = []

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        for setting in (
            "journal_mode=WAL",
            "synchronous=FULL",
            f"cache_size=-{CACHE_BYTES // 1024}",
            "wal_autocheckpoint=10000",
        ):
            connection.execute(f"PRAGMA {setting}")
        connection.execute("CREATE TABLE IF NOT EXISTS frames (place INTEGER PRIMARY KEY, frame BLOB NOT NULL)")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS names (name BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
        )
        return connection

    def _select_one(self, query: str, argument: int | bytes) -> bytes | None:
        row = self._look(query, (argument,)).fetchone()
        return None if row is None else row[0]

    def find_value(self, name: bytes) -> bytes | None:
        return self._select_one("SELECT value FROM names WHERE name = ?", name)

    def find_frame(self, place: int) -> bytes | None:
        return self._select_one("SELECT frame FROM frames WHERE place = ?", place)

    def find_last_frame(self, place: int) -> bytes | None:
        return self._select_one("SELECT frame FROM frames WHERE place <= ? ORDER BY place DESC LIMIT 1", place)

    def read_frames(self, first: int, last: int) -> Iterator[list[bytes]]:
        reader = self._readers.pop() if self._readers else self._connect()
        rows = reader.execute("SELECT frame FROM frames WHERE place BETWEEN ? AND ? ORDER BY place", (first, last))
        blocks = _blocks(map(itemgetter(0), rows), lambda: self._readers.append(reader))
        begun = next(blocks, [])  # SQLite begins the transaction with the first row
        return _chain(begun, blocks)

    def write(self, batch: Batch) -> None:
        self._execute("BEGIN IMMEDIATE")
        many = self._connection.executemany
        many("DELETE FROM frames WHERE place = ?", [(place,) for place in batch.deleted])
        many("INSERT INTO frames VALUES (?, ?)", batch.frames)
        many("INSERT OR REPLACE INTO names VALUES (?, ?)", batch.names)
        self._execute("COMMIT")

    def compact(self) -> None:
        for connection in self._readers:
            connection.close()
        self._readers.clear()
        self._execute("VACUUM")
        self._execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        for connection in (*self._readers, self._looking, self._connection):
            connection.close()


class LmdbRows:
    """The engine LMDB: two databases in one environment. It syncs at each commit (the default); inserts are sorted."""

    def __init__(self, directory: Path) -> None:
        import lmdb

        self._environment = lmdb.open(str(directory), map_size=64 * 1024**3, max_dbs=2)
        self._frames = self._environment.open_db(b"frames")
        self._names = self._environment.open_db(b"names")
        self._now = self._environment.begin()
        self._is_stale = False

    def _current(self):
        """Return a read transaction that includes the last `write`, which may run on another thread."""
        if self._is_stale:
            self._is_stale = False
            self._now.abort()
            self._now = self._environment.begin()
        return self._now

    def find_value(self, name: bytes) -> bytes | None:
        found: bytes | None = self._current().get(name, db=self._names)
        return found

    def find_frame(self, place: int) -> bytes | None:
        found: bytes | None = self._current().get(_key(place), db=self._frames)
        return found

    def find_last_frame(self, place: int) -> bytes | None:
        with self._current().cursor(self._frames) as cursor:
            found = cursor.prev() if cursor.set_range(_key(place + 1)) else cursor.last()
            return cursor.value() if found else None

    def read_frames(self, first: int, last: int) -> Iterator[list[bytes]]:
        return self._blocks(self._environment.begin(db=self._frames), first, last)

    def _blocks(self, transaction, first: int, last: int) -> Iterator[list[bytes]]:
        """Yield the frames from `first` to `last` in blocks.

        The fastest iterator returns values without keys, and does not stop at `last`. So frames after `last` are
        removed from the block.
        """
        with transaction, transaction.cursor() as cursor:
            rows = cursor.iternext(keys=False) if cursor.set_range(_key(first)) else iter(())
            while first <= last and (block := list(islice(rows, min(BLOCK, last - first + 1)))):
                first = compute_place(block[-1]) + 1
                while block and compute_place(block[-1]) > last:
                    block.pop()
                yield block

    def write(self, batch: Batch) -> None:
        with self._environment.begin(write=True) as transaction:
            with transaction.cursor(self._frames) as cursor:
                for place in batch.deleted:
                    if cursor.set_key(_key(place)):
                        cursor.delete()
                cursor.putmulti([(_key(place), frame) for place, frame in batch.frames])
            with transaction.cursor(self._names) as cursor:
                cursor.putmulti(batch.names)
        self._is_stale = True

    def compact(self) -> None:
        """Do nothing: LMDB reuses free pages."""

    def close(self) -> None:
        self._now.abort()
        self._environment.close()


class RocksRows:
    """The engine RocksDB: two column families, with a sync of the write-ahead log for each batch.

    Bloom filters avoid most lookups of missing keys. Scans are faster with blocks of 16 KB than with 4 KB.
    """

    def __init__(self, directory: Path) -> None:
        import rocksdict

        self._module = rocksdict
        cache = rocksdict.Cache(CACHE_BYTES)
        families = {name: self._options(cache) for name in ("frames", "names")}
        self._rows = rocksdict.Rdict(str(directory), self._options(cache), column_families=families)
        self._frames, self._names = (self._rows.get_column_family(name) for name in families)
        self._handles = [self._rows.get_column_family_handle(name) for name in families]
        self._synced = rocksdict.WriteOptions()
        self._synced.sync = True

    def _options(self, cache):
        blocks = self._module.BlockBasedOptions()
        blocks.set_bloom_filter(10, False)
        blocks.set_block_cache(cache)
        blocks.set_block_size(16 * 1024)
        options = self._module.Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.increase_parallelism(2)
        options.set_block_based_table_factory(blocks)
        return options

    def find_value(self, name: bytes) -> bytes | None:
        found: bytes | None = self._names.get(name)
        return found

    def find_frame(self, place: int) -> bytes | None:
        found: bytes | None = self._frames.get(_key(place))
        return found

    def find_last_frame(self, place: int) -> bytes | None:
        rows = self._frames.iter()
        rows.seek_for_prev(_key(place))
        return rows.value() if rows.valid() else None

    def read_frames(self, first: int, last: int) -> Iterator[list[bytes]]:
        reading = self._module.ReadOptions()
        reading.set_iterate_upper_bound(_key(last + 1))
        rows = self._frames.values(from_key=_key(first), read_opt=reading)
        return _blocks(rows, lambda: reading)  # the iterator refers to the options until its end

    def write(self, batch: Batch) -> None:
        rows = self._module.WriteBatch(raw_mode=True)
        rows.set_default_column_family(self._handles[0])
        for place in batch.deleted:
            rows.delete(_key(place))
        for place, frame in batch.frames:
            rows[_key(place)] = frame
        rows.set_default_column_family(self._handles[1])
        for name, value in batch.names:
            rows[name] = value
        self._rows.write(rows, self._synced)

    def compact(self) -> None:
        for rows in (self._frames, self._names):
            rows.flush()
            rows.compact_range(None, None)

    def close(self) -> None:
        self._handles.clear()  # the handles would keep the files locked
        for rows in (self._frames, self._names, self._rows):
            rows.close()


ENGINES: dict[str, Callable[[Path], Engine]] = {"SQLite": SqliteRows, "LMDB": LmdbRows, "RocksDB": RocksRows}
_MODULES = {"SQLite": "sqlite3", "LMDB": "lmdb", "RocksDB": "rocksdict"}


def list_installed_engines() -> list[str]:
    """Return the names of the engines whose packages are installed."""
    return [name for name, module in _MODULES.items() if find_spec(module) is not None]


def compute_place(frame: bytes) -> int:
    """Return the place of a change's frame."""
    return int.from_bytes(frame[6:8]) << SEQNO_BITS | int.from_bytes(frame[24:32])


def _key(place: int) -> bytes:
    return place.to_bytes(8)


def _blocks(rows: Iterable[bytes], finished: Callable[[], object]) -> Iterator[list[bytes]]:
    rows = iter(rows)
    while block := list(islice(rows, BLOCK)):
        yield block
    finished()


def _chain(first: list[bytes], rest: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    yield first
    yield from rest
