"""`format("dcp")` and the pipeline over each dialect: the same documents, exact ends, and histories that change."""

import pickle
import random

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from penstock.client.connect import retry
from penstock.errors import Error, UsageError
from penstock.node import Node
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.spark.lake.changelog.merge_rules import merge_changes
from penstock.spark.pipeline.definition.definition import define_bucket_pipeline
from penstock.spark.pipeline.run.spark_failure import parse_failure
from penstock.spark.runtime.data_source import DcpDataSource
from penstock.wire.codec.constants import Dialect, VbucketState
from penstock.wire.columns.schema import CHANGE_SCHEMA
from tests.client.peer import serving
from tests.client.test_tap_feed import begin, mutations
from tests.client.test_tap_peers import closing, tap
from tests.node.watch import run as in_node
from tests.spark.buckets import Documents, Proxy, check_changelog, current_of, numbered, read_batch
from tests.spark.running import catch_up, running

PAST = 1_600_000_000
"""An expiry time in 2020, in seconds since the epoch; 50 years and less would be relative to now."""

STREAMING = ["upr-draft", "upr", "dcp"]
COMMON_COLUMNS = [
    "vbucket",
    "vbuuid",
    "seqno",
    "rev_seqno",
    "cas",
    "event",
    "key",
    "value",
    "flags",
    "expiry",
    "history",
]

each_dialect = pytest.mark.parametrize("protocol", STREAMING)


def change_documents(documents: Documents, first: int) -> int:
    """Store 400 documents, change 50, remove 50, and let 10 others expire; return the number of keys."""
    documents.store(numbered(first, first + 400))
    documents.store(numbered(first + 100, first + 150, "again"))
    documents.remove([f"key-{number}" for number in range(first, first + 50)])
    expire(documents, {f"old-{number}": b"gone" for number in range(first, first + 10)})
    return 410


def common_values(rows: pa.Table) -> set[tuple[object, ...]]:
    """Return the changes with those columns that are equal in all dialects that stream by vbucket."""
    return set(zip(*(rows[name].to_pylist() for name in COMMON_COLUMNS), strict=True))


def contents(rows: pa.Table) -> dict[bytes, tuple[int, bytes]]:
    found = merge_changes(rows)
    return {row["key"].encode(): (row["cas"], row["value"]) for row in found.to_pylist()}


def expire(documents: Documents, values: dict[str, bytes]) -> None:
    documents.store(values, expiry=PAST)
    assert not documents.contents().keys() & {key.encode() for key in values}


def fail_over(node: Node, number: int, seqno: int) -> None:
    """Replace a vbucket by a copy that has only the changes up to `seqno`, as a failover does."""
    served = node.buckets["default"]
    vbucket = served.store.vbuckets[number]

    def replace_vbucket() -> None:
        vbucket.rollback(min(seqno, vbucket.changes.high_seqno))
        for state in (VbucketState.REPLICA, VbucketState.ACTIVE):
            vbucket.set_state(state)
            served.report_event(vbucket, VbucketEvent.STATE_CHANGED)

    in_node(node, replace_vbucket)


def change_at_random(node: Node, documents: Documents, chance: random.Random) -> None:
    """Do one random thing to a bucket: mostly changes, and also expirations, failovers and flushes."""
    keys = [f"key-{chance.randrange(300)}" for _ in range(chance.choice([1, 20, 200]))]
    value = b"%d" % chance.randrange(1 << 40)
    actions = {
        lambda: documents.store(dict.fromkeys(keys, value)): 10,
        lambda: documents.remove(keys): 4,
        lambda: expire(documents, dict.fromkeys(keys[:20], value)): 2,
        lambda: fail_over(node, chance.randrange(16), chance.randrange(60)): 3,
        documents.flush: 1,
    }
    chance.choices([*actions], [*actions.values()])[0]()


# Without a session


@each_dialect
@pytest.mark.parametrize("seed", range(3))
def test_merged_rows_equal_the_bucket_after_any_events(node, documents, follow, protocol, seed):
    chance = random.Random(seed)
    query = follow(documents.url, protocol=protocol, maxChangesPerTrigger="400")
    found, start = [], query.reader.initialOffset()
    for _ in range(15):
        change_at_random(node, documents, chance)
        end = query.reader.latestOffset(start, query.reader.getDefaultReadLimit())
        change_at_random(node, documents, chance)
        for part in query.reader.partitions(start, end):
            found += query.reader.read(part)
        start = end
    query.start = start
    documents.contents()  # documents that a failover has restored expire again
    rows = pa.concat_tables([pa.Table.from_batches(found, CHANGE_SCHEMA), *query.all()])
    assert contents(rows) == documents.contents()
    assert len(common_values(rows)) == rows.num_rows
    assert {"mutation", "deletion", "expiration", "rollback"} == set(rows["event"].to_pylist())


