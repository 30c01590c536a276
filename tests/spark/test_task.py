"""Reads of a task, without Spark: the bytes that are sent, the connections, the rows, and repeated reads."""

import multiprocessing
import pickle
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock import Node
from penstock.client.connect.address import parse_address
from penstock.client.connect.client_session import open_session
from penstock.client.connect.cluster_map import ClusterMap
from penstock.spark.source.offsets import RollbackRow, VbucketRange, VbucketRead
from penstock.spark.source.partition_reader import ChangePartition, DumpPartition, read_partition
from penstock.spark.source.shape import ColumnFilter, Shape
from penstock.wire.codec.flags import Datatype
from penstock.wire.columns.schema import CHANGE_SCHEMA, Event
from penstock.wire.messages.dcp_values import pack_xattrs
from tests.client.peer import serving
from tests.client.test_tap_feed import begin, mutations
from tests.client.test_tap_peers import closing, tap, vbuckets_asked_for
from tests.node.balanced_nodes import run_nodes
from tests.node.watch import run
from tests.spark.buckets import Documents, Proxy, numbered

VBUCKETS = 8
MANY = 400
KEYS = Shape(("vbucket", "seqno", "event", "key"))


@pytest.fixture
def node() -> Iterator[Node]:
    with Node.running(["default"], vbuckets=VBUCKETS) as node:
        yield node


@pytest.fixture
def bucket(node: Node) -> Iterator[Documents]:
    with Documents.of(node.url("default")) as bucket:
        yield bucket


def make_task(
    bucket: Documents, *, url: str = "", shape: Shape | None = None, vbuckets: Iterable[int] = range(VBUCKETS)
) -> ChangePartition:
    """Return one task that reads some vbuckets up to their current end."""
    infos = bucket.loop.run(bucket.bucket.vbucket_infos())
    reads = [VbucketRead(vb, 0, infos[vb].vbuuid, 0, infos[vb].high_seqno) for vb in vbuckets]
    return ChangePartition(
        parse_address(url or bucket.url), VbucketRange(tuple(reads)), is_final=False, shape=shape or Shape()
    )


def read(partition: ChangePartition) -> pa.Table:
    """Run a task as a worker does, after pickling."""
    sent: ChangePartition = pickle.loads(pickle.dumps(partition))
    return pa.Table.from_batches(read_partition(sent), sent.shape.schema)


def between(partition: ChangePartition, start: int, end: int) -> ChangePartition:
    """Return the same task for a part of each vbucket's seqnos."""
    reads = [replace(each, start_seqno=start, end_seqno=end) for each in partition.range.reads]
    return replace(partition, range=VbucketRange(tuple(reads)))


def count_connections(bucket: Documents) -> int:
    return bucket.stat("total_connections")


def count_bytes(partition: ChangePartition, proxy: Proxy) -> int:
    """Return the number of bytes that the node sends for a task, without those that set up its connection."""
    read(between(partition, 0, 1))
    before = proxy.passed
    read(partition)
    return proxy.passed - before


# Bytes that are sent


def test_only_keys_are_sent_if_no_other_bytes_are_needed(node, bucket):
    bucket.store(numbered(0, MANY, size=1000))
    with Proxy.before(node.kv_port) as proxy:
        keys = count_bytes(make_task(bucket, url=proxy.url, shape=KEYS), proxy)
        everything = count_bytes(make_task(bucket, url=proxy.url), proxy)
    assert everything > MANY * 1000
    assert keys < 0.15 * everything


def test_extended_attributes_are_sent_if_the_url_and_the_columns_request_them(node, bucket):
    value = pack_xattrs({"_sync": b"x" * 1000}, b"body")
    vbucket = node.buckets["default"].store.vbuckets[0]
    for number in range(MANY):
        run(node, lambda key=b"\0%d" % number: vbucket.set(key, value, datatype=Datatype.XATTR))
    without = Shape(tuple(name for name in CHANGE_SCHEMA.names if name != "xattrs"))
    only = Shape(("key", "xattrs"))
    with Proxy.before(node.kv_port) as proxy:
        with_xattrs = f"{proxy.url}?xattrs=true"
        passed = [
            count_bytes(make_task(bucket, url=url, shape=shape, vbuckets=range(1)), proxy)
            for url, shape in ((with_xattrs, None), (with_xattrs, only), (with_xattrs, without), (proxy.url, None))
        ]
    assert min(passed[:2]) > MANY * 1000
    assert max(passed[2:]) < 0.15 * passed[0]
    rows = read(make_task(bucket, url=f"{bucket.url}?xattrs=true", shape=only, vbuckets=range(1)))
    assert dict(rows["xattrs"][0].as_py()) == {"_sync": b"x" * 1000}


def test_unwanted_vbuckets_and_seqnos_are_not_sent(node, bucket):
    bucket.store(numbered(0, MANY, size=1000))
    with Proxy.before(node.kv_port) as proxy:
        everything = count_bytes(make_task(bucket, url=proxy.url), proxy)
        one = count_bytes(make_task(bucket, url=proxy.url, vbuckets=range(1)), proxy)
        some = count_bytes(between(make_task(bucket, url=proxy.url), 5, 10), proxy)
    assert one < 1.5 * everything / VBUCKETS
    assert some == pytest.approx(everything * 5 * VBUCKETS / MANY, rel=0.3)


# Connections


def test_task_makes_one_connection_and_the_next_task_reuses_it(bucket):
    bucket.store(numbered(0, MANY))
    partition = make_task(bucket)
    before = count_connections(bucket)
    assert read(partition).num_rows == MANY
    assert count_connections(bucket) == before + 1
    for _ in range(3):
        assert read(partition).num_rows == MANY
    assert count_connections(bucket) == before + 1


