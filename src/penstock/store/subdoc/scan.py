"""Finds paths in JSON text without the extension module: `locate` and `find_item` of penstock.wire._native, in Python.

The standard library's decoder reads the text. It is given bytes as Latin-1, so that places in the text are places in
the bytes; what is not ASCII stands in strings only, and is checked as UTF-8 first. Numbers are not made, so that no
number is too long. Its rules are those of RFC 8259 once it refuses NaN and Infinity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from json import JSONDecoder
from typing import NoReturn

from penstock.store.subdoc.path import LAST, Component, Path
from penstock.store.subdoc.place import MISMATCH, MISSING, PathPlace

__all__ = ["find_item", "locate"]

_TOO_DEEP = 1025
"""Levels of a text that the interpreter cannot read; it has 1000 or more."""

_SPACE = re.compile(r"[ \t\n\r]*").match
_ESCAPE = re.compile(r"\\.").sub
_AS_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_decoder = JSONDecoder(parse_float=bool, parse_int=bool, parse_constant=_refuse)
_read: Callable[[str, int], tuple[object, int]] = _decoder.scan_once  # type: ignore[attr-defined]  # as raw_decode


def locate(document: bytes, paths: Sequence[Path]) -> tuple[int, list[PathPlace]]:
    """Return how many levels of arrays and objects a text has, and where paths lead; -1 levels if it is no JSON."""
    try:
        document.decode()
        text = document.decode("latin-1")
        _decoder.decode(text)
    except ValueError:
        return -1, []
    except RecursionError:
        return _TOO_DEEP, []
    return _count_levels(text), [_place(text, path) for path in paths]


def find_item(document: bytes, at: int, item: bytes) -> int:
    """Return where in the array at `at` the first element is that is spelled so, or is an array or object; else -1."""
    text, wanted = document.decode("latin-1"), item.decode("latin-1")
    at = _skip(text, at + 1)
    while text[at] != "]":
        end = at if text[at] in "[{" else _read(text, at)[1]
        if end == at or text[at:end] == wanted:
            return at
        at = _next(text, end)
    return -1


def _count_levels(text: str) -> int:
    if "\\" in text:
        text = _ESCAPE("", text)
    outside = "".join(text.split('"')[::2])  # of strings
    brackets = outside.encode("latin-1").translate(_AS_BRACKETS, _NO_BRACKETS)
    levels = 0
    while brackets:
        brackets = brackets.replace(b"[]", b"")  # the innermost, all at once
        levels += 1
    return levels


def _place(text: str, path: Path) -> PathPlace:
    at = _skip(text, 0)
    place = PathPlace(at, found=0)
    for found, component in enumerate(path):
        if text[at] != ("[" if isinstance(component, int) else "{"):
            return PathPlace(MISMATCH, found=found, container=at)
        place = _member(text, at, component, found)
        at = place.at
        if at < 0:
            return place
    size, end = _measure(text, at)
    return place._replace(end=end, size=size)


def _measure(text: str, at: int) -> tuple[int, int]:
    """Return how many members a value has, -1 if it is a scalar, and where it ends."""
    end = _read(text, at)[1]
    if text[at] == "[":
        return _element(text, at, None, 0).members, end
    return (_entry(text, at, None, 0).members if text[at] == "{" else -1), end


def _member(text: str, container: int, component: Component, found: int) -> PathPlace:
    """Return the place of a component in the array or object at `container`, `found` components being above it."""
    if isinstance(component, int):
        return _element(text, container, component, found)
    return _entry(text, container, component.name, found)


def _entry(text: str, container: int, name: str | None, found: int) -> PathPlace:
    """As _member, of an object. name: None for that of no key."""
    members = 0
    at = _skip(text, container + 1)
    while text[at] != "}":
        key_at = at
        at = _read(text, at)[1]
        is_wanted = name is not None and _key(text[key_at:at]) == name
        at = _skip(text, _skip(text, at) + 1)
        if is_wanted:
            return PathPlace(at, found=found + 1, container=container, key_at=key_at)
        members += 1
        at = _next(text, _read(text, at)[1])
    return PathPlace(MISSING, found=found, container=container, close=at, members=members)


def _key(quoted: str) -> str:
    raw = quoted.encode("latin-1").decode()
    return json.loads(raw) if "\\" in raw else raw[1:-1]


def _element(text: str, container: int, index: int | None, found: int) -> PathPlace:
    """As _member, of an array. index: None for that of no element."""
    last = -1
    members = 0
    at = _skip(text, container + 1)
    while text[at] != "]":
        if members == index:
            return PathPlace(at, found=found + 1, container=container, key_at=at)
        last = at
        members += 1
        at = _next(text, _read(text, at)[1])
    if index == LAST and members:
        return PathPlace(last, found=found + 1, container=container, key_at=last)
    return PathPlace(MISSING, found=found, container=container, close=at, members=members)


def _skip(text: str, at: int) -> int:
    """Return where the next character is that is not white space."""
    if text[at : at + 1] in " \t\n\r":
        found = _SPACE(text, at)
        assert found is not None, "it matches nothing, too"
        return found.end()
    return at


def _next(text: str, end: int) -> int:
    """Return where the member behind one that ends at `end` begins, or where its array or object is closed."""
    at = _skip(text, end)
    return _skip(text, at + 1) if text[at] == "," else at
