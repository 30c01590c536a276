"""Patterns of document keys: `order::{customer BIGINT}::{number BIGINT}` makes two typed columns of each key.

A part is text of at least one character. It ends where the text behind it in the pattern first stands. A part of a
whole number is written as in JSON: `007` is none, because the number 7 would not give the key back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.spark.values.json_types import format_type, from_ddl

KEY_TYPES: dict[pa.DataType, str] = {
    pa.string(): r".+?",
    pa.int64(): r"0|-?[1-9][0-9]{0,18}",
    pa.int32(): r"0|-?[1-9][0-9]{0,9}",
    pa.int16(): r"0|-?[1-9][0-9]{0,4}",
    pa.int8(): r"0|-?[1-9][0-9]{0,2}",
}
"""Types that a part of a key can have, and the regular expression of their texts."""
_PART = re.compile(r"\{([^{}]*)\}")
_EXPECTED = "expected such as 'order_id STRING' or 'order::{customer BIGINT}::{number BIGINT}'"


class KeyPart(NamedTuple):
    """A part of a key that is a column.

    Attributes:
        name: the column.
        type: the type of the column.
    """

    name: str
    type: pa.DataType


class KeyColumns(NamedTuple):
    """The columns of some keys.

    Attributes:
        columns: an array for each part; null for keys that do not match.
        misfits: the number of keys that do not match, or have a number beyond the type of its column.
    """

    columns: tuple[pa.Array, ...]
    misfits: int


@dataclass(frozen=True, slots=True)
class KeyPattern:
    """The form of the keys of a collection.

    Attributes:
        text: the pattern as it was declared.
        literals: the texts before, between and behind the parts; one more than the parts.
        parts: the columns.
    """

    text: str
    literals: tuple[str, ...]
    parts: tuple[KeyPart, ...]

    @classmethod
    def parse(cls, text: str) -> KeyPattern:
        """Return a pattern. Text without braces is one part: the whole key.

        Args:
            text: the pattern.

        Raises:
            UsageError: the text is no pattern.
        """
        pieces = _PART.split(text) if "{" in text or "}" in text else ["", text, ""]
        literals, columns = tuple(pieces[::2]), pieces[1::2]
        if not columns or any(brace in literal for literal in literals for brace in "{}"):
            raise UsageError(f"key is {text!r}, {_EXPECTED}")
        if "" in literals[1:-1]:
            raise UsageError(f"key is {text!r}, expected some text between two parts")
        parts = tuple(_parse_part(text, column) for column in columns)
        if len({part.name.lower() for part in parts}) < len(parts):
            raise UsageError(f"key is {text!r}, expected each column once")
        return cls(text, literals, parts)

    @property
    def is_whole(self) -> bool:
        """Whether the only column has the whole key as text, so that all keys match."""
        return self.literals == ("", "") and self.parts[0].type == pa.string()

    def split_keys(self, keys: pa.Array) -> KeyColumns:
        """Return the columns of keys.

        Args:
            keys: keys as text; null for a key that is not UTF-8, which does not match.
        """
        if self.is_whole:
            return KeyColumns((keys,), keys.null_count)
        found = pc.extract_regex(keys, self._make_expression())
        columns = [_convert_part(pc.struct_field(found, f"p{number}"), part) for number, part in enumerate(self.parts)]
        fits = columns[0].is_valid()
        for column in columns[1:]:
            fits = pc.and_(fits, column.is_valid())
        none = [pa.scalar(None, part.type) for part in self.parts]
        return KeyColumns(
            tuple(pc.if_else(fits, column, null) for column, null in zip(columns, none, strict=True)),
            len(keys) - fits.true_count,
        )

    def _make_expression(self) -> str:
        groups = [f"(?P<p{number}>{KEY_TYPES[part.type]})" for number, part in enumerate(self.parts)]
        literals = [re.escape(literal) for literal in self.literals]
        return r"(?s)\A" + "".join(a + b for a, b in zip(literals, [*groups, ""], strict=True)) + r"\z"


def _parse_part(text: str, column: str) -> KeyPart:
    try:
        (field,) = from_ddl(column)
    except (UsageError, ValueError):
        raise UsageError(f"key is {text!r}, where {column!r} is no column with its type; {_EXPECTED}") from None
    if field.type not in KEY_TYPES:
        names = ", ".join(map(format_type, KEY_TYPES))
        raise UsageError(f"key is {text!r}, where {field.name} is {format_type(field.type)}; expected one of {names}")
    return KeyPart(field.name, field.type)


def _convert_part(texts: pa.Array, part: KeyPart) -> pa.Array:
    """Return the texts in the type of a part; null for a number beyond the type."""
    if part.type == pa.string():
        return texts
    # decimals hold all numbers of 19 digits, so that only those beyond the type become null
    numbers = pc.cast(texts, pa.decimal128(20, 0))
    bits = part.type.bit_width - 1
    low, high = pa.scalar(-(2**bits), pa.int64()), pa.scalar(2**bits - 1, pa.int64())
    fits = pc.and_(
        pc.greater_equal(numbers, pc.cast(low, pa.decimal128(20, 0))),
        pc.less_equal(numbers, pc.cast(high, pa.decimal128(20, 0))),
    )
    return pc.cast(pc.if_else(fits, numbers, pa.scalar(None, numbers.type)), part.type)
