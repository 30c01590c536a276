"""Plans of `format("dcp")`: the size of a batch, its tasks and their nodes, and the requests of planning."""

import json
from contextlib import ExitStack

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from penstock.client.connect.address import parse_address
from penstock.node import Node
from penstock.node.cluster.own_map import NodePlace
from penstock.spark.source.planner import ASSUMED_BYTES, Planner, count_due_logs, estimate_bytes_per_change
from penstock.spark.source.run_lengths import decode_numbers
from tests.client.test_collections import change
from tests.node.balanced_nodes import balance
from tests.node.watch import run as in_node
from tests.ports import free_ports
from tests.spark.buckets import Documents, Proxy, numbered, planned, read_batch
from tests.spark.test_protocols import contents, fail_over


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        ({"ep_log_live_bytes": 1000, "curr_items_tot": 3, "bytes": 9, "curr_items": 1}, 334),
        ({"vb_active_itm_memory": 500, "vb_active_curr_items": 5, "bytes": 9, "curr_items": 1}, 100),
        ({"vb_active_itm_memory_uncompressed": 700, "vb_active_curr_items": 5, "vb_active_itm_memory": 5}, 140),
        ({"bytes": 9, "curr_items": 1}, 9),
        ({"bytes": 9, "curr_items": 0}, ASSUMED_BYTES),
        ({"curr_items": 4}, ASSUMED_BYTES),
        ({}, ASSUMED_BYTES),
    ],
)
def test_bytes_of_a_change_are_estimated(stats, expected):
    assert estimate_bytes_per_change(stats) == expected


@pytest.mark.parametrize(("seconds", "due"), [(0.2, 41), (1, 205), (4.9, 1004), (5, 1024), (600, 1024)])
def test_all_failover_logs_are_due_within_a_round(seconds, due):
    assert count_due_logs(1024, seconds) == due


def test_a_failover_shows_although_new_changes_took_the_lost_seqnos(node, documents):
    documents.store(numbered(0, 200))
    planner = Planner(parse_address(documents.url), range(8))
    try:
        before = planner.read_infos()
        assert planner.is_unchanged()
        fail_over(node, 5, before[5].end_seqno - 1)
        vbucket = node.buckets["default"].store.vbuckets[5]
        while vbucket.changes.high_seqno < before[5].end_seqno:
            in_node(node, lambda: vbucket.set(b"again", b"new"))
        answers = [planner.is_unchanged() for _ in before]
        assert False in answers
        after = planner.read_infos()
        assert after[5].end_seqno == before[5].end_seqno
        assert planner.is_unchanged()
    finally:
        planner.close()


def count_mutations(table: pa.Table) -> int:
    return len([event for event in table["event"].to_pylist() if event == "mutation"])


class TestBatchLimit:
    def test_in_bytes_is_kept(self, documents, follow):
        documents.store(numbered(0, 4_000, size=1_000))
        tables = follow(documents.url, maxBytesPerTrigger="1m").all()
        assert sum(table.num_rows for table in tables) == 4_000
        assert 4 <= len(tables) <= 6
        assert max(table["value"].nbytes for table in tables) <= 1 << 20

    def test_in_bytes_below_one_change_reads_one_change(self, documents, follow):
        documents.store(numbered(0, 3, size=1_000))
        assert [table.num_rows for table in follow(documents.url, maxBytesPerTrigger="10").all()] == [1, 1, 1]

    @pytest.mark.parametrize("protocol", ["dcp", "upr", "upr-draft"])
    def test_is_one_of_rows(self, documents, follow, protocol):
        """Most seqnos of overwritten documents have no row. A limit of seqnos made 125 batches, most of them empty."""
        documents.store(numbered(0, 500))
        for turn in range(600):
            documents.store(numbered(0, 20, text=f"turn {turn}"))
        query = follow(documents.url, maxChangesPerTrigger="100", protocol=protocol)
        sizes = [table.num_rows for table in query.all()]
        assert all(0 < rows <= 100 for rows in sizes)
        assert len(sizes) <= 8
        documents.store(numbered(0, 20, text="last"))
        query.restart()
        assert query.step().num_rows == 20

    def test_is_one_of_rows_of_the_selected_collections(self, follow):
        with Node.running(["beer"], vbuckets=16) as node, Documents.of(node.url("beer")) as documents:

            def store(collection: str, first: int, behind: int) -> None:
                values = numbered(first, behind).items()
                documents.loop.run(documents.bucket.upsert_many(values, collection=collection))

            for name in ("few", "many"):
                change(node, lambda manifest, name=name: manifest.with_collection("_default", name))
            store("few", 0, 60)
            store("many", 0, 3_000)
            query = follow(documents.url, collections="few", maxChangesPerTrigger="50")
            sizes = [count_mutations(table) for table in query.all()]
            assert sum(sizes) == 60
            assert len(sizes) <= 3
            store("many", 0, 3_000)
            store("few", 60, 130)
            store("many", 0, 3_000)
            sizes = [count_mutations(table) for table in query.all()]
            assert sum(sizes) == 70
            assert all(0 < rows <= 50 for rows in sizes)

    @pytest.mark.parametrize(
        ("options", "limit"),
        [
            ({}, ReadAllAvailable()),
            ({"maxChangesPerTrigger": "7"}, ReadMaxRows(7)),
            ({"maxBytesPerTrigger": "7k"}, ReadMaxBytes(7 << 10)),
            ({"maxChangesPerTrigger": "7", "maxBytesPerTrigger": "7k"}, ReadMaxRows(7)),
        ],
    )
    def test_is_the_default_read_limit_of_spark(self, documents, follow, options, limit):
        assert follow(documents.url, **options).reader.getDefaultReadLimit() == limit

    @pytest.mark.parametrize(("changes", "nbytes", "rows"), [("100", "1g", 100), ("100000", "20k", 19)])
    def test_in_changes_and_bytes_is_the_smaller_of_both(self, documents, follow, changes, nbytes, rows):
        documents.store(numbered(0, 1_000, size=1_000))
        first = follow(documents.url, maxChangesPerTrigger=changes, maxBytesPerTrigger=nbytes).step()
        assert first.num_rows == rows

    def test_is_ignored_if_all_changes_are_requested(self, documents, follow):
        """Spark requests all changes for a query that runs once."""
        documents.store(numbered(0, 100))
        query = follow(documents.url, maxChangesPerTrigger="7", maxBytesPerTrigger="1k")
        end = query.reader.latestOffset(query.reader.initialOffset(), ReadAllAvailable())
        assert end == follow(documents.url).reader.latestOffset(query.reader.initialOffset(), ReadAllAvailable())


