"""Columns, value format and filters of a read: from the client's record batches to Spark's schema.

A shape is plain data, which Spark sends to workers with their partitions. Filters follow Spark's SQL: a comparison with
null is null. Only rows for which all filters are true stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.filters.key_filter import KeyFilter
from penstock.errors import UsageError
from penstock.spark.values.json_types import from_ddl
from penstock.spark.values.utf8 import is_utf8
from penstock.wire.columns.schema import CHANGE_SCHEMA

ValueFormat = Literal["binary", "string", "json"]

Operator = Literal[
    "=", "<=>", ">", ">=", "<", "<=", "in", "is null", "is not null", "starts with", "ends with", "contains"
]

REST = "value_rest"
"""The column after the fields of a JSON value: the parts that do not fit them, as JSON, or null."""

_COMPARED = {
    "=": pc.equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "<": pc.less,
    "<=": pc.less_equal,
}
_MATCHED = {"starts with": pc.starts_with, "ends with": pc.ends_with, "contains": pc.match_substring}


@dataclass(frozen=True, slots=True)
class ColumnFilter:
    """One condition on one column of a shape's schema.

    Attributes:
        column: the name of the column.
        operator: the comparison.
        operands: none for "is null" and "is not null", any number for "in", otherwise one. They are Python values, as
            Spark's filters have them.
        negated: whether the condition is inverted; null stays null.
    """

    column: str
    operator: Operator
    operands: tuple[Any, ...] = ()
    negated: bool = False

    def evaluate(self, values: pa.Array) -> pa.BooleanArray:
        """Return for each value of the column whether the condition holds: true, false or null."""
        held = self._evaluate(values)
        return pc.invert(held) if self.negated else held

    def _evaluate(self, values: pa.Array) -> pa.BooleanArray:
        match self.operator:
            case "is null":
                return pc.is_null(values)
            case "is not null":
                return pc.is_valid(values)
            case "in":
                return self._evaluate_in(values)
            case "<=>" if self.operands[0] is None:
                return pc.is_null(values)
            case "<=>":
                return pc.fill_null(pc.equal(values, self._make_operand(values)), False)
            case "starts with" | "ends with" | "contains":
                return _MATCHED[self.operator](values, self.operands[0])
            case _:
                return _COMPARED[self.operator](values, self._make_operand(values))

    def _make_operand(self, values: pa.Array) -> pa.Scalar:
        return pa.scalar(self.operands[0], values.type)

    def _evaluate_in(self, values: pa.Array) -> pa.BooleanArray:
        known = [operand for operand in self.operands if operand is not None]
        found = pc.is_in(values, value_set=pa.array(known, values.type))
        unsure = pc.is_null(values)
        if len(known) < len(self.operands):
            unsure = pc.or_(unsure, pc.invert(found))  # the null operand may equal it
        return pc.if_else(unsure, pa.scalar(None, pa.bool_()), found)


@dataclass(frozen=True)
class Shape:
    """The columns and rows that a read gives.

    Attributes:
        columns: names of CHANGE_SCHEMA, in the order of the result.
        value_format: `value` as bytes, as text (null where it is not UTF-8), or as a struct of the fields of
            value_schema, followed by a column REST.
        value_schema: the fields as Spark DDL; only for "json".
        key_pattern: an RE2 pattern that must match somewhere in the key's bytes. A row without a key stays, for example
            a rollback row, because tables need it.
        key_pattern_exclude: an RE2 pattern that must not match anywhere in the key's bytes.
        filters: all must be true for a row to stay, also for a rollback row.
        keys_only: the producer must not send values, so that `datatype` is null.

    Raises:
        UsageError: an attribute has an invalid value, or attributes exclude each other.
    """

    columns: tuple[str, ...] = tuple(CHANGE_SCHEMA.names)
    value_format: ValueFormat = "binary"
    value_schema: str = ""
    key_pattern: str = ""
    key_pattern_exclude: str = ""
    filters: tuple[ColumnFilter, ...] = ()
    keys_only: bool = False

    def __post_init__(self) -> None:
        if unknown := [name for name in self.columns if name not in CHANGE_SCHEMA.names]:
            raise UsageError(f"column {unknown[0]!r}, expected some of {', '.join(CHANGE_SCHEMA.names)}")
        if not self.columns or len(set(self.columns)) < len(self.columns):
            raise UsageError(f"columns {', '.join(self.columns) or 'none'}, expected at least one, each once")
        if self.value_format not in ("binary", "string", "json"):
            raise UsageError(f"value format {self.value_format!r}, expected binary, string or json")
        if (self.value_format == "json") != bool(self.value_schema):
            subject = f"a schema of JSON {self.value_schema!r}" if self.value_schema else "no schema"
            raise UsageError(f"{subject} for values as {self.value_format}; it belongs to json")
        for pattern in (self.key_pattern, self.key_pattern_exclude):
            _check_pattern(pattern)
        _ = self.schema

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the result of `apply`. Spark requires exactly this schema."""
        fields: list[pa.Field] = []
        for name in self.columns:
            field = CHANGE_SCHEMA.field(name)
            if name != "value" or self.value_format == "binary":
                fields.append(field)
            elif self.value_format == "string":
                fields.append(pa.field(name, pa.string()))
            else:
                fields += [pa.field(name, _make_spark_type(self.value_schema)), pa.field(REST, pa.string())]
        return pa.schema(fields)

    @property
    def needs_values(self) -> bool:
        """Whether the producer must send values: it describes their datatypes only together with them."""
        return not self.keys_only and ("value" in self.columns or "datatype" in self.columns)

    @property
    def needs_xattrs(self) -> bool:
        """Whether the producer must send extended attributes."""
        return "xattrs" in self.columns

    @property
    def shows_snapshots(self) -> bool:
        """Whether rows describe the snapshot that they came in."""
        return any(name.startswith("snapshot_") for name in self.columns)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the selected rows and columns of a batch of CHANGE_SCHEMA, in `schema`."""
        if not self._keys.is_everything:
            batch = _select_rows(batch, self._keys.match_keys(batch["key"]))
        if self.is_plain:
            return batch
        arrays: list[pa.Array] = []
        for name in self.columns:
            values = batch[name]
            if name != "value" or self.value_format == "binary":
                arrays.append(values)
            elif self.value_format == "string":
                arrays.append(decode_text(values))
            else:
                arrays += self._parse_fields(values)
        shaped = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        for each in self.filters:
            shaped = _select_rows(shaped, each.evaluate(shaped[each.column]))
        return shaped

    @cached_property
    def _keys(self) -> KeyFilter:
        return KeyFilter(self.key_pattern, self.key_pattern_exclude)

    @cached_property
    def is_plain(self) -> bool:
        """Whether batches pass unchanged, apart from the key patterns."""
        return self.schema.equals(CHANGE_SCHEMA) and not self.filters

    def _parse_fields(self, values: pa.Array) -> list[pa.Array]:
        from penstock.spark.tables.json_columns import parse  # late: most reads do not need this large module

        fields, rest = parse(values, from_ddl(self.value_schema))
        return [fields.cast(_make_spark_type(self.value_schema)), rest]


def _make_spark_type(ddl: str) -> pa.DataType:
    """Return the Arrow type that Spark has for values of this DDL. Spark names the element of an array differently."""
    from pyspark.sql.pandas.types import (
        from_arrow_schema,
        to_arrow_type,
    )  # late: definitions are checked without Spark

    return to_arrow_type(from_arrow_schema(from_ddl(ddl)), timezone="UTC")


def decode_text(octets: pa.Array) -> pa.Array:
    """Return binary values as text, null where they are not UTF-8."""
    try:
        return octets.cast(pa.string())
    except pa.ArrowInvalid:
        nothing = pa.scalar(None, pa.binary())
        return pc.if_else(is_utf8(octets), octets, nothing).cast(pa.string())


def _select_rows(batch: pa.RecordBatch, held: pa.BooleanArray) -> pa.RecordBatch:
    return batch if held.true_count == len(held) else batch.filter(held)


def _check_pattern(pattern: str) -> None:
    try:
        pc.match_substring_regex(pa.array([b""], pa.binary()), pattern)
    except pa.ArrowInvalid as error:
        raise UsageError(f"key pattern {pattern!r} is not a regular expression of RE2: {error}") from None
