"""Types of JSON documents: in Arrow, as Spark's DDL, and in words. Spark is not needed."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa

from penstock.argument_types import check_arguments
from penstock.errors import UsageError
from penstock.spark.values.json_times import DATE, TIMESTAMP
from penstock.wire.values.json_value import is_text

TYPES = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "TIMESTAMP": TIMESTAMP,
    "DATE": DATE,
}
"""Types of fields except decimals, arrays and structs, under Spark's names."""
ALIASES = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL",
    "TIMESTAMP_LTZ": "TIMESTAMP",
}
NAMES = {of: name for name, of in TYPES.items()}
MAX_DIGITS = 38
"""The most digits of a decimal, as in Spark."""
EXPECTED = f"{', '.join(TYPES)}, DECIMAL(p, s), ARRAY<...> or STRUCT<...>"


def as_struct(schema: pa.Schema | pa.StructType) -> pa.StructType:
    """Return the schema as a type in which all fields may be null.

    Args:
        schema: the fields and their types.

    Raises:
        UsageError: JSON has no values of one of the types, or a name stands twice.
    """
    return pa.struct([(name, _check_type(of, name)) for name, of in map_fields(schema).items()])


def _check_type(of: pa.DataType, path: str) -> pa.DataType:
    if pa.types.is_struct(of):
        return pa.struct([(name, _check_type(inner, f"{path}.{name}")) for name, inner in map_fields(of).items()])
    if pa.types.is_list(of):
        return pa.list_(_check_type(of.value_type, f"{path}[]"))
    if of not in NAMES and not _is_decimal(of):
        raise UsageError(f"field {path} is {of}; expected {EXPECTED}")
    return of


def _is_decimal(of: pa.DataType) -> bool:
    """Return whether a type is a decimal that Spark has."""
    return bool(pa.types.is_decimal128(of) and 0 <= of.scale <= of.precision)


def map_fields(of: pa.StructType | pa.Schema) -> dict[str, pa.DataType]:
    """Return the types of the fields by name.

    Args:
        of: a struct or a schema.

    Raises:
        UsageError: a name stands twice.
    """
    fields = {field.name: field.type for field in of}
    if len(fields) < len(of):
        raise UsageError(f"fields {', '.join(field.name for field in of)}; expected each name once")
    return fields


def may_be_column(name: str) -> bool:
    """Return whether a field of this name can be a column: Arrow ends names at a zero, and DDL has no empty name."""
    return bool(name) and "\0" not in name and is_text(name)


def make_column_names(fields: pa.Schema, taken: Iterable[str]) -> list[str]:
    """Return a name for each field's column: its own, with underscores behind it if another column has the name.

    Spark compares the names of columns without case.

    Args:
        fields: the fields.
        taken: the names of other columns.
    """
    used = {name.lower() for name in taken}
    names: list[str] = []
    for name in fields.names:
        while name.lower() in used:
            name += "_"
        used.add(name.lower())
        names.append(name)
    return names


def format_type(of: pa.DataType) -> str:
    """Return a type as Spark's DDL."""
    if pa.types.is_struct(of):
        return f"STRUCT<{', '.join(f'{quote_name(field.name)}: {format_type(field.type)}' for field in of)}>"
    if pa.types.is_list(of):
        return f"ARRAY<{format_type(of.value_type)}>"
    return f"DECIMAL({of.precision}, {of.scale})" if pa.types.is_decimal(of) else NAMES[of]


