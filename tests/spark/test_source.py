"""`format("dcp")`: first with the calls that Spark makes, but without Spark; then in a session."""

import json
import pickle
import time
from contextlib import contextmanager

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.errors import UsageError
from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.spark.pipeline.run.spark_failure import parse_failure
from penstock.spark.runtime.data_source import DcpDataSource
from penstock.wire.columns.schema import CHANGE_SCHEMA
from tests.spark.buckets import Documents, Proxy, numbered


def identities(rows):
    return list(zip(*(rows[name].to_pylist() for name in ("vbucket", "history", "seqno")), strict=True))


def keys(tables):
    return [key for table in tables for key in table["key"].to_pylist()]


@pytest.mark.parametrize("protocol", ["upr-draft", "upr"])
def test_query_in_another_dialect_has_the_same_rows(documents, follow, protocol):
    documents.store(numbered(0, 1_000))
    documents.store(numbered(500, 600, "again"))
    expected, found = (
        pa.concat_tables(follow(documents.url, maxChangesPerTrigger="300", protocol=name).all())
        for name in ("dcp", protocol)
    )
    same = ["vbucket", "history", "seqno", "event", "key", "value", "cas", "rev_seqno", "vbuuid"]
    assert found.select(same).sort_by([("vbucket", "ascending"), ("seqno", "ascending")]) == expected.select(
        same
    ).sort_by([("vbucket", "ascending"), ("seqno", "ascending")])


def test_tap_read_is_one_task(documents):
    documents.store(numbered(0, 1_000))
    source = DcpDataSource({"url": documents.url, "protocol": "tap"})
    reader = source.reader(source.schema())
    (partition,) = reader.partitions()
    batches = list(reader.read(pickle.loads(pickle.dumps(partition))))
    assert sorted(keys(batches)) == sorted(key.encode() for key in documents.keys)


def test_tap_stream_is_refused_by_each_possible_first_call(documents, follow):
    query = follow(documents.url, protocol="tap")
    for call in (
        query.reader.initialOffset,
        query.reader.getDefaultReadLimit,
        query.reader.prepareForTriggerAvailableNow,
    ):
        with pytest.raises(UsageError, match="TAP cannot resume; streaming needs upr-draft, upr or dcp"):
            call()


@pytest.mark.long
def test_limit_holds_and_few_changes_are_sent_twice(documents, follow):
    documents.store(numbered(0, 20_000))
    before = documents.stat("ep_dcp_items_sent")
    batches = follow(documents.url, maxChangesPerTrigger="1000").all()
    assert [table.num_rows for table in batches] == [1000] * 20
    assert sorted(keys(batches)) == sorted(key.encode() for key in documents.keys)
    assert documents.stat("ep_dcp_items_sent") - before <= 22_000


def test_limit_loses_no_newest_change_of_a_key(documents, follow):
    for round_ in range(5):
        documents.store(numbered(0, 2_000, f"round {round_}"))
    before = documents.stat("ep_dcp_items_sent")
    batches = follow(documents.url, maxChangesPerTrigger="1500").all()
    assert all(table.num_rows <= 1500 for table in batches)
    seen = {(row["vbucket"], row["seqno"], row["key"], row["cas"]) for table in batches for row in table.to_pylist()}
    assert documents.newest() <= seen
    assert len(seen) == sum(table.num_rows for table in batches)
    # A batch that ends between two versions has the older version too; `newest` has read 2,000 changes.
    assert documents.stat("ep_dcp_items_sent") - before <= 10_000 + 2_000


def test_streams_are_opened_only_for_vbuckets_with_new_changes(documents, follow):
    documents.store(numbered(0, 2_000))
    query = follow(documents.url)
    query.all()
    before = documents.stat("ep_dcp_streams_opened"), documents.stat("ep_dcp_items_sent")
    documents.store(numbered(5, 6, "again"))
    (table,) = query.all()
    assert keys([table]) == [b"key-5"]
    assert documents.stat("ep_dcp_streams_opened") == before[0] + 1
    assert documents.stat("ep_dcp_items_sent") == before[1] + 1
    assert query.all() == []
    assert documents.stat("ep_dcp_streams_opened") == before[0] + 1


