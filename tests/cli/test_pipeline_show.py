"""`penstock pipeline show` and `status` of typed tables."""

import json

import pytest

from penstock.errors import UsageError
from penstock.spark import Lake
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.values.json_types import from_ddl
from tests.spark.lakes import append, checkpoint, row

FIELDS = "name STRING, abv DOUBLE, born DATE, price DECIMAL(5,2), tags ARRAY<STRUCT<n: INT>>, code STRING"
PALE = {"name": "Päle", "abv": 5.5, "born": "2020-02-01", "price": 1.25, "tags": [{"n": 1}], "code": "\x07"}


@pytest.fixture
def lake(tmp_path):
    lake = Lake(tmp_path / "lake")
    checkpoint(lake.checkpoint, batches=9)
    rows = [
        row(1, 1, b"b", json.dumps(PALE).encode()),
        row(1, 2, b"a", b'{"abv": "strong"}'),
        row(1, 3, b"\xff", b"{}"),
    ]
    append(lake, 0, rows)
    TypedTable(lake, TableShape(name="beers", fields=from_ddl(FIELDS))).merge()
    return lake


def test_rows_of_a_typed_table_are_shown_by_key(run, lake):
    shown = [line.split() for line in run("pipeline", "show", lake.path, "beers", "--limit", 2).out.splitlines()]
    assert shown[0] == ["beers"]
    assert shown[1] == ["_key", "name", "abv", "born", "price", "tags", "code", "_rest"]
    assert shown[2] == ["a", '{"abv":"strong"}']
    assert shown[3] == ["b", "Päle", "5.5", "2020-02-01", "1.25", '[{"n":', "1}]", "\\x07"]
    assert shown[4] == ["2", "of", "3", "rows"]
    first, second, last = run("pipeline", "show", lake.path, "beers", "--json").json_lines
    assert (first["_key"], json.loads(first["_rest"])) == ("a", {"abv": "strong"})
    assert "name" not in first
    assert {name: second[name] for name in PALE} == PALE | {"price": "1.25"}
    assert (last["_key_bytes"], "_key" in last) == ("/w==", False)


def test_a_table_that_is_not_there_is_refused(run, lake):
    code, _, err = run("pipeline", "show", lake.path, "beer")
    assert code == 2
    assert f"there is no table 'beer' in {lake.path}, expected changelog, current, beers" in err


def test_programs_find_the_tables_of_a_lake(lake):
    assert lake.tables() == {"beers": str(lake.path / "tables" / "beers")}
    found = lake.table("beers")
    assert found["_key"].to_pylist() == ["a", "b", None]
    assert found.schema.field("born").type == from_ddl("d DATE").field("d").type
    with pytest.raises(UsageError, match=r"there is no table 'x' in .*, expected changelog, current, beers"):
        lake.table("x")


def test_many_tables_are_counted(run, lake):
    for number in range(25):
        shape = TableShape(name=f"t{number:02}", fields=from_ddl(FIELDS), scope="s", collection=f"c{number}")
        TypedTable(lake, shape).merge()
    lines = run("pipeline", "status", lake.path).out.splitlines()
    tables = [line for line in lines if " table   " in line]
    assert (len(tables), "beers" in tables[0]) == (21, True)  # beers has values in _rest
    assert "  5 more tables of 0 rows are up to date; --json has each" in lines
    (found,) = run("pipeline", "status", lake.path, "--json").json_lines
    assert len(found["dependents"]) == 26
