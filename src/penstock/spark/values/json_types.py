"""Types of JSON documents: as Arrow has them, as Spark's DDL writes them, and in words. No Spark is needed."""

from __future__ import annotations

import re

import pyarrow as pa

from penstock.errors import UsageError

TYPES = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
}
"""Types of fields, beside arrays and structs, under Spark's names."""
ALIASES = {"BYTE": "TINYINT", "SHORT": "SMALLINT", "INTEGER": "INT", "LONG": "BIGINT", "REAL": "FLOAT"}
NAMES = {of: name for name, of in TYPES.items()}


def as_struct(schema: pa.Schema | pa.StructType) -> pa.StructType:
    """Return the schema as a type without a word about nulls. Raises UsageError for a type that JSON does not give."""
    return pa.struct([pa.field(field.name, _checked(field.type, field.name)) for field in schema])


def _checked(of: pa.DataType, path: str) -> pa.DataType:
    if pa.types.is_struct(of):
        return pa.struct([pa.field(field.name, _checked(field.type, f"{path}.{field.name}")) for field in of])
    if pa.types.is_list(of):
        return pa.list_(_checked(of.value_type, f"{path}[]"))
    if of not in NAMES:
        raise UsageError(f"field {path} is {of}; expected {', '.join(TYPES)}, ARRAY<...> or STRUCT<...>")
    return of


def fields_of(of: pa.StructType | pa.Schema) -> dict[str, pa.DataType]:
    """Return the types of the fields by their names. Raises UsageError where a name is there twice."""
    fields = {field.name: field.type for field in of}
    if len(fields) < len(of):
        raise UsageError(f"fields {', '.join(field.name for field in of)}; expected each name once")
    return fields


def type_name(of: pa.DataType) -> str:
    """Return a type as Spark's DDL writes it."""
    if pa.types.is_struct(of):
        return f"STRUCT<{', '.join(f'{_quoted(field.name)}: {type_name(field.type)}' for field in of)}>"
    if pa.types.is_list(of):
        return f"ARRAY<{type_name(of.value_type)}>"
    return NAMES[of]


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else f"`{name.replace('`', '``')}`"


def to_ddl(schema: pa.Schema) -> str:
    """Return a schema as Spark's DDL, such as `name STRING, tags ARRAY<STRING>`. Raises UsageError as `parse` does."""
    return ", ".join(f"`{f.name.replace('`', '``')}` {type_name(f.type)}" for f in as_struct(schema))


def from_ddl(ddl: str) -> pa.Schema:
    """Return the schema that Spark's DDL names; no Spark is needed.

    Raises UsageError for what is no DDL, for types that JSON does not give, and for NOT NULL, which nobody can promise.
    """
    reader = _Ddl(ddl)
    fields = reader.fields(until="")
    if not fields:
        raise UsageError("the schema is empty; expected fields, such as 'name STRING, tags ARRAY<STRING>'")
    fields_of(pa.struct(fields))
    return pa.schema(fields)


class _Ddl:
    """Reads DDL from its beginning to its end."""

    TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|('(?:[^'\\]|\\.)*')|(\w+)|([<>,:])|(\S))", re.DOTALL)

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._tokens = [match.group().strip() for match in self.TOKEN.finditer(ddl)]
        self._at = 0

    def fields(self, until: str) -> list[tuple[str, pa.DataType]]:
        """Read `name type, ...` up to `until`, ">" or the end; a colon may stand between name and type."""
        found: list[tuple[str, pa.DataType]] = []
        while self._peek() != until:
            if found:
                self._take(",")
            name = self._peek()
            if not re.fullmatch(r"`.+`|\w+", name, re.DOTALL):
                raise self._wrong("a field's name")
            self._at += 1
            if self._peek() == ":":
                self._at += 1
            found.append((name[1:-1].replace("``", "`") if name[0] == "`" else name, self._type()))
            if self._peek().upper() == "COMMENT":
                self._at += 1
                if not self._peek().startswith("'"):
                    raise self._wrong("a comment in single quotes")
                self._at += 1
        return found

    def _type(self) -> pa.DataType:
        name = self._peek().upper()
        name = ALIASES.get(name, name)
        if name in ("ARRAY", "STRUCT"):
            self._at += 1
            self._take("<")
            of = pa.list_(self._type()) if name == "ARRAY" else pa.struct(self.fields(until=">"))
            self._take(">")
            return of
        if name not in TYPES:
            raise self._wrong(f"{', '.join(TYPES)}, ARRAY<...> or STRUCT<...>")
        self._at += 1
        return TYPES[name]

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, token: str) -> None:
        if self._peek() != token:
            raise self._wrong(repr(token))
        self._at += 1

    def _wrong(self, expected: str) -> UsageError:
        found = repr(self._peek()) if self._peek() else "the end"
        text = self._ddl if len(self._ddl) <= 80 else f"{self._ddl[:77]}..."
        return UsageError(f"schema {text!r} has {found} where {expected} was expected")


def differences(old: pa.Schema, new: pa.Schema) -> list[str]:
    """Return in words how `new` differs from `old`, in its order; the order of fields itself is no difference."""
    return _differences(as_struct(old), as_struct(new), "")


def _differences(old: pa.DataType, new: pa.DataType, path: str) -> list[str]:
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        before, after = fields_of(old), fields_of(new)
        words: list[str] = []
        for name, of in after.items():
            at = f"{path}.{name}" if path else name
            if name in before:
                words += _differences(before[name], of, at)
            else:
                words.append(f"{at} {type_name(of)} is new")
        gone = [name for name in before if name not in after]
        return words + [f"{path}.{name} is gone" if path else f"{name} is gone" for name in gone]
    if pa.types.is_list(old) and pa.types.is_list(new):
        return _differences(old.value_type, new.value_type, f"{path}[]")
    return [] if old == new else [f"{path} was {type_name(old)} and is {type_name(new)}"]
