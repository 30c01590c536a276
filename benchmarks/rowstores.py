"""A bucket that stores its changes as rows in SQLite, LMDB or RocksDB: the comparison for the store's own log.

It runs behind the same node and does the same work. Vbucket's own code applies the rules of documents (cas, rev_seqno,
seqno, expiry, tombstones) and encodes the frame once. Only the lookup and the storage of a change differ. A row holds
the frame of each key's newest change, by vbucket and seqno, so that a scan is a deduplicated snapshot. A second row, by
vbucket and key, holds the metadata that the next change needs. Changes wait until `RowCommits.run` writes them in one
transaction. Changes that were overwritten meanwhile are not written.

Not supported: changes of a vbucket's state, flush, rollback and purge, and the count of documents after a restart.
They would cost additional rows, and no benchmark measures them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

import numpy as np

from benchmarks.row_engines import ENGINES, SEQNO_BITS, Batch, Engine, compute_place
from penstock.store.bucket.bucket_record import BucketRecord
from penstock.store.bucket_store import BucketStore, make_indexes
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.frame_chunks import NO_FRAMES, Chunk
from penstock.store.history.vbucket_changes import CAS, OPCODE, Newest, VbucketChanges
from penstock.store.history.vbucket_history import VbucketHistory
from penstock.store.log.change_log import MemoryLog, MemoryStorage, NoFiles
from penstock.store.log.compaction import CompactionPlanner, RetentionWindow
from penstock.store.log.logged_frames import Frame
from penstock.store.log.rewrite import PurgeRequest
from penstock.store.log.row_index import RowIndex
from penstock.wire.codec.flags import SnapshotFlag
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.dcp import DELETION_HEAD, MUTATION_HEAD
from penstock.wire.messages.kv import FailoverEntry

_MUTATION = int(Opcode.DCP_MUTATION)
_HEAD_BYTES = MUTATION_HEAD.size
_SEQNOS = (1 << SEQNO_BITS) - 1
_OPAQUE_AT = 12
_BY_SEQNO = 9  # index in the tuple of an unpacked head
_ANY_NUMBER = 2**62


class _Row:
    """A frame, or its head, in the form that Vbucket reads: a buffer, and the offset of row 0 in it."""

    __slots__ = ("buffer",)

    offsets_at = (0,)

    def __init__(self, frame: bytes) -> None:
        self.buffer = memoryview(frame)


class _Keys(dict[bytes, Any]):
    """Replaces a vbucket's index of keys: it returns frames instead of seqnos."""

    def __init__(self, rows: RowCommits, vbucket: int) -> None:
        super().__init__()
        self._rows = rows
        self._prefix = vbucket.to_bytes(2)

    def get(self, key: bytes, default: Any = None) -> Any:
        return self._rows.find_frame(self._prefix + key) or default


class _Index(RowIndex):
    """Replaces a vbucket's index of rows."""

    __slots__ = ()

    def find(self, seqno: Any) -> Any:
        """Return the row of a frame, which _Keys has returned as a seqno."""
        return _Row(seqno), 0


class RowSnapshot:
    """A snapshot of rows, which an engine returns in blocks.

    It has the methods of penstock.store.history.history_snapshot.Snapshot.
    """

    flags = SnapshotFlag.DISK | SnapshotFlag.CHECKPOINT

    def __init__(self, blocks: Iterator[list[bytes]], start_seqno: int, end_seqno: int) -> None:
        self.start_seqno = self._seqno = start_seqno
        self.end_seqno = end_seqno
        self._blocks = blocks
        self._frames: list[bytes] = []
        self._nbytes = 0

    @property
    def remaining(self) -> int:
        return self.end_seqno - self._seqno

    def read(self, opaque: int, max_bytes: int, window: int | None = None, max_frames: int = _ANY_NUMBER) -> Chunk:
        if window is None:
            window = max(max_bytes, 1)
        if window <= 0:
            return NO_FRAMES
        frames = self._frames
        while self._nbytes < max_bytes and len(frames) < max_frames and (block := next(self._blocks, None)):
            frames += block
            self._nbytes += sum(map(len, block))
        if not frames:
            return NO_FRAMES
        lengths = np.fromiter(map(len, frames), np.int64, len(frames))
        ends = np.cumsum(lengths)
        fitting, allowed = int(ends.searchsorted(max_bytes, "right")), int(ends.searchsorted(window, "left")) + 1
        stop = max(1, min(fitting, allowed, max_frames))
        data = bytearray().join(frames[:stop])
        begins = (ends - lengths)[:stop]
        opaques = np.ndarray(
            (len(data) - _OPAQUE_AT - 3,), ">u4", data, _OPAQUE_AT, (1,)
        )  # an overlapping number at each byte
        opaques[begins] = opaque
        self._seqno = compute_place(frames[stop - 1]) & _SEQNOS
        del frames[:stop]
        self._nbytes -= len(data)
        return Chunk(data, begins)


