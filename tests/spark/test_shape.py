"""The form in which rows reach Spark: columns, values, and filters with the logic of SQL."""

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from penstock.errors import UsageError
from penstock.spark.source.shape import REST, ColumnFilter, Shape
from penstock.wire.columns.run_decoder import make_batch
from penstock.wire.columns.schema import CHANGE_SCHEMA, Change, Event

ROWS = make_batch(
    [
        Change(1, 7, 1, key=b"beer-1", value=b"one", flags=3),
        Change(1, 7, 2, key=b"ale-2", value=b"\xff", flags=4),
        Change(1, 7, 3, event=Event.DELETION, key=b"beer-3"),
        Change(1, 8, 2, event=Event.ROLLBACK, history=1, requested_seqno=2),
    ]
)


def test_default_shape_changes_nothing():
    assert Shape().schema == CHANGE_SCHEMA
    assert Shape().apply(ROWS) is ROWS
    assert Shape().needs_values
    assert Shape().needs_xattrs


def test_columns_have_the_given_order():
    shape = pickle.loads(pickle.dumps(Shape(("seqno", "key"))))
    assert shape.apply(ROWS).schema == shape.schema == pa.schema([("seqno", pa.int64()), ("key", pa.binary())])
    assert shape.apply(ROWS)["seqno"].to_pylist() == [1, 2, 3, 2]
    assert not shape.needs_values
    assert not shape.needs_xattrs


def test_values_that_are_not_text_are_null():
    shape = Shape(("value", "seqno"), value_format="string")
    assert shape.apply(ROWS)["value"].to_pylist() == ["one", None, None, None]
    assert shape.apply(ROWS).schema == shape.schema


def test_key_pattern_keeps_rows_without_a_key():
    assert Shape(key_pattern="^beer").apply(ROWS)["seqno"].to_pylist() == [1, 3, 2]
    assert Shape(("seqno",), key_pattern="[13]$").apply(ROWS)["seqno"].to_pylist() == [1, 3, 2]


def test_key_patterns_exclude_changes_of_all_kinds():
    assert Shape(key_pattern_exclude="^beer").apply(ROWS)["seqno"].to_pylist() == [2, 2]
    both = Shape(("seqno",), key_pattern="^beer", key_pattern_exclude="1$")
    assert both.apply(ROWS)["seqno"].to_pylist() == [3, 2]


def test_filters_apply_to_every_row():
    shape = Shape(("seqno", "flags"), filters=(ColumnFilter("flags", "=", (3,), negated=True),))
    assert shape.apply(ROWS)["seqno"].to_pylist() == [2]


@pytest.mark.parametrize(
    "schema",
    [
        Shape().schema,
        Shape(("value",), value_format="string").schema,
        Shape(
            value_format="json",
            value_schema="name STRING, n: int, `odd ``name` array<struct<at: bigint, d double>> COMMENT 'it\\'s'",
        ).schema,
    ],
)
def test_schema_equals_the_schema_that_spark_derives(schema):
    assert to_arrow_schema(from_arrow_schema(schema), timezone="UTC").equals(schema, check_metadata=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"columns": ("key", "keys")}, "column 'keys', expected some of vbucket, "),
        ({"columns": ()}, "columns none, expected at least one"),
        ({"columns": ("key", "key")}, "each once"),
        ({"value_format": "xml"}, "value format 'xml', expected binary, string or json"),
        ({"value_format": "json"}, "no schema for values as json"),
        ({"value_schema": "a int"}, "'a int' for values as binary; it belongs to json"),
        ({"key_pattern": "("}, "key pattern '\\(' is not a regular expression"),
        ({"key_pattern_exclude": "("}, "key pattern '\\(' is not a regular expression"),
        ({"value_format": "json", "value_schema": "a int,"}, "'a int,' has the end where a field's name was expected"),
        ({"value_format": "json", "value_schema": "a blob"}, "'a blob' has 'blob' where BOOLEAN, TINYINT, "),
        ({"value_format": "json", "value_schema": "a int, a int"}, "fields a, a; expected each name once"),
        ({"value_format": "json", "value_schema": "a interval"}, "'a interval' has 'interval' where BOOLEAN, "),
        ({"value_format": "json", "value_schema": "a array<int"}, "has the end where '>' was expected"),
    ],
)
def test_invalid_shape_is_refused_in_one_sentence(given, message):
    with pytest.raises(UsageError, match=message):
        Shape(**given)


# Filters compared with SQL's three-valued logic, one value at a time

texts = st.none() | st.text("ab", max_size=3)
numbers = st.none() | st.integers(-2, 2)
comparisons = st.sampled_from(["=", "<=>", ">", ">=", "<", "<="])


def compare_in_sql(operator, value, operands):
    """Return the result of a comparison in SQL for one value: True, False or None."""
    if operator in ("is null", "is not null"):
        return (value is None) == (operator == "is null")
    if operator == "<=>":
        return value == operands[0]
    if operator == "in":
        if value is None:
            return None
        return True if value in operands else None if None in operands else False
    (operand,) = operands
    if value is None or operand is None:
        return None
    found = {
        "=": value == operand,
        ">": value > operand,
        ">=": value >= operand,
        "<": value < operand,
        "<=": value <= operand,
        "starts with": str(value).startswith(str(operand)),
        "ends with": str(value).endswith(str(operand)),
        "contains": str(operand) in str(value),
    }
    return found[operator]


@st.composite
def conditions(draw):
    kind, values = draw(st.sampled_from([(pa.string(), texts), (pa.int64(), numbers), (pa.binary(), texts)]))
    operators = comparisons | st.sampled_from(["in", "is null", "is not null"])
    if kind == pa.string():
        operators |= st.sampled_from(["starts with", "ends with", "contains"])
    operator = draw(operators)
    operands: tuple[Any, ...]
    if operator in ("is null", "is not null"):
        operands = ()
    elif operator == "in":
        operands = tuple(draw(st.lists(values, max_size=3)))
    elif operator in ("starts with", "ends with", "contains"):
        operands = (draw(st.text("ab", max_size=2)),)
    else:
        operands = (draw(values),)
    rows = draw(st.lists(values, max_size=6))
    if kind == pa.binary():
        operands, rows = (tuple(None if each is None else each.encode() for each in part) for part in (operands, rows))
    return kind, operator, operands, rows, draw(st.booleans())


@given(conditions())
def test_filters_give_the_results_of_sql(condition):
    kind, operator, operands, rows, negated = condition
    found = ColumnFilter("any", operator, operands, negated).evaluate(pa.array(rows, kind)).to_pylist()
    expected = [compare_in_sql(operator, value, operands) for value in rows]
    assert found == [None if held is None else held != negated for held in expected]


def test_json_values_become_columns_and_a_rest():
    rows = make_batch(
        [
            Change(1, 7, 1, key=b"a", value=b'{"name": "ale", "abv": 5.5, "more": [1]}'),
            Change(1, 7, 2, event=Event.DELETION, key=b"b"),
        ]
    )
    shape = Shape(("seqno", "value"), value_format="json", value_schema="name STRING, abv DOUBLE")
    found = shape.apply(rows)
    assert found.schema == shape.schema
    assert found["value"].to_pylist() == [{"name": "ale", "abv": 5.5}, None]
    assert json.loads(found[REST].to_pylist()[0]) == {"more": [1]}
    assert found[REST].to_pylist()[1] is None
