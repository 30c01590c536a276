"""Child tables: compared with the arrays of a model of the bucket, and joined with their parents as users do."""

import json
import re
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from tempfile import TemporaryDirectory

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.spark import Lake
from penstock.spark.dependents.kinds.child_definition import (
    ChildDefinition,
    DeclaredColumns,
    name_child,
    parse_children,
)
from penstock.spark.dependents.kinds.table_definition import TableDefinition
from penstock.spark.lake.changelog.changelog_delta import ChangelogDelta
from penstock.spark.lake.changelog.merge_rules import fill_collection_ids
from penstock.spark.lake.current import table_rewrite
from penstock.spark.lake.current.child_shape import ChildShape
from penstock.spark.lake.current.current_table import merge_tables
from penstock.spark.lake.current.document_table import LoadStamp, describe_current
from penstock.spark.lake.current.misfit_shape import parse_shape
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.lake.tables.schemas import MERGE_SCHEMA
from penstock.spark.tables.array_elements import read_elements
from tests.examples import scaled
from tests.spark.lakes import append, model, rollback, row, table
from tests.spark.test_current import histories
from tests.spark.test_typed_tables import apply_changes

SCHEMA = "total BIGINT, lines ARRAY<STRUCT<n BIGINT, s STRING>>, o STRUCT<tags: ARRAY<STRING>, z: INT>"
OWN = {"_loaded_at", "_batch", "vbucket_range"}
SCALARS = st.none() | st.integers(-3, 3) | st.sampled_from(["x", "ß", 2**70, 0.5, True])
ELEMENTS = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.sampled_from("nsu"), SCALARS, max_size=3)
ARRAYS = st.lists(ELEMENTS, max_size=4) | SCALARS
DOCUMENTS = st.fixed_dictionaries(
    {}, optional={"total": SCALARS, "lines": ARRAYS, "o": st.dictionaries(st.sampled_from(["tags", "z"]), ARRAYS)}
)


def declare(**more):
    return TableDefinition(**{"collection": "_default", "name": "orders", "schema": SCHEMA} | more)


def open_parts(lake, **more):
    """Return the parent and its children by name, opened in a lake."""
    given = {"children": ("lines", "o.tags")} | more
    return {each.name: each.open(lake) for each in declare(**given).list_parts()}


def describe(parts):
    """Return the tables for a merge, with the fields that it gives them."""
    return [each.describe() for each in parts.values()]


def read(lake, name):
    path = lake.path / "tables" / name
    return DeltaTable(str(path)).to_pyarrow_table().to_pylist() if path.exists() else []


def explode(documents, *path):
    """Return the elements of an array in documents, by document and position."""
    found: dict[tuple[object, ...], object] = {}
    for identity, (_, value) in documents.items():
        of = json.loads(value)
        for name in path:
            of = of.get(name) if isinstance(of, dict) else None
        found |= {(*identity, at): element for at, element in enumerate(of if isinstance(of, list) else [])}
    return found


def expect_line(element):
    """Return n, s and the rest of an element of lines."""
    if not isinstance(element, dict):
        return None, None, element
    n, s = element.get("n"), element.get("s")
    is_n, is_s = type(n) is int and abs(n) < 2**63, isinstance(s, str)
    rest = {k: v for k, v in element.items() if v is not None and not ((k == "n" and is_n) or (k == "s" and is_s))}
    return n if is_n else None, s if is_s else None, rest or None


def expect_tag(element):
    """Return the value and the rest of an element of tags."""
    if isinstance(element, str) or element is None:
        return element, None
    return None, {"value": element}


def identify(line):
    return line["_vbucket"], line["_collection_id"], line["_key"].encode(), line["_position"]


def read_rest(line):
    return None if line["_rest"] is None else json.loads(line["_rest"])


def by_identity(lines, *columns):
    found = {identify(line): (*(line[name] for name in columns), read_rest(line)) for line in lines}
    assert len(found) == len(lines)
    return found


