"""One operation on one checked text. What an operation gives is again a checked text, so that several can follow.

A value of which the command says that it may be several is what stands between an array's brackets; any other is one
JSON value. It is put in as it was sent, white space included. Whether elements are the same is asked of their
spelling: 1 and 1.0 are two.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import StatusError, status_error
from penstock.store.subdoc.path import LAST, Key, Path, spelled
from penstock.store.subdoc.text import (
    MAX_DEPTH,
    WHITE,
    Place,
    check_text,
    count_members,
    end_of,
    find,
    is_deeper,
    item_ends,
)
from penstock.wire.constants import Opcode, Status

__all__ = ["EDITS", "READS", "Edited", "makes_array"]

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_MOST_DIGITS = 20
_DELTA = re.compile(r"-?[1-9][0-9]{0,18}")
_INTEGER = re.compile(r"-?[0-9]+")


class Edited(NamedTuple):
    """A changed text, and what the operation answers."""

    text: str
    answer: str = ""


# Reading


def _get(text: str, path: Path) -> str:
    at = _existing(text, path).at
    return text[at : end_of(text, at)]


def _exists(text: str, path: Path) -> str:
    _existing(text, path)
    return ""


def _get_count(text: str, path: Path) -> str:
    count = count_members(text, _existing(text, path).at)
    if count is None:
        raise _error(Status.SUBDOC_PATH_MISMATCH, path, "is neither array nor object")
    return str(count)


# Changing objects


def _dict_add(text: str, path: Path, value: bytes, mkdir_p: bool) -> Edited:
    new = _one(value, above=len(path))
    place = _entry(text, path)
    if place.at >= 0:
        raise _error(Status.SUBDOC_PATH_EEXISTS, path, "is there already")
    return Edited(_with_key(text, path, place, new, mkdir_p))


def _dict_upsert(text: str, path: Path, value: bytes, mkdir_p: bool) -> Edited:
    new = _one(value, above=len(path))
    place = _entry(text, path)
    if place.at >= 0:
        return Edited(_put(text, place.at, end_of(text, place.at), new))
    return Edited(_with_key(text, path, place, new, mkdir_p))


def _entry(text: str, path: Path) -> Place:
    """Return the place of a path that ends in a key."""
    place = find(text, _not_empty(path))
    if not isinstance(path[-1], Key):
        raise _error(Status.SUBDOC_PATH_EINVAL, path, "ends in an index, expected a key")
    return place


def _with_key(text: str, path: Path, place: Place, new: str, mkdir_p: bool) -> str:
    """Return a text with what is missing of a path, and a value at its end.

    Raises StatusError with SUBDOC_PATH_ENOENT where more than the last key is missing and the command did not ask for
    that, or where an index is missing: there is nothing to put in front of it.
    """
    missing = path[place.found :]
    keys = [component.text for component in missing if isinstance(component, Key)]
    if len(keys) < len(missing) or (len(keys) > 1 and not mkdir_p):
        raise _error(Status.SUBDOC_PATH_ENOENT, path[: place.found + 1], "is not there")
    first, *inner = keys
    opened = "".join(f'{{"{key}":' for key in inner)
    comma = "," if place.members else ""
    return _put(text, place.close, place.close, f'{comma}"{first}":{opened}{new}{"}" * len(inner)}')


# Changing what is there


def _replace(text: str, path: Path, value: bytes, mkdir_p: bool) -> Edited:
    new = _one(value, above=len(_not_empty(path)))
    at = _existing(text, path).at
    return Edited(_put(text, at, end_of(text, at), new))


def _delete(text: str, path: Path, value: bytes, mkdir_p: bool) -> Edited:
    """A member that is not the last goes with the comma behind it, the last with the one in front of it, if any."""
    place = _existing(text, _not_empty(path))
    end = end_of(text, place.at)
    behind = text[end:]
    following = behind.lstrip(WHITE)
    if following[0] == ",":
        return Edited(text[: place.key_at] + following[1:])
    before = text[: place.key_at]
    preceding = before.rstrip(WHITE)
    return Edited((preceding[:-1] if preceding[-1] == "," else before) + behind)


def _counter(text: str, path: Path, value: bytes, mkdir_p: bool) -> Edited:
    """A sum that is no i64 is SUBDOC_VALUE_CANTINSERT, as on the server; a number that is none, SUBDOC_NUM_ERANGE."""
    delta = _delta(value)
    place = find(text, _not_empty(path))
    if place.at < 0:
        new = str(delta)
        return Edited(_with_key(text, path, place, new, mkdir_p), new)
    end = end_of(text, place.at)
    old = text[place.at : end]
    if _INTEGER.fullmatch(old) is None:
        raise _error(Status.SUBDOC_PATH_MISMATCH, path, "is no integer")
    if len(old) > _MOST_DIGITS or not _LOWEST <= (number := int(old)) <= _HIGHEST:
        raise _error(Status.SUBDOC_NUM_ERANGE, path, "is a number that does not fit into 64 bits")
    number += delta
    if not _LOWEST <= number <= _HIGHEST:
        raise _error(Status.SUBDOC_VALUE_CANTINSERT, path, f"and {delta} do not fit into 64 bits")
    new = str(number)
    return Edited(_put(text, place.at, end, new), new)


def _delta(value: bytes) -> int:
    text = value.decode("ascii", "replace")
    if _DELTA.fullmatch(text) is None or not _LOWEST <= (delta := int(text)) <= _HIGHEST:
        shown = value[:40]
        raise status_error(Status.SUBDOC_DELTA_EINVAL, f"delta {shown!r}, expected an integer of 64 bits other than 0")
    return delta


# Changing arrays


def _push_last(text: str, path: Path, value: bytes, mkdir_p: bool) -> Edited:
    new = _several(value, above=len(path) + 1)
    place = _array(text, path)
    if place.at < 0:
        return Edited(_new_array(text, path, place, new, mkdir_p))
    return Edited(_appended(text, place.at, new))


def _push_first(text: str, path: Path, value: bytes, mkdir_p: bool) -> Edited:
    new = _several(value, above=len(path) + 1)
    place = _array(text, path)
    if place.at < 0:
        return Edited(_new_array(text, path, place, new, mkdir_p))
    first = find(text[place.at : end_of(text, place.at)], (0,))
    if first.at < 0:
        return Edited(_put(text, place.at + 1, place.at + 1, new))
    at = place.at + first.at
    return Edited(_put(text, at, at, new + ","))


def _insert(text: str, path: Path, value: bytes, mkdir_p: bool) -> Edited:
    new = _several(value, above=len(path))
    index = path[-1] if path else LAST
    if not isinstance(index, int) or index == LAST:
        raise _error(Status.SUBDOC_PATH_EINVAL, path, "expected an index of 0 or more at its end")
    place = find(text, path)
    if place.at >= 0:
        return Edited(_put(text, place.at, place.at, new + ","))
    if place.found < len(path) - 1 or place.members != index:
        raise _error(Status.SUBDOC_PATH_ENOENT, path, "is not there, nor what would be in front of it")
    return Edited(_put(text, place.close, place.close, f",{new}" if index else new))


def _add_unique(text: str, path: Path, value: bytes, mkdir_p: bool) -> Edited:
    new = _one(value, above=len(path) + 1)
    bare = new.strip(WHITE)
    if bare[0] in "[{":
        raise status_error(Status.SUBDOC_VALUE_CANTINSERT, "an array or object, expected what can be compared")
    place = _array(text, path)
    if place.at < 0:
        return Edited(_new_array(text, path, place, new, mkdir_p))
    for at, end in item_ends(text, place.at):
        if text[at] in "[{":
            raise _error(Status.SUBDOC_PATH_MISMATCH, path, "has an array or object among its elements")
        if text[at:end] == bare:
            raise _error(Status.SUBDOC_PATH_EEXISTS, path, "has this element already")
    return Edited(_appended(text, place.at, new))


def _array(text: str, path: Path) -> Place:
    """Return the place of a path that leads to an array, or to nothing."""
    place = find(text, path)
    if place.at >= 0 and text[place.at] != "[":
        raise _error(Status.SUBDOC_PATH_MISMATCH, path, "is no array")
    return place


def _appended(text: str, array: int, new: str) -> str:
    close = end_of(text, array) - 1
    empty = not text[array + 1 : close].strip(WHITE)
    return _put(text, close, close, new if empty else f",{new}")


def _new_array(text: str, path: Path, place: Place, new: str, mkdir_p: bool) -> str:
    if not mkdir_p:
        raise _error(Status.SUBDOC_PATH_ENOENT, path, "is not there")
    return _with_key(text, path, place, f"[{new}]", mkdir_p)


# What they have in common


def _existing(text: str, path: Path) -> Place:
    place = find(text, path)
    if place.at < 0:
        raise _error(Status.SUBDOC_PATH_ENOENT, path, "is not there")
    return place


def _not_empty(path: Path) -> Path:
    if not path:
        raise _error(Status.SUBDOC_PATH_EINVAL, path, "is the whole document, expected a part of it")
    return path


def _one(value: bytes, *, above: int) -> str:
    """Return a value that is one JSON value. above: how many arrays and objects it is to stand in."""
    return _checked(value, "{}", above)


def _several(value: bytes, *, above: int) -> str:
    """Return a value that is one or more JSON values with commas between them. above: as of `_one`, of each."""
    text = _checked(value, "[{}]", above)
    if not text.strip(WHITE):
        raise _cannot_insert(value)
    return text


def _checked(value: bytes, form: str, above: int) -> str:
    try:
        text = value.decode()
        check_text(form.format(text))
    except ValueError:
        raise _cannot_insert(value) from None
    except RecursionError:
        raise _too_deep() from None
    if above > MAX_DEPTH or is_deeper(text, MAX_DEPTH - above):
        raise _too_deep()
    return text


def _put(text: str, begin: int, end: int, new: str) -> str:
    return text[:begin] + new + text[end:]


def _cannot_insert(value: bytes) -> StatusError:
    return status_error(Status.SUBDOC_VALUE_CANTINSERT, f"value {value[:40]!r} of {len(value)} bytes is no JSON here")


def _too_deep() -> StatusError:
    return status_error(Status.SUBDOC_VALUE_ETOODEEP, f"with this value the document has more than {MAX_DEPTH} levels")


def _error(status: Status, path: Path, what: str) -> StatusError:
    return status_error(status, f"{spelled(path)} {what}")


def makes_array(opcode: int, path: bytes) -> bool:
    """Whether a document is an array, and no object, that is made because there is none for this operation."""
    return path[:1] == b"[" or (not path and opcode in _PUSHES)


_PUSHES = {Opcode.SUBDOC_ARRAY_PUSH_LAST, Opcode.SUBDOC_ARRAY_PUSH_FIRST, Opcode.SUBDOC_ARRAY_ADD_UNIQUE}

READS: dict[int, Callable[[str, Path], str]] = {
    Opcode.SUBDOC_GET: _get,
    Opcode.SUBDOC_EXISTS: _exists,
    Opcode.SUBDOC_GET_COUNT: _get_count,
}
"""By opcode: takes a checked text and a path, returns the answer. All raise StatusError."""

EDITS: dict[int, Callable[[str, Path, bytes, bool], Edited]] = {
    Opcode.SUBDOC_DICT_ADD: _dict_add,
    Opcode.SUBDOC_DICT_UPSERT: _dict_upsert,
    Opcode.SUBDOC_DELETE: _delete,
    Opcode.SUBDOC_REPLACE: _replace,
    Opcode.SUBDOC_ARRAY_PUSH_LAST: _push_last,
    Opcode.SUBDOC_ARRAY_PUSH_FIRST: _push_first,
    Opcode.SUBDOC_ARRAY_INSERT: _insert,
    Opcode.SUBDOC_ARRAY_ADD_UNIQUE: _add_unique,
    Opcode.SUBDOC_COUNTER: _counter,
}
"""By opcode: takes a checked text, a path, a value, and whether to make the objects that are missing on the way."""
