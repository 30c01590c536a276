"""Finds paths in JSON text without the extension module: `locate` and `find_item` of penstock.wire._native, in Python.

The standard library's decoder reads the text. The bytes are decoded as Latin-1, so that positions in the text are
positions in the bytes. Characters outside ASCII occur in strings only, and the bytes are checked as UTF-8 first.
Numbers are not converted, so no number is too long. The rules are those of RFC 8259, because NaN and Infinity are
refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from json import JSONDecoder
from typing import NoReturn

from penstock.store.subdoc.path import LAST, Component, Path
from penstock.store.subdoc.place import MISMATCH, MISSING, PathPlace

_TOO_DEEP = 1025
"""The reported levels of a text that exceeds the interpreter's recursion limit of 1000."""

_SPACE = re.compile(r"[ \t\n\r]*").match
_ESCAPE = re.compile(r"\\.").sub
_AS_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_decoder = JSONDecoder(parse_float=bool, parse_int=bool, parse_constant=_refuse_constant)
_read_value: Callable[[str, int], tuple[object, int]] = _decoder.scan_once  # type: ignore[attr-defined]  # as raw_decode


def locate(document: bytes, paths: Sequence[Path]) -> tuple[int, list[PathPlace]]:
    """Return how many levels of arrays and objects a text has, and the places of paths.

    Args:
        document: the text.
        paths: the paths to find.

    Returns:
        The levels, -1 if the text is not JSON; and a place for each path. There are no places if the
        text is not JSON, or has more levels than the interpreter can read.
    """
    try:
        document.decode()
        text = document.decode("latin-1")
        _decoder.decode(text)
    except ValueError:
        return -1, []
    except RecursionError:
        return _TOO_DEEP, []
    return _count_levels(text), [_find_place(text, path) for path in paths]


def find_item(document: bytes, at: int, item: bytes) -> int:
    """Find the first element of an array that has the same text as an item, or is an array or object.

    Args:
        document: the checked text.
        at: where the array begins.
        item: the text of a scalar.

    Returns:
        The position of the element, or -1.
    """
    text, scalar = document.decode("latin-1"), item.decode("latin-1")
    at = _skip_space(text, at + 1)
    while text[at] != "]":
        end = at if text[at] in "[{" else _read_value(text, at)[1]
        if end == at or text[at:end] == scalar:
            return at
        at = _find_next_member(text, end)
    return -1


def _count_levels(text: str) -> int:
    if "\\" in text:
        text = _ESCAPE("", text)
    outside = "".join(text.split('"')[::2])  # the text outside strings
    brackets = outside.encode("latin-1").translate(_AS_BRACKETS, _NO_BRACKETS)
    levels = 0
    while brackets:
        brackets = brackets.replace(b"[]", b"")  # all innermost pairs at once
        levels += 1
    return levels


def _find_place(text: str, path: Path) -> PathPlace:
    at = _skip_space(text, 0)
    place = PathPlace(at, found=0)
    for found, component in enumerate(path):
        if text[at] != ("[" if isinstance(component, int) else "{"):
            return PathPlace(MISMATCH, found=found, container=at)
        place = _find_member(text, at, component, found)
        at = place.at
        if at < 0:
            return place
    size, end = _measure_value(text, at)
    return place._replace(end=end, size=size)


def _measure_value(text: str, at: int) -> tuple[int, int]:
    """Return how many members a value has, -1 for a scalar, and where the value ends."""
    end = _read_value(text, at)[1]
    if text[at] == "[":
        return _find_element(text, at, None, 0).members, end
    return (_find_key(text, at, None, 0).members if text[at] == "{" else -1), end


def _find_member(text: str, container: int, component: Component, found: int) -> PathPlace:
    """Return the place of a component in the array or object at `container`, which is at depth `found`."""
    if isinstance(component, int):
        return _find_element(text, container, component, found)
    return _find_key(text, container, component.name, found)


def _find_key(text: str, container: int, name: str | None, found: int) -> PathPlace:
    """Return the place of a key in an object.

    Args:
        text: the whole text.
        container: where the object begins.
        name: the key, None to count the members.
        found: how many components of the path lead to the object.

    Returns:
        The place, without its end and size.
    """
    members = 0
    at = _skip_space(text, container + 1)
    while text[at] != "}":
        key_at = at
        at = _read_value(text, at)[1]
        is_wanted = name is not None and _decode_key(text[key_at:at]) == name
        at = _skip_space(text, _skip_space(text, at) + 1)
        if is_wanted:
            return PathPlace(at, found=found + 1, container=container, key_at=key_at)
        members += 1
        at = _find_next_member(text, _read_value(text, at)[1])
    return PathPlace(MISSING, found=found, container=container, close=at, members=members)


def _decode_key(quoted: str) -> str:
    raw = quoted.encode("latin-1").decode()
    return json.loads(raw) if "\\" in raw else raw[1:-1]


def _find_element(text: str, container: int, index: int | None, found: int) -> PathPlace:
    """Return the place of an element in an array.

    Args:
        text: the whole text.
        container: where the array begins.
        index: the index, None to count the elements.
        found: how many components of the path lead to the array.

    Returns:
        The place, without its end and size.
    """
    last = -1
    members = 0
    at = _skip_space(text, container + 1)
    while text[at] != "]":
        if members == index:
            return PathPlace(at, found=found + 1, container=container, key_at=at)
        last = at
        members += 1
        at = _find_next_member(text, _read_value(text, at)[1])
    if index == LAST and members:
        return PathPlace(last, found=found + 1, container=container, key_at=last)
    return PathPlace(MISSING, found=found, container=container, close=at, members=members)


def _skip_space(text: str, at: int) -> int:
    """Return the position of the next character that is not white space."""
    if text[at : at + 1] in " \t\n\r":
        found = _SPACE(text, at)
        assert found is not None, "the pattern matches the empty text, too"
        return found.end()
    return at


def _find_next_member(text: str, end: int) -> int:
    """Return where the next member begins after the member that ends at `end`, or the position of the bracket."""
    at = _skip_space(text, end)
    return _skip_space(text, at + 1) if text[at] == "," else at
