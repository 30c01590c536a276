"""Couchbase's Python SDK and Penstock's client write while a node is killed and failed over: both go on."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from threading import Event

import pytest

import penstock
from penstock.client.blocking import LoopThread
from penstock.client.replication.replicator import ReplicationOptions, Replicator
from penstock.errors import Error
from tests.compat.installed import require_package
from tests.node.membership.failovers import VBUCKETS, find_owner, make_address, make_replicas, wait_failed_over
from tests.node.membership.member_process import run_members, wait_for
from tests.patience import PATIENCE

require_package("couchbase")

from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.exceptions import CouchbaseException
from couchbase.options import UpsertOptions

DURABLE = ServerDurability(DurabilityLevel.MAJORITY)
TIMEOUT = timedelta(seconds=10)
MORE = 10


class KeptWriter:
    """Writes documents with new keys, one after the other, and goes on after errors.

    Attributes:
        name: begins the keys.
        written: the keys whose writes were acknowledged.
    """

    def __init__(self, name, upsert):
        self.name = name
        self.written: list[str] = []
        self._upsert = upsert

    def run(self, over):
        number = 0
        while not over.is_set():
            key = f"{self.name}-{number}"
            number += 1
            try:
                self._upsert(key)
            except (CouchbaseException, Error):
                continue  # it is not known whether the document was written
            self.written.append(key)


def wait_for_more(writers):
    """Wait until each writer has written some more documents."""
    known = [len(writer.written) for writer in writers]
    wait_for(
        lambda: all(len(writer.written) >= before + MORE for writer, before in zip(writers, known, strict=True)),
        "documents of all writers",
    )


@pytest.fixture
def loop():
    with LoopThread() as running:
        yield running


def replicate(loop, source, target, vbuckets):
    """Let the vbuckets of a target follow a source until the end of the test."""

    async def run():
        options = ReplicationOptions(vbuckets=vbuckets)
        async with Replicator(make_address(source), make_address(target), options) as replicator:
            await replicator.run()

    if vbuckets:
        loop.start(run())


@pytest.fixture
def members(tmp_path, loop):
    """Three nodes; two of them have replicas of all vbuckets of the first one."""
    with run_members(tmp_path, 3, "--lease-seconds", 2, "--auto-failover-seconds", 4) as started:
        first, *others = started
        make_replicas(first, others)
        for other in others:
            replicate(loop, first, other, range(VBUCKETS))
        yield started


@pytest.fixture
def own_client(loop, members):
    """Penstock's client, which knows the first node."""
    client = penstock.connect(f"couchbase://127.0.0.1:{members[0].ports[0]}/default")
    loop.start(client.connect()).result(PATIENCE)
    yield client
    loop.start(client.close()).result(PATIENCE)


@pytest.fixture
def writers(loop, members, connect_cluster, own_client):
    collection = connect_cluster(f"couchbase://127.0.0.1:{members[0].ports[0]}").bucket("default").default_collection()

    def upsert(key, durability=None):
        loop.start(own_client.upsert(key, key.encode(), durability=durability)).result(PATIENCE)

    return [
        KeptWriter("sdk", lambda key: collection.upsert(key, key)),
        KeptWriter(
            "sdk-durable", lambda key: collection.upsert(key, key, UpsertOptions(durability=DURABLE, timeout=TIMEOUT))
        ),
        KeptWriter("own", upsert),
        KeptWriter("own-durable", lambda key: upsert(key, "majority")),
    ]


def test_durable_writes_survive_the_failover_and_clients_go_on(loop, members, writers, own_client, connect_cluster):
    first, *others = members
    over = Event()
    with ThreadPoolExecutor(len(writers)) as pool, ExitStack() as stack:
        stack.callback(over.set)
        running = [pool.submit(writer.run, over) for writer in writers]
        wait_for_more(writers)
        first.kill()
        wait_failed_over(0, others[0])
        owners = [find_owner(others[0], vbucket) for vbucket in range(VBUCKETS)]
        assert 0 not in owners
        for source, target in ((1, 2), (2, 1)):
            owned = [vbucket for vbucket, owner in enumerate(owners) if owner == source]
            replicate(loop, members[source], members[target], owned)
        wait_for_more(writers)
        over.set()
        for each in running:
            each.result(PATIENCE)
    collection = connect_cluster(f"couchbase://127.0.0.1:{first.ports[0]}").bucket("default").default_collection()
    _, durable, _, own_durable = writers
    assert {key: collection.get(key).value for key in durable.written} == {key: key for key in durable.written}
    for key in own_durable.written:
        assert loop.start(own_client.get(key)).result(PATIENCE).value == key.encode()
