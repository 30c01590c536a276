"""Inferred tables: types of most values, and columns that come while the documents change."""

import json
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.schema import index_by_name

from penstock.errors import UsageError
from penstock.spark import Lake
from penstock.spark.lake.current import inferred_table
from penstock.spark.lake.current.current_table import merge_tables
from penstock.spark.lake.current.document_table import describe_current
from penstock.spark.lake.current.inferred_table import Evolution, InferredTable
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.lake.tables.data_files import number_fields
from penstock.spark.lake.tables.iceberg.iceberg_schema import holds_type
from penstock.spark.tables import inference
from penstock.spark.tables.inference import add_fields, infer_fields, infer_from_sample
from penstock.spark.tables.json_columns import parse
from penstock.spark.tables.key_pattern import KeyPattern
from penstock.spark.values.json_types import from_ddl, to_ddl
from tests.examples import scaled
from tests.spark.lakes import append, row
from tests.spark.test_current import histories
from tests.spark.typed_readers import FORMATS, find_version, open_iceberg, read_lines

NOTHING = TableShape(name="orders", fields=pa.schema([]))
OWN = {"_loaded_at", "_batch", "vbucket_range"}


@pytest.mark.parametrize(
    ("documents", "ddl"),
    [
        ([{"a": 1, "b": "x", "c": True}], "a BIGINT, b STRING, c BOOLEAN"),
        ([{"a": 1}, {"a": 1.5}], "a DOUBLE"),
        ([{"a": 1}, {"a": 2**70}], "a DECIMAL(38, 0)"),
        ([{"a": 1}, {"a": 2**70}, {"a": 0.5}], "a DOUBLE"),
        ([{"a": 1}, {"a": 2}, {"a": "x"}], "a BIGINT"),
        ([{"a": 1}, {"a": "y"}, {"a": "x"}], "a STRING"),
        ([{"a": {"b": 1}}, {"a": {"c": None}}, {"a": {"d": "x"}}, {"a": [1]}], "a STRUCT<b: BIGINT, d: STRING>"),
        ([{"a": [1, 2]}, {"a": [0.5]}, {"a": []}], "a ARRAY<DOUBLE>"),
        ([{"a": [{"b": 1}, {"c": [True]}]}], "a ARRAY<STRUCT<b: BIGINT, c: ARRAY<BOOLEAN>>>"),
        ([{"a": None, "b": {}, "c": [], "d": [None], "e": [[]], "f": 1}], "f BIGINT"),
        ([{"": 1, "z\0": 1, "f": 1}, 5, [1], "x"], "f BIGINT"),
    ],
)
def test_a_field_has_the_type_of_most_values(documents, ddl):
    assert infer_fields([None, b"no json", *(json.dumps(each).encode() for each in documents)]) == from_ddl(ddl)


def test_names_that_are_data_are_no_columns():
    many = {f"id-{n}": 1 for n in range(5_000)}
    found = infer_fields([json.dumps({"known": 1, **many}).encode(), b'{"known": 2, "many": {}}'])
    assert len(found) == 500
    assert found.names[0] == "known"


def test_a_sample_is_spread_over_all_documents(monkeypatch):
    monkeypatch.setattr(inference, "MOST_SAMPLED", 11)
    documents = [json.dumps({f"f{number // 10}": 1}).encode() for number in range(101)]
    chunks = pa.chunked_array([documents[:3], [], documents[3:50], documents[50:]], pa.binary())
    assert infer_from_sample(chunks).names == [f"f{number}" for number in range(11)]
    assert infer_from_sample(pa.chunked_array([], pa.binary())) == pa.schema([])


def test_types_end_at_some_depth():
    value: object = 1
    for _ in range(200):
        value = {"a": value}
    assert infer_fields([json.dumps({"deep": value, "n": 1}).encode()]) == from_ddl("n BIGINT")


@settings(max_examples=scaled(60))
@given(st.lists(st.dictionaries(st.text(max_size=3), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
), max_size=4), min_size=1, max_size=8))  # fmt: skip
def test_any_documents_can_be_parsed_with_their_own_fields(documents):
    values = [json.dumps(each).encode() for each in documents]
    fields = infer_fields(values)
    assert from_ddl(to_ddl(fields)) == fields if len(fields) else True
    columns, _ = parse(pa.array(values, pa.binary()), fields)
    assert all(columns.field(number).null_count < len(values) for number in range(len(fields)))
    assert add_fields(fields, fields).changes == ()
    assert add_fields(pa.schema([]), fields).fields == fields
    TableShape(name="t", fields=fields)


