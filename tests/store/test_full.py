"""While the disk is full, neither documents nor locks change."""

from collections.abc import Callable, Iterator
from errno import ENOSPC
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import Locked, StatusError, TemporaryFailure
from penstock.store.bucket_store import BucketStore
from penstock.store.disk.bucket_files import Directory
from penstock.store.documents.conflict import Meta
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.columns.schema import Event
from tests.store.documents import ManualClock
from tests.store.model import START, read_all

KEYS = (b"number", b"locked", b"expired", b"deleted", b"new")
META = Meta(cas=START + 2**40, rev_seqno=99)


class FullDiskDirectory(Directory):
    """A directory in which every write fails while `is_full` is true."""

    is_full = False

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        if self.is_full:
            raise OSError(ENOSPC, "No space left on device")
        return super().write(descriptor, data, offset)


class FullBucket:
    """A vbucket with documents of all kinds, on a disk that has just become full.

    Attributes:
        clock: the bucket's clock.
        bucket: a bucket of one vbucket.
        vbucket: its vbucket.
        lock: cas of the lock on the document `locked`.
        heal: function that makes room on the disk.
    """

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        vbuuids, directory = count(1), FullDiskDirectory(path)
        self.bucket = BucketStore.open(
            path, "b", vbuckets=1, clock=self.clock, new_vbuuid=lambda: next(vbuuids), directory=lambda _: directory
        )
        self.vbucket = self.bucket.find(0)
        self.vbucket.set(b"number", b"5")
        self.vbucket.set(b"locked", b"5")
        self.vbucket.set(b"expired", b"5", expiry=5)
        self.vbucket.set(b"deleted", b"")
        self.vbucket.delete(b"deleted")
        self.bucket.log.commits.run()
        self.clock.wait(10)
        locked = self.vbucket.lock(b"locked", 30)
        assert locked is not None
        self.lock = locked.cas
        self.vbucket.set(b"number", b"6")
        directory.is_full = True
        self.bucket.log.commits.run()
        assert self.bucket.log.room.fault is not None
        self.heal = lambda: setattr(directory, "is_full", False)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[FullBucket]:
    full = FullBucket(tmp_path)
    yield full
    full.heal()
    full.bucket.close()


Write = Callable[[Vbucket, bytes, int], Any]

WRITES: dict[str, Write] = {
    "set": lambda vbucket, key, cas: vbucket.set(key, b"new", cas=cas),
    "add": lambda vbucket, key, cas: vbucket.add(key, b"new"),
    "replace": lambda vbucket, key, cas: vbucket.replace(key, b"new", cas=cas),
    "delete": lambda vbucket, key, cas: vbucket.delete(key, cas=cas),
    "touch": lambda vbucket, key, cas: vbucket.touch(key, 99),
    "count": lambda vbucket, key, cas: vbucket.count(key, 1),
    "append": lambda vbucket, key, cas: vbucket.extend(key, b"0", cas=cas),
    "with meta": lambda vbucket, key, cas: vbucket.incoming.store_with_meta(Event.MUTATION, key, b"", META, cas=cas),
    "with meta, new cas": lambda vbucket, key, cas: vbucket.incoming.store_with_meta(
        Event.DELETION, key, b"", META._replace(deleted=True), cas=cas, resolve=False, new_cas=True
    ),
    "apply": lambda vbucket, key, cas: vbucket.incoming.apply(Event.MUTATION, key, b"", cas=9, rev_seqno=1),
}
WITH_A_CAS = ("set", "replace", "delete", "append", "with meta", "with meta, new cas")


def capture_vbucket(vbucket: Vbucket) -> Any:
    documents = [vbucket.get(key) for key in KEYS]
    return (
        documents,
        vbucket.changes.items,
        vbucket.changes.high_seqno,
        read_all(vbucket.history.open_snapshot(0, MAX_SEQNO)),
    )


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_refused_write_changes_nothing(full: FullBucket, write: Write) -> None:
    before = capture_vbucket(full.vbucket)
    refusals = []
    for key in KEYS:
        try:
            write(full.vbucket, key, 0)
        except StatusError as error:
            refusals.append(type(error))
    assert TemporaryFailure in refusals
    assert capture_vbucket(full.vbucket) == before


@pytest.mark.parametrize("write", [WRITES[name] for name in WITH_A_CAS], ids=WITH_A_CAS)
def test_a_refused_write_leaves_the_lock(full: FullBucket, write: Write) -> None:
    before = capture_vbucket(full.vbucket)
    with pytest.raises(TemporaryFailure):
        write(full.vbucket, b"locked", full.lock)
    assert capture_vbucket(full.vbucket) == before
    full.heal()
    full.bucket.log.commits.run()
    with pytest.raises(Locked):
        write(full.vbucket, b"locked", 0)
    write(full.vbucket, b"locked", full.lock)


def test_reads_continue_on_a_full_disk(full: FullBucket) -> None:
    vbucket = full.vbucket
    assert vbucket.get(b"expired") is None
    item, meta = vbucket.get(b"number"), vbucket.versions.find_meta(b"number")
    assert item is not None
    assert meta is not None
    assert (item.value, meta.rev_seqno) == (b"6", 2)
    vbucket.unlock(b"locked", full.lock)
    with pytest.raises(TemporaryFailure):  # because the cas of a lock must be in the log
        vbucket.lock(b"locked", 15)
    assert vbucket.versions.find_meta(b"expired") is not None
    full.heal()
    full.bucket.log.commits.run()
    assert vbucket.lock(b"locked", 15) is not None
    assert vbucket.get(b"expired") is None
    assert read_all(vbucket.history.open_snapshot(vbucket.changes.high_seqno - 1, MAX_SEQNO))[0].key == b"expired"
