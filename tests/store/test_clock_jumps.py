"""Hours in which the wall clock jumps, seconds or days, forward and back: cas, expiry, locks, purges and restarts.

A model predicts the answers of the bucket. It has two clocks: the wall clock, which jumps, and a monotonic clock.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import KeyNotFound, Locked
from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.disk.durable_log import DurableLog
from penstock.store.documents.vbucket import Vbucket
from tests.store.model import START

SECOND = 10**9
HOUR, DAY = 60 * 60, 24 * 60 * 60
KEYS = [b"key %d" % number for number in range(12)]
PURGE_AGE = 6 * HOUR
JUMPS = (1, 30, 600, HOUR, 10 * HOUR, DAY, 3 * DAY)


@dataclass(frozen=True)
class KnownDocument:
    """A document of the model.

    Attributes:
        value: body of the document.
        expiry: time by the wall clock, in seconds since the epoch; 0: it does not expire.
        locked_until: time by the monotonic clock, in seconds; 0: it is not locked.
    """

    value: bytes
    expiry: int = 0
    locked_until: float = 0


@dataclass
class Day:
    """A bucket and its model.

    Attributes:
        path: directory of the bucket; None: the bucket is in memory.
        chance: source of random numbers.
        wall, monotonic: the clocks, in seconds.
        highest: highest time that the wall clock has shown.
        documents: documents by key, including expired ones that have not become tombstones yet.
        tombstones: key -> time of its deletion, without tombstones that a compaction may have dropped.
        cas: newest cas of a change or a lock.
        changes: number of changes and locks so far.
        bucket: the bucket.
    """

    path: Path | None
    chance: random.Random
    wall: float = START / SECOND
    monotonic: float = 0.0
    highest: float = START / SECOND
    documents: dict[bytes, KnownDocument] = field(default_factory=dict)
    tombstones: dict[bytes, int] = field(default_factory=dict)
    cas: int = 0
    changes: int = 0
    bucket: BucketStore = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = count(1)
        self.bucket = self.open()

    def open(self) -> BucketStore:
        how: dict[str, Any] = {
            "vbuckets": 1,
            "clock": lambda: int(self.wall * SECOND),
            "new_vbuuid": lambda: next(self.numbers),
            "settings": BucketSettings(purge_age=PURGE_AGE, segment_bytes=4096),
        }
        bucket = BucketStore("b", **how) if self.path is None else BucketStore.open(self.path, "b", **how)
        bucket.vbuckets[0].locks.monotonic = lambda: int(self.monotonic * SECOND)
        return bucket

    @property
    def vbucket(self) -> Vbucket:
        return self.bucket.vbuckets[0]

    @property
    def now(self) -> int:
        return int(self.wall)

    def pass_time(self) -> None:
        """Let some time pass, and now and then let the wall clock jump."""
        seconds = self.chance.choice([0, 0.001, 1, 10, 60, 300])
        self.monotonic += seconds
        self.wall += seconds
        if self.chance.random() < 0.1:
            self.wall += self.chance.choice(JUMPS) * self.chance.choice([-1, 1])
        self.highest = max(self.highest, self.wall)

    def check_cas(self, cas: int) -> None:
        """Check that a new cas is above all others and not far above the clock."""
        self.changes += 1
        assert cas > self.cas
        assert cas <= int(self.highest * SECOND) + self.changes
        self.cas = cas

    def find_living(self, key: bytes) -> KnownDocument | None:
        """Return a document of the model; if its expiry has been reached, it becomes a tombstone for good."""
        known = self.documents.get(key)
        if known is not None and 0 < known.expiry <= self.now:
            self.forget(key)
            self.check_expiration_cas()
            return None
        return known

    def forget(self, key: bytes) -> KnownDocument:
        self.tombstones[key] = self.now
        return self.documents.pop(key)

    def check_expiration_cas(self) -> None:
        """Check the cas of an expiration, which no client receives, so it is read from the clock."""
        self.check_cas(self.vbucket.changes.clock.last)

    # Steps

    def read(self, key: bytes) -> None:
        item = self.vbucket.get(key)
        known = self.find_living(key)
        assert (None if item is None else item.value) == (None if known is None else known.value)

    def write(self, key: bytes) -> None:
        known, value = self.documents.get(key), b"%d" % self.chance.randrange(1000)
        expiry = self.chance.choice([0, 1, 60, HOUR, DAY, self.now + 5, self.now + DAY])
        try:
            stored = self.vbucket.set(key, value, expiry=expiry)
        except Locked:
            assert known is not None
            assert self.monotonic < known.locked_until
            return
        if known is not None and 0 < known.expiry <= self.now:
            self.changes += 1  # the deletion in between
        elif known is not None:
            assert self.monotonic >= known.locked_until
        self.tombstones.pop(key, None)
        self.documents[key] = KnownDocument(value, self.now + expiry if 0 < expiry <= 30 * DAY else expiry)
        self.check_cas(stored.cas)

    def delete(self, key: bytes) -> None:
        try:
            stored = self.vbucket.delete(key)
        except KeyNotFound:
            assert self.find_living(key) is None
        except Locked:
            assert self.monotonic < self.documents[key].locked_until
        else:
            assert self.monotonic >= self.forget(key).locked_until
            self.check_cas(stored.cas)

    def lock(self, key: bytes) -> None:
        known = self.documents.get(key)
        try:
            item = self.vbucket.lock(key, 20)
        except Locked:
            assert known is not None
            assert self.monotonic < known.locked_until
            return
        known = self.find_living(key)
        assert (item is None) == (known is None)
        if item is not None and known is not None:
            assert self.monotonic >= known.locked_until
            self.documents[key] = replace(known, locked_until=self.monotonic + 20)
            self.check_cas(item.cas)

    def delete_expired(self) -> None:
        """Run the pager, and check that it deletes the expired documents and nothing else."""
        over = [key for key, known in self.documents.items() if 0 < known.expiry <= self.now]
        before = self.vbucket.changes.high_seqno
        while self.bucket.pager.expire_some():
            continue
        assert self.vbucket.changes.high_seqno == before + len(over)
        for key in over:
            self.forget(key)
        self.changes += len(over)
        if over:
            self.cas = self.vbucket.changes.clock.last

    def compact(self) -> None:
        """Compact, and check that all tombstones younger than the purge age stay."""
        if self.path is not None:
            self.bucket.log.commits.run()
            self.bucket.log.room.seal_active()
            self.bucket.compactor.rewrite_all()
            self.tombstones = {key: time for key, time in self.tombstones.items() if time >= self.now - PURGE_AGE}
        for key in self.tombstones:
            assert self.vbucket.versions.find_tombstone(key) is not None

    def restart(self) -> None:
        """Close or kill the bucket after a commit, and open it again; changes stay, locks end."""
        if self.path is not None:
            self.bucket.log.commits.run()
            if isinstance(self.bucket.log, DurableLog) and self.chance.random() < 0.5:
                self.bucket.log.release()
            else:
                self.bucket.close()
            self.bucket = self.open()
            self.documents = {key: replace(known, locked_until=0) for key, known in self.documents.items()}

    def run(self, hours: float) -> None:
        """Take random steps for so many hours of the monotonic clock."""
        actions = [self.read, self.read, self.write, self.write, self.write, self.delete, self.lock]
        while self.monotonic < hours * HOUR:
            self.pass_time()
            match self.chance.randrange(40):
                case 0:
                    self.delete_expired()
                case 1:
                    self.restart()
                case 2:
                    self.compact()
                case _:
                    self.chance.choice(actions)(self.chance.choice(KEYS))
        for key in KEYS:
            self.read(key)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("on_disk", [False, True])
def test_bucket_matches_its_model_for_hours_of_clock_jumps(tmp_path, on_disk, seed):
    Day(tmp_path / "b" if on_disk else None, random.Random(seed)).run(3)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("on_disk", [False, True])
def test_bucket_matches_its_model_for_days_of_clock_jumps(tmp_path, on_disk, seed):
    Day(tmp_path / "b" if on_disk else None, random.Random(1000 + seed)).run(24)


def is_locked_after_jump(jump: int, waited: int) -> bool:
    """Lock a document for 20 s, let the wall clock jump, wait, and return whether the document is still locked."""
    day = Day(None, random.Random(0))
    day.vbucket.set(b"k", b"v")
    day.vbucket.lock(b"k", 20)
    day.wall += jump + waited
    day.monotonic += waited
    try:
        day.vbucket.set(b"k", b"w")
    except Locked:
        return True
    return False


@pytest.mark.parametrize("jump", [0, -DAY, -1, 1, DAY])
@pytest.mark.parametrize(("waited", "locked"), [(0, True), (19, True), (20, False), (21, False)])
def test_clock_jump_does_not_change_the_length_of_a_lock(jump, waited, locked):
    assert is_locked_after_jump(jump, waited) is locked


@pytest.mark.parametrize("ends", ["closed", "killed", "cleared"])
def test_the_cas_of_a_lock_is_not_reused_after_a_restart(tmp_path: Path, ends: str) -> None:
    day = Day(tmp_path / "b", random.Random(0))
    day.vbucket.set(b"k", b"")
    day.wall += HOUR
    locked = day.vbucket.lock(b"k", 15)
    assert locked is not None
    day.wall -= HOUR
    if ends == "cleared":
        day.bucket.compactor.rewrite_all()  # it deletes the log file with the note of the cas
    day.bucket.log.commits.run()
    assert isinstance(day.bucket.log, DurableLog)
    if ends == "closed":
        day.bucket.close()
    else:
        day.bucket.log.release()
    again = day.open().vbuckets[0]
    assert again.set(b"k", b"").cas > locked.cas