def put_documents(rows, data, documents=DOCUMENTS):
    """Return rows with JSON documents as values, in collections with names."""
    names = {8: {"scope": "shop", "collection": "c8"}, 9: {"scope": "shop", "collection": "c9"}}
    found = []
    for each in rows:
        value = None if each.get("value") is None else json.dumps(data.draw(documents)).encode()
        key = (each.get("key") or b"").decode("latin-1").encode()
        found.append(each | {"value": value, "key": key or each.get("key")} | names.get(each.get("collection_id"), {}))
    return found


def default_documents(rows):
    return {identity: found for identity, found in model(rows).items() if identity[1] == 0}


@settings(max_examples=scaled(40))
@given(histories(), st.sampled_from(["remove", "mark"]), st.data())
def test_children_equal_the_arrays_of_the_bucket_and_the_feed_leads_to_them(rows, deletes, data):
    rows = put_documents(rows, data)
    ends = sorted({*data.draw(st.lists(st.integers(0, len(rows)), max_size=6)), 0, len(rows)})
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_rewrite, "BATCH_ROWS", 3)
        lake = Lake(directory)
        parts = open_parts(lake, deletes=deletes)
        states: dict[str, tuple[Counter[str], int]] = {name: (Counter(), -1) for name in parts}
        for batch, (start, end) in enumerate(pairwise(ends)):
            append(lake, batch, rows[start:end])
            chosen = [name for name in parts if end == len(rows) or data.draw(st.booleans())]
            merge_tables([parts[name].describe() for name in chosen])
            documents = default_documents(rows[:end])
            for name in chosen:
                lines = read(lake, name)
                if name == "orders_lines":
                    expected = {at: expect_line(each) for at, each in explode(documents, "lines").items()}
                    assert by_identity(lines, "n", "s") == expected
                elif name == "orders_o_x2e_tags":
                    tags = {at: expect_tag(each) for at, each in explode(documents, "o", "tags").items()}
                    assert by_identity(lines, "value") == tags
                state, version = states[name]
                apply_changes(state, parts[name], version)
                states[name] = state, DeltaTable(str(parts[name].table.path)).version() if lines else version
                if lines:
                    assert +state == Counter(repr(sorted(line.items())) for line in lines)


@settings(max_examples=scaled(25))
@given(histories(), st.lists(st.integers(0, 40), max_size=4), st.data())
def test_inferred_children_that_grew_equal_those_that_are_built_at_once(rows, ends, data):
    rows = put_documents(rows, data)
    with TemporaryDirectory() as directory:
        lake = Lake(directory)
        cuts = sorted({0, len(rows), *(min(end, len(rows)) for end in ends)})
        grown = open_parts(lake, schema="infer")
        for batch, (start, end) in enumerate(pairwise(cuts)):
            append(lake, batch, rows[start:end])
            merge_tables([describe_current(lake), *describe(grown)])
        found = TypedTable.find(lake, "orders_lines")
        if found is None:
            return
        lines = {
            identify(line): {name: value for name, value in line.items() if name not in OWN}
            for line in read(lake, "orders_lines")
        }
        assert lines.keys() == explode(default_documents(rows), "lines").keys()
        once = TypedTable(Lake(directory), parse_shape("once", found.shape.to_json()))
        once.merge()
        assert lines == {
            identify(line): {name: value for name, value in line.items() if name not in OWN}
            for line in read(lake, "once")
        }


@settings(max_examples=scaled(100))
@given(st.lists(DOCUMENTS | SCALARS, max_size=8), st.sampled_from([("lines",), ("o", "tags")]))
def test_elements_are_those_of_the_arrays(documents, path):
    values = pa.array([json.dumps(each).encode() for each in documents], pa.binary())
    found = read_elements(values, path)
    places = zip(found.documents.tolist(), found.positions.tolist(), strict=True)
    texts = [None if text is None else json.loads(text) for text in found.texts.to_pylist()]
    model_of = {(0, 0, at): (0, value) for at, value in enumerate(values.to_pylist())}
    assert dict(zip(places, texts, strict=True)) == {
        (identity[2], identity[3]): element for identity, element in explode(model_of, *path).items()
    }


ODD = [
    *(
        b'{"n":1,"n":2}',
        b'{"n":1e400}',
        b'{"s":"\\ud800"}',
        b'{"s":"\\u0000","u":{"a":1, "a":2}}',
        b'{"n" : 1.0 }',
        b"1e400",
    ),
    *(b'{"n":9223372036854775808}', b'"\\ud800"', b"null", b"[1, 2]", b"{}", b'{"":1}', '"ß"'.encode(), b"-0.0"),
]