def test_idle_query_requests_few_bytes(node, documents, follow):
    documents.store(numbered(0, 100))
    with Proxy.before(node.kv_port) as proxy:
        query = follow(proxy.url)
        query.all()
        limit = query.reader.getDefaultReadLimit()
        before = proxy.passed
        began = time.monotonic()
        assert all(query.reader.latestOffset(query.start, limit) is query.start for _ in range(5))
        seqnos, logs = 24 + 16 * 10, 16 * (24 + 16)
        plans, polls = 5, 1 + (time.monotonic() - began) / 0.02
        assert proxy.passed - before <= plans * (logs + 2 * seqnos) + polls * seqnos


def test_start_at_latest_has_only_later_changes_also_after_a_restart(documents, follow):
    documents.store(numbered(0, 500))
    query = follow(documents.url, startingOffsets="latest")
    first = query.step()
    assert first is not None
    assert first.num_rows == 0  # an empty batch, with which Spark stores the position
    documents.store(numbered(400, 450, "after"))
    query.restart()
    assert sorted(keys(query.all())) == sorted(key.encode() for key in numbered(400, 450))


def test_restarted_query_continues_at_its_position(documents, follow):
    documents.store(numbered(0, 1_000))
    query = follow(documents.url, maxChangesPerTrigger="300")
    tables = [query.step()]
    query.restart()
    tables += query.all()
    assert len(identities(pa.concat_tables(tables))) == len(set(identities(pa.concat_tables(tables)))) == 1_000


def test_available_now_ends_at_the_changes_before_its_start(documents, follow):
    documents.store(numbered(0, 1_000))
    query = follow(documents.url, maxChangesPerTrigger="400")
    query.reader.prepareForTriggerAvailableNow()
    documents.store(numbered(1_000, 1_500))
    assert sum(table.num_rows for table in query.all()) == 1_000


@pytest.mark.parametrize("after", [10, 300, 2_000], ids=["shorter", "the same", "longer"])
def test_node_that_lost_its_data_causes_rollback_rows(after, follow):
    with Node.running(["default"], vbuckets=4) as node:
        port = node.kv_port
        with Documents.of(node.url("default")) as documents:
            documents.store(numbered(0, 300))
            query = follow(documents.url, recreatedBucket="rollback")
            (before,) = query.all()
    with Node.running(["default"], vbuckets=4, port=port) as node, Documents.of(node.url("default")) as documents:
        documents.store(numbered(0, after, "anew"))
        rows = pa.concat_tables(query.all())
    events = rows["event"].to_pylist()
    rollbacks = {(r["vbucket"], r["seqno"], r["history"]) for r in rows.to_pylist() if r["event"] == "rollback"}
    assert rollbacks == {(vbucket, 0, 1) for vbucket in set(before["vbucket"].to_pylist())}
    assert events.count("mutation") == after
    assert set(rows["history"].to_pylist()) == {1}


def test_bucket_of_another_size_is_refused(documents, follow):
    query = follow(documents.url)
    query.all()
    with Node.running(["default"], vbuckets=32) as other:
        query.options["url"] = other.url("default")
        query.restart()
        with pytest.raises(UsageError, match=r"the bucket has 32 vbuckets, expected 16"):
            query.step()


def test_missing_bucket_is_named(node, follow):
    url = node.url("default").replace("/default", "/beer")
    with pytest.raises(UsageError, match="no bucket 'beer'"):
        follow(url).step()


def test_small_batches_of_many_vbuckets_are_joined():
    with Node.running(["default"], vbuckets=1024) as node, Documents.of(node.url("default")) as documents:
        documents.store(numbered(0, 10_000))
        source = DcpDataSource({"url": documents.url, "maxPartitions": "1"})
        reader = source.reader(source.schema())
        (partition,) = reader.partitions()
        batches = list(reader.read(partition))
    assert sum(batch.num_rows for batch in batches) == 10_000
    assert len(batches) <= 1 + 10_000 // 2_048


@pytest.mark.spark
def test_batch_read_equals_the_bucket(spark, documents):
    documents.store(numbered(0, 3_000))
    documents.remove([f"key-{number}" for number in range(100)])
    frame = spark.read.format("dcp").option("url", documents.url).option("maxPartitions", 2).load()
    assert to_arrow_schema(frame.schema, timezone="UTC").equals(CHANGE_SCHEMA)
    rows = frame.toArrow()
    mutations = rows.filter(pa.compute.equal(rows["event"], "mutation"))
    found = zip(*(mutations[name].to_pylist() for name in ("key", "cas", "value")), strict=True)
    assert {key: (cas, value) for key, cas, value in found} == documents.contents()
    assert rows.num_rows == 3_000
    assert frame.where("event = 'deletion' and value is null").count() == 100
    assert set(rows["history"].to_pylist()) == {0}


