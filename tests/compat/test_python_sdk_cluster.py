"""Couchbase's Python SDK on several nodes, over which an orchestrator spreads the vbuckets."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from itertools import count
from threading import Event

import pytest

from tests.compat.installed import require_package

require_package("couchbase")

from couchbase.durability import Durability, ServerDurability
from couchbase.exceptions import DurabilitySyncWriteAmbiguousException
from couchbase.options import UpsertOptions

from tests.compat.running import Program
from tests.node.balanced_nodes import open_node, run_balanced_nodes
from tests.patience import PATIENCE

KEYS = [f"key{number}" for number in range(64)]


@pytest.fixture
def nodes():
    with ExitStack() as stack:
        yield stack.enter_context(run_balanced_nodes(stack, 2))


def count_on(web, bucket):
    """Return the number of documents on one node."""
    return web.get_json(f"/pools/default/buckets/{bucket}")["basicStats"]["itemCount"]


def test_documents_go_to_both_nodes(nodes, connect_cluster):
    documents = connect_cluster(f"couchbase://127.0.0.1:{nodes[1].node.kv_port}").bucket("beer").default_collection()
    for key in KEYS:
        documents.upsert(key, {"key": key})
    assert all(documents.get(key).content_as[dict] == {"key": key} for key in KEYS)
    counts = [count_on(web, "beer") for web in nodes]
    assert sum(counts) == len(KEYS)
    assert all(counts)


class DurableWrites:
    """A writer of majority writes to the same keys. It repeats a write whose result is unknown, as clients must.

    Attributes:
        written: key -> the number that was acknowledged last.
    """

    def __init__(self, documents):
        self.written: dict[str, int] = {}
        self._documents = documents
        self._over = Event()
        self._options = UpsertOptions(
            durability=ServerDurability(Durability.MAJORITY), timeout=timedelta(seconds=PATIENCE)
        )

    def run(self):
        """Write until `finish`, and return the number of rounds."""
        for number in count(1):
            for key in KEYS:
                self._write(key, number)
            if self._over.is_set():
                return number

    def finish(self):
        """Let the writer end after a round that has begun already."""
        self._over.set()

    def _write(self, key, number):
        while key not in self.written or self.written[key] < number:
            try:
                self._documents.upsert(key, number, self._options)
            except DurabilitySyncWriteAmbiguousException:  # the vbucket has moved before the write was decided
                continue
            self.written[key] = number


def balance_with_replicas(source, target):
    """Return a context with `penstock move --balance --replicas 1`, which keeps the replicas while it runs."""
    nodes = ("--from", source.node.url("beer"), "--to", target.node.url("beer"))
    options = ("--balance", "--replicas", "1", "--json", *nodes)
    return Program.running([sys.executable, "-m", "penstock", "move", *options])


def wait_for_replicas(balancing):
    balancing.read_until(lambda lines: any("replicas" in json.loads(line) for line in lines))


@pytest.mark.long
def test_majority_writes_go_on_during_balances_with_replicas(nodes, connect_cluster):
    cluster = connect_cluster(f"couchbase://127.0.0.1:{nodes[0].node.kv_port}")
    documents = cluster.bucket("beer").default_collection()
    with ExitStack() as stack:
        writes = DurableWrites(documents)
        with ThreadPoolExecutor(1) as pool, ExitStack() as first:
            writing = pool.submit(writes.run)
            try:
                wait_for_replicas(first.enter_context(balance_with_replicas(*nodes)))
                third = stack.enter_context(open_node())
                wait_for_replicas(stack.enter_context(balance_with_replicas(nodes[0], third)))
                first.close()
            finally:
                writes.finish()
            assert writing.result(PATIENCE) > 0
        rows = nodes[0].get_json("/pools/default/b/beer")["vBucketServerMap"]["vBucketMap"]
        assert all(len({*row} - {-1}) == 2 for row in rows)
        assert {place for row in rows for place in row} == {0, 1, 2}
        assert {key: documents.get(key).value for key in KEYS} == writes.written
