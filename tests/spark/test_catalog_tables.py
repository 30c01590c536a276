"""Buckets as tables of Spark's catalog: CREATE TABLE, SELECT, INSERT INTO."""

import re

import pytest
from pyspark.errors import PySparkException

from penstock.errors import UsageError
from penstock.spark.runtime.catalog_tables import remove_options
from penstock.spark.runtime.data_source import DcpDataSource
from tests.spark.buckets import numbered
from tests.spark.lakes import append, row

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


LOST = "no option {place}: Spark loses the options of a table whose columns were named or replaced"
FIXED = "neither ALTER TABLE nor WITH"
PARTITIONS = "does not support partition management"
NO_V2 = "is not supported for v2 tables"

STATEMENTS = [
    # Works.
    ("SELECT count(*) FROM beers", None),
    ("SELECT key FROM beers WITH ({more}) LIMIT 1", None),
    ("DESCRIBE EXTENDED beers", None),
    ("SHOW COLUMNS IN beers", None),
    ("CACHE TABLE beers; UNCACHE TABLE beers; REFRESH TABLE beers", None),
    ("CREATE OR REPLACE VIEW ales AS SELECT key FROM beers; SELECT count(*) FROM ales; DROP VIEW ales", None),
    ("ALTER TABLE beers RENAME TO ales; ALTER TABLE ales RENAME TO beers; {read}", None),
    ("COMMENT ON TABLE beers IS 'b'; ALTER TABLE beers ALTER COLUMN key COMMENT 'c'; {read}", None),
    ("DROP TABLE beers; CREATE OR REPLACE TABLE beers USING {create}; {read}", None),
    ("DROP TABLE beers; CREATE TABLE beers USING {create} COMMENT 'b'; {read}", None),
    # Spark accepts it, and it has no effect.
    ("ALTER TABLE beers SET TBLPROPERTIES ('url' = 'x'); ALTER TABLE beers UNSET TBLPROPERTIES ('url'); {read}", None),
    ("ALTER TABLE beers SET LOCATION '/nowhere'; {read}", None),
    ("ALTER TABLE beers CLUSTER BY (key); {read}", None),
    # Refused by Penstock, at the next read where Spark does not ask before.
    (
        "SELECT key FROM beers WITH (columns = 'key')",
        FIXED,
    ),
    ("SELECT key FROM beers WITH (colour = 'red')", "unknown option 'colour' of format .*; known are "),
    ("ALTER TABLE beers ADD COLUMN x INT; {read}", f"found the column x, which the options do not give: .*{FIXED}"),
    ("ALTER TABLE beers DROP COLUMN key; {read}", f"the column key is missing: .*{FIXED}"),
    ("ALTER TABLE beers RENAME COLUMN key TO k; {read}", f"found the column k, .*{FIXED}"),
    ("ALTER TABLE beers ALTER COLUMN seqno TYPE STRING; {read}", f"column seqno is string, expected bigint: .*{FIXED}"),
    ("ALTER TABLE beers ALTER COLUMN seqno FIRST; {read}", f"the columns have another order: .*{FIXED}"),
    ("ALTER TABLE beers REPLACE COLUMNS (x INT); {read}", LOST),
    ("DROP TABLE beers; CREATE TABLE beers (x INT) USING {create}; {read}", LOST),
    ("DROP TABLE beers; CREATE TABLE beers (x INT) USING {create} PARTITIONED BY (x); {read}", LOST),
    ("DROP TABLE beers; CREATE TABLE beers USING {create} TBLPROPERTIES ('a' = 'b')", "TBLPROPERTIES has 'a'"),
    # Refused by Spark.
    ("DROP TABLE beers; CREATE TABLE beers USING {create} PARTITIONED BY (vbucket)", "partitioning when the table"),
    ("TRUNCATE TABLE beers", "does not support truncates"),
    ("DELETE FROM beers WHERE seqno = 1", "does not support deletes"),
    ("UPDATE beers SET seqno = 1", "does not support UPDATE"),
    ("MERGE INTO beers USING beers b ON beers.seqno = b.seqno WHEN MATCHED THEN DELETE", "does not support MERGE"),
    ("SELECT * FROM beers VERSION AS OF 1", "Time travel"),
    ("SELECT * FROM beers TIMESTAMP AS OF '2026-01-01'", "Time travel"),
    ("SHOW PARTITIONS beers", PARTITIONS),
    ("ALTER TABLE beers ADD PARTITION (vbucket = 1)", PARTITIONS),
    ("ANALYZE TABLE beers COMPUTE STATISTICS", NO_V2),
    ("MSCK REPAIR TABLE beers", NO_V2),
    ("CREATE TABLE ales LIKE beers", "does not support CREATE TABLE LIKE"),
    ("ALTER TABLE beers ADD CONSTRAINT c CHECK (seqno > 0)", "does not support table constraint"),
]
BUCKET_STATEMENTS = [
    ("INSERT INTO beers (key, value) VALUES (X'61', X'31'); {read}", None),
    ("INSERT OVERWRITE beers (key, value) VALUES (X'61', X'31')", "a bucket is not a table that can be overwritten"),
    ("SELECT key FROM beers WITH (keysOnly = 'true')", FIXED),
    ("SELECT key FROM beers WITH (valueFormat = 'string')", f"column value is binary, expected string: .*{FIXED}"),
    (
        "DROP TABLE beers; CREATE TABLE beers (key BINARY, value BINARY) USING {create}; {write}",
        LOST,
    ),
    ("DROP TABLE beers; CREATE TABLE beers USING {create} AS SELECT X'61' AS key, X'31' AS value", LOST),
    (
        "DROP TABLE beers; CREATE TABLE beers USING {create} LOCATION '/nowhere'",
        "found LOCATION, but a bucket has none",
    ),
]
LAKE_STATEMENTS = [
    ("INSERT INTO beers (value) VALUES (X'31')", "a pipeline writes the tables of a lake"),
    ("SELECT key FROM beers WITH (table = 'changelog')", FIXED),
    ("DROP TABLE beers; CREATE TABLE beers USING {create} AS SELECT 1 AS x", "a pipeline writes the tables of a lake"),
]


