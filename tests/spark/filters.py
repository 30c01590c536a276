"""Spark filters for any table: examples of them, and a model of the rows that meet them: the logic of SQL in Python."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

Row = dict[str, Any]

COMPARE = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
    StringStartsWith: lambda a, b: a.startswith(b),
    StringEndsWith: lambda a, b: a.endswith(b),
    StringContains: lambda a, b: b in a,
}
TEXT_KINDS = (StringStartsWith, StringEndsWith, StringContains)
EXTREMES = {pa.int32(): [-(2**31), 2**31 - 1], pa.int64(): [-(2**63), -1, 2**63 - 1]}


def holds(condition: Any, row: Row) -> bool | None:
    """Return whether a row meets a filter; None for SQL's unknown."""
    if isinstance(condition, Not):
        held = holds(condition.child, row)
        return None if held is None else not held
    value = row[condition.attribute[0]]
    if isinstance(condition, IsNull):
        return value is None
    if isinstance(condition, IsNotNull):
        return value is not None
    operand = condition.value
    if isinstance(condition, EqualNullSafe):
        return bool(value == operand)
    if isinstance(condition, In):
        known = [each for each in operand if each is not None]
        return None if value is None else True if value in known else None if len(known) < len(operand) else False
    return None if value is None or operand is None else bool(COMPARE[type(condition)](value, operand))


def select_rows(table: pa.Table, conditions: Sequence[Filter], columns: Sequence[str]) -> list[str]:
    """Return the rows that meet all filters, in an order that equal rows of two tables share."""
    rows = [row for row in table.to_pylist() if all(holds(each, row) for each in conditions)]
    return sorted(repr({name: row[name] for name in columns}) for row in rows)


@st.composite
def column_lists(draw: st.DrawFn, table: pa.Table) -> list[str]:
    """Return all columns of a table, or some in any order."""
    names = table.column_names
    return draw(st.just(names) | st.lists(st.sampled_from(names), unique=True, min_size=1))


@st.composite
def conditions(draw: st.DrawFn, table: pa.Table, columns: Sequence[str]) -> Filter:
    """Return a filter on one of the columns, whose operands are mostly values of the table and their neighbours."""
    column = draw(st.sampled_from(list(columns)))
    of = table.schema.field(column).type
    is_text = pa.types.is_string(of) or pa.types.is_binary(of)
    kinds: list[Any] = [IsNull, IsNotNull]
    if is_text or pa.types.is_integer(of):
        kinds += [EqualTo, EqualNullSafe, In, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
    kind = draw(st.sampled_from([*kinds, *(TEXT_KINDS if is_text else ())]))
    found: Any
    if kind in (IsNull, IsNotNull):
        found = kind((column,))
        return Not(found) if draw(st.booleans()) else found
    operands = _draw_operands(table[column], of)
    if kind in TEXT_KINDS:
        found = kind((column,), draw(operands))
    elif kind is In:
        found = In((column,), tuple(draw(st.lists(operands | st.none(), min_size=1, max_size=3))))
    else:
        found = kind((column,), draw(operands | st.none()))
    return Not(found) if draw(st.booleans()) else found


def _draw_operands(values: pa.ChunkedArray, of: pa.DataType) -> st.SearchStrategy[Any]:
    known = values.drop_null().unique().to_pylist()
    if pa.types.is_integer(of):
        near = {number + step for number in known for step in (-1, 0, 1)}
        first, *_, last = EXTREMES[of]
        return st.sampled_from([*EXTREMES[of], *sorted(number for number in near if first <= number <= last)])
    empty: Any = "" if pa.types.is_string(of) else b""
    parts = {each[start:end] for each in known for start, end in ((0, None), (0, 2), (-2, None), (1, 3))}
    return st.sampled_from(sorted({empty, *parts}))
