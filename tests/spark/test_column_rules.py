"""Columns of single fields: compared with the parse of whole documents, and in tables beside inferred columns."""

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.spark import Lake
from penstock.spark.dependents.kinds.table_definition import TableDefinition
from penstock.spark.lake.current.inferred_table import InferredTable
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.tables.column_rules import add_rules, parse_columns, parse_rule, remove_rules
from penstock.spark.tables.json_columns import parse
from penstock.spark.values.json_types import from_ddl
from penstock.spark.values.typed_documents import ColumnRule
from tests.examples import scaled
from tests.spark.lakes import append, row

FIELDS = from_ddl("a INT, o STRUCT<b: INT, c: STRUCT<d: STRING, e: ARRAY<INT>>>, z STRING")
LEAVES = [("a",), ("o", "b"), ("o", "c"), ("o", "c", "d"), ("o", "c", "e"), ("z",)]
VALUES = st.recursive(
    st.none() | st.integers(-3, 3) | st.sampled_from(["x", 2**40, 0.5]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abcdeoz"), inner, max_size=5),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(st.sampled_from("aoz"), VALUES, max_size=3) | VALUES
RULES = (
    parse_rule(("ordered",), "ordered_at TIMESTAMP FROM 'unix_ms'"),
    parse_rule(("day",), "DATE FROM 'unix_s'"),
    parse_rule(("total",), "DECIMAL(12,2)"),
    parse_rule(("address", "city"), "city STRING"),
    parse_rule(("payload",), "STRING FROM 'json'"),
)


@pytest.mark.parametrize(
    ("field", "text", "rule"),
    [
        ("n", "INT", ColumnRule("n", pa.int32(), ("n",))),
        ("n", "x decimal(12,2)", ColumnRule("x", pa.decimal128(12, 2), ("n",))),
        ("a.n", "STRING", ColumnRule("n", pa.string(), ("a", "n"))),
        ("`a.b`.unit-price", "STRING", ColumnRule("unit_x2d_price", pa.string(), ("a.b", "unit-price"))),
        ("at", "date DATE from 'unix_s'", ColumnRule("date", pa.date32(), ("at",), "unix_s")),
        ("at", " TIMESTAMP  FROM 'unix_us' ", ColumnRule("at", pa.timestamp("us", "UTC"), ("at",), "unix_us")),
        ("a", "STRING FROM 'json'", ColumnRule("a", pa.string(), ("a",), "json")),
        ("a", "ARRAY<STRUCT<b: INT>>", ColumnRule("a", pa.list_(pa.struct([("b", pa.int32())])), ("a",))),
    ],
)
def test_a_declaration_is_a_rule(field, text, rule):
    shape = TableDefinition(collection="orders", schema="infer", columns={field: text}).make_shape()
    assert shape.rules == (rule,)
    assert TableShape.from_json(shape.name, shape.to_json()) == shape


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (
            {"a": "x INTT"},
            "column of field 'a' is 'x INTT'; expected [column] TYPE [FROM 'form'], such as 'DECIMAL(12,2)'",
        ),
        ({"a": ""}, "column of field 'a' is ''; expected [column] TYPE"),
        ({"a": "INT, INT"}, "'INT, INT'; expected [column] TYPE"),
        ({"a": "x INT, y INT"}, "'x INT, y INT'; expected [column] TYPE"),
        ({"a": "DATE FROM unix_s"}, "'DATE FROM unix_s'; expected [column] TYPE"),
        ({"a": "DATE FROM 'unix'"}, "with the form 'unix'; expected one of unix_s, unix_ms, unix_us, json"),
        ({"a": "BIGINT FROM 'unix_s'"}, "with BIGINT FROM 'unix_s'; expected TIMESTAMP or DATE with this form"),
        ({"a": "x INT FROM 'json'"}, "with INT FROM 'json'; expected STRING with this form"),
        ({"a": "_rest INT"}, "'_rest INT'; expected letters, digits and underscores, and no column that Penstock adds"),
        ({"a": "`x y` INT"}, "'`x y` INT'; expected letters, digits and underscores"),
        ({"a..b": "INT"}, "the path is 'a..b'; expected names joined by dots"),
        (
            {"a": "x INT", "b.X": "INT"},
            "column 'X' is in columns for field 'b.X' and in columns for field 'a', expected another name",
        ),
        ({"a": "ID INT"}, "column 'ID' is in columns for field 'a' and in key 'id STRING', expected another name"),
        ({"a": "N INT"}, "column 'n' is in schema and in columns for field 'a', expected another name"),
        (
            {"a.b": "INT", "a": "INT"},
            "columns has fields 'a.b' and 'a'; expected no field twice, and none inside another",
        ),
        ({"a": "INT", "`a`": "x INT"}, "columns has fields 'a' and 'a'; expected no field twice"),
        ({"n": "x INT"}, "field 'n' is in columns and in schema, expected one of them"),
        ({"o.p": "INT"}, "field 'o.p' is in columns and in schema, expected one of them"),
        ({"n.a": "INT"}, "columns has field 'n.a', and 'n' is BIGINT in schema; expected STRUCT"),
    ],
)
def test_a_bad_declaration_is_refused(columns, sentence):
    with pytest.raises(UsageError, match=re.escape(sentence)):
        TableDefinition(collection="orders", schema="n BIGINT, o STRUCT<p: INT>", key="id STRING", columns=columns)