@pytest.mark.long
@pytest.mark.parametrize("source", ["dcp", "penstock-lake"])
def test_statements_work_or_are_refused(spark, documents, lake, source):
    documents.store(numbered(0, 3))
    append(lake, 0, [row(1, 1, b"key-1", b"{}")])
    of_source = BUCKET_STATEMENTS if source == "dcp" else LAKE_STATEMENTS
    place, where, more = {
        "dcp": ("url", documents.url, "vbuckets = '0-15'"),
        "penstock-lake": ("path", str(lake.path), "asOf = '2999-01-01T00:00:00Z'"),
    }[source]
    create = f"`{source}` OPTIONS ({place} '{where}')"
    write = "INSERT INTO beers VALUES (X'61', X'31')"
    names = {"write": write, "create": create, "read": "SELECT count(*) FROM beers", "more": more, "place": place}
    found = []
    for text, problem in [*STATEMENTS, *of_source]:
        spark.sql("DROP TABLE IF EXISTS beers")
        spark.sql(f"CREATE TABLE beers USING {create}")
        error = find_error(spark, text.format(**names))
        expected = None if problem is None else problem.format(**names)
        if (error is None) != (expected is None) or (
            expected is not None and not re.search(expected, str(error), re.S)
        ):
            found.append((text, expected, str(error)[-800:]))
    spark.sql("DROP TABLE IF EXISTS beers")
    assert found == []


def find_error(spark, statements):
    try:
        for statement in statements.split("; "):
            spark.sql(statement).collect()
    except PySparkException as error:
        return error
    return None


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"password": "secret"}, "option password of a table, expected passwordFile, passwordFrom, credentialsFile"),
        ({"passwordCommand": "rm -r /"}, "option passwordcommand of a table, .*: any reader of the table would run it"),
        ({"clour": "red"}, "unknown option 'clour' of format dcp"),
        ({"columns": "kex"}, "option columns has 'kex'"),
        ({"path": "/lake"}, "unknown option 'path' of format dcp"),
    ],
)
def test_wrong_options_of_a_table_are_refused(options, problem):
    with pytest.raises(UsageError, match=problem) as caught:
        create(**options)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"colour": "red"}, "TBLPROPERTIES has 'colour', which nothing reads"),
        ({"url": "couchbase://127.0.0.1:2/beer"}, "TBLPROPERTIES has 'url', which nothing reads"),
        ({"path": "/nowhere"}, "found LOCATION, but a bucket has none"),
        ({"spark.sql.origin": "migration"}, None),
    ],
)
def test_properties_and_locations_are_refused_when_a_table_is_created(properties, problem):
    url = "couchbase://127.0.0.1:1/beer"
    source = DcpDataSource({**CREATED, "url": url, "option.url": url, **properties})
    if problem is None:
        assert source.schema().names[0] == "vbucket"
        return
    with pytest.raises(UsageError, match=problem):
        source.schema()


def write_rows(source, schema):
    return source.writer(schema, overwrite=False)


def test_tables_without_their_options_are_neither_read_nor_written():
    columns = create(url="couchbase://127.0.0.1:1/beer")
    plain = remove_options(columns)
    for make in (DcpDataSource.reader, DcpDataSource.streamReader, write_rows):
        with pytest.raises(UsageError, match=r"no option url: .*; expected CREATE TABLE without columns"):
            make(DcpDataSource({}), plain)
        make(DcpDataSource({}), columns)
        make(DcpDataSource({"url": "couchbase://127.0.0.1:1/beer"}), plain)
    described = DcpDataSource({})  # the url is that of the environment
    assert described.reader(described.schema()).options.url


def test_overwriting_a_table_is_refused(spark, table, documents):
    table(f"url '{documents.url}', columns 'key,value'")
    with pytest.raises(PySparkException, match=re.escape("a bucket is not a table that can be overwritten")):
        spark.sql("INSERT OVERWRITE beers VALUES (CAST('a' AS BINARY), CAST('1' AS BINARY))")
