"""`format("penstock-lake")`: a lake's tables in Spark's SQL and in its catalogs."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException

from penstock.errors import UsageError
from penstock.spark import Lake, merge_current
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.runtime.lake_source import LakeReadOptions, LakeSource
from tests.examples import scaled
from tests.patience import PATIENCE
from tests.spark.filters import column_lists, conditions, select_rows
from tests.spark.lakes import ROOT, TYPED, append, as_documents, batch_rows, model, rollback, row

HIVE_QUERY = """
import sys
from pyspark.sql import SparkSession
from penstock.spark import Lake, java_environment, register
import os
os.environ.update(java_environment())
place, path, is_new = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.sql.warehouse.dir", place + "/warehouse")
    .config("spark.hadoop.javax.jdo.option.ConnectionURL", "jdbc:derby:" + place + "/metastore;create=true")
    .config("spark.driver.extraJavaOptions", "-Dderby.stream.error.file=" + place + "/derby.log")
    .enableHiveSupport().getOrCreate()
)
register(spark)
if is_new == "new":
    Lake(path).create_tables(spark, "beers", "abv BIGINT")
print("FOUND", spark.sql("SELECT sum(abv) FROM beers_json").collect()[0][0], spark.table("beers_changelog").count())
"""
"""Reads two tables of a lake in a Hive catalog, which it creates before if asked."""


def beers(count, seqno=1):
    return [row(number, seqno, b"beer-%d" % number, json.dumps({"abv": number}).encode()) for number in range(count)]


def read(spark, lake, **options):
    return spark.read.format("penstock-lake").options(**options).load(str(lake.path))


@pytest.mark.long
def test_documents_and_changes_equal_those_of_the_lake(spark, lake):
    rows = [change for batch in range(5) for change in batch_rows(batch)]
    for batch in range(5):
        append(lake, batch, batch_rows(batch))
        if batch == 2:
            merge_current(lake)  # the documents are partly in the table, partly pending
    frame = read(spark, lake)
    assert frame.rdd.getNumPartitions() > 1
    assert as_documents(frame.toArrow()) == as_documents(lake.current()) == model(rows)
    changes = read(spark, lake, table="changelog", columns="seqno,vbucket,event").toArrow()
    assert changes.column_names == ["seqno", "vbucket", "event"]
    order = [("vbucket", "ascending"), ("seqno", "ascending"), ("event", "ascending")]
    assert changes.sort_by(order) == lake.changelog(["seqno", "vbucket", "event"]).sort_by(order)


def test_plain_delta_tables_need_the_package_of_delta(spark, lake):
    append(lake, 0, beers(10))
    TypedTable(lake, TYPED).merge()
    with pytest.raises(UsageError, match=r"does not have Delta; expected one with the package io\.delta:"):
        lake.register_tables(spark, "default")


@pytest.mark.long
def test_tables_of_a_catalog_show_the_newest_version(spark, lake):
    append(lake, 0, beers(10))
    names = lake.create_tables(spark, "default.beers")
    try:
        assert names == ["default.beers", "default.beers_changelog", "default.beers_json"]
        assert lake.create_tables(spark, "default.beers") == names  # they stay as they are
        assert spark.sql("SELECT count(*) FROM beers WHERE vbucket < 4").collect()[0][0] == 4
        assert spark.sql("SELECT sum(abv) FROM beers_json").collect()[0][0] == 45
        append(lake, 1, [rollback(3, 0, history=1), row(4, 2, b"beer-4", b'{"abv":100,"new":1}')])
        merge_current(lake)
        assert spark.sql("SELECT sum(abv) FROM beers_json").collect()[0][0] == 45 - 3 - 4 + 100
        [rest] = spark.sql("SELECT _rest FROM beers_json WHERE abv = 100").collect()
        assert rest[0] == '{"new":1}'
        assert spark.sql("SELECT count(*) FROM beers_changelog").collect()[0][0] == 12
        with pytest.raises(PySparkException, match="a pipeline writes the tables of a lake"):
            spark.sql("INSERT INTO beers (value) VALUES (CAST('{}' AS BINARY))")
    finally:
        for name in names:
            spark.sql(f"DROP TABLE {name}")
    assert lake.current().num_rows == 9


@pytest.mark.long
def test_filters_are_applied_where_the_files_are_read(spark, lake):
    append(lake, 0, beers(20))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        found = read(spark, lake, filterPushdown="true").where("key = 'beer-7' OR key = 'beer-8'").where("vbucket = 8")
        assert [each.key for each in found.collect()] == ["beer-8"]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.fixture(scope="module")
def mixed_lake(tmp_path_factory):
    """Return a lake whose documents are partly merged, with keys and values of all kinds."""
    lake = Lake(tmp_path_factory.mktemp("mixed") / "lake")
    append(lake, 0, [*beers(12), row(3, 5, b"\xffodd", b"\xff\x00"), row(4, 5, b"", b""), row(5, 5, b"gone", b"{}")])
    merge_current(lake)
    owned: dict[str, Any] = {"xattrs": [("own", b"1")], "scope": "inventory", "collection": "hotel", "collection_id": 9}
    more = [row(6, 9, b"beer-6", b'{"abv": 1.5, "name": "stout"}', cas=-5, **owned), rollback(7, 0, 1)]
    append(lake, 1, [*more, row(5, 6, b"gone", event="deletion")])
    return lake


@settings(max_examples=scaled(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(["current", "changelog", "json"]), data=st.data())
def test_rows_and_columns_equal_those_of_a_read_without_filters(mixed_lake, name, data):
    options = {"path": str(mixed_lake.path), "table": name}
    everything, left = read_pushed(options, [])
    columns = data.draw(column_lists(everything))
    wanted = data.draw(st.lists(conditions(everything, columns), max_size=3))
    found, left = read_pushed({**options, "columns": ",".join(columns)}, wanted)
    assert left == []
    assert select_rows(found, [], columns) == select_rows(everything, wanted, columns)


def read_pushed(options, filters):
    """Return the rows of a read that takes filters, and the filters that it leaves to Spark."""
    source = LakeSource({**options, "filterpushdown": "true"})
    reader = source.reader(source.schema())
    left = [*reader.pushFilters(filters)]
    rows = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pa.Table.from_batches(rows, reader.schema), left


@pytest.mark.long
def test_documents_at_an_earlier_time(spark, lake):
    append(lake, 0, beers(3))
    moment = datetime.now(UTC)
    append(lake, 1, beers(8, seqno=2))
    for file in lake.changelog_table.list_paths(lake.changelog_table.list_files(lake.changelog_table.open())):
        os.utime(file, (0, 0))  # files were written before they were committed
    found = read(spark, lake, asOf=moment.isoformat()).toArrow()
    assert as_documents(found) == as_documents(lake.as_of(moment))


@pytest.mark.process
@pytest.mark.long
def test_hive_keeps_the_tables_for_other_programs(lake, tmp_path):
    append(lake, 0, beers(4))
    for is_new, expected in (("new", "FOUND 6 4"), ("old", "FOUND 12 8")):
        command = [sys.executable, "-c", HIVE_QUERY, str(tmp_path), str(lake.path), is_new]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert expected in done.stdout, done.stderr[-3000:]
        append(lake, 1, [row(number, 2, b"beer-%d" % number, b'{"abv":3}') for number in range(4)])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "no option path; expected the directory of a lake"),
        ({"path": "lake", "table": "past"}, "option table is 'past', expected current, changelog or json"),
        (
            {"path": "lake", "table": "json", "asof": "2026-01-01"},
            "expected asOf with the table current",
        ),
        ({"path": "lake", "asof": "yesterday"}, "found the time 'yesterday'"),
        (
            {"path": "lake", "valueschema": "a INT"},
            "for the table 'current', expected it for the table json",
        ),
        ({"path": "lake", "colour": "red"}, "unknown option 'colour' of format penstock-lake"),
    ],
)
def test_wrong_options_are_refused(options, problem):
    with pytest.raises(UsageError, match=problem):
        LakeReadOptions.parse(options)


def test_wrong_columns_and_absent_lakes_are_refused(lake):
    with pytest.raises(UsageError, match="option columns has 'kex', expected some of key, key_bytes"):
        LakeSource({"path": str(lake.path), "columns": "key,kex"}).schema()
    source = LakeSource({"path": str(lake.path)})
    with pytest.raises(UsageError, match="there is no table at"):
        source.reader(source.schema()).partitions()
