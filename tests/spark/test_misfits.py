"""Misfits: the parts of documents in `_rest`, by field and reason, as the footers of a table's files count them."""

import json
from collections import Counter
from itertools import pairwise
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import names
from penstock.spark import Lake
from penstock.spark.lake.current import typed_table
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.lake.maintenance import lake_compaction
from penstock.spark.pipeline.state.lake_status import read_status
from penstock.spark.tables import column_rules, misfits
from penstock.spark.tables.column_rules import parse_rule
from penstock.spark.tables.misfits import MisfitFinder, RestCount, RestCounter, RestReport
from penstock.spark.values.json_types import from_ddl
from penstock.wire.codec import native
from tests.examples import scaled
from tests.spark.lakes import append, row
from tests.spark.test_current import histories

FIELDS = from_ddl("n BIGINT, total DECIMAL(4, 2), tags ARRAY<STRING>, at STRUCT<city STRING, zip INT>, day DATE")
TYPE, INEXACT, FORM, UNKNOWN = "other type", "not held exactly", "text of another form", "unknown field"
ORDERS = TableShape(name="orders", fields=FIELDS, rules=(parse_rule(("t",), "TIMESTAMP FROM 'unix_ms'"),))


def count(*documents):
    """Return the counts of documents with the keys k0, k1 and so on, from rows as a merge writes them."""
    rows = pa.table({"_key": [f"k{n}" for n in range(len(documents))], "value": pa.array(documents, pa.binary())})
    counter = RestCounter(MisfitFinder(ORDERS.fields, ORDERS.rules), ORDERS.key_columns)
    _, rest = column_rules.parse_columns(rows["value"].combine_chunks(), ORDERS.rules, ORDERS.fields)
    counter.add(rows.append_column("_rest", rest).append_column("_key_bytes", pa.nulls(rows.num_rows, pa.binary())))
    return counter.make_report()


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (b'{"n": 1, "total": 1.5, "tags": ["a"], "at": {"city": "x"}, "t": 1, "day": "2026-11-29"}', []),
        (b'{"n": "1"}', [("n", TYPE, "text", "BIGINT")]),
        (b'{"n": 1.5}', [("n", INEXACT, "number", "BIGINT")]),
        (b'{"n": true}', [("n", TYPE, "boolean", "BIGINT")]),
        (b'{"total": 1.234}', [("total", INEXACT, "number", "DECIMAL(4, 2)")]),
        (b'{"tags": ["a", 1]}', [("tags[]", TYPE, "number", "STRING")]),
        (b'{"tags": {}}', [("tags", TYPE, "object", "ARRAY<STRING>")]),
        (b'{"at": {"zip": "1", "x": null}}', [("at.zip", TYPE, "text", "INT")]),
        (b'{"at": {"x": null, "y": 1}}', [("at.y", UNKNOWN, "number", None)]),
        (b'{"at": 7}', [("at", TYPE, "number", "STRUCT<city: STRING, zip: INT>")]),
        (b'{"day": "soon"}', [("day", FORM, "text", "DATE")]),
        (b'{"t": true}', [("t", TYPE, "boolean", "TIMESTAMP")]),
        (b'{"other": {"a": 1}, "n": 5}', [("other", UNKNOWN, "object", None)]),
        (b'{"n": 1, "n": 2}', [("", "repeated name", "object", None)]),
        (b"[1]", [("", "no JSON object", "no object", None)]),
        (b"\xff", [("", "no JSON object", "no object", None)]),
        (b'{"_binary": "/w=="}', [("_binary", UNKNOWN, "text", None)]),
        (b'{ "_binary": "/w==" , "n": "1"}', [("n", TYPE, "text", "BIGINT"), ("_binary", UNKNOWN, "text", None)]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_native", [True, False])
def test_misfits_have_a_field_and_a_reason(document, expected, is_native, monkeypatch):
    if not is_native:
        monkeypatch.setattr(native, "extension", None)
    rest = 4 if expected else 0
    counts = tuple(RestCount(field, why, kind, of, 4, ("k0", "k1", "k2")) for field, why, kind, of in expected)
    assert count(*[document] * 4) == RestReport(rest, rest, counts)


def test_counts_are_joined_by_field_and_reason():
    found = count(b'{"n": "1"}', b'{"n": []}', b'{"n": 0.5, "new": 1}', b'{"tags": [1, 2]}', b'{"new": 2}')
    assert found.misfits == (
        RestCount("n", TYPE, "text, array", "BIGINT", 2, ("k0", "k1")),
        RestCount("tags[]", TYPE, "number", "STRING", 2, ("k3",)),
        RestCount("n", INEXACT, "number", "BIGINT", 1, ("k2",)),
        RestCount("new", UNKNOWN, "number", None, 2, ("k2", "k4")),
    )
    assert RestReport.from_json(found.to_json()) == found
    assert RestReport.join([found, RestReport(), found]).misfits[0].values == 4
    assert [(each.field, each.values, each.keys) for each in found.shorten(1).misfits] == [
        ("*", 2, ()), ("n", 2, ()), ("*", 1, ()), ("*", 2, ()),
    ]  # fmt: skip


def test_many_fields_and_long_names_are_limited():
    fields = [f"{n:04}" for n in range(500)] + ["x" * 10_000]
    found = count(json.dumps(dict.fromkeys(fields, 1)).encode(), b'{"0007": 1}')
    assert len(found.misfits) == misfits.MOST_NAMES + 1
    assert sum(each.values for each in found.misfits) == 502
    assert {each.field: each.values for each in found.misfits} | {"*": 401, "0007": 2} == {
        each.field: each.values for each in found.misfits
    }
    assert max(len(each.field) for each in count(b'{"%s": 1}' % (b"x" * 10_000)).misfits) == misfits.MOST_CHARACTERS


def report(typed):
    return typed.report_rest()


def test_keys_of_any_kind_are_printable(lake):
    append(lake, 0, [row(0, 1, b"a\x1b[31m\n", b'{"n": "1"}'), row(1, 1, b"\xff\x00", b'{"n": "1"}')])
    typed = TypedTable(lake, ORDERS)
    typed.merge()
    (found,) = report(typed).misfits
    assert sorted(found.keys) == [r"\xff\x00", r"a\x1b[31m\n"]


def test_status_counts_the_misfits_of_a_table(lake, monkeypatch):
    typed = TypedTable(lake, ORDERS)
    rows = [row(n % 8, n, b"k%d" % n, b'{"n": "%d", "o": 1}' % n if n < 40 else b'{"n": 1}') for n in range(1, 101)]
    append(lake, 0, rows)
    typed.merge()
    (status,) = (each for each in read_status(lake).dependents if each.name == "orders")
    assert status.rest is not None
    assert (status.rest.rows, status.rest.examined) == (39, 39)
    assert [(each.field, each.values, len(each.keys)) for each in status.rest.misfits] == [("n", 39, 3), ("o", 39, 3)]
    append(lake, 1, [row(n % 8, 200 + n, b"k%d" % n, b'{"n": 2}') for n in range(1, 38)])
    typed.merge()
    assert [(each.field, each.values, {*each.keys}) for each in report(typed).misfits] == [
        ("n", 2, {"k38", "k39"}), ("o", 2, {"k38", "k39"}),
    ]  # fmt: skip


def test_files_of_other_programs_are_examined_in_part(lake, monkeypatch):
    monkeypatch.setattr(typed_table, "EXAMINED_ROWS", 10)
    typed = TypedTable(lake, ORDERS)
    for batch in range(2):
        append(lake, batch, [row(n % 2, 100 * batch + n, b"%d %d" % (batch, n), b'{"n": "1"}') for n in range(1, 21)])
        typed.merge()
    assert (report(typed).rows, report(typed).examined) == (40, 40)
    DeltaTable(str(typed.table.path)).optimize.z_order(["n"])
    assert (report(typed).rows, report(typed).examined) == (40, 10)
    assert [(each.field, each.values) for each in report(typed).misfits] == [("n", 10)]


@settings(max_examples=scaled(30))
@given(histories(), st.lists(st.integers(0, 40), max_size=4), st.booleans())
def test_counts_follow_the_table(rows, ends, compacts):
    values = [
        b'{"n": 1}',
        b'{"n": "1", "new": 2}',
        b'{"tags": [1, "x", 2]}',
        b"[]",
        b'{"new": null, "at": {"zip": 0.5}}',
    ]
    rows = [
        each | ({"value": values[at % len(values)]} if each.get("value") is not None else {})
        for at, each in enumerate(rows)
    ]
    with TemporaryDirectory() as directory:
        lake = Lake(directory)
        typed = TypedTable(lake, ORDERS)
        cuts = sorted({0, len(rows), *(min(end, len(rows)) for end in ends)})
        for batch, (start, end) in enumerate(pairwise(cuts)):
            append(lake, batch, rows[start:end])
            typed.merge()
            if compacts and typed.open() is not None:
                lake_compaction.compact(lake)
            check_counts(typed)


PLACES = {"n": ["n", "new"], "tags": ["tags[]", "tags[]"], "at": ["at.zip"]}


def check_counts(typed):
    """Check the counts of a table against those of its rows."""
    lines = DeltaTable(str(typed.table.path)).to_pyarrow_table().to_pylist() if typed.open() is not None else []
    rests = [json.loads(line["_rest"]) for line in lines if line["_rest"] is not None]
    expected = Counter(place for rest in rests for place in (PLACES[next(iter(rest))] if rest else [""]))
    found = typed.report_rest()
    assert {each.field: each.values for each in found.misfits} == expected
    assert found.rows == found.examined == len(rests)
    keys = {line["_key_bytes"] or line["_key"].encode() for line in lines if line["_rest"] is not None}
    assert {names.unescape_bytes(key) for each in found.misfits for key in each.keys} <= keys
