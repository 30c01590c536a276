"""Conditions on the columns of a lake's Delta tables, in programs that read them as datasets of Arrow."""

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from penstock.spark import SecondaryIndex, catch_up
from penstock.spark.lake.current.current_table import merge_current
from penstock.spark.lake.current.table_shape import METADATA, TableShape
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.tables.key_pattern import KeyPattern
from penstock.spark.values.json_types import from_ddl
from tests.spark.lakes import append, rollback, row

CAS = 1_700_000_000_123_456_789


@pytest.fixture
def places(lake):
    """A lake with tables of all kinds, each with several files."""
    append(lake, 0, [row(9 * n, n + 1, b"k%d" % n, b'{"n": %d, "s": "x"}' % n, cas=CAS) for n in range(7)])
    append(lake, 1, [row(63, 5, b"k8", b"odd", event="deletion"), rollback(62, 0, 1)])
    merge_current(lake)
    fields, key = from_ddl("n BIGINT, s STRING"), KeyPattern.parse("k{number INT}")
    TypedTable(lake, TableShape(name="typed", fields=fields, key=key, metadata=tuple(METADATA))).merge()
    index = SecondaryIndex(lake, "numbers", "n")
    catch_up(index, lake)
    places = {"changelog": "changelog", "current": "current", "typed": "tables/typed", "index": "indexes/numbers"}
    return {name: str(lake.path / place) for name, place in places.items()}


@pytest.mark.parametrize("name", ["changelog", "current", "typed", "index"])
def test_a_condition_on_any_column_finds_its_rows(places, name):
    dataset = DeltaTable(places[name]).to_pyarrow_dataset()
    rows = dataset.to_table()
    compared = 0
    for field in rows.schema:
        if pa.types.is_nested(field.type) or rows[field.name].null_count == rows.num_rows:
            continue
        values = rows[field.name].unique().drop_null()
        for value in values:
            wanted = rows.filter(pc.equal(rows[field.name], value)).num_rows
            assert dataset.count_rows(filter=pc.field(field.name) == value) == wanted > 0, field.name
        compared += 1
    assert compared >= 6


def test_duckdb_finds_rows_by_any_column(places):
    tables = {name: DeltaTable(place).to_pyarrow_dataset() for name, place in places.items()}
    database = duckdb.connect()
    for name, table in tables.items():
        database.register(f"{name}_table", table)
    for query, count in (
        ("typed_table WHERE n >= 3", 4),
        ("typed_table WHERE number < 3 AND s = 'x' AND _loaded_at > '2020-01-01'", 3),
        ("current_table WHERE key = 'k1'", 1),
        ("changelog_table WHERE event = 'rollback'", 1),
        ("index_table WHERE key = 'k2'", 1),
    ):
        assert database.sql(f"SELECT count(*) FROM {query}").fetchall() == [(count,)]
