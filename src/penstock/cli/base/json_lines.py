"""Documents in files of JSON lines: the key and value of each line, or the reason why a line has none."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import msgspec

from penstock.errors import UsageError
from penstock.wire.codec.constants import MAX_KEY, MAX_VALUE
from penstock.wire.values.json_value import MAX_LEVELS, detect_json, is_utf8, read_members

T = TypeVar("T")

_TYPE_NAMES = {dict: "an object", list: "an array", str: "a string", bool: "true or false", float: "a fraction"}


class LoadedDocument(NamedTuple):
    """A document to store.

    Attributes:
        value: compact JSON in UTF-8, with the numbers of the line.
        line: its line in the file, from 1; 0 if it comes from no file.
    """

    key: bytes
    value: bytes
    line: int = 0


class BadLine(NamedTuple):
    """A line without a document.

    Attributes:
        line: its number, from 1.
        reason: the content found and the content expected.
    """

    line: int
    reason: str


class _LineError(Exception):
    """The error in the line being read. Never leaves this module."""


@contextmanager
def open_input(path: str, expected: str = "a file of JSON lines") -> Iterator[BinaryIO]:
    """Open a file for reading; `-` is standard input.

    Args:
        path: the file.
        expected: the expected kind of file, for the error.

    Yields:
        The file in binary mode.

    Raises:
        UsageError: the file cannot be read.
    """
    if path == "-":
        yield sys.stdin.buffer
        return
    if os.path.isdir(path):
        raise UsageError(f"{path} is a directory, expected {expected}")
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(path).open("rb"))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"{path} cannot be read ({reason}), expected {expected}, or -") from error
        yield file


def read_documents(lines: Iterable[bytes], key: str, value: str | None = None) -> Iterator[LoadedDocument | BadLine]:
    """Read the document of each line, or the reason why it has none. Blank lines are skipped.

    Numbers stay as the line has them, and so do repeated fields of the document. A repeated `key` or `value` is an
    error.

    Args:
        lines: the lines of the file.
        key: field that holds the key.
        value: field that holds the document; None: the whole object is the document.

    Returns:
        An iterator that reads the lines as it is consumed.
    """

    def read_document(number: int, line: bytes) -> LoadedDocument:
        fields = _read_fields(line, (key,) if value is None else (key, value))
        octets = _encode_key(_get_field(fields, key), key)
        return LoadedDocument(octets, _encode_document(line if value is None else _get_field(fields, value)), number)

    return _read_lines(lines, read_document)


def read_keys(lines: Iterable[bytes], key: str) -> Iterator[bytes | BadLine]:
    """Return an iterator over the keys of lines: JSON strings, or objects with the key in the field `key`."""

    def read_key(_: int, line: bytes) -> bytes:
        is_string = line.lstrip().startswith(b'"')
        return _encode_key(line if is_string else _get_field(_read_fields(line, (key,)), key), key)

    return _read_lines(lines, read_key)


def _read_lines(lines: Iterable[bytes], read_line: Callable[[int, bytes], T]) -> Iterator[T | BadLine]:
    for number, line in enumerate(lines, 1):
        if line.isspace() or not line:
            continue
        try:
            yield read_line(number, line)
        except _LineError as wrong:
            yield BadLine(number, str(wrong))


def _refuse_constant(name: str) -> Any:
    raise _LineError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=lambda _: 0)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_TOO_DEEP = "nested too deeply"
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_WHOLE_NUMBER = re.compile(rb"-?[0-9]+")
_STRING = re.compile(rb'"(?:[^"\\]+|\\.)*"', re.DOTALL)
_SPACE_OUTSIDE = re.compile(rb'("(?:[^"\\]+|\\.)*")|[ \t\r\n]+', re.DOTALL)
"""A string, which group 1 has, or white space outside of strings."""


def _read_fields(line: bytes, names: Sequence[str]) -> Mapping[str, bytes | msgspec.Raw]:
    """Return the fields of the object in a line, each as the JSON that the line has.

    Args:
        line: the line.
        names: fields that must not be repeated.
    """
    try:
        is_plain = b"\\" not in line and is_utf8(line)
        if is_plain and all(line.count(b'"%s"' % os.fsencode(each)) < 2 for each in names):
            return _FIELDS.decode(line)
    except (ValueError, RecursionError):
        pass
    return _read_members(line, names)


def _read_members(line: bytes, names: Sequence[str]) -> Mapping[str, bytes]:
    """Return the fields of any object as `_read_fields` does; slow."""
    members = read_members(line, MAX_LEVELS + 1)
    if members is None:
        found = _parse_json(line)
        if isinstance(found, dict):
            raise _LineError(_TOO_DEEP)
        raise _LineError(f"{_name_type(found)}, expected an object with the field {names[0]!r}")
    for name in names:
        if (times := sum(member.name == name for member in members)) > 1:
            raise _LineError(f"{times} fields {name!r}, expected one")
    return {member.name: member.written.encode() for member in members}


def _parse_json(line: bytes) -> Any:
    """Return JSON as an object of Python, in which numbers may be others: for types and errors."""
    try:
        return _DECODER.decode(line.decode().rstrip(" \t\r\n"))
    except UnicodeDecodeError as error:
        raise _LineError(f"byte {error.start + 1} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _LineError(f"not JSON: {error.msg} at column {error.pos + 1}") from None
    except RecursionError:
        raise _LineError(_TOO_DEEP) from None


def encode_compact_json(document: Any) -> bytes:
    """Return a document as compact JSON in UTF-8: without spaces, and without escapes that JSON does not require.

    Raises:
        UnicodeEncodeError: a string has half a surrogate pair.
        ValueError: a number is NaN or infinite.
        RecursionError: the document is nested too deeply.
    """
    return _ENCODER.encode(document).encode()


def _encode_document(written: bytes | msgspec.Raw) -> bytes:
    """Return JSON without white space and without escapes that JSON does not require; numbers stay as written."""
    text = bytes(written)
    if not detect_json(text):
        _parse_json(text)  # raises the error of text that is not JSON
        raise _LineError(_TOO_DEEP)
    try:
        stored = msgspec.json.format(text, indent=-1)
    except (msgspec.DecodeError, RecursionError):  # half a surrogate pair, or many levels
        stored = _SPACE_OUTSIDE.sub(rb"\1", text)
    if b"\\" in stored:
        stored = _STRING.sub(_unescape_string, stored)
    if len(stored) > MAX_VALUE:
        raise _LineError(f"a document of {len(stored)} bytes, limit {MAX_VALUE}")
    return stored


def _unescape_string(match: re.Match[bytes]) -> bytes:
    """Return a string without escapes that JSON does not require, or as it is if it has half a surrogate pair."""
    if b"\\" not in match[0]:
        return match[0]
    try:
        return encode_compact_json(json.loads(match[0]))
    except UnicodeEncodeError:
        return match[0]


def _get_field(fields: Mapping[str, T], name: str) -> T:
    if name not in fields:
        raise _LineError(f"no field {name!r}; there is {', '.join(map(repr, list(fields)[:5])) or 'none at all'}")
    return fields[name]


def _encode_key(written: bytes | msgspec.Raw, name: str) -> bytes:
    text = bytes(written)
    found = text.decode() if _WHOLE_NUMBER.fullmatch(text) else _parse_json(text)
    if not isinstance(found, str):
        raise _LineError(f"the key in {name!r} is {_name_type(found)}, expected a string or a whole number")
    try:
        key = found.encode()
    except UnicodeEncodeError as error:
        half = ord(error.object[error.start])
        raise _LineError(f"the key has half a surrogate pair (\\u{half:04x}), which UTF-8 cannot encode") from None
    if not 0 < len(key) <= MAX_KEY:
        raise _LineError(f"a key of {len(key)} bytes, expected 1 to {MAX_KEY}")
    return key


def _name_type(found: Any) -> str:
    return _TYPE_NAMES.get(type(found), "null" if found is None else "a number")