@pytest.mark.spark
def test_empty_bucket_has_no_rows(spark, documents):
    frame = spark.read.format("dcp").option("url", documents.url).load()
    assert frame.count() == 0
    assert frame.columns == CHANGE_SCHEMA.names


@pytest.mark.spark
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"startingOffsets": "latest"},
            "option startingOffsets is 'latest', but a batch read has only earlier changes",
        ),
        ({"urll": "x"}, "unknown option 'urll' of format dcp"),
        ({"url": "couchbase://127.0.0.1:1/default?retrySeconds=0.1"}, "couchbase://127.0.0.1:1/default did not serve"),
    ],
)
def test_failure_of_a_batch_read_is_one_sentence(spark, options, sentence):
    with pytest.raises(PySparkException) as raised:
        spark.read.format("dcp").options(**options).load().count()
    assert str(parse_failure(str(raised.value))).startswith(sentence)


@pytest.mark.spark
def test_stream_with_a_limit_has_every_row_once(spark, documents, tmp_path):
    documents.store(numbered(0, 2_500))
    frame = spark.readStream.format("dcp").option("url", documents.url).option("maxChangesPerTrigger", 1000).load()
    sink = frame.writeStream.format("memory").queryName("limited").option("checkpointLocation", str(tmp_path / "c"))
    before = documents.stat("ep_dcp_items_sent")
    query = sink.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [1000, 1000, 500]
    assert documents.stat("ep_dcp_items_sent") - before <= 2_750
    lags = [json.loads(progress.sources[0].latestOffset)["lag"] for progress in query.recentProgress]
    assert lags[:3] == [1500, 500, 0]
    rows = spark.table("limited").toArrow()
    assert len(identities(rows)) == len(set(identities(rows))) == 2_500
    assert set(rows["key"].to_pylist()) == {key.encode() for key in documents.keys}


@contextmanager
def event_log(spark, directory):
    """Log the session's events in the block, as spark.eventLog.enabled does from the start of a session."""
    context, jvm = spark.sparkContext._jsc.sc(), spark._jvm
    conf = context.conf().clone().set("spark.eventLog.compress", "false")
    where = jvm.java.net.URI(directory.as_uri())
    listener = jvm.org.apache.spark.scheduler.EventLoggingListener("app", jvm.scala.Option.empty(), where, conf)
    listener.start()
    context.addSparkListener(listener)
    try:
        yield
        context.listenerBus().waitUntilEmpty()
    finally:
        context.removeSparkListener(listener)
        listener.stop()


@pytest.mark.spark
def test_password_is_used_and_never_shown(spark, tmp_path, capfd):
    with change_users(tmp_path / "users.json") as accounts:
        accounts["ada"] = make_account(User.from_texts("ada", ["admin"]), "very secret", 4096)
    log = tmp_path / "log"
    log.mkdir()
    with Node.running(["default"], vbuckets=4, users=tmp_path / "users.json") as node, event_log(spark, log):
        login = {"username": "ada", "password": "very secret"}
        changes = spark.read.format("dcp").options(url=node.url("default"), **login).load()
        assert changes.count() == 0
        changes.explain("extended")
        stream = spark.readStream.format("dcp").options(url=node.url("default"), **login).load()
        query = stream.writeStream.format("noop").start()
        query.processAllAvailable()
        query.explain(True)
        query.stop()
        query.awaitTermination()
        shown = str(changes._jdf.queryExecution().toString()) + "".join(capfd.readouterr())
        shown += "".join(str(progress) for progress in query.recentProgress) + f"{changes!r} {stream!r}"
        wrong = spark.read.format("dcp").options(url=node.url("default"), username="ada", password="very wrong").load()
        with pytest.raises(PySparkException, match="refused the login of 'ada'") as refused:
            wrong.count()
        shown += str(refused.value)
    logged = "".join(path.read_text() for path in log.rglob("*") if path.is_file())
    assert "SparkListenerSQLExecutionStart" in logged
    assert "dcp" in logged
    assert "dcp" in shown
    assert "very" not in shown + logged