@given(st.lists(st.sampled_from(ODD), max_size=6))
def test_an_element_has_the_columns_of_a_document(elements):
    """A table of documents and a child have the same rows for the same JSON."""
    (_, child) = declare(children=("lines",)).list_parts()
    assert isinstance(child, ChildDefinition)
    stamp = LoadStamp(0, 0)
    array = b'{"lines": [%s]}' % b" , ".join(elements)
    rows = fill_collection_ids(table([row(1, 1, b"k", array)]).select(MERGE_SCHEMA.names))
    alone = [row(1, 1, b"k", each) for each in elements]
    documents = fill_collection_ids(table(alone).select(MERGE_SCHEMA.names))
    found = child.shape.to_rows(rows, stamp)
    assert found["_position"].to_pylist() == [*range(len(elements))]
    wanted = child.shape.elements.to_rows(documents, stamp).to_pylist()
    for line in wanted:
        line["_rest"] = None if line["_rest"] == "null" else line["_rest"]  # a null element is a row of nulls
    assert found.drop_columns(["_position"]).to_pylist() == wanted


def store(seqno, key, **fields):
    return row(1, seqno, key, json.dumps(fields, separators=(",", ":")).encode())


def test_the_parent_has_the_array_no_more(lake):
    append(lake, 0, [
        store(1, b"a", total=1, lines=[{"n": 1}], o={"tags": ["x"], "z": 2}),
        store(2, b"b", lines="none", o={"tags": {"x": 1}}),
        store(3, b"c", lines=None, o=5),
        store(4, b"d", lines=[], o={}),
        row(1, 5, b"e", b"[1]"),
    ])  # fmt: skip
    merge_tables(describe(open_parts(lake)))
    rows = sorted(read(lake, "orders"), key=lambda line: line["_key"])
    assert [(line["total"], line["o"], line["_rest"]) for line in rows] == [
        (1, {"z": 2}, None),
        (None, None, '{"lines":"none","o":{"tags":{"x":1}}}'),
        (None, None, '{"o":5}'),
        (None, None, None),
        (None, None, "[1]"),
    ]
    assert "lines" not in rows[0]
    assert len(read(lake, "orders_lines")) == len(read(lake, "orders_o_x2e_tags")) == 1


def test_the_feed_distinguishes_the_rows_of_a_document(lake):
    parts = open_parts(lake)
    append(lake, 0, [store(n, b"k%d" % n, lines=[{"n": 1}, {"n": 2}, {"n": 3}]) for n in range(1, 20)])
    merge_tables(describe(parts))
    append(lake, 1, [
        store(20, b"k1", lines=[{"n": 1}, {"n": 5}]),
        store(21, b"k2", lines=[{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}]),
        row(1, 22, b"k3", event="deletion"),
        store(23, b"k4"),
    ])  # fmt: skip
    merge_tables(describe(parts))
    place = str(lake.path / "tables" / "orders_lines")
    feed = pa.table(DeltaTable(place).load_cdf(starting_version=1).read_all()).to_pylist()
    kinds = Counter((line["_key"], line["_change_type"]) for line in feed)
    assert kinds == {
        ("k1", "update_preimage"): 2,
        ("k1", "update_postimage"): 2,
        ("k1", "delete"): 1,
        ("k2", "update_preimage"): 3,
        ("k2", "update_postimage"): 3,
        ("k2", "insert"): 1,
        ("k3", "delete"): 3,
        ("k4", "delete"): 3,
    }
    append(lake, 2, [rollback(1, 19, 1)])
    merge_tables(describe(parts))
    feed = pa.table(DeltaTable(place).load_cdf(starting_version=2).read_all()).to_pylist()
    assert {line["_key"] for line in feed} == {"k1", "k2", "k3", "k4"}
    assert len(read(lake, "orders_lines")) == 57


