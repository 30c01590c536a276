"""Documents in files of JSON lines: the key and value of each line, or the reason why a line has none."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from penstock.errors import UsageError
from penstock.wire.codec.constants import MAX_KEY, MAX_VALUE

__all__ = ["BadLine", "LoadedDocument", "encode_compact_json", "open_input", "read_documents", "read_keys"]

T = TypeVar("T")

_TYPE_NAMES = {dict: "an object", list: "an array", str: "a string", bool: "true or false", float: "a fraction"}


class LoadedDocument(NamedTuple):
    """A document to store.

    Attributes:
        value: compact JSON in UTF-8.
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

    Args:
        lines: the lines of the file.
        key: field that holds the key.
        value: field that holds the document; None: the whole object is the document.

    Returns:
        An iterator that reads the lines as it is consumed.
    """

    def document(number: int, found: Any) -> LoadedDocument:
        octets = _encode_key(_get_field(found, key), key)
        return LoadedDocument(octets, _encode_document(found if value is None else _get_field(found, value)), number)

    return _read_lines(lines, document)


def read_keys(lines: Iterable[bytes], key: str) -> Iterator[bytes | BadLine]:
    """Return an iterator over the keys of lines: JSON strings, or objects with the key in the field `key`."""
    return _read_lines(
        lines, lambda _, found: _encode_key(found if isinstance(found, str) else _get_field(found, key), key)
    )


def _read_lines(lines: Iterable[bytes], read_line: Callable[[int, Any], T]) -> Iterator[T | BadLine]:
    for number, line in enumerate(lines, 1):
        if line.isspace() or not line:
            continue
        try:
            yield read_line(number, _parse_json(line))
        except _LineError as wrong:
            yield BadLine(number, str(wrong))


def _refuse_constant(name: str) -> Any:
    raise _LineError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_TOO_DEEP = "nested too deeply"


def _parse_json(line: bytes) -> Any:
    try:
        return _DECODER.decode(line.decode())
    except UnicodeDecodeError as error:
        raise _LineError(f"byte {error.start + 1} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _LineError(f"not JSON: {error.msg} at column {error.colno}") from None
    except ValueError as error:
        raise _LineError(f"not readable: {error}") from None  # a whole number of thousands of digits
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


def _encode_document(document: Any) -> bytes:
    try:
        stored = encode_compact_json(document)
    except UnicodeEncodeError as error:
        raise _LineError(_describe_surrogate(error)) from None
    except ValueError:
        # Python reads such a number as infinity, which JSON does not have. The largest double would be another value.
        raise _LineError("a number beyond 1.8e308, the limit of a double") from None
    except RecursionError:
        raise _LineError(_TOO_DEEP) from None
    if len(stored) > MAX_VALUE:
        raise _LineError(f"a document of {len(stored)} bytes, limit {MAX_VALUE}")
    return stored


def _get_field(found: Any, name: str) -> Any:
    if not isinstance(found, dict):
        raise _LineError(f"{_name_type(found)}, expected an object with the field {name!r}")
    if name not in found:
        raise _LineError(f"no field {name!r}; there is {', '.join(map(repr, list(found)[:5])) or 'none at all'}")
    return found[name]


def _encode_key(found: Any, name: str) -> bytes:
    if isinstance(found, int) and not isinstance(found, bool):
        found = str(found)
    if not isinstance(found, str):
        raise _LineError(f"the key in {name!r} is {_name_type(found)}, expected a string or a whole number")
    try:
        key = found.encode()
    except UnicodeEncodeError as error:
        raise _LineError(f"the key has {_describe_surrogate(error)}") from None
    if not 0 < len(key) <= MAX_KEY:
        raise _LineError(f"a key of {len(key)} bytes, expected 1 to {MAX_KEY}")
    return key


def _name_type(found: Any) -> str:
    return _TYPE_NAMES.get(type(found), "null" if found is None else "a number")


def _describe_surrogate(error: UnicodeEncodeError) -> str:
    return f"half a surrogate pair (\\u{ord(error.object[error.start]):04x}), which UTF-8 cannot encode"
