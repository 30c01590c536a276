"""A model of the sub-document operations, on values as `json.loads` makes them; tests compare edited texts with it."""

import json
from typing import Any

from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status


class OperationRefused(Exception):
    """The model refuses an operation.

    Attributes:
        status: status of the refused operation.
    """

    def __init__(self, status: Status) -> None:
        super().__init__(status.name)
        self.status = status


def are_spelled_alike(one: Any, other: Any) -> bool:
    """Return whether two primitives have the same text; tests write them with `json.dumps`."""
    return json.dumps(one) == json.dumps(other)


def follow_component(container: Any, component: str | int) -> Any:
    """Return the value at a component of a path.

    Raises:
        KeyError: there is no value.
        OperationRefused: the component does not fit the kind of the value that holds it.
    """
    if not isinstance(container, list if isinstance(component, int) else dict):
        raise OperationRefused(Status.SUBDOC_PATH_MISMATCH)
    found: Any = container
    try:
        return found[component]
    except IndexError:
        raise KeyError(component) from None


def follow_path(value: Any, path: list[str | int]) -> Any:
    """Return the value at a path. Raises KeyError if there is none."""
    for component in path:
        value = follow_component(value, component)
    return value


def create_path(value: Any, path: list[str | int], new: Any, mkdir_p: bool) -> None:
    """Put a new value at a path without a value; with mkdir_p also make the objects on the way."""
    for index, component in enumerate(path):
        try:
            value = follow_component(value, component)
        except KeyError:
            missing = path[index:]
            if any(isinstance(each, int) for each in missing) or (len(missing) > 1 and not mkdir_p):
                raise OperationRefused(Status.SUBDOC_PATH_ENOENT) from None
            for each in reversed(missing[1:]):
                new = {each: new}
            value[component] = new
            return


def find_value(value: Any, path: list[str | int]) -> Any:
    """Return the value at a path. Raises OperationRefused if there is none."""
    try:
        return follow_path(value, path)
    except KeyError:
        raise OperationRefused(Status.SUBDOC_PATH_ENOENT) from None


def has_value(value: Any, path: list[str | int]) -> bool:
    """Return whether there is a value at a path."""
    try:
        follow_path(value, path)
    except KeyError:
        return False
    return True


def store_value(value: Any, path: list[str | int], new: Any, mkdir_p: bool, *, add: bool) -> None:
    """Do DICT_UPSERT, or DICT_ADD with `add`."""
    exists = has_value(value, path)
    if isinstance(path[-1], int):
        raise OperationRefused(Status.SUBDOC_PATH_EINVAL)
    if exists and add:
        raise OperationRefused(Status.SUBDOC_PATH_EEXISTS)
    if exists:
        follow_path(value, path[:-1])[path[-1]] = new
    else:
        create_path(value, path, new, mkdir_p)


def find_array(value: Any, path: list[str | int], new: list[Any], mkdir_p: bool) -> list[Any] | None:
    """Return the array at a path; if there is no value, make an array of `new` and return None."""
    if not has_value(value, path):
        if not mkdir_p:
            raise OperationRefused(Status.SUBDOC_PATH_ENOENT)
        create_path(value, path, new, True)
        return None
    found = follow_path(value, path)
    if not isinstance(found, list):
        raise OperationRefused(Status.SUBDOC_PATH_MISMATCH)
    return found


def insert_items(value: Any, path: list[str | int], new: list[Any]) -> None:
    """Do ARRAY_INSERT."""
    if not path or not isinstance(path[-1], int) or path[-1] < 0:
        raise OperationRefused(Status.SUBDOC_PATH_EINVAL)
    parent, index = find_value(value, path[:-1]), path[-1]
    if not isinstance(parent, list):
        raise OperationRefused(Status.SUBDOC_PATH_MISMATCH)
    if index > len(parent):
        raise OperationRefused(Status.SUBDOC_PATH_ENOENT)
    parent[index:index] = new


def add_unique(value: Any, path: list[str | int], new: Any, mkdir_p: bool) -> None:
    """Do ARRAY_ADD_UNIQUE."""
    if isinstance(new, list | dict):
        raise OperationRefused(Status.SUBDOC_VALUE_CANTINSERT)
    found = find_array(value, path, [new], mkdir_p)
    if found is None:
        return
    for each in found:
        if isinstance(each, list | dict):
            raise OperationRefused(Status.SUBDOC_PATH_MISMATCH)
        if are_spelled_alike(each, new):
            raise OperationRefused(Status.SUBDOC_PATH_EEXISTS)
    found.append(new)


def add_to_number(value: Any, path: list[str | int], delta: int, mkdir_p: bool) -> None:
    """Do COUNTER."""
    if not has_value(value, path):
        create_path(value, path, delta, mkdir_p)
        return
    parent, last = follow_path(value, path[:-1]), path[-1]
    old = parent[last]
    if type(old) is not int:
        raise OperationRefused(Status.SUBDOC_PATH_MISMATCH)
    if not -(2**63) <= old < 2**63:
        raise OperationRefused(Status.SUBDOC_NUM_ERANGE)
    if not -(2**63) <= old + delta < 2**63:
        raise OperationRefused(Status.SUBDOC_VALUE_CANTINSERT)
    parent[last] = old + delta


def apply_operation(opcode: Opcode, value: Any, path: list[str | int], new: list[Any], mkdir_p: bool) -> Any:
    """Return a copy of the value after an operation.

    Args:
        opcode: the operation.
        value: value of the document.
        path: components of the path.
        new: values to store; operations that store one value use the first of them.
        mkdir_p: whether missing objects on the way are made.

    Raises:
        OperationRefused: the operation is refused; its status is that of the answer.
    """
    value = json.loads(json.dumps(value))
    pushes = {Opcode.SUBDOC_ARRAY_PUSH_LAST, Opcode.SUBDOC_ARRAY_PUSH_FIRST}
    if not path and opcode not in pushes | {Opcode.SUBDOC_ARRAY_ADD_UNIQUE}:
        raise OperationRefused(Status.SUBDOC_PATH_EINVAL)
    if opcode in {Opcode.SUBDOC_DICT_ADD, Opcode.SUBDOC_DICT_UPSERT}:
        store_value(value, path, new[0], mkdir_p, add=opcode == Opcode.SUBDOC_DICT_ADD)
    elif opcode == Opcode.SUBDOC_REPLACE:
        find_value(value, path)
        follow_path(value, path[:-1])[path[-1]] = new[0]
    elif opcode == Opcode.SUBDOC_DELETE:
        find_value(value, path)
        del follow_path(value, path[:-1])[path[-1]]
    elif opcode in pushes:
        found = find_array(value, path, new, mkdir_p)
        if found is not None:
            at = 0 if opcode == Opcode.SUBDOC_ARRAY_PUSH_FIRST else len(found)
            found[at:at] = new
    elif opcode == Opcode.SUBDOC_ARRAY_INSERT:
        insert_items(value, path, new)
    elif opcode == Opcode.SUBDOC_ARRAY_ADD_UNIQUE:
        add_unique(value, path, new[0], mkdir_p)
    else:
        assert opcode == Opcode.SUBDOC_COUNTER
        add_to_number(value, path, new[0], mkdir_p)
    return value