def test_parent_and_children_share_the_read_of_the_changelog(lake, monkeypatch):
    reads = []
    read_range = ChangelogDelta.read_range

    def count(self, vbucket_range, *arguments):
        reads.append(vbucket_range)
        return read_range(self, vbucket_range, *arguments)

    monkeypatch.setattr(ChangelogDelta, "read_range", count)
    append(lake, 0, [row(n, 1, b"k", b"{}") for n in range(64)])
    merge_tables(describe(open_parts(lake)))
    assert sorted(reads) == list(range(16))


def test_key_columns_are_those_of_the_parent(lake):
    parts = open_parts(lake, key="order::{customer BIGINT}::{number INT}", metadata=("batch",))
    append(lake, 0, [store(1, b"order::7::2", lines=[{"n": 1}, {"n": 2}]), store(2, b"odd", lines=[3])])
    merge_tables(describe(parts))
    found = sorted(read(lake, "orders_lines"), key=lambda line: (line["_key"], line["_position"]))
    assert [name for name in found[0] if name not in OWN] == [
        *("customer", "number", "_position", "n", "s", "_rest"),
        *("_vbucket", "_history", "_seqno", "_key", "_key_bytes", "_collection_id"),
    ]
    columns = ("customer", "number", "_position", "n", "_rest")
    assert [tuple(line[name] for name in columns) for line in found] == [
        (None, None, 0, None, "3"),
        (7, 2, 0, 1, None),
        (7, 2, 1, 2, None),
    ]


def test_a_child_that_evolves_leaves_the_parent_as_it_is(lake):
    append(lake, 0, [store(n, b"k%d" % n, total=n, lines=[{"n": n}]) for n in range(1, 9)])
    merge_tables(describe(open_parts(lake, schema="infer")))
    append(lake, 1, [store(9, b"k9", total=9, lines=[{"n": 0.5, "late": {"x": [1]}}, 7])])
    merge_tables(describe(open_parts(lake, schema="infer")))
    lines = sorted(read(lake, "orders_lines"), key=lambda line: (line["_seqno"], line["_position"]))
    assert [(line["n"], line["late"], line["_rest"]) for line in lines] == [
        *((float(n), None, None) for n in range(1, 9)),
        (0.5, {"x": [1]}, None),
        (None, None, "7"),
    ]
    batches = {line["_key"]: line["_batch"] for line in read(lake, "orders")}
    assert batches == {f"k{n}": 0 for n in range(1, 9)} | {"k9": 1}
    append(lake, 2, [store(10, b"k10", lines=[{"later": 1}])])
    with pytest.raises(UsageError, match=r"table orders_lines: lines\[\].later BIGINT is new, and evolve is 'fail'"):
        merge_tables(describe(open_parts(lake, schema="infer", evolve="fail")))
    merge_tables(describe(open_parts(lake, schema="infer", evolve="keep")))
    assert [read_rest(line) for line in read(lake, "orders_lines") if line["_key"] == "k10"] == [{"later": 1}]


def test_single_fields_of_elements_have_columns_while_others_are_inferred(lake):
    columns = {
        "lines[].price": "DECIMAL(12,2)",
        "lines[].at.ms": "paid_at TIMESTAMP FROM 'unix_ms'",
        "total": "sum INT",
    }
    given = {"schema": "infer", "children": ("lines",), "columns": columns}
    for batch, more in enumerate(({}, {"late": True})):
        line = {"sku": "a", "price": 1.5, "at": {"ms": 1000, "zone": "CET"}} | more
        append(lake, batch, [store(batch + 1, b"k%d" % batch, total=7, lines=[line, {"price": "free", "paid_at": 1}])])
        parts = open_parts(lake, **given)
        merge_tables(describe(parts))
    lines = sorted(read(lake, "orders_lines"), key=lambda line: (line["_seqno"], line["_position"]))
    names = ("price", "paid_at", "sku", "at", "late", "_rest")
    paid = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert [tuple(line[name] for name in names) for line in lines] == [
        (Decimal("1.50"), paid, "a", {"zone": "CET"}, None, None),
        (None, None, None, None, None, '{"price":"free","paid_at":1}'),
        (Decimal("1.50"), paid, "a", {"zone": "CET"}, True, None),
        (None, None, None, None, None, '{"price":"free","paid_at":1}'),
    ]
    assert [line["sum"] for line in read(lake, "orders")] == [7, 7]
    found = parts["orders_lines"].find().report_rest()
    assert [(e.field, e.found, e.expected) for e in found.misfits] == [
        ("price", "text", "DECIMAL(12, 2)"),
        ("paid_at", "number", None),
    ]


