"""What operations do, on values as `json.loads` makes them: the model that texts are held against."""

import json
from typing import Any

from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status


class Refused(Exception):
    def __init__(self, status: Status) -> None:
        super().__init__(status.name)
        self.status = status


def same(one: Any, other: Any) -> bool:
    """Whether two primitives are spelled the same; those of tests are spelled as `json.dumps` does."""
    return json.dumps(one) == json.dumps(other)


def step(value: Any, component: str | int) -> Any:
    """Return what a component leads to. Raises KeyError if there is nothing."""
    if isinstance(component, int) != isinstance(value, list) or not isinstance(value, list | dict):
        raise Refused(Status.SUBDOC_PATH_MISMATCH)
    try:
        return value[component]  # type: ignore[index]
    except IndexError:
        raise KeyError(component) from None


def follow(value: Any, path: list[str | int]) -> Any:
    for component in path:
        value = step(value, component)
    return value


def made(value: Any, path: list[str | int], new: Any, mkdir_p: bool) -> None:
    """Put something at the end of a path that is not there."""
    for index, component in enumerate(path):
        try:
            value = step(value, component)
        except KeyError:
            missing = path[index:]
            if any(isinstance(each, int) for each in missing) or (len(missing) > 1 and not mkdir_p):
                raise Refused(Status.SUBDOC_PATH_ENOENT) from None
            for each in reversed(missing[1:]):
                new = {each: new}
            value[component] = new
            return


def there(value: Any, path: list[str | int]) -> Any:
    try:
        return follow(value, path)
    except KeyError:
        raise Refused(Status.SUBDOC_PATH_ENOENT) from None


def is_there(value: Any, path: list[str | int]) -> bool:
    try:
        follow(value, path)
    except KeyError:
        return False
    return True


def store(value: Any, path: list[str | int], new: Any, mkdir_p: bool, *, add: bool) -> None:
    exists = is_there(value, path)
    if isinstance(path[-1], int):
        raise Refused(Status.SUBDOC_PATH_EINVAL)
    if exists and add:
        raise Refused(Status.SUBDOC_PATH_EEXISTS)
    if exists:
        follow(value, path[:-1])[path[-1]] = new
    else:
        made(value, path, new, mkdir_p)


def array(value: Any, path: list[str | int], new: list[Any], mkdir_p: bool) -> list[Any] | None:
    """Return the array of a path; None where there was nothing, and a new one was made."""
    if not is_there(value, path):
        if not mkdir_p:
            raise Refused(Status.SUBDOC_PATH_ENOENT)
        made(value, path, new, True)
        return None
    found = follow(value, path)
    if not isinstance(found, list):
        raise Refused(Status.SUBDOC_PATH_MISMATCH)
    return found


def insert(value: Any, path: list[str | int], new: list[Any]) -> None:
    if not path or not isinstance(path[-1], int) or path[-1] < 0:
        raise Refused(Status.SUBDOC_PATH_EINVAL)
    parent, index = there(value, path[:-1]), path[-1]
    if not isinstance(parent, list):
        raise Refused(Status.SUBDOC_PATH_MISMATCH)
    if index > len(parent):
        raise Refused(Status.SUBDOC_PATH_ENOENT)
    parent[index:index] = new


def add_unique(value: Any, path: list[str | int], new: Any, mkdir_p: bool) -> None:
    if isinstance(new, list | dict):
        raise Refused(Status.SUBDOC_VALUE_CANTINSERT)
    found = array(value, path, [new], mkdir_p)
    if found is None:
        return
    for each in found:
        if isinstance(each, list | dict):
            raise Refused(Status.SUBDOC_PATH_MISMATCH)
        if same(each, new):
            raise Refused(Status.SUBDOC_PATH_EEXISTS)
    found.append(new)


def count(value: Any, path: list[str | int], delta: int, mkdir_p: bool) -> None:
    if not is_there(value, path):
        made(value, path, delta, mkdir_p)
        return
    parent, last = follow(value, path[:-1]), path[-1]
    old = parent[last]
    if type(old) is not int:
        raise Refused(Status.SUBDOC_PATH_MISMATCH)
    if not -(2**63) <= old < 2**63:
        raise Refused(Status.SUBDOC_NUM_ERANGE)
    if not -(2**63) <= old + delta < 2**63:
        raise Refused(Status.SUBDOC_VALUE_CANTINSERT)
    parent[last] = old + delta


def edit(opcode: Opcode, value: Any, path: list[str | int], new: list[Any], mkdir_p: bool) -> Any:
    """Return the value with an operation done. new: what it is to put there; those that take one, take the first."""
    value = json.loads(json.dumps(value))
    pushes = {Opcode.SUBDOC_ARRAY_PUSH_LAST, Opcode.SUBDOC_ARRAY_PUSH_FIRST}
    if not path and opcode not in pushes | {Opcode.SUBDOC_ARRAY_ADD_UNIQUE}:
        raise Refused(Status.SUBDOC_PATH_EINVAL)
    if opcode in {Opcode.SUBDOC_DICT_ADD, Opcode.SUBDOC_DICT_UPSERT}:
        store(value, path, new[0], mkdir_p, add=opcode == Opcode.SUBDOC_DICT_ADD)
    elif opcode == Opcode.SUBDOC_REPLACE:
        there(value, path)
        follow(value, path[:-1])[path[-1]] = new[0]
    elif opcode == Opcode.SUBDOC_DELETE:
        there(value, path)
        del follow(value, path[:-1])[path[-1]]
    elif opcode in pushes:
        found = array(value, path, new, mkdir_p)
        if found is not None:
            at = 0 if opcode == Opcode.SUBDOC_ARRAY_PUSH_FIRST else len(found)
            found[at:at] = new
    elif opcode == Opcode.SUBDOC_ARRAY_INSERT:
        insert(value, path, new)
    elif opcode == Opcode.SUBDOC_ARRAY_ADD_UNIQUE:
        add_unique(value, path, new[0], mkdir_p)
    else:
        assert opcode == Opcode.SUBDOC_COUNTER
        count(value, path, new[0], mkdir_p)
    return value