def quote_name(name: str) -> str:
    """Return a field's name as DDL has it: with backquotes if it is more than letters, digits and underscores."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else f"`{name.replace('`', '``')}`"


@check_arguments
def to_ddl(schema: pa.Schema) -> str:
    """Return a schema as Spark's DDL, for example `name STRING, tags ARRAY<STRING>`.

    Raises UsageError like `as_struct`.
    """
    return ", ".join(f"`{f.name.replace('`', '``')}` {format_type(f.type)}" for f in as_struct(schema))


@check_arguments
def from_ddl(ddl: str) -> pa.Schema:
    """Return the schema of Spark's DDL; Spark is not needed.

    Args:
        ddl: fields with types and commas between them.

    Raises:
        UsageError: the text is not DDL, JSON has no values of a type, or the text has NOT NULL, which no bucket
            guarantees.
    """
    reader = _DdlReader(ddl)
    fields = reader.read_fields(until="")
    if not fields:
        raise UsageError("the schema is empty; expected fields, such as 'name STRING, tags ARRAY<STRING>'")
    return pa.schema(fields)


class _DdlReader:
    """Reads DDL from its start to its end."""

    TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|('(?:[^'\\]|\\.)*')|(\w+)|([<>,:])|(\S))", re.DOTALL)

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._tokens = [match.group().strip() for match in self.TOKEN.finditer(ddl)]
        self._at = 0

    def read_fields(self, until: str) -> list[tuple[str, pa.DataType]]:
        """Read `name type, ...` up to `until`, which is ">" or the end. A colon may stand between name and type.

        Args:
            until: the token after the last field; empty for the end of the text.

        Returns:
            Names with types.

        Raises:
            UsageError: a token is not the expected one, or a name stands twice.
        """
        found: list[tuple[str, pa.DataType]] = []
        while self._peek() != until:
            if found:
                self._expect(",")
            name = self._peek()
            if not re.fullmatch(r"`.+`|\w+", name, re.DOTALL):
                raise self._make_error("a field's name")
            if not may_be_column(name):
                raise self._make_error("a name without zero characters and halves of surrogate pairs")
            self._at += 1
            if self._peek() == ":":
                self._at += 1
            found.append((name[1:-1].replace("``", "`") if name[0] == "`" else name, self._read_type()))
            if self._peek().upper() == "COMMENT":
                self._at += 1
                if not self._peek().startswith("'"):
                    raise self._make_error("a comment in single quotes")
                self._at += 1
        map_fields(pa.struct(found))
        return found

    def _read_type(self) -> pa.DataType:
        name = self._peek().upper()
        name = ALIASES.get(name, name)
        if name in ("ARRAY", "STRUCT"):
            self._at += 1
            self._expect("<")
            of = pa.list_(self._read_type()) if name == "ARRAY" else pa.struct(self.read_fields(until=">"))
            self._expect(">")
            return of
        if name == "DECIMAL":
            return self._read_decimal()
        if name not in TYPES:
            raise self._make_error(EXPECTED)
        self._at += 1
        return TYPES[name]

    def _read_decimal(self) -> pa.DataType:
        """Return the decimal at this place: of 10 digits and scale 0 if it names none, as in Spark."""
        self._at += 1
        if self._peek() != "(":
            return pa.decimal128(10, 0)
        self._at += 1
        precision = self._read_number(1, MAX_DIGITS, "digits of a decimal")
        scale = 0
        if self._peek() == ",":
            self._at += 1
            scale = self._read_number(0, precision, "digits behind the point")
        self._expect(")")
        return pa.decimal128(precision, scale)

    def _read_number(self, least: int, most: int, subject: str) -> int:
        token = self._peek()
        if not (token.isascii() and token.isdigit() and len(token) <= 3 and least <= int(token) <= most):
            raise self._make_error(f"{least} to {most} {subject}")
        self._at += 1
        return int(token)

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _expect(self, token: str) -> None:
        if self._peek() != token:
            raise self._make_error(repr(token))
        self._at += 1

    def _make_error(self, expected: str) -> UsageError:
        found = repr(self._peek()) if self._peek() else "the end"
        text = self._ddl if len(self._ddl) <= 80 else f"{self._ddl[:77]}..."
        return UsageError(f"schema {text!r} has {found} where {expected} was expected")


@check_arguments
def differences(old: pa.Schema, new: pa.Schema) -> list[str]:
    """Return in words the differences between two schemas, in the order of `new`.

    The order of fields is not a difference.
    """
    return _compare_types(as_struct(old), as_struct(new), "")


def _compare_types(old: pa.DataType, new: pa.DataType, path: str) -> list[str]:
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        before, after = map_fields(old), map_fields(new)
        words: list[str] = []
        for name, of in after.items():
            at = f"{path}.{name}" if path else name
            if name in before:
                words += _compare_types(before[name], of, at)
            else:
                words.append(f"{at} {format_type(of)} is new")
        gone = [name for name in before if name not in after]
        return words + [f"{path}.{name} was removed" if path else f"{name} was removed" for name in gone]
    if pa.types.is_list(old) and pa.types.is_list(new):
        return _compare_types(old.value_type, new.value_type, f"{path}[]")
    return [] if old == new else [f"{path} was {format_type(old)} and is {format_type(new)}"]
