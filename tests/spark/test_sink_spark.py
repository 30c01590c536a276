"""`df.write` and `df.writeStream` of `format("dcp")`, through Spark."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from penstock.errors import UsageError
from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.spark.dependents.kinds.xdcr_target import replicate
from tests.spark.buckets import Documents, numbered
from tests.spark.test_sink_follow import Source
from tests.spark.test_source import event_log

pytestmark = pytest.mark.spark


@pytest.fixture
def target():
    with Node.running(["default"], vbuckets=32) as node, Documents.of(node.url("default")) as documents:
        yield documents


@pytest.fixture
def letters(tmp_path):
    return tmp_path / "letters"


def writing(df, documents, **options):
    return df.write.format("dcp").options(url=documents.url, **options).mode("append")


def test_frame_becomes_documents(spark, documents, letters):
    rows = spark.range(300).select(
        F.format_string("k%d", "id").alias("key"),
        F.struct("id", F.lit("x").alias("text"), F.lit(0.1).cast("float").alias("abv")).alias("value"),
    )
    writing(rows, documents).save()
    documents.keys = {f"k{number}" for number in range(300)}
    assert documents.contents()[b"k7"][1] == b'{"id":7,"text":"x","abv":0.1}'
    with pytest.raises(PySparkException, match="rows sent by this task were refused; the first is key 'k"):
        writing(rows, documents, operation="insert").save()
    writing(rows, documents, operation="insert", errors="deadletter", deadLetterPath=str(letters)).save()
    refused = spark.read.parquet(str(letters))
    assert refused.where("error = 'KEY_EEXISTS' AND value.id < 300").count() == 300
    assert refused.select("error_batch").distinct().count() == 1
    with pytest.raises(PySparkException, match="a bucket is not a table that can be overwritten; expected mode append"):
        writing(rows, documents).mode("overwrite").save()
    with pytest.raises(PySparkException, match="Append"):
        writing(rows, documents).mode("ignore").save()


def test_changes_of_a_bucket_are_written_through_a_transformation(spark, documents, target, tmp_path, letters):
    def run():
        changes = spark.readStream.format("dcp").option("url", documents.url).load()
        upper = changes.withColumn("value", F.upper(F.col("value").cast("string")))
        query = (
            upper.writeStream.format("dcp")
            .options(url=target.url, operation="with-meta", errors="deadletter", deadLetterPath=str(letters))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    documents.store(numbered(0, 500))
    target.store({"key-3": b"written later, so it stays", "key-999": b"here only"})
    run()
    documents.store(numbered(100, 120, "newer"))
    documents.remove([f"key-{number}" for number in range(490, 500)])
    run()
    target.keys |= documents.keys
    expected = {key: (cas, value.upper()) for key, (cas, value) in documents.contents().items()}
    found = target.contents()
    assert found.pop(b"key-999")[1] == b"here only"
    assert found.pop(b"key-3")[1] == b"written later, so it stays"
    del expected[b"key-3"]
    assert found == expected
    assert not letters.exists() or not [*letters.glob("*.parquet")]


SQL = """
SELECT concat('copy:', decode(key, 'UTF-8')) AS key, CAST(upper(CAST(value AS STRING)) AS BINARY) AS value,
       event, cas, rev_seqno, flags, expiry, xattrs
FROM changes WHERE CAST(key AS STRING) NOT LIKE '%-9'
"""


def test_changes_of_a_lake_are_written_through_a_transformation(spark, documents, lake):
    source = Source(lake)
    target = {"url": documents.url}

    def follow():
        replicate(lake, target, transform=SQL, spark=spark)

        def lower(changes):
            return changes.withColumn("value", F.lower(F.col("value").cast("string")))

        replicate(lake, target, name="lower", transform=lower)  # in the active session

    for number in range(10):
        source.change(1, number, b"Kept")
    source.commit()
    follow()
    for number in range(5, 12):
        source.change(1, number, b"Lost")
    source.change(1, 0, event="deletion")
    source.commit()
    follow()
    source.roll_back(1, 8)
    source.commit()
    follow()
    documents.keys = {f"{prefix}1-{number}" for prefix in ("", "copy:") for number in range(12)}
    kept = {key.decode(): value for key, (_, value) in documents.contents().items()}
    copies = {f"copy:1-{number}": b"KEPT" for number in range(9)}
    assert kept == copies | {f"1-{number}": b"kept" for number in range(10)}
    with pytest.raises(UsageError, match="no column 'cas', expected key, value, cas, rev_seqno for with-meta"):
        replicate(lake, target, name="third", transform="SELECT key, value FROM changes", spark=spark)


def test_password_is_used_and_never_shown(spark, tmp_path, capfd):
    with change_users(tmp_path / "users.json") as accounts:
        accounts["ada"] = make_account(User.from_texts("ada", ["admin"]), "very secret", 4096)
    log = tmp_path / "log"
    log.mkdir()
    rows = spark.sql("SELECT 'k' AS key, 'v' AS value")
    with Node.running(["default"], vbuckets=4, users=tmp_path / "users.json") as node, event_log(spark, log):
        to = rows.write.format("dcp").mode("append").options(url=node.url("default"), username="ada")
        to.option("password", "very secret").save()
        assert sum(vbucket.changes.high_seqno for vbucket in node.buckets["default"].store.vbuckets) == 1
        with pytest.raises(PySparkException, match="refused the login of 'ada'") as refused:
            to.option("password", "very wrong").save()
    shown = str(refused.value) + "".join(capfd.readouterr())
    shown += "".join(path.read_text() for path in log.rglob("*") if path.is_file())
    assert "SparkListenerSQLExecutionStart" in shown
    assert "very" not in shown