class TestTaskCount:
    def test_is_at_least_min_partitions(self, documents, follow):
        documents.store(numbered(0, 500))
        assert len(planned(documents.url)) == 1
        assert len(planned(documents.url, minPartitions="4")) == 4
        assert len(planned(documents.url, minPartitions="100")) == 16
        query = follow(documents.url, minPartitions="3")
        start = query.reader.initialOffset()
        end = query.reader.latestOffset(start, ReadAllAvailable())
        assert len(query.reader.partitions(start, end)) == 3

    def test_is_at_most_max_partitions(self):
        with Node.running(["default"], vbuckets=16) as node, Documents.of(node.url("default")) as documents:
            documents.store(numbered(0, 45_000))
            assert len(planned(documents.url, maxPartitions="8")) == 3
            assert len(planned(documents.url, maxPartitions="2")) == 2


@pytest.fixture(scope="module")
def networks():
    """Return the proxies of two nodes that share a bucket, one for each node."""
    with ExitStack() as stack:
        ports = free_ports(2)
        found = [stack.enter_context(Proxy.before(port)) for port in ports]
        places = [NodePlace(host="127.0.0.1", kv=network.port) for network in found]
        nodes = [
            stack.enter_context(Node.running(["default"], 16, place=place, port=port))
            for place, port in zip(places, ports, strict=True)
        ]
        balance(nodes, "default")
        yield found


class TestTwoNodes:
    def test_are_read_by_separate_tasks(self, networks, follow):
        with Documents.of(networks[0].url) as documents:
            documents.store(numbered(0, 2_000, size=200))
            query = follow(documents.url)
            start = query.reader.initialOffset()
            parts = query.reader.partitions(start, query.reader.latestOffset(start, ReadAllAvailable()))
            assert len(parts) == 2
            tables = []
            for part in parts:
                before = [network.passed for network in networks]
                tables.append(pa.Table.from_batches(query.reader.read(part)))
                passed = [network.passed - earlier for network, earlier in zip(networks, before, strict=True)]
                # The end of the previous streams may arrive late; a login or a cluster map would be more bytes.
                assert min(passed) < 200
                assert max(passed) > 200 * tables[-1].num_rows
            assert contents(pa.concat_tables(tables)) == documents.contents()
            assert contents(read_batch(documents.url)) == documents.contents()

    def test_need_one_task_for_vbuckets_of_one_node(self, networks, follow):
        (table,) = follow(networks[1].url, vbuckets="0-7").all()
        assert {*table["vbucket"].to_pylist()} == {*range(8)}


class TestLag:
    def test_is_from_the_last_plan(self, documents, follow):
        documents.store(numbered(0, 500))
        query = follow(documents.url, maxChangesPerTrigger="200")
        assert query.reader.reportLatestOffset() is None
        lags = []
        while query.step() is not None:
            lags.append(query.reader.reportLatestOffset()["lag"])
        assert lags == [300, 100, 0]
        assert sum(decode_numbers(query.reader.reportLatestOffset()["seqno"])) == 500

    def test_needs_no_request(self, node, documents, follow):
        documents.store(numbered(0, 50))
        with Proxy.before(node.kv_port) as proxy:
            query = follow(proxy.url, vbuckets="3")
            query.all()
            before = proxy.passed
            reported = json.dumps(query.reader.reportLatestOffset())
            assert proxy.passed == before
        assert json.loads(reported)["lag"] == 0
