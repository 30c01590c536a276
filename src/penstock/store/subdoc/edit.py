"""One operation on one checked text. The result is a checked text again, so several operations can follow.

For most operations the value is one JSON value. Operations that may add several elements take the text between an
array's brackets. A value is stored as it was sent, white space included. Elements are equal if their texts are equal:
1 and 1.0 are different.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from penstock.errors import StatusError, make_status_error
from penstock.store.subdoc.path import LAST, KeyComponent, Path, format_path
from penstock.store.subdoc.place import PathPlace
from penstock.store.subdoc.text import MAX_DEPTH, WHITE, JsonText, Splice, count_levels, skip_space
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_MOST_DIGITS = 20
_DELTA = re.compile(r"-?[1-9][0-9]{0,18}")
_INTEGER = re.compile(rb"-?[0-9]+")


# Reading


def _get(text: JsonText, path: Path) -> bytes:
    place = _find_existing(text, path)
    return text.get_part(place.at, place.end)


def _exists(text: JsonText, path: Path) -> bytes:
    _find_existing(text, path)
    return b""


def _get_count(text: JsonText, path: Path) -> bytes:
    size = _find_existing(text, path).size
    if size < 0:
        raise _make_path_error(Status.SUBDOC_PATH_MISMATCH, path, "is neither an array nor an object")
    return b"%d" % size


# Changing objects


def _dict_add(text: JsonText, path: Path, value: bytes, mkdir_p: bool) -> bytes:
    new = _check_one_value(value, above=len(path))
    place = _find_entry(text, path)
    if place.at >= 0:
        raise _make_path_error(Status.SUBDOC_PATH_EEXISTS, path, "exists already")
    _add_key(text, path, place, new, mkdir_p)
    return b""


def _dict_upsert(text: JsonText, path: Path, value: bytes, mkdir_p: bool) -> bytes:
    new = _check_one_value(value, above=len(path))
    place = _find_entry(text, path)
    if place.at >= 0:
        text.change_value(path, place, Splice(place.at, place.end, new))
    else:
        _add_key(text, path, place, new, mkdir_p)
    return b""


def _find_entry(text: JsonText, path: Path) -> PathPlace:
    """Return the place of a path that ends in a key.

    Raises:
        StatusError: with SUBDOC_PATH_EINVAL; the path is empty or ends in an index. Also the errors of JsonText.find.
    """
    place = text.find(_check_not_empty(path))
    if not isinstance(path[-1], KeyComponent):
        raise _make_path_error(Status.SUBDOC_PATH_EINVAL, path, "ends in an index, expected a key")
    return place


def _add_key(text: JsonText, path: Path, place: PathPlace, new: bytes, mkdir_p: bool) -> None:
    """Add the missing components of a path, and a value at its end.

    Args:
        text: the text to change.
        path: the path of the value.
        place: the place of the path, where no value is.
        new: the value.
        mkdir_p: whether missing objects on the way are created.

    Raises:
        StatusError: with SUBDOC_PATH_ENOENT; a missing component is an index, because nothing would be before it. Or
            more than the last key is missing, without `mkdir_p`.
    """
    missing = path[place.found :]
    keys = [component.text.encode() for component in missing if isinstance(component, KeyComponent)]
    if len(keys) < len(missing) or (len(keys) > 1 and not mkdir_p):
        raise _make_path_error(Status.SUBDOC_PATH_ENOENT, path[: place.found + 1], "is not there")
    first, *inner = keys
    opened = b"".join(b'{"%s":' % key for key in inner)
    comma = b"," if place.members else b""
    added = b'%s"%s":%s%s%s' % (comma, first, opened, new, b"}" * len(inner))
    text.change_value(path, place, Splice(place.close, place.close, added))


# Changing existing values


def _replace(text: JsonText, path: Path, value: bytes, mkdir_p: bool) -> bytes:
    new = _check_one_value(value, above=len(_check_not_empty(path)))
    place = _find_existing(text, path)
    text.change_value(path, place, Splice(place.at, place.end, new))
    return b""


def _delete(text: JsonText, path: Path, value: bytes, mkdir_p: bool) -> bytes:
    """Remove a member with the comma after it. The last member is removed with the comma before it, if there is one.

    Returns:
        No bytes.
    """
    text.read()
    place = _find_existing(text, _check_not_empty(path))
    begin, end = place.key_at, place.end
    following, preceding = text.skip_space(end), text.skip_space_back(begin)
    if text.get_part(following, following + 1) == b",":
        end = following + 1
    elif text.get_part(preceding, preceding + 1) == b",":
        begin = preceding
    text.apply_splice(Splice(begin, end, b""))
    return b""


def _counter(text: JsonText, path: Path, value: bytes, mkdir_p: bool) -> bytes:
    """Add a delta to an integer, or create the integer.

    Returns:
        The new number.

    Raises:
        StatusError: with SUBDOC_VALUE_CANTINSERT if the sum is not an i64, as on the server. With SUBDOC_NUM_ERANGE if
            the present number is not an i64.
    """
    delta = _parse_delta(value)
    place = text.find(_check_not_empty(path))
    if place.at < 0:
        new = b"%d" % delta
        _add_key(text, path, place, new, mkdir_p)
        return new
    old = text.get_part(place.at, place.end)
    if _INTEGER.fullmatch(old) is None:
        raise _make_path_error(Status.SUBDOC_PATH_MISMATCH, path, "is not an integer")
    if len(old) > _MOST_DIGITS or not _LOWEST <= (number := int(old)) <= _HIGHEST:
        raise _make_path_error(Status.SUBDOC_NUM_ERANGE, path, "is a number that does not fit into 64 bits")
    number += delta
    if not _LOWEST <= number <= _HIGHEST:
        raise _make_path_error(Status.SUBDOC_VALUE_CANTINSERT, path, f"and {delta} do not fit into 64 bits")
    new = b"%d" % number
    text.change_value(path, place, Splice(place.at, place.end, new))
    return new


def _parse_delta(value: bytes) -> int:
    text = value.decode("ascii", "replace")
    if _DELTA.fullmatch(text) is None or not _LOWEST <= (delta := int(text)) <= _HIGHEST:
        shown = value[:40]
        raise make_status_error(
            Status.SUBDOC_DELTA_EINVAL, f"delta {shown!r}, expected an integer of 64 bits other than 0"
        )
    return delta


# Changing arrays


def _push_last(text: JsonText, path: Path, value: bytes, mkdir_p: bool) -> bytes:
    new = _check_several_values(value, above=len(path) + 1)
    place = _check_array(text, path, text.find_to_append(path))
    if place.at < 0:
        _add_array(text, path, place, new, mkdir_p)
    else:
        text.append(path, place, new)
    return b""


def _push_first(text: JsonText, path: Path, value: bytes, mkdir_p: bool) -> bytes:
    new = _check_several_values(value, above=len(path) + 1)
    place = _find_array(text, path)
    if place.at < 0:
        _add_array(text, path, place, new, mkdir_p)
    elif not place.size:
        text.apply_splice(Splice(place.at + 1, place.at + 1, new))
    else:
        first = text.skip_space(place.at + 1)
        text.apply_splice(Splice(first, first, new + b","))
    return b""


def _insert(text: JsonText, path: Path, value: bytes, mkdir_p: bool) -> bytes:
    new = _check_several_values(value, above=len(path))
    index = path[-1] if path else LAST
    if not isinstance(index, int) or index == LAST:
        raise _make_path_error(Status.SUBDOC_PATH_EINVAL, path, "expected an index of 0 or more at its end")
    text.read()
    place = text.find(path)
    if place.at >= 0:
        text.apply_splice(Splice(place.at, place.at, new + b","))
    elif place.found < len(path) - 1 or place.members != index:
        raise _make_path_error(
            Status.SUBDOC_PATH_ENOENT, path, "does not exist, and is not the index after the last element"
        )
    else:
        text.apply_splice(Splice(place.close, place.close, b"," + new if index else new))
    return b""


def _add_unique(text: JsonText, path: Path, value: bytes, mkdir_p: bool) -> bytes:
    new = _check_one_value(value, above=len(path) + 1)
    bare = new.strip(WHITE)
    if bare[:1] in (b"[", b"{"):
        raise make_status_error(
            Status.SUBDOC_VALUE_CANTINSERT, "an array or object, expected a string, number, true, false or null"
        )
    place = _find_array(text, path)
    if place.at < 0:
        _add_array(text, path, place, new, mkdir_p)
        return b""
    found = text.find_item(place.at, bare)
    if found >= 0:
        if text.get_part(found, found + 1) in (b"[", b"{"):
            raise _make_path_error(Status.SUBDOC_PATH_MISMATCH, path, "has an array or object among its elements")
        raise _make_path_error(Status.SUBDOC_PATH_EEXISTS, path, "has this element already")
    text.append(path, place, new)
    return b""


def _find_array(text: JsonText, path: Path) -> PathPlace:
    """Return the place of a path that leads to an array, or of a missing path."""
    text.read()
    return _check_array(text, path, text.find(path))


def _check_array(text: JsonText, path: Path, place: PathPlace) -> PathPlace:
    if place.at >= 0 and text.get_part(place.at, place.at + 1) != b"[":
        raise _make_path_error(Status.SUBDOC_PATH_MISMATCH, path, "is not an array")
    return place


def _add_array(text: JsonText, path: Path, place: PathPlace, new: bytes, mkdir_p: bool) -> None:
    if not mkdir_p:
        raise _make_path_error(Status.SUBDOC_PATH_ENOENT, path, "is not there")
    _add_key(text, path, place, b"[%s]" % new, mkdir_p)


# Checks that several operations use


def _find_existing(text: JsonText, path: Path) -> PathPlace:
    place = text.find(path)
    if place.at < 0:
        raise _make_path_error(Status.SUBDOC_PATH_ENOENT, path, "is not there")
    return place


def _check_not_empty(path: Path) -> Path:
    if not path:
        raise _make_path_error(Status.SUBDOC_PATH_EINVAL, path, "is the whole document, expected a part of it")
    return path


def _check_one_value(value: bytes, *, above: int) -> bytes:
    """Return a value after the check that it is one JSON value.

    Args:
        value: the value of the command.
        above: how many arrays and objects will contain the value.
    """
    _check_levels(value, count_levels(value), above)
    return value


def _check_several_values(value: bytes, *, above: int) -> bytes:
    """Return a value after the check that it is one or more JSON values with commas between them.

    Args:
        value: the value of the command.
        above: how many arrays and objects will contain each of the values.

    Raises:
        StatusError: the value has no JSON values, or too many levels.
    """
    _check_levels(value, count_levels(b"[%s]" % value) - 1, above)
    if skip_space(value, 0) == len(value):
        raise _make_value_error(value)
    return value


def _check_levels(value: bytes, levels: int, above: int) -> None:
    if levels < 0:
        raise _make_value_error(value)
    if above + levels > MAX_DEPTH:
        raise make_status_error(
            Status.SUBDOC_VALUE_ETOODEEP, f"with this value the document has more than {MAX_DEPTH} levels"
        )


def _make_value_error(value: bytes) -> StatusError:
    return make_status_error(
        Status.SUBDOC_VALUE_CANTINSERT, f"value {value[:40]!r} of {len(value)} bytes is not JSON for this operation"
    )


def _make_path_error(status: Status, path: Path, reason: str) -> StatusError:
    return make_status_error(status, f"{format_path(path)} {reason}")


def creates_array(opcode: int, path: bytes) -> bool:
    """Return whether the document that an operation creates is an array. Otherwise it is an object.

    Args:
        opcode: the opcode of the operation.
        path: the path of the operation.
    """
    return path[:1] == b"[" or (not path and opcode in _PUSHES)


_PUSHES = {Opcode.SUBDOC_ARRAY_PUSH_LAST, Opcode.SUBDOC_ARRAY_PUSH_FIRST, Opcode.SUBDOC_ARRAY_ADD_UNIQUE}

READS: dict[int, Callable[[JsonText, Path], bytes]] = {
    Opcode.SUBDOC_GET: _get,
    Opcode.SUBDOC_EXISTS: _exists,
    Opcode.SUBDOC_GET_COUNT: _get_count,
}
"""Opcode -> function of a checked text and a path that returns the value for the reply. All raise StatusError."""

EDITS: dict[int, Callable[[JsonText, Path, bytes, bool], bytes]] = {
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
"""Opcode -> function that changes a checked text and returns the value for the reply.

The arguments are the text, the path, the value, and whether missing objects on the way are created (`mkdir_p`). A
function that raises StatusError has not changed the text.
"""
