"""`df.write` and `df.writeStream` of `format("dcp")`, through Spark."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from penstock.node import Node
from tests.spark.buckets import Documents, numbered

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


def test_a_frame_becomes_documents(spark, documents, letters):
    rows = spark.range(300).select(
        F.format_string("k%d", "id").alias("key"), F.struct("id", F.lit("x").alias("text")).alias("value")
    )
    writing(rows, documents).save()
    documents.keys = {f"k{number}" for number in range(300)}
    assert documents.contents()[b"k7"][1] == b'{"id":7,"text":"x"}'
    with pytest.raises(PySparkException, match="rows sent by this task were refused; the first is key 'k"):
        writing(rows, documents, operation="insert").save()
    writing(rows, documents, operation="insert", errors="deadletter", deadLetterPath=str(letters)).save()
    refused = spark.read.parquet(str(letters))
    assert refused.where("error = 'KEY_EEXISTS' AND value.id < 300").count() == 300
    assert refused.select("error_batch").distinct().count() == 1
    with pytest.raises(PySparkException, match="no column 'value', expected key, value for upsert"):
        writing(rows.select("key"), documents).save()
    with pytest.raises(PySparkException, match="a bucket is not a table that can be overwritten; expected mode append"):
        writing(rows, documents).mode("overwrite").save()
    for mode in ("ignore", "error"):
        with pytest.raises(PySparkException, match="Append"):
            writing(rows, documents).mode(mode).save()


def test_a_bucket_follows_another_through_a_transformation(spark, documents, target, tmp_path, letters):
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
