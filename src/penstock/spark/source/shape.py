"""Which columns a read gives, in which form, and which rows: from the client's record batches to Spark's schema.

A shape is plain data, which goes to workers with their partitions. What a filter says is what Spark's SQL would: a
comparison with null is null, and only rows for which all is true stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.spark.values.json_types import from_ddl
from penstock.spark.values.utf8 import is_utf8
from penstock.wire.columns.schema import CHANGE_SCHEMA

ValueFormat = Literal["binary", "string", "json"]

Operator = Literal[
    "=", "<=>", ">", ">=", "<", "<=", "in", "is null", "is not null", "starts with", "ends with", "contains"
]

REST = "value_rest"
"""Behind a JSON value's columns: what of the value they do not hold, as JSON; null where that is nothing."""

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

    operands: none for "is null" and "is not null", any number for "in", else one; as Spark's filters have them.
    negated: NOT of it, which leaves null what is null.
    """

    column: str
    operator: Operator
    operands: tuple[Any, ...] = ()
    negated: bool = False

    def of(self, values: pa.Array) -> pa.BooleanArray:
        """Return for each value of the column whether the condition holds: true, false or null."""
        held = self._held(values)
        return pc.invert(held) if self.negated else held

    def _held(self, values: pa.Array) -> pa.BooleanArray:
        match self.operator:
            case "is null":
                return pc.is_null(values)
            case "is not null":
                return pc.is_valid(values)
            case "in":
                return self._is_in(values)
            case "<=>" if self.operands[0] is None:
                return pc.is_null(values)
            case "<=>":
                return pc.fill_null(pc.equal(values, self._operand(values)), False)
            case "starts with" | "ends with" | "contains":
                return _MATCHED[self.operator](values, self.operands[0])
            case _:
                return _COMPARED[self.operator](values, self._operand(values))

    def _operand(self, values: pa.Array) -> pa.Scalar:
        return pa.scalar(self.operands[0], values.type)

    def _is_in(self, values: pa.Array) -> pa.BooleanArray:
        known = [operand for operand in self.operands if operand is not None]
        found = pc.is_in(values, value_set=pa.array(known, values.type))
        unsure = pc.is_null(values)
        if len(known) < len(self.operands):
            unsure = pc.or_(unsure, pc.invert(found))  # it may be the one that is null
        return pc.if_else(unsure, pa.scalar(None, pa.bool_()), found)


@dataclass(frozen=True)
class Shape:
    """What a read gives.

    columns: names of CHANGE_SCHEMA, in the order they are given in. value_format: `value` as bytes, as text (null where
    it is not UTF-8), or as a struct of the fields of value_schema (Spark DDL, for "json" alone) with a column REST
    behind it. key_pattern: RE2, found anywhere in the key's bytes; a row without a key, as that of a rollback, stays,
    because tables need it. filters: all must be true of a row, whatever row it is.
    Raises UsageError for what cannot be.
    """

    columns: tuple[str, ...] = tuple(CHANGE_SCHEMA.names)
    value_format: ValueFormat = "binary"
    value_schema: str = ""
    key_pattern: str = ""
    filters: tuple[ColumnFilter, ...] = ()

    def __post_init__(self) -> None:
        if unknown := [name for name in self.columns if name not in CHANGE_SCHEMA.names]:
            raise UsageError(f"column {unknown[0]!r}, expected some of {', '.join(CHANGE_SCHEMA.names)}")
        if not self.columns or len(set(self.columns)) < len(self.columns):
            raise UsageError(f"columns {', '.join(self.columns) or 'none'}, expected at least one, each once")
        if self.value_format not in ("binary", "string", "json"):
            raise UsageError(f"value format {self.value_format!r}, expected binary, string or json")
        if (self.value_format == "json") != bool(self.value_schema):
            what = f"a schema of JSON {self.value_schema!r}" if self.value_schema else "no schema"
            raise UsageError(f"{what} for values as {self.value_format}; it belongs to json")
        if self.key_pattern:
            _check_pattern(self.key_pattern)
        _ = self.schema

    @cached_property
    def schema(self) -> pa.Schema:
        """What `apply` gives and Spark expects, which must be the same to the letter."""
        fields: list[pa.Field] = []
        for name in self.columns:
            field = CHANGE_SCHEMA.field(name)
            if name != "value" or self.value_format == "binary":
                fields.append(field)
            elif self.value_format == "string":
                fields.append(pa.field(name, pa.string()))
            else:
                fields += [pa.field(name, _as_spark_has_it(self.value_schema)), pa.field(REST, pa.string())]
        return pa.schema(fields)

    @property
    def needs_values(self) -> bool:
        """Must values come over the wire?"""
        return "value" in self.columns

    @property
    def needs_xattrs(self) -> bool:
        """Must extended attributes?"""
        return "xattrs" in self.columns

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return those changes of a batch of CHANGE_SCHEMA that are wanted, as `schema` has them."""
        if self.key_pattern:
            found = pc.match_substring_regex(batch["key"], self.key_pattern)
            batch = _kept(batch, pc.fill_null(found, True))
        if self.is_plain:
            return batch
        arrays: list[pa.Array] = []
        for name in self.columns:
            values = batch[name]
            if name != "value" or self.value_format == "binary":
                arrays.append(values)
            elif self.value_format == "string":
                arrays.append(text_of(values))
            else:
                arrays += self._fields(values)
        shaped = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        for each in self.filters:
            shaped = _kept(shaped, each.of(shaped[each.column]))
        return shaped

    @cached_property
    def is_plain(self) -> bool:
        """Are all columns given as they are, of all rows that have a wanted key?"""
        return self.schema.equals(CHANGE_SCHEMA) and not self.filters

    def _fields(self, values: pa.Array) -> list[pa.Array]:
        from penstock.spark.values.json_columns import parse  # not before it is needed: it is more than most reads want

        fields, rest = parse(values, from_ddl(self.value_schema))
        return [fields.cast(_as_spark_has_it(self.value_schema)), rest]


def _as_spark_has_it(ddl: str) -> pa.DataType:
    """Return the type of a JSON value; Spark has its own name for what is inside of an array."""
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type  # definitions are checked without Spark

    return to_arrow_type(from_arrow_schema(from_ddl(ddl)), timezone="UTC")


def text_of(octets: pa.Array) -> pa.Array:
    """Return binary values as text, null where they are not UTF-8."""
    try:
        return octets.cast(pa.string())
    except pa.ArrowInvalid:
        nothing = pa.scalar(None, pa.binary())
        return pc.if_else(is_utf8(octets), octets, nothing).cast(pa.string())


def _kept(batch: pa.RecordBatch, held: pa.BooleanArray) -> pa.RecordBatch:
    return batch if held.true_count == len(held) else batch.filter(held)


def _check_pattern(pattern: str) -> None:
    try:
        pc.match_substring_regex(pa.array([b""], pa.binary()), pattern)
    except pa.ArrowInvalid as error:
        raise UsageError(f"key pattern {pattern!r} is no regular expression of RE2: {error}") from None
