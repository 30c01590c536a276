"""Couchbase's Python SDK writes while vbuckets move between nodes: it learns the map, and loses no write."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from penstock.client.cluster.map_publisher import MapPublisher
from penstock.client.cluster.vbucket_mover import VbucketMover
from penstock.client.connect.address import parse_address
from penstock.client.login.credentials import Credentials
from penstock.client.topology.balance_plan import plan_balance
from tests.compat.installed import require_package
from tests.compat.serving import Serving
from tests.patience import PATIENCE

require_package("couchbase")

WRITERS = 3
VBUCKETS = 16


class NumberedWrites:
    """Writers of numbered documents, each in a thread of its own.

    Attributes:
        written: the keys whose writes were acknowledged.
    """

    def __init__(self, collection):
        self.written: list[str] = []
        self._collection = collection
        self._over = Event()
        self._wanted: int | None = None

    def run(self, writer):
        number = 0
        while not self._over.is_set():
            key = f"{writer}-{number}"
            self._collection.upsert(key, number)
            self.written.append(key)
            number += 1
            if self._wanted is not None and len(self.written) >= self._wanted:
                self._over.set()

    def finish(self, more):
        """Let the writers end after so many more writes."""
        self._wanted = len(self.written) + more


async def balance(first, second):
    """Spread the vbuckets of the first node over both."""
    credentials = Credentials(first.user, first.password)
    address = parse_address(f"{first.url}/default", credentials)
    publisher = MapPublisher(address)
    try:
        for node in (first, second):
            await publisher.load(("127.0.0.1", node.kv_port))
        layout = publisher.layout
        endpoints = [node.endpoint for node in layout.nodes]
        mover = VbucketMover(publisher, address)
        moves = plan_balance([places[0] for places in layout.chains], len(endpoints))
        await mover.move([move.vbucket for move in moves], endpoints[0], endpoints[1])
        return len(moves)
    finally:
        await publisher.close()


def test_writes_of_the_sdk_survive_a_balance(connect_cluster):
    options = ("--bucket", "default", "--vbuckets", VBUCKETS)
    with Serving.running(*options) as first, Serving.running(*options) as second:
        collection = connect_cluster(first.url).bucket("default").default_collection()
        writes = NumberedWrites(collection)
        with ThreadPoolExecutor(WRITERS) as pool:
            running = [pool.submit(writes.run, writer) for writer in range(WRITERS)]
            try:
                assert asyncio.run(balance(first, second)) == VBUCKETS // 2
            finally:
                writes.finish(100)
            for each in running:
                each.result(PATIENCE)
        found = collection.get_multi(writes.written)
        assert found.all_ok
        assert len(found.results) == len(writes.written)