@pytest.mark.parametrize(
    ("known", "found", "expected", "changes"),
    [
        ("a BIGINT", "b STRING", "a BIGINT, b STRING", ["b STRING is new"]),
        ("a BIGINT", "a DOUBLE", "a DOUBLE", ["a BIGINT becomes DOUBLE"]),
        ("a DOUBLE", "a BIGINT", "a DOUBLE", []),
        ("a BIGINT", "a STRING", "a BIGINT", []),
        ("a BIGINT", "a DECIMAL(38, 0)", "a DECIMAL(38, 0)", ["a BIGINT becomes DECIMAL(38, 0)"]),
        ("a STRUCT<b: INT>", "a STRUCT<c: INT>", "a STRUCT<b: INT, c: INT>", ["a.c INT is new"]),
        (
            "a ARRAY<STRUCT<b: BIGINT>>",
            "a ARRAY<STRUCT<b: DOUBLE>>",
            "a ARRAY<STRUCT<b: DOUBLE>>",
            ["a[].b BIGINT becomes DOUBLE"],
        ),
    ],
)
def test_new_fields_are_added_and_types_widened(known, found, expected, changes):
    joined = add_fields(from_ddl(known), from_ddl(found))
    assert (joined.fields, joined.changes) == (from_ddl(expected), tuple(changes))


