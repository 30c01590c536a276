"""Misfits: the parts of documents in `_rest`, by field and reason."""

import pytest

from penstock.spark.lake.current import typed_table
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.pipeline.state.lake_status import read_status
from penstock.spark.tables.misfits import RestCount, count_misfits
from penstock.spark.values.json_columns import parse
from penstock.spark.values.json_types import from_ddl
from tests.spark.lakes import append, row, table

FIELDS = from_ddl("n BIGINT, total DECIMAL(4, 2), tags ARRAY<STRING>, at STRUCT<city STRING, zip INT>")


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (b'{"n": 1, "total": 1.5, "tags": ["a"], "at": {"city": "x"}}', []),
        (b'{"n": "1"}', [("n", "text", "BIGINT")]),
        (b'{"n": 1.5}', [("n", "number", "BIGINT")]),
        (b'{"n": true}', [("n", "boolean", "BIGINT")]),
        (b'{"total": 1.234}', [("total", "number", "DECIMAL(4, 2)")]),
        (b'{"tags": ["a", 1]}', [("tags", "array", "ARRAY<STRING>")]),
        (b'{"tags": {}}', [("tags", "object", "ARRAY<STRING>")]),
        (b'{"at": {"zip": "1", "x": null, "y": 1}}', [("at.y", "number", None), ("at.zip", "text", "INT")]),
        (b'{"at": 7}', [("at", "number", "STRUCT<city: STRING, zip: INT>")]),
        (b'{"other": {"a": 1}, "n": 5}', [("other", "object", None)]),
        (b'{"n": 1, "n": 2}', [("n", "number", "BIGINT")]),
        (b"[1]", [("", "no object", None)]),
        (b"\xff", [("_binary", "text", None)]),
    ],
)
def test_misfits_have_a_field_and_a_reason(document, expected):
    (rest,) = parse(table([row(1, 1, b"k", document)])["value"].combine_chunks(), FIELDS)[1].to_pylist()
    found = count_misfits([] if rest is None else [rest] * 3, FIELDS)
    assert found == tuple(RestCount(field, kind, of, 3) for field, kind, of in expected)


def test_status_counts_the_misfits_of_a_table(lake, monkeypatch):
    typed = TypedTable(lake, TableShape(name="orders", fields=FIELDS))
    rows = [row(n % 8, n, b"k%d" % n, b'{"n": "%d", "o": 1}' % n if n < 40 else b'{"n": 1}') for n in range(1, 101)]
    append(lake, 0, rows)
    typed.merge()
    (status,) = (each for each in read_status(lake).dependents if each.name == "orders")
    assert status.rest is not None
    assert (status.rest.rows, status.rest.examined) == (39, 39)
    assert status.rest.misfits == (RestCount("n", "text", "BIGINT", 39), RestCount("o", "number", None, 39))
    monkeypatch.setattr(typed_table, "EXAMINED_ROWS", 10)
    assert (typed.report_rest().rows, typed.report_rest().examined) == (39, 10)
    append(lake, 1, [row(n % 8, 200 + n, b"k%d" % n, b'{"n": 2}') for n in range(1, 38)])
    typed.merge()
    assert typed.report_rest().misfits == (RestCount("n", "text", "BIGINT", 2), RestCount("o", "number", None, 2))
