"""JSON text: whether it is some, how deep it is, and where a part of it lies.

The standard library's decoder does the reading: it is the quickest way over text that there is in Python, and its
rules are those of RFC 8259 once it refuses NaN and Infinity. Numbers are not made, so that none is too long for it.
A text is checked once, whole; what looks for a place in it may then take for granted that all is well formed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from json import JSONDecoder
from typing import NamedTuple, NoReturn

from penstock.errors import StatusError, status_error
from penstock.store.subdoc.path import LAST, Component, Path, spelled
from penstock.wire.constants import Status

__all__ = [
    "MAX_DEPTH",
    "WHITE",
    "Place",
    "check_text",
    "count_members",
    "end_of",
    "find",
    "is_deeper",
    "item_ends",
    "read_text",
]

MAX_DEPTH = 32
"""How deep arrays and objects may stand in one another, the outermost counted."""

WHITE = " \t\n\r"
_SPACE = re.compile(r"[ \t\n\r]*").match
_ESCAPE = re.compile(r"\\.").sub
_AS_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_decoder = JSONDecoder(parse_float=bool, parse_int=bool, parse_constant=_refuse)
_read: Callable[[str, int], tuple[object, int]] = _decoder.scan_once  # type: ignore[attr-defined]  # as raw_decode


class Place(NamedTuple):
    """Where a path leads to. at: where the value begins, -1 if there is none.

    found: how many of the components there are. container: where the array or object begins that has, or would have,
    the next of them. key_at: where the member begins, with its key if it has one. close: where the container ends, if
    the value is not there, and members: how many it has.
    """

    at: int
    found: int
    container: int = -1
    key_at: int = -1
    close: int = -1
    members: int = 0


# Whether it is JSON


def check_text(text: str) -> None:
    """Raise ValueError for what is no JSON text, RecursionError for one that is too deep to find that out."""
    _decoder.decode(text)


def read_text(document: bytes) -> str:
    """Return the text of a document. Raises StatusError: SUBDOC_DOC_NOTJSON, SUBDOC_DOC_E2DEEP."""
    try:
        text = document.decode()
        check_text(text)
    except ValueError as error:
        raise status_error(Status.SUBDOC_DOC_NOTJSON, f"document of {len(document)} bytes: {error}") from None
    except RecursionError:
        raise _too_deep() from None
    if is_deeper(text, MAX_DEPTH):
        raise _too_deep()
    return text


def is_deeper(text: str, levels: int) -> bool:
    """Whether in a checked text more than so many arrays and objects stand in one another."""
    if text.count("[") + text.count("{") <= levels:
        return False
    if "\\" in text:
        text = _ESCAPE("", text)
    outside = "".join(text.split('"')[::2])  # of strings
    brackets = outside.encode().translate(_AS_BRACKETS, _NO_BRACKETS)
    for _ in range(levels):
        brackets = brackets.replace(b"[]", b"")  # the innermost, all at once
    return bool(brackets)


def _too_deep() -> StatusError:
    return status_error(Status.SUBDOC_DOC_E2DEEP, f"document of more than {MAX_DEPTH} levels")


# Where a part lies


def find(text: str, path: Path) -> Place:
    """Return where a path leads to in a checked text.

    Raises StatusError with SUBDOC_PATH_MISMATCH where it takes something for an array or object that is not one.
    """
    at = _skip(text, 0)
    place = Place(at, 0)
    for found, component in enumerate(path):
        if text[at] != ("[" if isinstance(component, int) else "{"):
            raise _mismatch(text, at, path, found)
        place = _member(text, at, component, found)
        at = place.at
        if at < 0:
            break
    return place


def end_of(text: str, at: int) -> int:
    """Return where the value that begins at `at` ends."""
    return _read(text, at)[1]


def item_ends(text: str, at: int) -> list[tuple[int, int]]:
    """Return where the elements of the array at `at` begin and end."""
    spans = []
    at = _skip(text, at + 1)
    while text[at] != "]":
        end = end_of(text, at)
        spans.append((at, end))
        at = _next(text, end)
    return spans


def count_members(text: str, at: int) -> int | None:
    """Return how many members the array or object at `at` has, None if there is neither."""
    if text[at] == "[":
        return _element(text, at, None, 0).members
    return _entry(text, at, None, 0).members if text[at] == "{" else None


def _member(text: str, container: int, component: Component, found: int) -> Place:
    """Return the place of a component in the array or object at `container`, `found` components being above it."""
    if isinstance(component, int):
        return _element(text, container, component, found)
    return _entry(text, container, component.name, found)


def _entry(text: str, container: int, name: str | None, found: int) -> Place:
    """As _member, of an object. name: None for that of no key."""
    members = 0
    at = _skip(text, container + 1)
    while text[at] != "}":
        key_at = at
        key, at = _read(text, at)
        at = _skip(text, at) + 1
        if text[at] <= " ":  # asked here, as below, because this runs for every key that is passed over
            at = _skip(text, at)
        if key == name:
            return Place(at, found + 1, container, key_at)
        members += 1
        at = _read(text, at)[1]
        if text[at] != ",":
            at = _next(text, at)
        elif text[at + 1] <= " ":
            at = _skip(text, at + 1)
        else:
            at += 1
    return Place(-1, found, container, close=at, members=members)


def _element(text: str, container: int, index: int | None, found: int) -> Place:
    """As _member, of an array. index: None for that of no element."""
    last = -1
    members = 0
    at = _skip(text, container + 1)
    while text[at] != "]":
        if members == index:
            return Place(at, found + 1, container, at)
        last = at
        members += 1
        at = _next(text, end_of(text, at))
    if index == LAST and members:
        return Place(last, found + 1, container, last)
    return Place(-1, found, container, close=at, members=members)


def _skip(text: str, at: int) -> int:
    """Return where the next character is that is not white space."""
    if text[at] <= " ":
        found = _SPACE(text, at)
        assert found is not None, "it matches nothing, too"
        return found.end()
    return at


def _next(text: str, end: int) -> int:
    """Return where the member behind one that ends at `end` begins, or where its array or object is closed."""
    at = _skip(text, end)
    return _skip(text, at + 1) if text[at] == "," else at


def _mismatch(text: str, at: int, path: Path, found: int) -> StatusError:
    kind = {"[": "an array", "{": "an object"}.get(text[at], "neither array nor object")
    component = path[found]
    wanted = "an array" if isinstance(component, int) else "an object"
    return status_error(Status.SUBDOC_PATH_MISMATCH, f"{spelled(path[:found])} is {kind}, expected {wanted}")