@pytest.fixture(params=["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def lake(request, tmp_path):
    return Lake(tmp_path / "lake", request.param)


def read(lake, name="orders"):
    return [
        {name: value for name, value in line.items() if name not in OWN}
        for line in sorted(read_lines(lake, name), key=lambda line: (str(line["_key"]), line["_vbucket"]))
    ]


def documents(first, last, **fields):
    return [row(n % 8, first + n, b"k%d" % n, json.dumps({"n": n, **fields}).encode()) for n in range(1, last)]


def test_columns_come_with_their_documents(lake):
    table = InferredTable(lake, NOTHING)
    append(lake, 0, [row(1, 1, b"other", b"{}", collection_id=8, scope="s", collection="c")])
    assert table.merge().changes == 1
    assert read(lake) == []
    append(lake, 1, documents(100, 20))
    table.merge()
    assert [line["n"] for line in read(lake)] == sorted(range(1, 20), key=str)
    append(lake, 2, documents(200, 5, at={"city": "x"}))
    table.merge()
    version = find_version(lake, "orders")
    assert [line["at"] for line in read(lake) if line["at"]] == [{"city": "x"}] * 4
    append(lake, 3, documents(300, 3, at={"city": "x", "zip": 5}))
    table.merge()
    assert [line["at"] for line in read(lake) if line["at"]] == [{"city": "x", "zip": 5}] * 2 + [
        {"city": "x", "zip": None}
    ] * 2
    assert {line["_rest"] for line in read(lake)} == {None}
    append(lake, 4, documents(400, 3, at={"city": 7}))  # a conflict is no new field
    table.merge()
    assert find_version(lake, "orders") == version + 2
    assert [json.loads(line["_rest"]) for line in read(lake) if line["_rest"]] == [{"at": {"city": 7}}] * 2
    past = read_lines(lake, "orders", version)
    assert [line["at"] for line in past if line["at"]] == [{"city": "x"}] * 4


def test_new_fields_stay_in_the_rest_or_end_the_run(lake):
    append(lake, 0, documents(100, 5))
    kinds: tuple[Evolution, ...] = ("keep", "fail")
    tables = {kind: InferredTable(lake, TableShape(name=kind, fields=pa.schema([])), kind) for kind in kinds}
    for table in tables.values():
        table.merge()
    append(lake, 1, documents(200, 5))
    tables["fail"].merge()
    append(lake, 2, documents(300, 3, late=True))
    tables["keep"].merge()
    assert [line["_rest"] for line in read(lake, "keep")] == ['{"late":true}'] * 2 + [None] * 2
    with pytest.raises(UsageError, match="table fail: late BOOLEAN is new, and evolve is 'fail'; expected the known"):
        tables["fail"].merge()
    with pytest.raises(UsageError, match="keep is a table of another declaration: deletes was 'remove' and is 'mark'"):
        InferredTable(lake, TableShape(name="keep", fields=pa.schema([]), deletes="mark")).position()


def test_a_field_named_like_a_key_column_stays_in_the_rest(lake):
    append(lake, 0, documents(100, 5))
    shape = TableShape(name="orders", fields=pa.schema([]), key=KeyPattern.parse("k{N INT}"))
    InferredTable(lake, shape).merge()
    assert [(line["N"], line["_rest"]) for line in read(lake)] == [(n, f'{{"n":{n}}}') for n in range(1, 5)]


@settings(max_examples=scaled(25))
@given(histories(), FORMATS, st.lists(st.integers(0, 40), max_size=4), st.sampled_from(["remove", "mark"]))
def test_a_table_that_grew_equals_one_that_is_built_with_all_columns(rows, table_format, ends, deletes):
    rows = [
        each | ({"value": json.dumps({"n": each["seqno"], f"f{at // 10}": each["seqno"] / 2}).encode()}
                if each.get("value") is not None else {})
        for at, each in enumerate(rows)
    ]  # fmt: skip
    with TemporaryDirectory() as directory:
        lake = Lake(directory, table_format)
        grown = InferredTable(lake, TableShape(name="grown", fields=pa.schema([]), deletes=deletes))
        cuts = sorted({0, len(rows), *(min(end, len(rows)) for end in ends)})
        for batch, (start, end) in enumerate(pairwise(cuts)):
            append(lake, batch, rows[start:end])
            merge_tables([describe_current(lake), grown.describe()])
        found = TypedTable.find(lake, "grown")
        if found is None:
            return
        once = TypedTable(lake, TableShape(name="once", fields=found.shape.fields, deletes=deletes))
        once.merge()
        assert read(lake, "grown") == read(lake, "once")


def test_the_sample_is_of_all_files_and_rows(lake, monkeypatch):
    monkeypatch.setattr(inferred_table, "FIRST_VALUES", 64)
    for batch in range(8):
        append(lake, batch, [row(1, 1000 * batch + n, b"%d" % n, b'{"f%d": 1}' % batch) for n in range(1, 500)])
    InferredTable(lake, NOTHING).merge()
    found = TypedTable.find(lake, "orders")
    assert found is not None
    assert found.shape.fields.names == [f"f{batch}" for batch in range(8)]


def number_fields_of(lake):
    """Return the field ids of the newest schema by path."""
    return index_by_name(open_iceberg(lake, "orders").schema())


def test_fields_of_iceberg_keep_their_ids(tmp_path):
    lake = Lake(tmp_path, "iceberg")
    table = InferredTable(lake, NOTHING)
    append(lake, 0, documents(100, 5, at={"lines": [{"sku": "a"}]}))
    table.merge()
    first = number_fields_of(lake)
    append(lake, 1, documents(200, 5, at={"lines": [{"sku": "b", "new": 1}], "zip": 7}, late=True))
    table.merge()
    second = number_fields_of(lake)
    assert first.items() <= second.items()
    new = {"at.lines.element.new", "at.zip", "late"}
    assert sorted(second[name] for name in new) == [max(first.values()) + at for at in (1, 2, 3)]
    names = [field.name for field in open_iceberg(lake, "orders").schema().fields]
    assert names[:4] == ["_key", "n", "at", "late"]
    append(lake, 2, [*documents(300, 5, at={"lines": [{"sku": "c"}]}), row(9, 999, b"half", b'{"n": 0.5}')])
    table.merge()
    third = number_fields_of(lake)
    # Iceberg turns no BIGINT into a DOUBLE: the column of this name is new.
    assert third["n"] > max(second.values())
    assert {name: at for name, at in third.items() if name != "n"}.items() <= second.items()
    assert {line["n"] for line in read(lake)} == {0.5, 1.0, 2.0, 3.0, 4.0}
    past = read_lines(lake, "orders", 1)
    assert sorted(line["n"] for line in past) == [1, 2, 3, 4]
    assert {repr(line["at"]["lines"]) for line in past} == {"[{'sku': 'b', 'new': 1}]"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("INT", "BIGINT", True),
        ("BIGINT", "INT", False),
        ("BIGINT", "DOUBLE", False),
        ("FLOAT", "DOUBLE", True),
        ("DECIMAL(5, 1)", "DECIMAL(9, 1)", True),
        ("DECIMAL(5, 1)", "DECIMAL(9, 2)", False),
        ("STRING", "STRING", True),
        ("STRUCT<a: INT>", "STRUCT<a: BIGINT, b: INT>", True),
        ("STRUCT<a: INT, b: INT>", "STRUCT<a: INT>", False),
        ("ARRAY<STRUCT<a: INT>>", "ARRAY<STRUCT<a: STRING>>", False),
        ("ARRAY<INT>", "INT", False),
    ],
)
def test_a_type_that_holds_all_values_keeps_its_column(old, new, expected):
    def convert(ddl):
        return pyarrow_to_schema(number_fields(from_ddl(f"x {ddl}"))).fields[0].field_type

    assert holds_type(convert(new), convert(old)) is expected
    assert holds_type(convert(old), convert(old))


def test_a_collection_with_few_documents_has_its_fields(lake, monkeypatch):
    monkeypatch.setattr(inferred_table, "MOST_FILES", 1)
    many = [row(n % 64, n + 1, b"k%d" % n, b'{"n": 1}') for n in range(640)]
    rare: dict[str, Any] = {"collection_id": 8, "scope": "shop", "collection": "c8"}
    append(lake, 0, [*many, row(63, 1000, b"one", b'{"only": true}', **rare)])
    shape = TableShape(name="rare", fields=pa.schema([]), scope="shop", collection="c8")
    InferredTable(lake, shape).merge()
    table = TypedTable.find(lake, "rare")
    assert table is not None
    assert table.shape.fields == from_ddl("only BOOLEAN")