def test_a_child_without_elements_samples_only_new_changes(lake, monkeypatch):
    samples = []
    infer = ChildShape.infer

    def count(self, values):
        given = [*values]
        samples.append(len(given))
        return infer(self, given)

    monkeypatch.setattr(ChildShape, "infer", count)
    for batch, elements in enumerate([[], [], None, [{"n": 1}]]):
        append(lake, batch, [store(10 * batch + n, b"k%d" % n, lines=elements) for n in range(1, 9)])
        merge_tables(describe(open_parts(lake, schema="infer", children=("lines",))))
    assert samples == [8, 8, 8, 8, 32]
    assert [line["n"] for line in read(lake, "orders_lines")] == [1] * 8


def test_an_inferred_field_named_like_a_key_column_stays_in_the_rest(lake):
    append(lake, 0, [store(1, b"1::2", lines=[{"n": 1, "N": 2, "s": "x"}], o={"tags": ["x"]})])
    merge_tables(describe(open_parts(lake, schema="infer", key="{N INT}::{value INT}")))
    assert [(line["N"], line["s"], line["_rest"]) for line in read(lake, "orders_lines")] == [(1, "x", '{"n":1,"N":2}')]
    assert [line["_rest"] for line in read(lake, "orders_o_x2e_tags")] == ['"x"']


@pytest.mark.parametrize(
    ("elements", "column", "values", "rests"),
    [
        ([1, 2], "value", [1, 2], [None, None]),
        ([[1], [2, 3]], "value", [[1], [2, 3]], [None, None]),
        (["a", None, {"b": 1}, "c"], "value", ["a", None, None, "c"], [None, None, '{"value":{"b":1}}', None]),
        ([{"b": 1}, {"b": None}, 5], "b", [1, None, None], [None, None, "5"]),
        ([None, {}, []], None, [], [None, None, "[]"]),
    ],
)
def test_elements_have_the_type_of_most_of_them(lake, elements, column, values, rests):
    append(lake, 0, [store(1, b"k", lines=elements)])
    merge_tables(describe(open_parts(lake, schema="infer", children=("lines",))))
    rows = sorted(read(lake, "orders_lines"), key=lambda line: line["_position"])
    assert [line["_rest"] for line in rows] == rests
    assert next(name for name in [*rows[0]][2:]) == (column or "_rest")
    if column:
        assert [line[column] for line in rows] == values


def test_a_report_counts_the_misfits_of_elements(lake):
    append(lake, 0, [store(1, b"k", lines=[{"n": "x"}, {"u": 1}, 5, {"n": 1}], o={"tags": [1, "x"]})])
    parts = open_parts(lake)
    merge_tables(describe(parts))
    found = {name: [(e.field, e.found, e.expected) for e in t.report_rest().misfits] for name, t in parts.items()}
    assert found == {
        "orders": [],
        "orders_lines": [("", "no object", None), ("n", "text", "BIGINT"), ("u", "number", None)],
        "orders_o_x2e_tags": [("value", "number", "STRING")],
    }


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (("lines",), "orders_lines"),
        (("address", "lines"), "orders_address_x2e_lines"),
        (("address.lines",), "orders__x60_address_x2e_lines_x60_"),
        (("Lines",), "orders_Lines"),
        (("unit-price",), "orders_unit_x2d_price"),
    ],
)
def test_names_of_children_are_all_different(path, name):
    assert name_child("orders", path) == name


