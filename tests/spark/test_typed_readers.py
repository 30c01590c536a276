"""Typed tables in programs of others: the same rows and types in each format, after rollbacks and new columns."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest

from penstock.spark import Lake, compact, vacuum
from penstock.spark.lake.current.inferred_table import InferredTable
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.values.json_types import from_ddl
from tests.spark.lakes import append, rollback, row
from tests.spark.typed_readers import open_iceberg, query_table, read_lines, scan_table

FIELDS = from_ddl(
    "tiny TINYINT, small SMALLINT, n INT, big BIGINT, f FLOAT, d DOUBLE, text STRING, is_new BOOLEAN, day DATE,"
    " moment TIMESTAMP, total DECIMAL(12, 2), huge DECIMAL(38, 0), tags ARRAY<STRING>,"
    " lines ARRAY<STRUCT<sku: STRING, price: DECIMAL(5, 1), more: STRUCT<deep: ARRAY<INT>>>>"
)
SHAPE = TableShape(name="orders", fields=FIELDS)
DOCUMENT = {
    "tiny": -128, "small": 32767, "n": -(2**31), "big": 2**63 - 1, "f": 0.5, "d": 0.1, "text": "é\n", "is_new": True,
    "day": "1969-12-31", "moment": "2024-02-29T12:00:00.123456+02:00", "total": "12.34", "huge": 10**38 - 1,
    "tags": ["a", None], "lines": [{"sku": "s", "price": "1.5", "more": {"deep": [1, None]}}, None, {}],
}  # fmt: skip
EXPECTED = DOCUMENT | {
    "day": date(1969, 12, 31),
    "moment": datetime(2024, 2, 29, 10, 0, 0, 123456, UTC),
    "total": Decimal("12.34"),
    "huge": Decimal(10**38 - 1),
    "lines": [
        {"sku": "s", "price": Decimal("1.5"), "more": {"deep": [1, None]}},
        None,
        {"sku": None, "price": None, "more": None},
    ],
}


@pytest.fixture(params=["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def lake(request, tmp_path):
    return Lake(tmp_path / "lake", request.param)


def test_every_reader_finds_all_types_after_a_rollback(lake):
    table = TypedTable(lake, SHAPE)
    append(lake, 0, [row(1, 1, b"full", json.dumps(DOCUMENT).encode()), row(1, 2, b"none", b"{}")])
    table.merge()
    append(
        lake, 1, [row(1, 3, b"full", b'{"n": 1}'), row(1, 4, b"\xff", b'{"n": 2}'), row(2, 1, b"odd", b'{"n": "x"}')]
    )
    table.merge()
    append(lake, 2, [rollback(1, 2, 1)])
    table.merge()
    full, none, odd = sorted(read_lines(lake, "orders"), key=lambda line: str(line["_key"]))
    assert {name: full[name] for name in FIELDS.names} == EXPECTED
    assert all(line[name] is None for line in (none, odd) for name in FIELDS.names if name != "lines")
    # PyIceberg 0.12 reads a null array of objects as an empty one. Polars and Spark read null.
    assert none["lines"] == odd["lines"] == ([] if table.table.format == "iceberg" else None)
    assert scan_table(lake, "orders").filter(pl.col("lines").is_null()).collect().height == 2
    assert [line["_rest"] for line in (full, none, odd)] == [None, None, '{"n":"x"}']
    # An int of Iceberg has 32 bits at least.
    found = scan_table(lake, "orders").filter(pl.col("_key") == "full").select(FIELDS.names).collect()
    assert found.to_dicts() == [EXPECTED]
    narrow = (pl.Int32, pl.Int32) if table.table.format == "iceberg" else (pl.Int8, pl.Int16)
    assert found.dtypes[:10] == [*narrow, pl.Int32, pl.Int64, pl.Float32, pl.Float64, pl.String, pl.Boolean, pl.Date,
                                 pl.Datetime("us", "UTC")]  # fmt: skip
    [types] = query_table(
        lake, "orders", f"SELECT {', '.join(f'typeof({name})' for name in FIELDS.names)} FROM orders LIMIT 1"
    )
    assert types[2:13] == ("INTEGER", "BIGINT", "FLOAT", "DOUBLE", "VARCHAR", "BOOLEAN", "DATE",
                           "TIMESTAMP WITH TIME ZONE", "DECIMAL(12,2)", "DECIMAL(38,0)", "VARCHAR[]")  # fmt: skip
    sql = "SELECT total, huge, lines[1].price, epoch_us(moment) FROM orders WHERE _key = 'full'"
    assert query_table(lake, "orders", sql) == [
        (Decimal("12.34"), Decimal(10**38 - 1), Decimal("1.5"), 1709200800123456)
    ]


def test_readers_find_added_columns_and_past_rows(lake):
    table = InferredTable(lake, TableShape(name="orders", fields=pa.schema([])))
    append(lake, 0, [row(n % 8, 1 + n, b"k%d" % n, b'{"n": %d}' % n) for n in range(20)])
    table.merge()
    append(
        lake, 1, [row(n % 8, 101 + n, b"k%d" % n, b'{"n": %d, "place": {"city": "c%d"}}' % (n, n)) for n in range(5)]
    )
    table.merge()
    found = scan_table(lake, "orders").sort("n").collect()
    assert found["n"].to_list() == list(range(20))
    assert found["place"].to_list() == [*({"city": f"c{n}"} for n in range(5)), *[None] * 15]
    sql = "SELECT count(*), count(place), max(place.city) FROM orders WHERE n >= 3"
    assert query_table(lake, "orders", sql) == [(17, 2, "c4")]
    assert sorted(line["n"] for line in read_lines(lake, "orders", 0)) == list(range(20))
    compact(lake)
    vacuum(lake, 0)
    assert query_table(lake, "orders", sql) == [(17, 2, "c4")]


@pytest.mark.long
def test_the_partition_column_only_leaves_out_files(tmp_path):
    lake = Lake(tmp_path, "iceberg")
    append(lake, 0, [row(n % 64, 1 + n, b"k%d" % n, b'{"n": %d}' % n) for n in range(640)])
    TypedTable(lake, SHAPE).merge()
    table = open_iceberg(lake, "orders")
    found = table.scan(row_filter="vbucket_range = 3")
    assert {task.file.partition[0] for task in found.plan_files()} == {3}
    assert {line["_vbucket"] // 4 for line in found.to_arrow().to_pylist()} == {3}
    found = table.scan(row_filter="_vbucket = 13 and n < 100")
    assert len(list(found.plan_files())) == 1
    assert found.to_arrow()["n"].to_pylist() == [13, 77]
    assert table.scan(row_filter="vbucket_range is null").to_arrow().num_rows == 0
