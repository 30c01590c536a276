"""Buckets as tables of Spark's catalog: CREATE TABLE, SELECT, INSERT INTO."""

import re

import pytest
from pyspark.errors import PySparkException

from penstock.errors import UsageError
from penstock.spark.runtime.data_source import DcpDataSource
from tests.spark.buckets import numbered

CREATED = {"provider": "dcp", "owner": "ada", "location": "/warehouse", "comment": "beers"}
"""Properties that Spark passes with CREATE TABLE."""


def create(**options):
    """Return the schema of a table, made as Spark makes it."""
    given = {**CREATED, **options, **{f"option.{name}": text for name, text in options.items()}}
    return DcpDataSource({name.lower(): text for name, text in given.items()}).schema()


@pytest.fixture
def table(spark):
    """Return a function that creates the table `beers`, which is dropped at the end."""

    def create_table(options: str) -> None:
        spark.sql(f"CREATE TABLE beers USING dcp OPTIONS ({options})")

    yield create_table
    spark.sql("DROP TABLE IF EXISTS beers")


@pytest.mark.long
def test_table_is_read_and_written(spark, table, documents):
    documents.store(numbered(0, 20))
    table(f"url '{documents.url}', columns 'vbucket,key,value', operation 'upsert'")
    assert spark.sql("SELECT count(*) FROM beers").collect()[0][0] == 20
    spark.sql("INSERT INTO beers (key, value) VALUES (CAST('stout' AS BINARY), CAST('{}' AS BINARY))")
    [stout] = spark.sql("SELECT value FROM beers WHERE key = CAST('stout' AS BINARY)").collect()
    assert stout.value == b"{}"
    ranged = spark.sql("SELECT key FROM beers WITH (vbuckets = '0-3')").collect()
    assert 0 < len(ranged) < 21
    spark.sql("INSERT INTO beers SELECT * FROM beers LIMIT 1")


def test_options_of_the_statement_replace_those_of_the_table():
    schema = create(url="couchbase://127.0.0.1:1/beer", columns="key,value", operation="insert")
    assert schema.names == ["key", "value"]
    reader = DcpDataSource({"url": "couchbase://127.0.0.1:2/beer"}).reader(schema)
    assert reader.options.url == "couchbase://127.0.0.1:2/beer"
    assert reader.options.columns == ("key", "value")
    writer = DcpDataSource({}).writer(schema, overwrite=False)
    assert (writer.job.options.url, writer.job.options.operation) == ("couchbase://127.0.0.1:1/beer", "insert")


def test_read_without_a_table_ignores_properties_of_none():
    with pytest.raises(UsageError, match="unknown option 'owner'"):
        DcpDataSource({"owner": "ada"}).schema()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"password": "secret"}, "option password of a table, expected passwordFile, passwordFrom, credentialsFile"),
        ({"passwordCommand": "rm -r /"}, "option passwordcommand of a table, .*: any reader of the table would run it"),
        ({"clour": "red"}, "unknown option 'clour' of format dcp"),
        ({"columns": "kex"}, "option columns has 'kex'"),
    ],
)
def test_wrong_options_of_a_table_are_refused(options, problem):
    with pytest.raises(UsageError, match=problem) as caught:
        create(**options)
    assert "secret" not in str(caught.value)


def test_overwriting_a_table_is_refused(spark, table, documents):
    table(f"url '{documents.url}', columns 'key,value'")
    with pytest.raises(PySparkException, match=re.escape("a bucket is not a table that can be overwritten")):
        spark.sql("INSERT OVERWRITE beers VALUES (CAST('a' AS BINARY), CAST('1' AS BINARY))")