def test_batch_without_new_changes_needs_no_node():
    row = RollbackRow(1, 1, 7, 0, 9)
    nothing = VbucketRead(1, 1, 7, 0, 0, rollback=row)
    rows = read(ChangePartition(parse_address("couchbase://127.0.0.1:1"), VbucketRange((nothing,)), is_final=False))
    assert rows["event"].to_pylist() == [Event.ROLLBACK]


def test_task_connects_only_to_the_node_that_has_its_vbuckets():
    with ExitStack() as stack:
        nodes = run_nodes(stack, 2, "default", VBUCKETS)
        urls = [node.url("default") for node in nodes]
        first, second = (stack.enter_context(Documents.of(url)) for url in urls)
        first.store(numbered(0, MANY))
        cluster = first.loop.run(_fetch_map(urls[0]))
        own = [vb for vb, owner in enumerate(cluster.owners) if cluster.endpoints[owner][1] == nodes[1].kv_port]
        partition = make_task(first, vbuckets=own)
        before = count_connections(first), count_connections(second)
        rows = read(replace(partition, node=("127.0.0.1", nodes[1].kv_port)))
        assert set(rows["vbucket"].to_pylist()) == set(own)
        assert (count_connections(first), count_connections(second)) == (before[0], before[1] + 1)


async def _fetch_map(url: str) -> ClusterMap:
    session = await open_session(parse_address(url))
    await session.link.close()
    return session.map


def test_idle_connection_that_was_cut_is_replaced(node, bucket):
    bucket.store(numbered(0, MANY))
    with Proxy.before(node.kv_port) as proxy:
        partition = make_task(bucket, url=proxy.url)
        assert read(partition).num_rows == MANY
        proxy.cut()
        proxy.is_down = False
        assert read(partition).num_rows == MANY


@pytest.mark.process
def test_forked_worker_has_its_own_connections(bucket):
    bucket.store(numbered(0, MANY))
    partition = make_task(bucket)
    assert read(partition).num_rows == MANY
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(read(partition).num_rows))
    before = count_connections(bucket)
    child.start()
    assert receiver.poll(60)
    assert receiver.recv() == MANY
    child.join()
    assert count_connections(bucket) == before + 1
    assert read(partition).num_rows == MANY
    assert count_connections(bucket) == before + 1


def test_connection_of_an_unfinished_read_is_closed(bucket):
    """A LIMIT or a cancelled task ends a read early. Its connection is not kept, because changes still arrive on it."""
    bucket.store(numbered(0, 40_000))
    partition = make_task(bucket)
    rows = read_partition(partition)
    next(rows)
    rows.close()
    assert read(partition).num_rows == 40_000


# Rows that are read


def test_task_returns_rows_in_the_given_shape(bucket):
    bucket.store(numbered(0, 100, "text"))
    shape = Shape(
        ("value", "seqno", "event"),
        value_format="string",
        key_pattern="^key-1",
        filters=(ColumnFilter("value", "ends with", ("5",)),),
    )
    rows = read(make_task(bucket, shape=shape))
    assert sorted(rows["value"].to_pylist()) == ["text 15"]
    assert rows.schema == shape.schema


def test_repeated_read_has_the_same_rows_except_for_changed_keys(bucket):
    bucket.store(numbered(0, MANY))
    partition = make_task(bucket)
    rows = by_seqno(read(partition))
    assert by_seqno(read(partition)) == rows
    written = numbered(0, 50, "again")
    bucket.store(written)
    bucket.remove(["key-60"])
    again = by_seqno(read(partition))
    assert again.items() <= rows.items()  # a node may still have overwritten versions, or not
    assert {rows[place]["key"].decode() for place in rows.keys() - again.keys()} <= {*written, "key-60"}


def by_seqno(table: pa.Table) -> dict[tuple[int, int], dict[str, Any]]:
    """Return rows by vbucket and seqno, without the columns of their snapshots."""
    names = [name for name in table.column_names if not name.startswith("snapshot")]
    return {(row["vbucket"], row["seqno"]): row for row in table.select(names).to_pylist()}


def read_dumps(dumps: list[bytes], *counts: tuple[int, ...]) -> tuple[pa.Table, list[list[int]]]:
    """Return the rows of a TAP read from a scripted producer, and the vbuckets that were requested for each dump."""
    with serving(tap(closing(*dumps), *counts)) as script:
        address = parse_address(script.url(protocol="tap"))
        batches = [*read_partition(DumpPartition(address, KEYS))]
        return pa.Table.from_batches(batches, KEYS.schema), vbuckets_asked_for(script)


def test_tap_read_ends_without_close_backfill() -> None:
    """ep-engine 2.5.1 mostly closes the connection without a last message."""
    rows, requested = read_dumps([begin(0) + mutations(0, 3000) + begin(1) + mutations(1, 20)], (3000, 20))
    assert rows.num_rows == 3020
    assert requested == [[]]


def test_tap_read_that_was_cut_repeats_only_missing_vbuckets() -> None:
    part = begin(0) + mutations(0, 300) + begin(1) + mutations(1, 2)
    rows, requested = read_dumps([part, begin(1) + mutations(1, 20)], (300, 20))
    assert requested == [[], [1]]
    events = [(row["vbucket"], row["event"]) for row in rows.to_pylist()]
    assert events.count((0, "mutation")) == 300
    assert events[302:] == [(1, "rollback"), *[(1, "mutation")] * 20]
