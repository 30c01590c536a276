"""What a task reads, without Spark: what travels for it, over which connections, and that it does so again alike."""

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
from penstock.node.cluster.topology import NodePlace
from penstock.spark.source.offsets import RollbackRow, VbucketRange, VbucketRead
from penstock.spark.source.partition_reader import ChangePartition, DumpPartition, read_partition
from penstock.spark.source.shape import ColumnFilter, Shape
from penstock.wire.codec.flags import Datatype
from penstock.wire.columns.schema import CHANGE_SCHEMA, Event
from penstock.wire.messages.dcp_values import pack_xattrs
from tests.client.peer import serving
from tests.client.test_tap_feed import begin, mutations
from tests.client.test_tap_peers import closing, tap, vbuckets_asked_for
from tests.node.watch import run
from tests.ports import free_ports
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


def part(
    bucket: Documents, *, url: str = "", shape: Shape | None = None, vbuckets: Iterable[int] = range(VBUCKETS)
) -> ChangePartition:
    """Return the one task that reads some vbuckets up to where they end now."""
    infos = bucket.loop.run(bucket.bucket.vbucket_infos())
    reads = [VbucketRead(vb, 0, infos[vb].vbuuid, 0, infos[vb].high_seqno) for vb in vbuckets]
    return ChangePartition(
        parse_address(url or bucket.url), VbucketRange(tuple(reads)), is_final=False, shape=shape or Shape()
    )


def read(partition: ChangePartition) -> pa.Table:
    """Run a task as a worker gets it."""
    sent: ChangePartition = pickle.loads(pickle.dumps(partition))
    return pa.Table.from_batches(read_partition(sent), sent.shape.schema)


def between(partition: ChangePartition, start: int, end: int) -> ChangePartition:
    """Return the same task for a part of each vbucket's seqnos."""
    reads = [replace(each, start_seqno=start, end_seqno=end) for each in partition.range.reads]
    return replace(partition, range=VbucketRange(tuple(reads)))


def connections(bucket: Documents) -> int:
    return bucket.stat("total_connections")


def travelled(partition: ChangePartition, proxy: Proxy) -> int:
    """Return how many bytes come from the node for a task, its connection's set-up left out."""
    read(between(partition, 0, 1))
    before = proxy.passed
    read(partition)
    return proxy.passed - before


# What travels


def test_keys_alone_travel_where_nothing_else_is_wanted(node, bucket):
    bucket.store(numbered(0, MANY, size=1000))
    with Proxy.before(node.kv_port) as proxy:
        keys = travelled(part(bucket, url=proxy.url, shape=KEYS), proxy)
        everything = travelled(part(bucket, url=proxy.url), proxy)
    assert everything > MANY * 1000
    assert keys < 0.15 * everything


def test_extended_attributes_travel_where_both_the_connection_and_the_columns_say_so(node, bucket):
    value = pack_xattrs({"_sync": b"x" * 1000}, b"body")
    vbucket = node.buckets["default"].store.vbuckets[0]
    for number in range(MANY):
        run(node, lambda key=b"\0%d" % number: vbucket.set(key, value, datatype=Datatype.XATTR))
    without = Shape(tuple(name for name in CHANGE_SCHEMA.names if name != "xattrs"))
    only = Shape(("key", "xattrs"))
    with Proxy.before(node.kv_port) as proxy:
        asked = f"{proxy.url}?xattrs=true"
        passed = [
            travelled(part(bucket, url=url, shape=shape, vbuckets=range(1)), proxy)
            for url, shape in ((asked, None), (asked, only), (asked, without), (proxy.url, None))
        ]
    assert min(passed[:2]) > MANY * 1000
    assert max(passed[2:]) < 0.15 * passed[0]
    rows = read(part(bucket, url=f"{bucket.url}?xattrs=true", shape=only, vbuckets=range(1)))
    assert dict(rows["xattrs"][0].as_py()) == {"_sync": b"x" * 1000}


def test_vbuckets_and_seqnos_that_are_not_wanted_do_not_travel(node, bucket):
    bucket.store(numbered(0, MANY, size=1000))
    with Proxy.before(node.kv_port) as proxy:
        everything = travelled(part(bucket, url=proxy.url), proxy)
        one = travelled(part(bucket, url=proxy.url, vbuckets=range(1)), proxy)
        some = travelled(between(part(bucket, url=proxy.url), 5, 10), proxy)
    assert one < 1.5 * everything / VBUCKETS
    assert some == pytest.approx(everything * 5 * VBUCKETS / MANY, rel=0.3)


# Connections


def test_a_task_makes_one_connection_and_the_next_none(bucket):
    bucket.store(numbered(0, MANY))
    partition = part(bucket)
    before = connections(bucket)
    assert read(partition).num_rows == MANY
    assert connections(bucket) == before + 1
    for _ in range(3):
        assert read(partition).num_rows == MANY
    assert connections(bucket) == before + 1


def test_a_batch_without_anything_new_needs_no_node():
    row = RollbackRow(1, 1, 7, 0, 9)
    nothing = VbucketRead(1, 1, 7, 0, 0, rollback=row)
    rows = read(ChangePartition(parse_address("couchbase://127.0.0.1:1"), VbucketRange((nothing,)), is_final=False))
    assert rows["event"].to_pylist() == [Event.ROLLBACK]


