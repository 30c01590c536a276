"""A node with something to see on its dashboard: documents, writes, consumers with and without a lag, a rollback."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import penstock
from penstock.node import Node
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.wire.codec.constants import Feature, VbucketState
from penstock.wire.codec.flags import OpenFlag
from penstock.wire.codec.statuses import Status
from tests.node.wire_client import WireClient, connected
from tests.patience import PATIENCE

_STYLES = ("pale ale", "stout", "saison", "porter", "lager")


def dashboard_url(node: Any) -> str:
    return f"http://127.0.0.1:{node.http_port}/_penstock"


def store_documents(url: str, count: int, *, first: int = 0) -> None:
    """Store beers, spread over all vbuckets."""

    async def store() -> None:
        async with penstock.connect(url) as bucket:
            await bucket.upsert_many(
                (f"beer-{number:05}", _make_beer(number)) for number in range(first, first + count)
            )

    asyncio.run(store())


def _make_beer(number: int) -> bytes:
    style = _STYLES[number % len(_STYLES)]
    return b'{"type":"beer","style":"%s","abv":%.1f,"batch":%d}' % (style.encode(), 4 + number % 50 / 10, number)


@contextmanager
def stored_without_end(url: str, pause: float = 0.0, *, among: int = 5000) -> Iterator[None]:
    """Store the first documents again and again while the block runs, a few of them very often."""
    over, chance = threading.Event(), random.Random(1)

    def choose_key() -> str:
        return f"beer-{int(among * chance.random() ** 6):05}"

    async def store() -> None:
        async with penstock.connect(url) as bucket:
            number = 0
            while not over.is_set():
                batch = range(number, number + 40)
                await bucket.upsert_many((choose_key(), _make_beer(one)) for one in batch)
                for _ in batch[::8]:
                    await bucket.get(choose_key())
                number += 40
                await asyncio.sleep(pause)

    thread = threading.Thread(target=asyncio.run, args=(store(),))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE)


def open_consumer(
    client: WireClient, name: str, vbuckets: Sequence[int], *, window: int = 0, flags: OpenFlag = OpenFlag.PRODUCER
) -> None:
    """Open streams of some vbuckets. Once its window is full, a consumer that reads nothing lags."""
    client.hello(Feature.COLLECTIONS, Feature.JSON)
    client.open(name, flags)
    assert client.control("enable_noop", "true") == Status.SUCCESS
    if window:
        assert client.control("connection_buffer_size", str(window)) == Status.SUCCESS
    for vbucket in vbuckets:
        client.stream(vbucket, opaque=vbucket)


def lose_changes(node: Node, bucket: str, vbucket: int, seqno: int) -> None:
    """Lose the changes of a vbucket above a seqno, as a failover to a replica without them does."""

    async def roll_back() -> None:
        served = node.buckets[bucket]
        found = served.store.vbuckets[vbucket]
        found.rollback(seqno)
        for state in (VbucketState.REPLICA, VbucketState.ACTIVE):
            found.set_state(state)
            served.report_event(found, VbucketEvent.STATE_CHANGED)

    asyncio.run_coroutine_threadsafe(roll_back(), node.loop).result(PATIENCE)


def resume(client: WireClient, name: str, vbucket: int, seqno: int, vbuuid: int) -> int:
    """Resume a stream from a position, and return the status of the answer."""
    client.open(name)
    return client.stream(vbucket, start=seqno, vbuuid=vbuuid).specific


@contextmanager
def opened_scene() -> Iterator[Node]:
    """Run a node with documents, writes, three consumers and rollbacks."""
    with Node.running(["beer"], vbuckets=1024) as node, ExitStack() as stack:
        url = node.url("beer")
        store_documents(url, 30_000)
        clients = [stack.enter_context(connected(node, "beer")) for _ in range(5)]
        histories = {vbucket: read_history(node, "beer", vbucket) for vbucket in (7, 42, 500)}
        for vbucket, (high, _) in histories.items():
            lose_changes(node, "beer", vbucket, high - 6)
        store_documents(url, 6_000, first=40_000)
        for client, (vbucket, (high, vbuuid)) in zip(clients, histories.items(), strict=False):
            resume(client, "warehouse-sync", vbucket, high, vbuuid)
        open_consumer(clients[3], "audit-archive", random.Random(7).sample(range(1024), 400), window=20_000)
        open_consumer(clients[4], "search-indexer", range(128), flags=OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS)
        stack.enter_context(stored_without_end(url))
        yield node


def read_history(node: Node, bucket: str, vbucket: int) -> tuple[int, int]:
    """Return the high seqno and the branch of a vbucket."""
    found = node.buckets[bucket].store.vbuckets[vbucket]
    return found.changes.high_seqno, found.history.vbuuid
