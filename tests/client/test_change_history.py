"""Streams of the client with the older versions of documents."""

from contextlib import closing

import pytest

import penstock
from penstock.node import Node
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.wire.codec.flags import SnapshotFlag
from tests.node.watch import run
from tests.node.wire_client import connected

HISTORY = SnapshotFlag.HISTORY


@pytest.fixture
def node():
    with Node.running(["beer"], vbuckets=1, settings=BucketSettings(retention_seconds=None)) as node:
        yield node


def write(node, *values):
    with connected(node, "beer") as client:
        for value in values:
            client.set(b"k", value)


def read_versions(url, **options):
    """Return the value and the flags of the snapshot of each change of a document."""
    with closing(penstock.read_changes(url, stop="now", **options)) as batches:
        rows = [row for batch in batches for row in batch.to_pylist()]
    return [(row["value"], bool(row["snapshot_flags"] & HISTORY)) for row in rows if row["key"]]


def test_each_kept_version_is_a_change(node):
    write(node, b"1", b"2", b"3")
    versions = [(b"1", True), (b"2", True), (b"3", True)]
    assert read_versions(node.url("beer"), change_history=True) == versions
    assert read_versions(node.url("beer") + "?changeHistory=true") == versions
    assert read_versions(node.url("beer") + "?changeHistory=true", change_history=False) == [(b"3", False)]
    assert read_versions(node.url("beer")) == [(b"3", False)]


def test_bucket_without_history_is_deduplicated(node):
    write(node, b"1", b"2")
    run(node, lambda: node.buckets["beer"].store.set_settings(BucketSettings()))
    assert read_versions(node.url("beer"), change_history=True) == [(b"2", False)]


def test_snapshot_of_two_parts_is_one_position(node):
    """The second marker repeats the range of the first, and the stream goes on."""
    store = node.buckets["beer"].store

    def compact():
        store.set_settings(BucketSettings())
        store.log.room.seal_active()
        while (piece := store.log.compactions.next_piece(everything=True)) is not None:
            piece.run()
            piece.finish()
        store.set_settings(BucketSettings(retention_seconds=None))

    write(node, b"1", b"2")
    run(node, compact)
    write(node, b"3", b"4")
    assert read_versions(node.url("beer"), change_history=True) == [(b"3", True), (b"4", True)]
    with connected(node, "beer") as client:
        client.set(b"other", b"kept")
    write(node, b"5", b"6")
    run(node, compact)
    write(node, b"7", b"8")
    found = read_versions(node.url("beer"), change_history=True)
    assert found == [(b"kept", False), (b"7", True), (b"8", True)]