@each_dialect
def test_end_of_a_batch_is_exact_despite_later_writes(documents, follow, protocol):
    """All keys change between the plan and the read of a batch, so that its ends lie inside snapshots."""
    documents.store(numbered(0, 600))
    query = follow(documents.url, protocol=protocol, maxChangesPerTrigger="250")
    found, start = [], query.reader.initialOffset()
    for round_ in range(12):
        end = query.reader.latestOffset(start, query.reader.getDefaultReadLimit())
        if round_ < 3:
            documents.store(numbered(0, 600, f"round {round_}"))
        planned = query.reader.partitions(start, end)
        rows = [batch for part in planned for batch in query.reader.read(pickle.loads(pickle.dumps(part)))]
        bounds = {read.vbucket: read for part in planned for read in part.range.reads}
        for row in (row for batch in rows for row in batch.to_pylist()):
            read = bounds[row["vbucket"]]
            assert read.start_seqno < row["seqno"] <= read.end_seqno
        found.append(pa.Table.from_batches(rows, CHANGE_SCHEMA))
        start = end
    assert all(table.num_rows <= 250 for table in found)
    rows = pa.concat_tables(found)
    assert len(common_values(rows)) == rows.num_rows
    assert contents(rows) == documents.contents()
    assert query.reader.latestOffset(start, query.reader.getDefaultReadLimit()) == start


@each_dialect
def test_cut_connection_inside_a_batch_loses_and_repeats_nothing(node, documents, follow, protocol, monkeypatch):
    monkeypatch.setattr(retry, "LONGEST_DELAY", 0.1)
    documents.store(numbered(0, 1_500, size=1_000))
    with Proxy.before(node.kv_port) as proxy:
        query = follow(proxy.url, protocol=protocol)
        proxy.cut_after = 1 << 19
        (rows,) = query.all()
        assert proxy.cuts >= 2
    assert rows.num_rows == 1_500
    assert contents(rows) == documents.contents()


@each_dialect
def test_flush_between_plan_and_read_is_repaired_by_the_next_batch(documents, follow, protocol):
    documents.store(numbered(0, 300))
    query = follow(documents.url, protocol=protocol)
    (before,) = query.all()
    documents.store(numbered(300, 500))
    end = query.reader.latestOffset(query.start, query.reader.getDefaultReadLimit())
    planned = query.reader.partitions(query.start, end)
    documents.flush()
    documents.store(numbered(100, 150, "anew"))
    read = [batch for part in planned for batch in query.reader.read(part)]
    query.start = end
    after = pa.concat_tables([pa.Table.from_batches(read, CHANGE_SCHEMA), *query.all()])
    rollbacks = {
        (row["vbucket"], row["seqno"], row["history"]) for row in after.to_pylist() if row["event"] == "rollback"
    }
    assert rollbacks == {(vbucket, 0, 1) for vbucket in range(16)}
    assert contents(pa.concat_tables([before, after])) == documents.contents()


@each_dialect
def test_batch_read_fails_if_the_history_changes(documents, protocol):
    documents.store(numbered(0, 300))
    source = DcpDataSource({"url": documents.url, "protocol": protocol})
    reader = source.reader(source.schema())
    planned = reader.partitions()
    documents.flush()
    documents.store(numbered(0, 100))
    with pytest.raises(Error, match=r"vbucket \d+ got another history while it was read; run the job again"):
        list(reader.read(planned[0]))


@each_dialect
def test_node_with_only_one_dialect_can_be_read(follow, protocol):
    pinned = Node.running(["default"], vbuckets=4, pin=protocol)
    with pinned as node, Documents.of(node.url("default")) as documents:
        change_documents(documents, 0)
        (rows,) = follow(documents.url, protocol=protocol).all()
        assert contents(rows) == contents(read_batch(documents.url, protocol=protocol)) == documents.contents()


@pytest.mark.parametrize(
    "settings",
    [{"url": "couchbase://127.0.0.1:1/default?protocol=tap"}, {"url": "couchbase://127.0.0.1:1", "protocol": "tap"}],
)
def test_pipeline_over_tap_is_refused_at_its_definition(lake, settings):
    with pytest.raises(UsageError) as raised:
        define_bucket_pipeline(str(lake.path), **settings)
    assert str(raised.value) == "option protocol is 'tap', but TAP cannot resume; streaming needs upr-draft, upr or dcp"
    assert not lake.path.exists()


# In a session


@pytest.mark.spark
@pytest.mark.parametrize("protocol", list(Dialect))
def test_batch_read_has_the_documents_in_every_dialect(spark, documents, protocol):
    count = change_documents(documents, 0)
    rows = spark.read.format("dcp").option("url", documents.url).option("protocol", protocol).load().toArrow()
    assert rows.num_rows == count
    keys = ["key", "cas", "rev_seqno", "value"]
    mutations = rows.filter(pa.compute.equal(rows["event"], "mutation")).select(keys).to_pylist()
    assert {row["key"]: (row["cas"], row["value"]) for row in mutations} == documents.contents()
    removed = rows.filter(pa.compute.is_in(rows["event"], pa.array(["deletion", "expiration"])))
    assert set(removed["key"].to_pylist()) == {key.encode() for key in documents.keys} - documents.contents().keys()
    if protocol == "tap":
        assert rows["seqno"].null_count == rows["vbuuid"].null_count == count
    else:
        assert common_values(rows) == common_values(read_batch(documents.url))
        assert rows["event"].to_pylist().count("expiration") == 10
        times = [row["delete_time"] for row in removed.to_pylist()]
        assert all(times) if protocol == "dcp" else not any(times)


