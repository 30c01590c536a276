r"""The one reader of JSON documents: it decides which values are JSON. All parts that read documents use it.

- JSON is UTF-8 text in the form of RFC 8259, without a byte order mark. Any JSON value counts, scalars too, with white
  space around it. NaN and Infinity are not JSON.
- A document has at most MAX_LEVELS levels. No part reads a deeper one: TooDeepJson is raised.
- Of a repeated name the last value counts.
- Some values are odd: numbers beyond the range of a double, and texts with half a surrogate pair (`"\ud800"`). An odd
  value makes its own field odd, and never the document. `describe_oddness` names the reason.

The datatype that a client sends is not believed. Source of the syntax: kv_engine mutation_context.cc and
syntax_validator.cc; platform JSON_checker.cc. kv_engine has no limit of levels.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import DecodeError, Raw
from msgspec.json import Decoder

from penstock.wire.codec import native
from penstock.wire.codec.flags import Datatype

S = TypeVar("S")
T = TypeVar("T")

MAX_LEVELS: Final = 1000
"""The most levels of arrays and objects in a document. It is fixed: Python's own limit depends on its version and on
the stack."""

NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
"""A number of JSON."""

_JSON: Final = int(Datatype.JSON)

_BEGINNINGS: Final = frozenset(b'{["-0123456789tfn \t\r\n')
"""First bytes of JSON text: other values cost no call of the validator."""
_OBJECT_BEGINNINGS: Final = frozenset(b"{ \t\r\n")

_LARGE: Final = 64 * 1024
"""Bytes of a value above which the extension module checks it, if it is built: as fast, and without the GIL."""

_locate = getattr(native.extension, "locate", None)


class TooDeepJson(ValueError):
    """Text with more than MAX_LEVELS levels of arrays and objects."""

    def __init__(self) -> None:
        super().__init__(f"it has more than {MAX_LEVELS} levels")


class WrittenFloat(float):
    """A number with its text: one with a point or an exponent, or an integer beyond the range of a double."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> WrittenFloat:
        """Return the number that a text is."""
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __repr__(self) -> str:
        return self.text


class RepeatedNames(dict[str, Any]):
    """An object that had a name twice; it keeps only the last value."""


class Member(NamedTuple):
    """A field of a JSON object.

    Attributes:
        name: the name.
        value: the value.
        written_name: the name as the document has it, with quotes and escapes.
        written: the value as the document has it.
    """

    name: str
    value: Any
    written_name: str
    written: str


class Element(NamedTuple):
    """An element of a JSON array.

    Attributes:
        value: the value.
        written: the value as the document has it.
    """

    value: Any
    written: str


def detect_json(value: bytes) -> int:
    """Return the bit Datatype.JSON for a JSON document, 0 for any other value."""
    if not value or value[0] not in _BEGINNINGS:
        return 0
    if _locate is not None and len(value) > MAX_LEVELS and (len(value) > _LARGE or _may_be_deep(value)):
        return _JSON if 0 <= _locate(value, b"", b"")[0] <= MAX_LEVELS else 0
    try:
        _read_levels(value, _check_syntax)
    except DecodeError:
        return _detect_with_surrogates(value)
    except TooDeepJson:
        return 0
    return _JSON if value.isascii() or is_utf8(value) else 0


def parse_json(value: bytes) -> Any:
    """Return the content of a document: dicts, lists and plain values. An odd number is a WrittenFloat.

    Args:
        value: the document.

    Raises:
        TooDeepJson: the document has more than MAX_LEVELS levels.
        ValueError: the value is not JSON.
    """
    try:
        return _parse_quickly(value) if len(value) <= MAX_LEVELS else _read_levels(value, _parse_quickly)
    except TooDeepJson:
        raise
    except (ValueError, RecursionError):  # not JSON, or JSON with an odd value, or read from a deep stack
        return parse_written_json(value)


def parse_written_json(value: bytes) -> Any:
    """Return the content of a document as `parse_json` does, with a WrittenFloat for each number with a fraction.

    Args:
        value: the document.

    Raises:
        TooDeepJson: the document has more than MAX_LEVELS levels.
        ValueError: the value is not JSON.
    """
    return _read_levels(value, _parse_exactly)


def read_members(value: bytes, most_levels: int = MAX_LEVELS) -> list[Member] | None:
    """Return the fields of a JSON object, in order; None for any other value, also for one with too many levels.

    Args:
        value: the document.
        most_levels: MAX_LEVELS, or one more for an object around a document.
    """
    if not value or value[0] not in _OBJECT_BEGINNINGS:
        return None
    try:
        return _read_levels(value, _parse_members, most_levels)
    except ValueError:
        return None


def read_object(written: str) -> list[Member]:
    """Return the fields of an object within a document, from the text that its Member has."""
    return _read_object(written, 0)[0]


def read_elements(written: str) -> list[Element]:
    """Return the elements of an array within a document, from the text that its Member has."""
    elements: list[Element] = []
    at = _skip_space(written, 1)
    while written[at] != "]":
        begin = at
        value, at = _DECODER.raw_decode(written, begin)
        elements.append(Element(value, written[begin:at]))
        at = _skip_space(written, at)
        if written[at] == ",":
            at = _skip_space(written, at + 1)
    return elements


def write_number(value: float) -> str:
    """Return the text of a number that `parse_written_json` returned."""
    return value.text if isinstance(value, WrittenFloat) else str(value)