class RowCompactions(CompactionPlanner):
    """Plans nothing: an engine compacts by itself. A compaction of the whole bucket runs at once."""

    def __init__(self, log: RowLog, clock: Callable[[], int]) -> None:
        settings = BucketSettings()
        retention = RetentionWindow(settings, log.segments, NoFiles(), clock)
        super().__init__(log.segments, log.quota, settings, storage=MemoryStorage(), retention=retention, clock=clock)
        self._engine = log.engine

    def next_piece(self, everything: bool, purge: PurgeRequest | None = None) -> None:
        if everything:
            self._engine.compact()


class RowCommits:
    """Uncommitted changes, and their commits: one transaction at a time. Another thread may call `run`.

    Attributes:
        persisted: vbucket -> seqno up to which its changes are on disk.
    """

    is_broken = False

    def __init__(self, vbuckets: int, engine: Engine) -> None:
        self.persisted = [0] * vbuckets
        self._engine = engine
        self._uncommitted = 0
        self._pending: dict[bytes, tuple[int, bytes]] = {}  # name of a changed key -> place, frame
        self._committing: dict[bytes, tuple[int, bytes]] = {}
        self._deleted: list[int] = []
        self._writing, self._swapping = Lock(), Lock()

    @property
    def uncommitted_records(self) -> int:
        return self._uncommitted

    @property
    def unpersisted_records(self) -> int:
        return self._uncommitted

    def find_frame(self, name: bytes) -> bytes | None:
        """Return the frame of a key's newest change."""
        found = self._pending.get(name) or self._committing.get(name)
        if found is not None:
            return found[1]
        head = self._engine.find_value(name)
        return None if head is None else self._engine.find_frame(compute_place(head))

    def find_head(self, name: bytes) -> bytes | None:
        """Return the head of the frame of a key's newest change, with the metadata that the next change needs."""
        found = self._pending.get(name) or self._committing.get(name)
        return self._engine.find_value(name) if found is None else found[1]

    def store(self, name: bytes, place: int, frame: bytes, superseded: int | None) -> None:
        """Add a change.

        Args:
            name: vbucket and key.
            place: the place of the change.
            frame: its frame.
            superseded: the place of the key's previous change; None: there is none.
        """
        with self._swapping:
            if superseded is not None and name not in self._pending:
                self._deleted.append(superseded)
            self._pending[name] = place, frame
            self._uncommitted += 1

    def run(self) -> None:
        """Write all changes so far to disk, in one transaction."""
        with self._writing:
            if not self._uncommitted:
                return
            with self._swapping:
                self._committing, self._pending = self._pending, {}
                deleted, self._deleted = self._deleted, []
                self._uncommitted = 0
            frames = sorted(self._committing.values())
            names = sorted([(name, frame[:_HEAD_BYTES]) for name, (_, frame) in self._committing.items()])
            self._engine.write(Batch(frames, names, sorted(deleted)))
            for place, _ in frames:
                self.persisted[place >> SEQNO_BITS] = place & _SEQNOS
            self._committing = {}


class RowLog(MemoryLog):
    """Replaces a bucket's log: the uncommitted rows, and the engine that stores rows.

    Attributes:
        engine: the engine.
        rows: the uncommitted rows.
    """

    durable = True

    def __init__(self, vbuckets: int, engine: Engine, clock: Callable[[], int]) -> None:
        super().__init__(make_indexes(vbuckets), BucketSettings(), segment_bytes=1, clock=clock)
        self.engine = engine
        self.rows = self.commits = RowCommits(vbuckets, engine)
        self.compactions = RowCompactions(self, clock)

    def find_persisted_seqno(self, index: RowIndex) -> int | None:
        return self.rows.persisted[index.vbucket]

    def close(self) -> None:
        self.rows.run()
        self.engine.close()


