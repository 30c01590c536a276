"""Spark's names of types, as in `name STRING, address STRUCT<city: STRING>`, read without Java: a worker has none."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import UsageError

_PLAIN: dict[str, Callable[[], DataType]] = {
    "boolean": BooleanType,
    "tinyint": ByteType,
    "byte": ByteType,
    "smallint": ShortType,
    "short": ShortType,
    "int": IntegerType,
    "integer": IntegerType,
    "bigint": LongType,
    "long": LongType,
    "float": FloatType,
    "real": FloatType,
    "double": DoubleType,
    "string": StringType,
    "binary": BinaryType,
    "date": DateType,
    "timestamp": TimestampType,
    "timestamp_ltz": TimestampType,
    "timestamp_ntz": TimestampNTZType,
}

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|\w+|[<>(),:]|'(?:[^'\\]|\\.)*')")


def struct_of(text: str) -> StructType:
    """Return the fields that a Spark DDL string names. Raises UsageError for what is none."""
    return _Reader(text).whole()


def arrow_schema_of(text: str) -> pa.Schema:
    """Return the same as the Arrow schema that Spark expects of it. Raises UsageError."""
    return to_arrow_schema(struct_of(text), timezone="UTC")


def arrow_type_of(text: str) -> pa.DataType:
    """Return the Arrow struct that Spark expects for a column of these fields. Raises UsageError."""
    return to_arrow_type(struct_of(text), timezone="UTC")


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def whole(self) -> StructType:
        struct = re.fullmatch(r"\s*struct\s*<(.*)>\s*", self._text, re.IGNORECASE | re.DOTALL)
        if struct:
            self._text = struct[1]
        fields = self._fields(until="")
        if not fields.fields:
            self._fail("a field")
        return fields

    def _fields(self, until: str) -> StructType:
        fields: list[StructField] = []
        while self._peek() != until:
            if fields:
                self._expect(",")
            name = self._name()
            if self._peek() == ":":
                self._next()
            kind = self._type()
            if self._peek().lower() == "not":  # what a document lacks is null all the same
                self._next()
                self._expect("null")
            if self._peek().lower() == "comment":
                self._next()
                self._next()
            if any(field.name == name for field in fields):
                raise UsageError(f"field {name!r} is there twice in {self._text!r}")
            fields.append(StructField(name, kind))
        return StructType(fields)

    def _type(self) -> DataType:
        word = self._next().lower()
        if word in _PLAIN:
            return _PLAIN[word]()
        if word in ("decimal", "dec", "numeric"):
            return self._decimal()
        if word in ("array", "map", "struct"):
            self._expect("<")
            kind: DataType
            if word == "struct":
                kind = self._fields(until=">")
            elif word == "array":
                kind = ArrayType(self._type())
            else:
                key = self._type()
                self._expect(",")
                kind = MapType(key, self._type())
            self._expect(">")
            return kind
        self._fail("a type", word)

    def _decimal(self) -> DecimalType:
        if self._peek() != "(":
            return DecimalType()
        self._next()
        precision, scale = self._number(), 0
        if self._peek() == ",":
            self._next()
            scale = self._number()
        self._expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise UsageError(f"decimal({precision},{scale}), expected a precision of 1 to 38 and a scale up to that")
        return DecimalType(precision, scale)

    def _number(self) -> int:
        word = self._next()
        if not (word.isascii() and word.isdecimal()):
            self._fail("a number", word)
        return int(word)

    def _name(self) -> str:
        word = self._next()
        if word.startswith("`"):
            return word[1:-1].replace("``", "`")
        if not re.fullmatch(r"\w+", word):
            self._fail("a name", word)
        return word

    def _expect(self, word: str) -> None:
        if (found := self._next()).lower() != word:
            self._fail(repr(word), found)

    def _peek(self) -> str:
        found = _TOKEN.match(self._text, self._at)
        return found[1] if found else ""

    def _next(self) -> str:
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found[1]

    def _fail(self, expected: str, found: str = "") -> NoReturn:
        what = repr(found) if found else "its end"
        raise UsageError(
            f"{what} in {self._text!r}, expected {expected} of a Spark schema such as 'name STRING, n INT'"
        )
