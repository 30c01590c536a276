"""One operation on one checked text. What an operation gives is again a checked text, so that several can follow.

A value of which the command says that it may be several is what stands between an array's brackets; any other is one
JSON value. It is put in as it was sent, white space included. Whether elements are the same is asked of their
spelling: 1 and 1.0 are two.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from penstock.errors import StatusError, status_error
from penstock.store.subdoc.path import LAST, KeyComponent, Path, spelled
from penstock.store.subdoc.place import Place
from penstock.store.subdoc.text import MAX_DEPTH, WHITE, Splice, Text, count_levels, skip_space
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status

__all__ = ["EDITS", "READS", "makes_array"]

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_MOST_DIGITS = 20
_DELTA = re.compile(r"-?[1-9][0-9]{0,18}")
_INTEGER = re.compile(rb"-?[0-9]+")


# Reading


def _get(text: Text, path: Path) -> bytes:
    place = _existing(text, path)
    return text.part(place.at, place.end)


def _exists(text: Text, path: Path) -> bytes:
    _existing(text, path)
    return b""


def _get_count(text: Text, path: Path) -> bytes:
    size = _existing(text, path).size
    if size < 0:
        raise _error(Status.SUBDOC_PATH_MISMATCH, path, "is neither array nor object")
    return b"%d" % size


# Changing objects


def _dict_add(text: Text, path: Path, value: bytes, mkdir_p: bool) -> bytes:
    new = _one(value, above=len(path))
    place = _entry(text, path)
    if place.at >= 0:
        raise _error(Status.SUBDOC_PATH_EEXISTS, path, "is there already")
    _add_key(text, path, place, new, mkdir_p)
    return b""


def _dict_upsert(text: Text, path: Path, value: bytes, mkdir_p: bool) -> bytes:
    new = _one(value, above=len(path))
    place = _entry(text, path)
    if place.at >= 0:
        text.change_value(path, place, Splice(place.at, place.end, new))
    else:
        _add_key(text, path, place, new, mkdir_p)
    return b""


def _entry(text: Text, path: Path) -> Place:
    """Return the place of a path that ends in a key."""
    place = text.find(_not_empty(path))
    if not isinstance(path[-1], KeyComponent):
        raise _error(Status.SUBDOC_PATH_EINVAL, path, "ends in an index, expected a key")
    return place


def _add_key(text: Text, path: Path, place: Place, new: bytes, mkdir_p: bool) -> None:
    """Add what is missing of a path, and a value at its end.

    Raises StatusError with SUBDOC_PATH_ENOENT where more than the last key is missing and the command did not ask for
    that, or where an index is missing: there is nothing to put in front of it.
    """
    missing = path[place.found :]
    keys = [component.text.encode() for component in missing if isinstance(component, KeyComponent)]
    if len(keys) < len(missing) or (len(keys) > 1 and not mkdir_p):
        raise _error(Status.SUBDOC_PATH_ENOENT, path[: place.found + 1], "is not there")
    first, *inner = keys
    opened = b"".join(b'{"%s":' % key for key in inner)
    comma = b"," if place.members else b""
    added = b'%s"%s":%s%s%s' % (comma, first, opened, new, b"}" * len(inner))
    text.change_value(path, place, Splice(place.close, place.close, added))


# Changing what is there


def _replace(text: Text, path: Path, value: bytes, mkdir_p: bool) -> bytes:
    new = _one(value, above=len(_not_empty(path)))
    place = _existing(text, path)
    text.change_value(path, place, Splice(place.at, place.end, new))
    return b""


def _delete(text: Text, path: Path, value: bytes, mkdir_p: bool) -> bytes:
    """A member that is not the last goes with the comma behind it, the last with the one in front of it, if any."""
    text.read()
    place = _existing(text, _not_empty(path))
    begin, end = place.key_at, place.end
    following, preceding = text.skip_space(end), text.before(begin)
    if text.part(following, following + 1) == b",":
        end = following + 1
    elif text.part(preceding, preceding + 1) == b",":
        begin = preceding
    text.change(Splice(begin, end, b""))
    return b""


def _counter(text: Text, path: Path, value: bytes, mkdir_p: bool) -> bytes:
    """A sum that is no i64 is SUBDOC_VALUE_CANTINSERT, as on the server; a number that is none, SUBDOC_NUM_ERANGE."""
    delta = _delta(value)
    place = text.find(_not_empty(path))
    if place.at < 0:
        new = b"%d" % delta
        _add_key(text, path, place, new, mkdir_p)
        return new
    old = text.part(place.at, place.end)
    if _INTEGER.fullmatch(old) is None:
        raise _error(Status.SUBDOC_PATH_MISMATCH, path, "is no integer")
    if len(old) > _MOST_DIGITS or not _LOWEST <= (number := int(old)) <= _HIGHEST:
        raise _error(Status.SUBDOC_NUM_ERANGE, path, "is a number that does not fit into 64 bits")
    number += delta
    if not _LOWEST <= number <= _HIGHEST:
        raise _error(Status.SUBDOC_VALUE_CANTINSERT, path, f"and {delta} do not fit into 64 bits")
    new = b"%d" % number
    text.change_value(path, place, Splice(place.at, place.end, new))
    return new


def _delta(value: bytes) -> int:
    text = value.decode("ascii", "replace")
    if _DELTA.fullmatch(text) is None or not _LOWEST <= (delta := int(text)) <= _HIGHEST:
        shown = value[:40]
        raise status_error(Status.SUBDOC_DELTA_EINVAL, f"delta {shown!r}, expected an integer of 64 bits other than 0")
    return delta


# Changing arrays


def _push_last(text: Text, path: Path, value: bytes, mkdir_p: bool) -> bytes:
    new = _several(value, above=len(path) + 1)
    place = _checked_array(text, path, text.find_to_append(path))
    if place.at < 0:
        _add_array(text, path, place, new, mkdir_p)
    else:
        text.append(path, place, new)
    return b""


def _push_first(text: Text, path: Path, value: bytes, mkdir_p: bool) -> bytes:
    new = _several(value, above=len(path) + 1)
    place = _array(text, path)
    if place.at < 0:
        _add_array(text, path, place, new, mkdir_p)
    elif not place.size:
        text.change(Splice(place.at + 1, place.at + 1, new))
    else:
        first = text.skip_space(place.at + 1)
        text.change(Splice(first, first, new + b","))
    return b""


def _insert(text: Text, path: Path, value: bytes, mkdir_p: bool) -> bytes:
    new = _several(value, above=len(path))
    index = path[-1] if path else LAST
    if not isinstance(index, int) or index == LAST:
        raise _error(Status.SUBDOC_PATH_EINVAL, path, "expected an index of 0 or more at its end")
    text.read()
    place = text.find(path)
    if place.at >= 0:
        text.change(Splice(place.at, place.at, new + b","))
    elif place.found < len(path) - 1 or place.members != index:
        raise _error(Status.SUBDOC_PATH_ENOENT, path, "is not there, nor what would be in front of it")
    else:
        text.change(Splice(place.close, place.close, b"," + new if index else new))
    return b""


def _add_unique(text: Text, path: Path, value: bytes, mkdir_p: bool) -> bytes:
    new = _one(value, above=len(path) + 1)
    bare = new.strip(WHITE)
    if bare[:1] in (b"[", b"{"):
        raise status_error(Status.SUBDOC_VALUE_CANTINSERT, "an array or object, expected what can be compared")
    place = _array(text, path)
    if place.at < 0:
        _add_array(text, path, place, new, mkdir_p)
        return b""
    found = text.find_item(place.at, bare)
    if found >= 0:
        if text.part(found, found + 1) in (b"[", b"{"):
            raise _error(Status.SUBDOC_PATH_MISMATCH, path, "has an array or object among its elements")
        raise _error(Status.SUBDOC_PATH_EEXISTS, path, "has this element already")
    text.append(path, place, new)
    return b""


def _array(text: Text, path: Path) -> Place:
    """Return the place of a path that leads to an array, or to nothing."""
    text.read()
    return _checked_array(text, path, text.find(path))


def _checked_array(text: Text, path: Path, place: Place) -> Place:
    if place.at >= 0 and text.part(place.at, place.at + 1) != b"[":
        raise _error(Status.SUBDOC_PATH_MISMATCH, path, "is no array")
    return place


def _add_array(text: Text, path: Path, place: Place, new: bytes, mkdir_p: bool) -> None:
    if not mkdir_p:
        raise _error(Status.SUBDOC_PATH_ENOENT, path, "is not there")
    _add_key(text, path, place, b"[%s]" % new, mkdir_p)


# What they have in common


def _existing(text: Text, path: Path) -> Place:
    place = text.find(path)
    if place.at < 0:
        raise _error(Status.SUBDOC_PATH_ENOENT, path, "is not there")
    return place


def _not_empty(path: Path) -> Path:
    if not path:
        raise _error(Status.SUBDOC_PATH_EINVAL, path, "is the whole document, expected a part of it")
    return path


def _one(value: bytes, *, above: int) -> bytes:
    """Return a value that is one JSON value. above: how many arrays and objects it is to stand in."""
    _check(value, count_levels(value), above)
    return value


def _several(value: bytes, *, above: int) -> bytes:
    """Return a value that is one or more JSON values with commas between them. above: as of `_one`, of each."""
    _check(value, count_levels(b"[%s]" % value) - 1, above)
    if skip_space(value, 0) == len(value):
        raise _cannot_insert(value)
    return value


def _check(value: bytes, levels: int, above: int) -> None:
    if levels < 0:
        raise _cannot_insert(value)
    if above + levels > MAX_DEPTH:
        raise status_error(
            Status.SUBDOC_VALUE_ETOODEEP, f"with this value the document has more than {MAX_DEPTH} levels"
        )


def _cannot_insert(value: bytes) -> StatusError:
    return status_error(Status.SUBDOC_VALUE_CANTINSERT, f"value {value[:40]!r} of {len(value)} bytes is no JSON here")


def _error(status: Status, path: Path, what: str) -> StatusError:
    return status_error(status, f"{spelled(path)} {what}")


def makes_array(opcode: int, path: bytes) -> bool:
    """Whether a document is an array, and no object, that is made because there is none for this operation."""
    return path[:1] == b"[" or (not path and opcode in _PUSHES)


_PUSHES = {Opcode.SUBDOC_ARRAY_PUSH_LAST, Opcode.SUBDOC_ARRAY_PUSH_FIRST, Opcode.SUBDOC_ARRAY_ADD_UNIQUE}

READS: dict[int, Callable[[Text, Path], bytes]] = {
    Opcode.SUBDOC_GET: _get,
    Opcode.SUBDOC_EXISTS: _exists,
    Opcode.SUBDOC_GET_COUNT: _get_count,
}
"""By opcode: takes a checked text and a path, returns the answer. All raise StatusError."""

EDITS: dict[int, Callable[[Text, Path, bytes, bool], bytes]] = {
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
"""By opcode: changes a checked text at a path, with a value, making the objects that are missing on the way if the last
argument says so; returns the answer. All raise StatusError, and have changed nothing then."""
