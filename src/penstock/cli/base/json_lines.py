"""Documents in JSON lines: which line has which key and value, and what is wrong with those that have none."""

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

__all__ = ["BadLine", "LoadedDocument", "compact", "open_input", "read_documents", "read_keys"]

T = TypeVar("T")

_BOM = b"\xef\xbb\xbf"
_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "true or false", float: "a fraction"}


class LoadedDocument(NamedTuple):
    """A document to be stored: its key, its value as it is stored, and the line, from 1, that it stood in."""

    key: bytes
    value: bytes
    line: int = 0


class BadLine(NamedTuple):
    """A line without a document: its number, from 1, and what was found and expected."""

    line: int
    reason: str


class _Wrong(Exception):
    """What is wrong with the line being read; never leaves this module."""


@contextmanager
def open_input(path: str, expected: str = "a file of JSON lines") -> Iterator[BinaryIO]:
    """Open a file, or standard input for "-". Raises UsageError, which names what was expected, if that cannot be."""
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
    """Give what each line holds; blank lines are passed over.

    key: the field with the key. value: the field that is the document, or None for the whole object.
    """

    def document(number: int, found: Any) -> LoadedDocument:
        octets = _key(_field(found, key), key)
        return LoadedDocument(octets, _stored(found if value is None else _field(found, value)), number)

    return _each(lines, document)


def read_keys(lines: Iterable[bytes], key: str) -> Iterator[bytes | BadLine]:
    """Give the key in each line, which is a JSON string or an object with the key in field `key`."""
    return _each(lines, lambda _, found: _key(found if isinstance(found, str) else _field(found, key), key))


def _each(lines: Iterable[bytes], take: Callable[[int, Any], T]) -> Iterator[T | BadLine]:
    for number, line in enumerate(lines, 1):
        if number == 1:
            line = line.removeprefix(_BOM)
        if line.isspace() or not line:
            continue
        try:
            yield take(number, _parse(line))
        except _Wrong as wrong:
            yield BadLine(number, str(wrong))


def _refuse_constant(name: str) -> Any:
    raise _Wrong(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_TOO_DEEP = "nested too deeply"


def _parse(line: bytes) -> Any:
    try:
        return _DECODER.decode(line.decode())
    except UnicodeDecodeError as error:
        raise _Wrong(f"byte {error.start + 1} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _Wrong(f"not JSON: {error.msg} at column {error.colno}") from None
    except ValueError as error:
        raise _Wrong(f"not readable: {error}") from None  # a whole number of thousands of digits
    except RecursionError:
        raise _Wrong(_TOO_DEEP) from None


def compact(document: Any) -> bytes:
    """Return a document as it is stored: JSON in UTF-8, without spaces, with no escapes but those JSON demands.

    Raises UnicodeEncodeError for half a surrogate pair, ValueError for NaN and infinities, RecursionError.
    """
    return _ENCODER.encode(document).encode()


def _stored(document: Any) -> bytes:
    try:
        stored = compact(document)
    except UnicodeEncodeError as error:
        raise _Wrong(_lone_surrogate(error)) from None
    except ValueError:
        # The infinity that Python reads there is not JSON, and the largest double would be another document.
        raise _Wrong("a number beyond 1.8e308, the limit of a double") from None
    except RecursionError:
        raise _Wrong(_TOO_DEEP) from None
    if len(stored) > MAX_VALUE:
        raise _Wrong(f"a document of {len(stored)} bytes, limit {MAX_VALUE}")
    return stored


def _field(found: Any, name: str) -> Any:
    if not isinstance(found, dict):
        raise _Wrong(f"{_kind(found)}, expected an object with the field {name!r}")
    if name not in found:
        raise _Wrong(f"no field {name!r}; there is {', '.join(map(repr, list(found)[:5])) or 'none at all'}")
    return found[name]


def _key(found: Any, name: str) -> bytes:
    if isinstance(found, int) and not isinstance(found, bool):
        found = str(found)
    if not isinstance(found, str):
        raise _Wrong(f"the key in {name!r} is {_kind(found)}, expected a string or a whole number")
    try:
        key = found.encode()
    except UnicodeEncodeError as error:
        raise _Wrong(f"the key has {_lone_surrogate(error)}") from None
    if not 0 < len(key) <= MAX_KEY:
        raise _Wrong(f"a key of {len(key)} bytes, expected 1 to {MAX_KEY}")
    return key


def _kind(found: Any) -> str:
    return _KINDS.get(type(found), "null" if found is None else "a number")


def _lone_surrogate(error: UnicodeEncodeError) -> str:
    return f"half a surrogate pair (\\u{ord(error.object[error.start]):04x}), which UTF-8 cannot say"