def find(path):
    """Return the type of a field of FIELDS."""
    of = pa.struct(list(FIELDS))
    for name in path:
        of = of.field(name).type
    return of


def reach(document, path):
    for name in path:
        document = None if document is None else document[name]
    return document


def omit_empty(value):
    """Return a value without the objects that have only nulls."""
    if not isinstance(value, dict):
        return value
    kept = {name: omit_empty(each) for name, each in value.items()}
    return kept if any(each is not None for each in kept.values()) else None


@settings(max_examples=scaled(200))
@given(st.lists(DOCUMENTS, max_size=6), st.sets(st.sampled_from(LEAVES), max_size=3))
def test_fields_with_a_rule_have_the_values_that_a_schema_gives_them(documents, paths):
    paths = [path for path in paths if not any(path[: len(other)] == other for other in paths - {path})]
    rules = [ColumnRule(f"r{at}", find(path), path) for at, path in enumerate(paths)]
    fields = remove_rules(FIELDS, rules)
    values = pa.array([json.dumps(each).encode() for each in documents] + [None, b"\xff"], pa.binary())
    columns, rest = parse_columns(values, rules, fields)
    whole, expected_rest = parse(values, FIELDS)
    assert rest == expected_rest
    assert [column.to_pylist() for column in columns[: len(rules)]] == [
        [reach(line, path) for line in whole.to_pylist()] for path in paths
    ]
    for field, column in zip(fields, columns[len(rules) :], strict=True):
        assert column.type == field.type
        expected = [(line or {}).get(field.name) for line in whole.to_pylist()]
        for line in expected:
            for path in paths:
                if path[0] == field.name and reach(line, path[1:-1]) is not None:
                    del reach(line, path[1:-1])[path[-1]]
        assert [*map(omit_empty, column.to_pylist())] == [*map(omit_empty, expected)]
    assert {each.name for each in add_rules(fields, rules)} == {*FIELDS.names}


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ("total DOUBLE, n BIGINT", "n BIGINT"),
        ("address STRING, n BIGINT", "n BIGINT"),
        ("address STRUCT<city: BIGINT>, n BIGINT", "n BIGINT"),
        ("address STRUCT<city: BIGINT, zip: STRING>", "address STRUCT<zip: STRING>"),
        ("payload STRUCT<total: BIGINT>, city STRUCT<address: INT>", "city STRUCT<address: INT>"),
    ],
)
def test_a_rule_wins_over_inferred_fields(fields, left):
    assert remove_rules(from_ddl(fields), RULES) == from_ddl(left)


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path / "lake")


def read(lake):
    return DeltaTable(str(lake.path / "tables" / "orders")).to_pyarrow_table().sort_by("_key").to_pylist()


def test_rules_rename_type_and_convert_beside_inferred_columns(lake):
    shape = TableShape(name="orders", fields=pa.schema([]), rules=RULES)
    table = InferredTable(lake, shape)
    first = {"ordered": 1_700_000_000_123, "day": 86_400, "total": 1.5, "address": {"city": "Oslo", "zip": 5}, "n": 1}
    append(lake, 0, [row(1, 1, b"a", json.dumps(first | {"payload": [1, {"x": None}]}).encode())])
    table.merge()
    second = {"ordered": "soon", "day": 1, "total": 0.125, "address": {"city": 7}, "payload": "x", "city": 1, "new": 2}
    append(lake, 1, [row(1, 2, b"b", json.dumps(second).encode()), row(1, 3, b"c", b"[1]")])
    table.merge()
    names = ("ordered_at", "day", "total", "city", "payload", "address", "n", "new")
    assert [tuple(line[name] for name in names) for line in read(lake)] == [
        (
            datetime(2023, 11, 14, 22, 13, 20, 123000, UTC),
            date(1970, 1, 2),
            Decimal("1.50"),
            "Oslo",
            '[1, {"x": null}]',
            {"zip": 5},
            1,
            None,
        ),
        (None, None, None, None, '"x"', None, None, 2),
        (None,) * 8,
    ]
    rests = [line["_rest"] for line in read(lake)]
    assert (rests[0], rests[2]) == (None, "[1]")
    assert json.loads(rests[1]) == {
        "ordered": "soon",
        "day": 1,
        "total": 0.125,
        "address": {"city": 7},
        "city": 1,  # the name of a declared column
    }
    found = TypedTable.find(lake, "orders")
    assert found is not None
    assert isinstance(found.shape, TableShape)
    assert found.shape.rules == RULES
    assert {(each.field, each.found, each.expected) for each in found.report_rest().misfits} == {
        ("", "no object", None),
        ("address.city", "number", "STRING"),
        ("city", "number", None),
        ("day", "number", "DATE"),
        ("ordered", "text", "TIMESTAMP"),
        ("total", "number", "DECIMAL(12, 2)"),
    }
    with pytest.raises(UsageError, match=r"another declaration: ordered_at was removed\. Build it again .*retype"):
        InferredTable(lake, TableShape(name="orders", fields=pa.schema([]), rules=RULES[1:])).merge()