def test_a_child_is_described_by_its_parent():
    parent, *children = declare(children=("lines", "o.tags"), source="shop").list_parts()
    assert [(each.name, each.source, each.describe()) for each in children if isinstance(each, ChildDefinition)] == [
        ("orders_lines", "shop", "lines of orders in 13 columns"),
        ("orders_o_x2e_tags", "shop", "o.tags of orders in 12 columns"),
    ]
    assert parent.describe() == "_default._default in 12 columns"
    for each in children:
        assert isinstance(each, ChildDefinition)
        shape = each.shape
        assert parse_shape(shape.name, shape.to_json()) == shape


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ({"children": ["lines[].taxes"]}, "children has 'lines[].taxes', which is inside the elements of an array"),
        ({"children": ["lines", "lines"]}, "children has 'lines', and children has 'lines'; expected no field twice"),
        ({"children": ["o", "o.tags"]}, "children has 'o.tags', and children has 'o'; expected no field twice"),
        ({"children": ["x"]}, "children has 'x', which schema does not have; expected an ARRAY of schema"),
        ({"children": ["total"]}, "children has 'total', which is BIGINT in schema; expected ARRAY"),
        ({"children": ["lines.n"]}, "children has 'lines.n', which is inside the elements of 'lines'; expected an"),
        ({"children": ["a..b"]}, "children: the path is 'a..b'; expected names joined by dots"),
        (
            {"schema": "infer", "children": ["lines"], "columns": {"lines.n": "INT"}},
            "children has 'lines', and columns has 'lines.n'; expected no field twice, and none inside another",
        ),
        (
            {"children": ["lines"], "key": "{n BIGINT}-{m INT}"},
            "children has 'lines': column 'n' is in schema and in key '{n BIGINT}-{m INT}', expected another name",
        ),
        (
            {"children": ["lines"], "columns": {"o.tags[].x": "INT"}},
            "columns has a field of 'o.tags[]'; expected 'o.tags'",
        ),
        (
            {"children": ["lines"], "columns": {"lines[].n": "INT"}},
            "children has 'lines': field 'n' is in columns and in",
        ),
        ({"schema": "infer", "children": ["n" * 200]}, "in children makes a table whose name has 207 bytes; expected"),
        ({"schema": "infer", "children": ["lines"], "collection": "s" * 99 + "." + "c" * 99, "name": ""}, "203 bytes"),
        ({"children": ["o.tags"], "key": "value STRING"}, "children has 'o.tags': column 'value' is in schema and in"),
    ],
)
def test_declarations_that_make_no_child_are_refused(declared, text):
    with pytest.raises(UsageError, match=re.escape(text)):
        declare(**declared | {"children": tuple(declared["children"])})


def test_a_join_by_version_has_no_rows_of_two_versions(lake):
    parts = open_parts(lake)
    append(lake, 0, [store(n, b"k%d" % n, total=1, lines=[{"n": 1}]) for n in range(1, 4)])
    merge_tables(describe(parts))
    append(lake, 1, [store(5, b"k1", total=2, lines=[{"n": 2}, {"n": 2}])])
    parts["orders"].merge()  # as a reader sees them between the commits of a merge
    orders, lines = read(lake, "orders"), read(lake, "orders_lines")
    pairs = [
        (parent["_key"], parent["total"], child["n"])
        for parent in orders
        for child in lines
        if all(parent[name] == child[name] for name in ("_key", "_history", "_seqno"))
    ]
    assert sorted(pairs) == [("k2", 1, 1), ("k3", 1, 1)]


def test_children_of_other_modes_are_refused():
    nothing = DeclaredColumns.parse({})
    assert parse_children(["lines"], nothing, "current") == (("lines",),)
    assert parse_children([], nothing, "history") == ()
    with pytest.raises(UsageError, match="mode is 'history', and children has 'lines'; expected mode = 'current'"):
        parse_children(["lines"], nothing, "history")


def test_duckdb_joins_parents_and_children(lake):
    append(lake, 0, [store(n, b"order::%d" % n, total=n, lines=[{"n": n, "s": "a"}, {"n": 1}]) for n in range(1, 6)])
    merge_tables(describe(open_parts(lake, key="order::{number BIGINT}")))
    database = duckdb.connect()
    for name in ("orders", "orders_lines"):
        database.register(name, DeltaTable(str(lake.path / "tables" / name)).to_pyarrow_dataset())
    found = database.execute(
        "SELECT number, total, count(*), sum(n) FROM orders JOIN orders_lines USING (number)"
        " WHERE orders._batch <= 0 AND orders_lines._batch <= 0 GROUP BY ALL ORDER BY number"
    ).fetchall()
    assert found == [(n, n, 2, n + 1) for n in range(1, 6)]
