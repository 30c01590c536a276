"""A flush runs in slices, and the node serves other clients between them."""

import asyncio

import pytest

from penstock.errors import TemporaryFailure
from penstock.node import Node
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.definition.manifest import DEFAULT_MANIFEST
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status, StreamEndReason
from penstock.wire.messages.kv import Flush, Noop, Set
from tests.node.disks import FullDirectory
from tests.node.test_persistence import NEVER, running
from tests.node.watch import run
from tests.node.wire_client import connected
from tests.patience import PATIENCE

S = Status
VBUCKETS = 1024


@pytest.fixture
def node():
    with Node.running(["default"], vbuckets=VBUCKETS) as node:
        yield node


@pytest.fixture
def client(node):
    with connected(node) as client:
        yield client


def fill_vbuckets(client):
    client.send(*(Set(key=b"k", value=b"old", vbucket=number) for number in range(VBUCKETS)))
    assert {client.receive().specific for _ in range(VBUCKETS)} == {S.SUCCESS}


def record_remaining(node):
    """Record the number of remaining documents at each turn of the event loop, until it is 0.

    Returns:
        The list of these numbers, which grows until the bucket is empty.
    """
    store = node.buckets["default"].store
    remaining: list[int] = []

    def record():
        remaining.append(sum(vbucket.changes.items for vbucket in store.vbuckets))
        if remaining[-1]:
            node.loop.call_soon(record)

    run(node, record)
    return remaining


@pytest.mark.parametrize("opcode", [Opcode.FLUSH, Opcode.FLUSHQ])
def test_flush_is_answered_when_all_vbuckets_are_empty_and_does_not_block(node, client, opcode):
    fill_vbuckets(client)
    remaining = record_remaining(node)
    client.send(Frame(Magic.REQUEST, opcode), Noop())
    if opcode is Opcode.FLUSH:
        assert client.receive().opcode == opcode
    assert client.receive().opcode == Opcode.NOOP
    assert remaining[-1] == 0
    assert len(set(remaining)) > 2, "all vbuckets were flushed in one turn"


def test_flush_over_http_does_not_block(node, client):
    fill_vbuckets(client)
    remaining = record_remaining(node)
    asyncio.run_coroutine_threadsafe(node.buckets.flush("default"), node.loop).result(PATIENCE)
    assert remaining[-1] == 0
    assert len(set(remaining)) > 2


def test_changes_behind_a_flush_stay(node, client):
    """The client uses unordered execution, and the last vbucket is not flushed yet."""
    fill_vbuckets(client)
    client.hello(Feature.UNORDERED_EXECUTION)
    last = VBUCKETS - 1
    client.send(Flush(opaque=1), Set(opaque=2, key=b"k", value=b"new", vbucket=last), Noop(opaque=3))
    assert sorted(client.receive().opaque for _ in range(3)) == [1, 2, 3]
    assert client.get(b"k", vbucket=last).value == b"new"
    assert client.stats()["curr_items"] == "1"


def test_stream_opened_during_a_flush_ends_with_its_vbucket(node, client):
    fill_vbuckets(client)
    run(node, node.buckets["default"].store.rollout.begin_flush)
    with connected(node) as consumer:
        assert consumer.open().stream(5).specific == S.SUCCESS
        assert [consumer.message().opcode for _ in range(2)] == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION]
        assert client.get(b"k", vbucket=5).specific == S.KEY_ENOENT
        assert consumer.message().reason == StreamEndReason.STATE_CHANGED
    assert client.status(Flush()) == S.SUCCESS


def test_failing_disk_ends_a_flush(tmp_path):
    with running(tmp_path, NEVER) as node, connected(node) as client:
        for number in range(4):
            client.set(b"k", b"old", vbucket=number)
        bucket = node.buckets["default"]
        answers: list[TemporaryFailure | None] = []

        def begin_flush():
            bucket.flush()
            bucket.maintenance.call_after_rollout(answers.append)
            bucket.store.rollout.catch_up_some(1)
            bucket.store.log.directory.__class__ = FullDirectory
            bucket.store.log.commits.run()

        run(node, begin_flush)
        assert client.status(Flush()) == S.ETMPFAIL
        (refusal,) = answers
        assert "No space left on device" in str(refusal)
        assert [client.get(b"k", vbucket=number).specific for number in range(4)] == [S.KEY_ENOENT, *3 * [S.SUCCESS]]

        def repair_disk():
            bucket.store.log.directory.__class__ = FullDirectory.__base__
            bucket.store.log.commits.run()

        run(node, repair_disk)
        assert client.set(b"other", vbucket=3).specific == S.SUCCESS
        assert client.get(b"k", vbucket=3).specific == S.SUCCESS
        assert client.status(Flush()) == S.SUCCESS
        assert client.stats()["curr_items"] == "0"


def test_full_bucket_with_collections_can_be_flushed(node, client):
    fill_vbuckets(client)
    served = node.buckets["default"]
    run(node, lambda: served.change_manifest(DEFAULT_MANIFEST.with_collection("_default", "c")))
    assert client.status(Flush()) == S.SUCCESS
    fill_vbuckets(client)
    run(node, lambda: served.store.set_settings(BucketSettings(memory_bytes=0)))
    while client.set(b"k", b"v" * 100_000).specific == S.SUCCESS:
        pass
    assert client.status(Flush()) == S.SUCCESS
    assert client.stats()["curr_items"] == "0"
