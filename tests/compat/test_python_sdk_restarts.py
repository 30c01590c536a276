"""Couchbase's Python SDK stays connected while the node is stopped, killed and started again.

It recovers without help from the test, and all durable writes that were acknowledged are still on disk.
"""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event, Lock

import pytest

from tests.compat.installed import require_package
from tests.compat.serving import Serving
from tests.patience import PATIENCE

require_package("couchbase")

from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.exceptions import CouchbaseException, DocumentNotFoundException
from couchbase.options import UpsertOptions

WRITERS = 4
KEYS = 50  # of each writer
DURABLE = UpsertOptions(
    durability=ServerDurability(DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE), timeout=timedelta(seconds=10)
)


class Traffic:
    """Writers and a reader. Each writer has its own keys, and increases their values.

    Attributes:
        collection: the collection to write to.
        written: key -> last value whose write was acknowledged. A reader must not find an older value.
        tried: key -> last value that was sent.
        reads: number of successful reads.
        failures: number of failed reads and writes.
        over: set when writers and reader must end.
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

    def run_writer(self, writer):
        chance = random.Random(writer)
        while not self.over.is_set():
            key = f"stay-{writer}-{chance.randrange(KEYS)}"
            value = self.tried[key] = self.tried.get(key, 0) + 1
            try:
                self.collection.upsert(key, value, DURABLE)
            except CouchbaseException:
                self._count_failure()  # the value may be stored or not
            else:
                with self._lock:
                    self.written[key] = value
                    if self.total >= self._awaited:
                        self._progress.set()

    def run_reader(self):
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
                    self._count_failure()
                    continue
                assert found >= known[key], key
                self.reads += 1

    @property
    def total(self):
        return sum(self.written.values())

    def wait_for_writes(self, more, seconds):
        """Return whether `more` further writes were acknowledged within some seconds."""
        with self._lock:
            self._progress.clear()
            self._awaited = self.total + more
        return self._progress.wait(seconds)

    def check_documents(self):
        """Assert that no document is older than its last acknowledged value, or newer than its last sent value."""
        wrong = {}
        for key, value in self.written.items():
            found = self.collection.get(key).value
            if not value <= found <= self.tried[key]:
                wrong[key] = (value, found, self.tried[key])
        assert wrong == {}

    def _count_failure(self):
        with self._lock:
            self.failures += 1


@pytest.mark.parametrize(
    "seconds",
    [
        20,
        pytest.param(120, marks=pytest.mark.soak),
    ],
)
def test_client_survives_restarts_and_changes(connect_cluster, tmp_path, seconds):
    with Serving.running("--vbuckets", 64, "--data-dir", tmp_path / "data") as serving:
        traffic = Traffic(connect_cluster(serving.url).bucket("default").default_collection())
        with ThreadPoolExecutor(WRITERS + 1) as pool:
            work = [pool.submit(traffic.run_writer, writer) for writer in range(WRITERS)] + [
                pool.submit(traffic.run_reader)
            ]
            try:
                for end in (serving.stop, serving.kill, None):
                    until = time.monotonic() + seconds / 3
                    while time.monotonic() < until:
                        assert traffic.wait_for_writes(20, PATIENCE), "no write was acknowledged"
                    if end is not None:
                        end()
                        serving.start()
            finally:
                traffic.over.set()
            for each in work:
                each.result(PATIENCE)
        traffic.check_documents()
        assert traffic.reads
        assert traffic.total > 200
