"""Typed tables in a Spark that has only the packages of Delta and Iceberg: found by name, with all rows and types."""

import json
import subprocess
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.utils.config import Config

from penstock.errors import UsageError
from penstock.spark import Lake
from penstock.spark.lake.current.inferred_table import InferredTable
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.lake.reading.spark_tables import list_registrations
from tests.compat.installed import make_lakehouse_command
from tests.patience import PATIENCE
from tests.spark.lakes import append, rollback, row
from tests.spark.rest_catalog import serve_catalog
from tests.spark.test_typed_readers import DOCUMENT, FIELDS, SHAPE

pytestmark = pytest.mark.long

TOKEN = "a-catalog-token-0123456789"
QUICK = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
READ = {
    "tiny": -128, "small": 32767, "n": -(2**31), "big": 2**63 - 1, "f": 0.5, "d": 0.1, "text": "é\n", "is_new": True,
    "day": "1969-12-31", "moment": "2024-02-29T10:00:00.123Z", "total": 12.34, "huge": 10**38 - 1, "tags": ["a", None],
    "lines": [{"sku": "s", "price": 1.5, "more": {"deep": [1, None]}}, None, {}],
}  # fmt: skip
"""DOCUMENT as Spark writes its row as JSON."""
TYPES = (
    "int bigint float double string boolean date timestamp decimal(12,2) decimal(38,0) array<string>"
    " array<struct<sku:string,price:decimal(5,1),more:struct<deep:array<int>>>>"
)


def fill(lake):
    """Write a table with all types and a rollback, and a table that has got a column."""
    tables: list[TypedTable | InferredTable] = [
        TypedTable(lake, SHAPE),
        InferredTable(lake, TableShape(name="grown", fields=pa.schema([]))),
    ]
    for batch, rows in enumerate(
        (
            [row(1, 1, b"full", json.dumps(DOCUMENT).encode()), row(1, 2, b"none", b"{}")],
            [row(1, 3, b"full", b'{"n": 1}'), row(2, 1, b"odd", b'{"n": "x", "late": {"new": 1}}')],
            [rollback(1, 2, 1)],
        )
    ):
        append(lake, batch, rows)
        for table in tables:
            table.merge()


def run_statements(directory, settings, statements):
    """Return the rows of each statement."""
    given = QUICK | {"spark.sql.warehouse.dir": str(directory / "warehouse")} | settings
    command = [*make_lakehouse_command("Query"), *(f"{name}={text}" for name, text in given.items())]
    text = "\n".join(statements)
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[list[dict[str, Any]]] = [[]]
    for line in done.stdout.splitlines():
        if line == "end":
            found.append([])
        elif line.startswith("{"):
            found[-1].append(json.loads(line, parse_float=Decimal))
    return found[:-1]


def check_tables(found, narrow):
    """Check the rows of QUERIES."""
    full, others, types, grown, sums = found
    assert full == [json.loads(json.dumps(READ), parse_float=Decimal)]
    assert others == [{"_key": "none", "has_lines": False}, {"_key": "odd", "_rest": REST, "has_lines": False}]
    of_fields = {line["col_name"]: line["data_type"] for line in types}
    assert " ".join(of_fields[name] for name in FIELDS.names) == f"{narrow} {TYPES}"
    assert grown == [{"_key": "odd", "late": {"new": 1}}]
    assert sums == [{"n": 2, "total": Decimal("12.34")}]


REST = '{"n":"x","late":{"new": 1}}'


def make_queries(schema):
    return (
        f"SELECT {', '.join(FIELDS.names)} FROM {schema}.orders WHERE n < 0",
        f"SELECT _key, _rest, lines IS NOT NULL AS has_lines FROM {schema}.orders WHERE _key <> 'full' ORDER BY _key",
        f"DESCRIBE TABLE {schema}.orders",
        f"SELECT _key, late FROM {schema}.grown WHERE late IS NOT NULL",
        f"SELECT count(*) - count(n) AS n, sum(total) AS total FROM {schema}.orders",
    )


def test_spark_finds_delta_tables_by_name(tmp_path):
    lake = Lake(tmp_path / "lake")
    fill(lake)
    registrations = list_registrations(lake, "shop")
    assert [*registrations] == ["shop.grown", "shop.orders"]
    statements = ["CREATE SCHEMA shop", *registrations.values(), *make_queries("shop")]
    changes = "SELECT _key, n, _change_type FROM table_changes('shop.orders', 2) ORDER BY _change_type"
    *found, feed = run_statements(tmp_path, DELTA, [*statements, changes])
    check_tables(found[3:], "tinyint smallint")
    assert [(line["_key"], line["n"], line["_change_type"]) for line in feed] == [
        ("full", -(2**31), "update_postimage"),
        ("full", 1, "update_preimage"),
    ]


def test_spark_finds_iceberg_tables_in_their_catalog(tmp_path, monkeypatch):
    monkeypatch.setenv("PYICEBERG_CATALOG__PENSTOCK__TOKEN", TOKEN)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    with serve_catalog(tmp_path, TOKEN) as uri:
        fill(Lake(tmp_path / "shop", "iceberg", uri))
        catalog = "spark.sql.catalog.rest"
        settings = {
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "rest",
            f"{catalog}.uri": uri,
            f"{catalog}.token": TOKEN,
        }
        view = (
            "CALL rest.system.create_changelog_view(table => 'shop.orders', identifier_columns => array('_key'),"
            " changelog_view => 'changes')"
        )
        changes = "SELECT _key, n, _change_type FROM changes WHERE _change_ordinal = 2 ORDER BY _change_type"
        *found, _, feed = run_statements(tmp_path, settings, [*make_queries("rest.shop"), view, changes])
    check_tables(found, "int int")
    assert [(line["_key"], line["n"], line["_change_type"]) for line in feed] == [
        ("full", -(2**31), "UPDATE_AFTER"),
        ("full", 1, "UPDATE_BEFORE"),
    ]


def test_iceberg_tables_are_not_registered(tmp_path):
    lake = Lake(tmp_path / "shop", "iceberg")
    fill(lake)
    with pytest.raises(UsageError, match=r"Iceberg tables, in the namespace 'shop' of the catalog sqlite:.*; expect"):
        list_registrations(lake, "shop")
