"""Couchbase's Python SDK on a cluster that nodes join and leave."""

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
from couchbase.management.buckets import BucketType, CreateBucketSettings
from couchbase.options import UpsertOptions

from tests.compat.running import Program
from tests.node.membership.clusters import open_member, run_cluster
from tests.node.membership.member_process import wait_for
from tests.patience import PATIENCE

KEYS = [f"key{number}" for number in range(64)]


@pytest.fixture
def nodes():
    with ExitStack() as stack:
        yield stack.enter_context(run_cluster(stack, 2))


def create_bucket(cluster, name):
    """Create a bucket and return it."""
    settings = CreateBucketSettings(
        name=name, bucket_type=BucketType.COUCHBASE, ram_quota_mb=100, num_replicas=0, flush_enabled=True
    )
    cluster.buckets().create_bucket(settings)
    return cluster.bucket(name)


def count_on(web, bucket):
    """Return the number of documents on one node."""
    return web.get_json(f"/pools/default/buckets/{bucket}")["basicStats"]["itemCount"]


def test_documents_go_to_both_nodes(nodes, connect_cluster):
    cluster = connect_cluster(f"couchbase://127.0.0.1:{nodes[1].node.kv_port}")
    bucket = create_bucket(cluster, "wine")
    documents = bucket.default_collection()
    for key in KEYS:
        documents.upsert(key, {"key": key})
    assert all(documents.get(key).content_as[dict] == {"key": key} for key in KEYS)
    counts = [count_on(web, "wine") for web in nodes]
    assert sum(counts) == len(KEYS)
    assert all(counts)
    manager = bucket.collections()
    manager.create_scope("cellar")
    manager.create_collection("cellar", "red")
    red = bucket.scope("cellar").collection("red")
    for key in KEYS:
        red.upsert(key, "red")
    assert {key: red.get(key).value for key in KEYS} == dict.fromkeys(KEYS, "red")
    cluster.buckets().flush_bucket("wine")
    assert [count_on(web, "wine") for web in nodes] == [0, 0]
    cluster.buckets().drop_bucket("wine")
    assert {one.name for one in cluster.buckets().get_all_buckets()} == {"beer"}


def test_connected_client_uses_the_bucket_while_nodes_leave(nodes, connect_cluster):
    cluster = connect_cluster(f"couchbase://127.0.0.1:{nodes[0].node.kv_port}")
    documents = cluster.bucket("beer").default_collection()
    documents.upsert("before", 1)
    assert nodes[0].post("/controller/ejectNode", otpNode=nodes.names[1]).status == 200
    documents.upsert("after", 2)
    assert [documents.get(key).value for key in ("before", "after")] == [1, 2]


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


def balance_with_replicas(url):
    """Return a context with `penstock move --balance --replicas 1`, which keeps the replicas while it runs."""
    options = ("--balance", "--replicas", "1", "--json", "--from", url)
    return Program.running([sys.executable, "-m", "penstock", "move", *options])


def wait_for_replicas(balancing):
    balancing.read_until(lambda lines: any("replicas" in json.loads(line) for line in lines))


@pytest.mark.long
def test_majority_writes_go_on_during_balances_with_replicas(nodes, connect_cluster):
    cluster = connect_cluster(f"couchbase://127.0.0.1:{nodes[0].node.kv_port}")
    documents, url = cluster.bucket("beer").default_collection(), nodes[0].node.url("beer")
    with ExitStack() as stack:
        writes = DurableWrites(documents)
        with ThreadPoolExecutor(1) as pool, ExitStack() as first:
            writing = pool.submit(writes.run)
            try:
                wait_for_replicas(first.enter_context(balance_with_replicas(url)))
                stack.enter_context(open_member(nodes[0]))
                wait_for_replicas(stack.enter_context(balance_with_replicas(url)))
                first.close()
            finally:
                writes.finish()
            assert writing.result(PATIENCE) > 0
        rows = nodes[0].get_json("/pools/default/b/beer")["vBucketServerMap"]["vBucketMap"]
        assert all(len({*row} - {-1}) == 2 for row in rows)
        assert {place for row in rows for place in row} == {0, 1, 2}
        assert {key: documents.get(key).value for key in KEYS} == writes.written


def rebalance(web, *ejected):
    """Let a node rebalance its cluster, as an administrator does, and wait for the end."""
    known = [node["otpNode"] for node in web.get_json("/pools/default")["nodes"]]
    form = {"knownNodes": ",".join(known), "ejectedNodes": ",".join(ejected)}
    assert web.post("/controller/rebalance", **form).status == 200
    wait_for(lambda: web.get_json("/pools/default")["rebalanceStatus"] == "none", "the end of the rebalance")
    assert web.get_json("/pools/default/rebalanceProgress") == {"status": "none"}
    assert web.get_json("/pools/default")["balanced"] is True


@pytest.mark.long
def test_majority_writes_go_on_during_rebalances_over_http(nodes, connect_cluster):
    cluster = connect_cluster(f"couchbase://127.0.0.1:{nodes[0].node.kv_port}")
    documents, url = cluster.bucket("beer").default_collection(), nodes[0].node.url("beer")
    assert nodes[0].post("/pools/default/buckets/beer", replicaNumber=1).status == 200
    rebalance(nodes[0])
    with ExitStack() as stack:
        stack.enter_context(Program.running([sys.executable, "-m", "penstock", "replicate", "--from", url]))
        writes = DurableWrites(documents)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(writes.run)
            try:
                third = stack.enter_context(open_member(nodes[0]))
                rebalance(third)
                rebalance(nodes[0], nodes.names[1])
            finally:
                writes.finish()
            assert writing.result(PATIENCE) > 0
        assert len(third.get_json("/pools/default")["nodes"]) == 2
        assert {key: documents.get(key).value for key in KEYS} == writes.written