class RowChanges(VbucketChanges):
    """The changes of a vbucket, as rows of an engine."""

    __slots__ = ("_prefix", "base", "engine", "rows")

    def __init__(self, log: RowLog, index: RowIndex, **keywords: Any) -> None:
        super().__init__(_Index(index.vbucket), log, **keywords)
        self.rows = log.rows
        self.engine = log.engine
        self.newest = _Keys(log.rows, self.id)
        self.base = self.id << SEQNO_BITS
        self._prefix = self.id.to_bytes(2)

    def find(self, key: bytes, nbytes: int, frees: bool = False) -> Newest | None:
        head = self.rows.find_head(self._prefix + key)
        if head is None:
            return None
        row: Any = _Row(head)
        return row, 0, DELETION_HEAD.unpack_from(head)

    def commit(self, old: Newest | None, key: bytes, seqno: int, frame: Frame) -> None:
        assert isinstance(frame, bytes), "a benchmark has no value of that length"
        name = self._prefix + key
        if frame[OPCODE] == _MUTATION:
            self.items += 1
        if old is not None and old[2][OPCODE] == _MUTATION:
            self.items -= 1
        superseded = None if old is None else self.base | old[2][_BY_SEQNO]
        self.rows.store(name, self.base | seqno, frame, superseded)
        self.high_seqno = self.index.lowest_snapshot_end = seqno

    def recover(self, frame: bytes) -> None:
        """Continue after this change, the newest of the vbucket."""
        head = DELETION_HEAD.unpack_from(frame)
        self.high_seqno = self.index.lowest_snapshot_end = head[_BY_SEQNO]
        self.clock.observe(head[CAS])


class RowHistory(VbucketHistory):
    """The history of a vbucket whose changes are rows of an engine."""

    __slots__ = ()

    changes: RowChanges

    def open_snapshot(self, start_seqno: int, end_seqno: int) -> Any:
        changes = self.changes
        high_seqno = changes.high_seqno
        if end_seqno <= start_seqno or start_seqno >= high_seqno:
            return RowSnapshot(iter(()), start_seqno, start_seqno)
        changes.rows.run()
        frames = changes.engine.read_frames(changes.base | start_seqno + 1, changes.base | high_seqno)
        return RowSnapshot(frames, start_seqno, high_seqno)


class RowBucket(BucketStore):
    """A bucket whose changes are rows. Classes in ROW_BUCKETS have the same `open` as BucketStore.

    Attributes:
        engine_type: opens the engine of its rows in a directory.
    """

    engine_type: ClassVar[Callable[[Path], Engine]]

    @classmethod
    def open(
        cls, path: Path, name: str, *, vbuckets: int = 1024, directory: object = None, **keywords: Any
    ) -> RowBucket:
        """Return the bucket in a directory; create the directory if it does not exist.

        The engines read and write their files themselves, so `directory` has no effect.
        """
        path.mkdir(parents=True, exist_ok=True)
        return cls(cls.engine_type(path), name, vbuckets, **keywords)

    def __init__(
        self,
        engine: Engine,
        name: str,
        vbuckets: int,
        *,
        clock: Callable[[], int],
        new_vbuuid: Callable[[], int],
        settings: BucketSettings | None = None,
    ) -> None:
        log = RowLog(vbuckets, engine, clock)
        self._set_up(name, log, BucketRecord(log), clock=clock, new_vbuuid=new_vbuuid)
        self.settings = settings or BucketSettings()
        changes = [RowChanges(log, index, clock=clock, changed=self.changed) for index in log.segments.indexes]
        writer = self.vbuckets[0].writer
        self.vbuckets[:] = [Vbucket(RowHistory(one, new_vbuuid=new_vbuuid), writer) for one in changes]
        self._read_branches(log)

    def _read_branches(self, log: RowLog) -> None:
        new: list[tuple[bytes, bytes]] = []
        for vbucket in self.vbuckets:
            name = vbucket.id.to_bytes(2)  # names of documents are longer
            log_text = log.engine.find_value(name)
            if log_text is None:
                new.append((name, json.dumps(vbucket.history.failover_log).encode()))
                continue
            vbucket.history.failover_log = tuple(FailoverEntry(*entry) for entry in json.loads(log_text))
            frame = log.engine.find_last_frame(vbucket.id << SEQNO_BITS | _SEQNOS)
            if frame is not None and compute_place(frame) >> SEQNO_BITS == vbucket.id:
                assert isinstance(vbucket.changes, RowChanges)
                vbucket.changes.recover(frame)
                log.rows.persisted[vbucket.id] = vbucket.changes.high_seqno
        if new:
            log.engine.write(Batch([], new, []))


ROW_BUCKETS: dict[str, type[RowBucket]] = {
    name: type(f"{name}Bucket", (RowBucket,), {"engine_type": engine}) for name, engine in ENGINES.items()
}
