"""One bucket and a consumer in each of four dialects: after any actions, each consumer has the bucket's documents."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Change, Node
from penstock.client.bucket import Bucket
from penstock.errors import KeyNotFound
from penstock.node.server.node_connection import NodeConnection
from penstock.wire.codec.constants import Dialect
from penstock.wire.columns.schema import Event
from tests.examples import scaled
from tests.patience import PATIENCE

VBUCKETS = 4
LONG_GONE = int(time.time()) - 3600

KEYS = st.integers(0, 11).map(lambda number: f"key-{number}")
ACTIONS = st.one_of(
    st.tuples(st.just("store"), KEYS, st.binary(max_size=40)),
    st.tuples(st.just("remove"), KEYS, st.just(b"")),
    st.tuples(st.just("expire"), KEYS, st.just(b"")),
    st.tuples(st.just("look"), KEYS, st.just(b"")),
    st.tuples(st.just("flush"), st.just(""), st.just(b"")),
    st.tuples(st.just("cut"), st.just(""), st.just(b"")),
)


class Copy:
    """The documents that a consumer has after its changes. `left`: vbuckets whose last document has not come yet."""

    def __init__(self) -> None:
        self.documents: dict[int, dict[bytes, tuple[bytes, int]]] = {vb: {} for vb in range(VBUCKETS)}
        self.seen: list[Change] = []
        self.done = asyncio.Event()

    def take(self, change: Change, last: set[bytes]) -> None:
        self.seen.append(change)
        documents = self.documents[change.vbucket]
        if change.event == Event.ROLLBACK:
            assert change.seqno == 0, "a node that never fails over goes back for a flush alone, and TAP to begin again"
            documents.clear()
        elif change.event == Event.MUTATION:
            assert change.key is not None
            documents[change.key] = (change.value or b"", change.cas or 0)
        else:
            documents.pop(change.key or b"", None)
        if {key for each in self.documents.values() for key in each} >= last:
            self.done.set()


async def follow(url: str, dialect: Dialect, copy: Copy, last: set[bytes]) -> None:
    async with penstock.connect(url) as bucket:
        async for change in bucket.changes(protocol=dialect.value):
            copy.take(change, last)


@asynccontextmanager
async def running() -> AsyncIterator[Node]:
    node = await Node.start(port=0, buckets=["beer"], vbuckets=VBUCKETS)
    try:
        yield node
    finally:
        await node.stop()


async def act(node: Node, bucket: Bucket, action: str, key: str, value: bytes) -> None:
    if action == "store":
        await bucket.upsert(key, value)
    elif action == "expire":
        await bucket.upsert(key, b"gone", expiry=LONG_GONE)
    elif action == "flush":
        await bucket.flush()
    elif action == "cut":
        for connection in list(node.connections.open_connections):
            assert isinstance(connection, NodeConnection)
            if connection.session.endpoint is not None:
                connection.abort("cut off by the test")
    else:
        try:
            await (bucket.remove(key) if action == "remove" else bucket.get(key))
        except KeyNotFound:
            return


async def live_through(actions: list[tuple[str, str, bytes]], joined: int) -> None:
    """Let four consumers follow from the action numbered `joined` on, and compare their documents at the end."""
    async with running() as node, penstock.connect(node.url("beer")) as bucket:
        last = {b"last-%d" % number for number in range(40)}  # some in every vbucket
        copies = {dialect: Copy() for dialect in Dialect}
        following: list[asyncio.Task[None]] = []
        try:
            for number, action in enumerate([*actions, None]):
                if number == min(joined, len(actions)):
                    url = node.url("beer")
                    following = [asyncio.create_task(follow(url, d, copy, last)) for d, copy in copies.items()]
                if action is not None:
                    await act(node, bucket, *action)
            touched = {action[1] for action in actions if action[1]}
            await documents_of(bucket, touched)  # a document expires when someone asks for it
            await bucket.upsert_many((key, b"") for key in sorted(last))
            async with asyncio.timeout(PATIENCE):
                everywhere = asyncio.create_task(_all(copies))
                await asyncio.wait([everywhere, *following], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in following:
                task.cancel()
            ended = await asyncio.gather(*following, return_exceptions=True)
        assert [error for error in ended if not isinstance(error, asyncio.CancelledError)] == []
        held = await documents_of(bucket, touched | {key.decode() for key in last})
        for dialect, copy in copies.items():
            assert {k: v for each in copy.documents.values() for k, v in each.items()} == held, dialect


async def _all(copies: dict[Dialect, Copy]) -> None:
    for copy in copies.values():
        await copy.done.wait()


async def documents_of(bucket: Bucket, keys: set[str]) -> dict[bytes, tuple[bytes, int]]:
    ordered = sorted(keys)
    found = await bucket.get_many(ordered)
    return {
        key.encode(): (document.value, document.cas)
        for key, document in zip(ordered, found, strict=True)
        if document is not None
    }


@settings(max_examples=scaled(25))
@given(st.lists(ACTIONS, max_size=60), st.integers(0, 60))
def test_every_dialect_ends_with_the_buckets_documents(actions: list[tuple[str, str, bytes]], joined: int) -> None:
    asyncio.run(live_through(actions, joined))


@pytest.mark.soak
@given(st.lists(ACTIONS, max_size=200), st.integers(0, 200))
def test_every_dialect_ends_with_the_buckets_documents_for_long(
    actions: list[tuple[str, str, bytes]], joined: int
) -> None:
    asyncio.run(live_through(actions, joined))