def describe_oddness(value: Any) -> str | None:
    """Return why a value of a document is odd; None for a usual value. Arrays and objects are never odd themselves."""
    if isinstance(value, str):
        return None if value.isascii() or is_text(value) else "a text with half a surrogate pair"
    is_beyond = math.isinf(value) if isinstance(value, float) else isinstance(value, int) and abs(value) > _MAX_INTEGER
    return "a number beyond the range of a double" if is_beyond else None


def is_text(value: str) -> bool:
    """Return whether a string has no half of a surrogate pair, which a JSON escape can write."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_utf8(value: bytes) -> bool:
    """Return whether bytes are UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


# Syntax


_check_syntax = Decoder(Raw).decode
"""Reads JSON text without making objects of it. It takes any byte above 0x7f in a string."""

_parse_quickly = Decoder().decode
"""Reads JSON in a quarter of the time of Python's parser. It refuses odd values, and some integers of thousands of
digits."""


def _detect_with_surrogates(value: bytes) -> int:
    """Return the bit Datatype.JSON for JSON text with its surrogates removed, 0 for any other value.

    msgspec accepts escaped surrogates in pairs only.
    """
    if b"\\ud" not in value and b"\\uD" not in value:
        return 0
    plain = value.replace(b"\\\\", b"__").replace(b"\\ud", b"\\u0").replace(b"\\uD", b"\\u0")
    try:
        _read_levels(plain, _check_syntax)
    except ValueError:
        return 0
    return _JSON if is_utf8(value) else 0


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else RepeatedNames(found)


_MAX_INTEGER: Final = int(sys.float_info.max)
_MAX_DIGITS: Final = 1 + sys.float_info.max_10_exp + 1
"""Characters of the longest integer that a double may hold, with a sign. Python refuses to parse thousands of them."""


def _parse_integer(text: str) -> int | float:
    number = int(text) if len(text) <= _MAX_DIGITS else math.inf
    return number if abs(number) <= _MAX_INTEGER else WrittenFloat(text)


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_make_object,
    parse_int=_parse_integer,
    parse_float=WrittenFloat,
    parse_constant=_refuse_constant,
)


def _parse_exactly(value: bytes) -> Any:
    return _DECODER.decode(value.decode())


def _parse_members(value: bytes) -> list[Member] | None:
    text = value.decode()
    start = _skip_space(text, 0)
    if text[start : start + 1] != "{":
        return None
    members, end = _read_object(text, start)
    return members if _skip_space(text, end) == len(text) else None


def _read_object(text: str, start: int) -> tuple[list[Member], int]:
    """Return the fields of the object that starts at `start`, and the position after its end.

    Raises:
        ValueError: the text there is not a JSON object.
    """
    members: list[Member] = []
    at = _skip_space(text, start + 1)
    while text[at : at + 1] != "}" or members:
        if text[at : at + 1] != '"':
            raise ValueError("no name")
        begin = at
        name, at = _DECODER.raw_decode(text, at)
        written_name = text[begin:at]
        at = _skip_space(text, at)
        if text[at : at + 1] != ":":
            raise ValueError("no colon")
        begin = _skip_space(text, at + 1)
        value, at = _DECODER.raw_decode(text, begin)
        members.append(Member(name, value, written_name, text[begin:at]))
        at = _skip_space(text, at)
        if text[at : at + 1] == "}":
            break
        if text[at : at + 1] != ",":
            raise ValueError("no comma")
        at = _skip_space(text, at + 1)
    return members, at + 1


_SPACE = re.compile(r"[ \t\n\r]*")


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


# Levels


def _read_levels(value: bytes, read: Callable[[bytes], T], most_levels: int = MAX_LEVELS) -> T:
    """Return the result of a parser for a document, however deep the stack of the caller is.

    Args:
        value: the document.
        read: the parser.
        most_levels: the most levels of the document.

    Raises:
        TooDeepJson: the document has more levels.
    """
    if len(value) > MAX_LEVELS and _may_be_deep(value) and _measure_levels(value) > most_levels:
        raise TooDeepJson if value[0] in _BEGINNINGS else ValueError("not JSON")
    try:
        return read(value)
    except RecursionError:
        return call_with_levels(read, value)


def call_with_levels(function: Callable[[S], T], content: S) -> T:
    """Return the result of a function for a document or a part of it, however deep the stack of the caller is.

    Python's limit of recursion stays raised after the first document that needs it: if it were lowered again, another
    thread could fail.

    Args:
        function: reads or writes at most MAX_LEVELS levels.
        content: its argument.
    """
    try:
        return function(content)
    except RecursionError:
        sys.setrecursionlimit(max(sys.getrecursionlimit(), _RECURSION_LIMIT))
        return function(content)


_RECURSION_LIMIT: Final = 6 * MAX_LEVELS
"""A stack of usual depth, and two calls or more for each level."""


def _may_be_deep(value: bytes) -> bool:
    return value.count(b"{") + value.count(b"[") > MAX_LEVELS


_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string of JSON, or the rest of the text if it does not end: so each byte is read once."""
_OTHER_BYTES = bytes(set(range(256)) - set(b"{}[]"))


def _measure_levels(value: bytes) -> int:
    """Return how many levels of arrays and objects JSON text has, or a number above MAX_LEVELS; any for other text."""
    if _locate is not None:
        return int(_locate(value, b"", b"")[0])
    import numpy as np  # not at the start of each command, which would be slower

    brackets = np.frombuffer(_STRINGS.sub(b"", value).translate(None, _OTHER_BYTES), np.uint8)
    steps = np.where((brackets == ord("{")) | (brackets == ord("[")), 1, -1)
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))