def test_a_task_talks_only_to_the_node_that_has_its_vbuckets():
    places = [NodePlace(host="127.0.0.1", kv=port) for port in free_ports(2)]
    with ExitStack() as stack:
        for number, place in enumerate(places):
            stack.enter_context(
                Node.running(["default"], vbuckets=VBUCKETS, nodes=places, this_node=number, port=place.kv)
            )
        urls = [f"couchbase://127.0.0.1:{place.kv}/default" for place in places]
        first, second = (stack.enter_context(Documents.of(url)) for url in urls)
        first.store(numbered(0, MANY))
        cluster = first.loop.run(_map_of(urls[0]))
        own = [vb for vb, owner in enumerate(cluster.owners) if cluster.endpoints[owner][1] == places[1].kv]
        partition = part(first, vbuckets=own)
        before = connections(first), connections(second)
        rows = read(replace(partition, node=("127.0.0.1", places[1].kv)))
        assert set(rows["vbucket"].to_pylist()) == set(own)
        assert (connections(first), connections(second)) == (before[0], before[1] + 1)


async def _map_of(url: str) -> ClusterMap:
    session = await open_session(parse_address(url))
    await session.link.close()
    return session.map


def test_a_connection_that_was_cut_while_it_waited_is_made_again(node, bucket):
    bucket.store(numbered(0, MANY))
    with Proxy.before(node.kv_port) as proxy:
        partition = part(bucket, url=proxy.url)
        assert read(partition).num_rows == MANY
        proxy.cut()
        proxy.is_down = False
        assert read(partition).num_rows == MANY


@pytest.mark.process
def test_a_forked_worker_has_connections_of_its_own(bucket):
    bucket.store(numbered(0, MANY))
    partition = part(bucket)
    assert read(partition).num_rows == MANY
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(read(partition).num_rows))
    before = connections(bucket)
    child.start()
    assert receiver.poll(60)
    assert receiver.recv() == MANY
    child.join()
    assert connections(bucket) == before + 1
    assert read(partition).num_rows == MANY
    assert connections(bucket) == before + 1


def test_what_spark_leaves_in_the_middle_is_over(bucket):
    """A LIMIT, or a task that is cancelled: the connection with what still comes is closed, not kept."""
    bucket.store(numbered(0, 40_000))
    partition = part(bucket)
    rows = read_partition(partition)
    next(rows)
    rows.close()
    assert read(partition).num_rows == 40_000


# What is read


def test_a_task_gives_what_the_shape_says(bucket):
    bucket.store(numbered(0, 100, "text"))
    shape = Shape(
        ("value", "seqno", "event"),
        value_format="string",
        key_pattern="^key-1",
        filters=(ColumnFilter("value", "ends with", ("5",)),),
    )
    rows = read(part(bucket, shape=shape))
    assert sorted(rows["value"].to_pylist()) == ["text 15"]
    assert rows.schema == shape.schema


def test_a_replay_gives_the_same_rows_but_for_keys_written_meanwhile(bucket):
    bucket.store(numbered(0, MANY))
    partition = part(bucket)
    rows = by_place(read(partition))
    assert by_place(read(partition)) == rows
    written = numbered(0, 50, "again")
    bucket.store(written)
    bucket.remove(["key-60"])
    again = by_place(read(partition))
    assert again.items() <= rows.items()  # a node may still have what was overwritten, or not
    assert {rows[place]["key"].decode() for place in rows.keys() - again.keys()} <= {*written, "key-60"}


def by_place(table: pa.Table) -> dict[tuple[int, int], dict[str, Any]]:
    """Return rows by vbucket and seqno, without the snapshot that each came with."""
    names = [name for name in table.column_names if not name.startswith("snapshot")]
    return {(row["vbucket"], row["seqno"]): row for row in table.select(names).to_pylist()}


def dumped(dumps: list[bytes], *counts: tuple[int, ...]) -> tuple[pa.Table, list[list[int]]]:
    """Return what a TAP read gives of a scripted producer, and the vbuckets that each dump was asked for."""
    with serving(tap(closing(*dumps), *counts)) as script:
        address = parse_address(script.url(protocol="tap"))
        batches = [*read_partition(DumpPartition(address, KEYS))]
        return pa.Table.from_batches(batches, KEYS.schema), vbuckets_asked_for(script)


def test_a_tap_read_ends_without_any_close_backfill() -> None:
    """ep-engine 2.5.1 mostly closes the connection and says nothing else."""
    rows, asked_for = dumped([begin(0) + mutations(0, 3000) + begin(1) + mutations(1, 20)], (3000, 20))
    assert rows.num_rows == 3020
    assert asked_for == [[]]


def test_of_a_tap_read_that_was_cut_off_only_what_is_missing_comes_again() -> None:
    part = begin(0) + mutations(0, 300) + begin(1) + mutations(1, 2)
    rows, asked_for = dumped([part, begin(1) + mutations(1, 20)], (300, 20))
    assert asked_for == [[], [1]]
    events = [(row["vbucket"], row["event"]) for row in rows.to_pylist()]
    assert events.count((0, "mutation")) == 300
    assert events[302:] == [(1, "rollback"), *[(1, "mutation")] * 20]
