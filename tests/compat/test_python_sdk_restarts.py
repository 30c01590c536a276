"""Couchbase's own Python client stays while the node is stopped, killed and started again.

It is never told: it finds its way back by itself, and what it was answered that is on disk is there.
"""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event, Lock

import pytest

from tests.compat.installed import need
from tests.compat.serving import Serving
from tests.patience import PATIENCE

need("couchbase")

from couchbase.durability import DurabilityLevel, ServerDurability  # noqa: E402
from couchbase.exceptions import CouchbaseException, DocumentNotFoundException  # noqa: E402
from couchbase.options import UpsertOptions  # noqa: E402

WRITERS = 4
KEYS = 50  # of each writer
DURABLE = UpsertOptions(
    durability=ServerDurability(DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE), timeout=timedelta(seconds=10)
)


class Traffic:
    """Writers, each with keys of its own, whose values only grow. written: by key, the newest that was acknowledged;
    tried: the newest that was sent. A reader finds none of them older than it must be.
    """

    def __init__(self, collection):
        self.collection = collection
        self.written: dict[str, int] = {}
        self.tried: dict[str, int] = {}
        self.reads = self.failures = 0
        self.over = Event()
        self._lock = Lock()
        self._progress = Event()
        self._awaited = 0

    def write(self, writer):
        chance = random.Random(writer)
        while not self.over.is_set():
            key = f"stay-{writer}-{chance.randrange(KEYS)}"
            value = self.tried[key] = self.tried.get(key, 0) + 1
            try:
                self.collection.upsert(key, value, DURABLE)
            except CouchbaseException:
                self._failed()  # it may have been stored, or not
            else:
                with self._lock:
                    self.written[key] = value
                    if self.total >= self._awaited:
                        self._progress.set()

    def read(self):
        chance = random.Random("reader")
        while not self.over.is_set():
            known = dict(self.written)
            if known:
                key = chance.choice(list(known))
                try:
                    found = self.collection.get(key, timeout=timedelta(seconds=10)).value
                except DocumentNotFoundException:
                    found = 0
                except CouchbaseException:
                    self._failed()
                    continue
                assert found >= known[key], key
                self.reads += 1

    @property
    def total(self):
        return sum(self.written.values())

    def wait_for(self, more, seconds):
        """Wait until so many more writes have been acknowledged."""
        with self._lock:
            self._progress.clear()
            self._awaited = self.total + more
        return self._progress.wait(seconds)

    def check(self):
        """Is there a document that is older than what was acknowledged, or newer than what was sent?"""
        wrong = {}
        for key, value in self.written.items():
            found = self.collection.get(key).value
            if not value <= found <= self.tried[key]:
                wrong[key] = (value, found, self.tried[key])
        assert wrong == {}

    def _failed(self):
        with self._lock:
            self.failures += 1


@pytest.mark.parametrize(
    "seconds",
    [
        20,
        pytest.param(120, marks=pytest.mark.soak),
    ],
)
def test_client_survives_restarts_and_changes(connected, tmp_path, seconds):
    with Serving.running("--vbuckets", 64, "--data-dir", tmp_path / "data") as serving:
        traffic = Traffic(connected(serving.url).bucket("default").default_collection())
        with ThreadPoolExecutor(WRITERS + 1) as pool:
            work = [pool.submit(traffic.write, writer) for writer in range(WRITERS)] + [pool.submit(traffic.read)]
            try:
                for end in (serving.stop, serving.kill, None):
                    until = time.monotonic() + seconds / 3
                    while time.monotonic() < until:
                        assert traffic.wait_for(20, PATIENCE), "no write was acknowledged"
                    if end is not None:
                        end()
                        serving.start()
            finally:
                traffic.over.set()
            for each in work:
                each.result(PATIENCE)
        traffic.check()
        assert traffic.reads
        assert traffic.total > 200