@pytest.mark.spark
def test_batch_read_over_tap_ends_with_the_connection(spark):
    """ep-engine 2.5.1 sends no CLOSE_BACKFILL. Each connection dumps everything, so a second dump would add rows."""
    whole = begin(0) + mutations(0, 3000) + begin(1) + mutations(1, 20)
    with serving(tap(closing(*[whole] * 9), (3000, 20))) as script:
        rows = spark.read.format("dcp").option("url", script.url()).option("protocol", "tap").load()
        assert rows.groupBy("vbucket", "event").count().sort("vbucket").collect() == [
            (0, "mutation", 3000),
            (1, "mutation", 20),
        ]


@pytest.mark.spark
@each_dialect
def test_query_resumes_from_its_checkpoint(spark, documents, tmp_path, protocol):
    sink, checkpoint = str(tmp_path / "rows"), str(tmp_path / "checkpoint")

    def follow() -> pa.Table:
        changes = spark.readStream.format("dcp").options(url=documents.url, protocol=protocol, maxChangesPerTrigger=300)
        writer = changes.load().writeStream.format("parquet").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start(sink)
        assert query.awaitTermination(120)
        return spark.read.parquet(sink).toArrow()

    change_documents(documents, 0)
    first = follow()
    assert contents(first) == documents.contents()
    assert common_values(read_batch(documents.url)) <= common_values(first)
    change_documents(documents, 300)
    both = follow()
    assert len(common_values(both)) == both.num_rows
    assert common_values(read_batch(documents.url)) <= common_values(both)
    assert contents(both) == documents.contents()


@pytest.mark.spark
@pytest.mark.parametrize(
    ("protocol", "sentence"),
    [
        ("tap", "option protocol is 'tap', but TAP cannot resume; streaming needs upr-draft, upr or dcp"),
        ("xdcr", "option protocol is 'xdcr', expected one of tap, upr-draft, upr, dcp"),
    ],
)
def test_stream_in_another_dialect_is_refused_in_one_sentence(spark, documents, tmp_path, protocol, sentence):
    changes = spark.readStream.format("dcp").options(url=documents.url, protocol=protocol)

    def follow() -> None:
        """Start the stream; which of these calls raises the error depends on Spark."""
        writer = changes.load().writeStream.format("memory").queryName("refused")
        writer.option("checkpointLocation", str(tmp_path)).start().processAllAvailable()

    with pytest.raises(PySparkException) as raised:
        follow()
    assert str(parse_failure(str(raised.value))) == sentence


@pytest.mark.spark
def test_unknown_dialect_is_refused_with_the_known_dialects(spark, documents):
    with pytest.raises(PySparkException) as raised:
        spark.read.format("dcp").options(url=documents.url, protocol="xdcr").load().count()
    sentence = "option protocol is 'xdcr', expected one of tap, upr-draft, upr, dcp"
    assert str(parse_failure(str(raised.value))) == sentence


@pytest.mark.spark
@each_dialect
def test_tables_equal_the_bucket_after_a_flush_and_with_another_node(spark, lake, protocol):
    """The bucket is changed, flushed and changed again. Then another node replaces the first node."""
    with Node.running(["default"], vbuckets=4) as node:
        port = node.kv_port
        with Documents.of(node.url("default")) as documents:
            url = documents.url
            rows = change_documents(documents, 0)
            following = running(spark, f"{url}?protocol={protocol}&recreatedBucket=rollback", lake)
            run_ = following.__enter__()
            run_.reached(rows)
            assert current_of(lake) == documents.contents()
            documents.flush()
            documents.store(numbered(0, 200, "anew"))
            rows += 4 + 200
            run_.reached(rows)
            assert current_of(lake) == documents.contents()
    with Node.running(["default"], vbuckets=4, port=port) as node, Documents.of(url) as documents:
        rows += 4 + change_documents(documents, 100)
        run_.reached(rows)
        following.__exit__(None, None, None)
        assert current_of(lake) == documents.contents()
    changes = check_changelog(lake).to_pylist()
    rollbacks = [(row["vbucket"], row["history"], row["seqno"]) for row in changes if row["event"] == "rollback"]
    assert sorted(rollbacks) == sorted((vbucket, history, 0) for vbucket in range(4) for history in (1, 2))
    assert [row["event"] for row in changes].count("expiration") == 20


@pytest.mark.spark
def test_lake_continues_in_another_dialect(spark, documents, lake):
    for number, protocol in enumerate(["dcp", "upr", "upr-draft"]):
        rows = change_documents(documents, number * 400)
        assert catch_up(spark, documents.url, lake, protocol=protocol).rows == rows
        assert current_of(lake) == documents.contents()
    assert {row["history"] for row in check_changelog(lake).to_pylist()} == {0}
