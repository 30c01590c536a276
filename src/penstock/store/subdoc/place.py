"""The place in JSON text that a path leads to."""

from __future__ import annotations

from typing import Final, NamedTuple

MISSING: Final = -1
MISMATCH: Final = -2


class PathPlace(NamedTuple):
    """The place of a path's value. Positions are in bytes from the beginning of the text; -1 if there is none.

    A *member* is an element of an array, or a key of an object with its value.

    Attributes:
        at: where the value begins. MISSING: there is no value. MISMATCH: a value on the way is not the array or the
            object that the path expects.
        end: where the value ends.
        size: how many members the value has, -1 if it is a scalar.
        found: how many components of the path exist.
        container: where the array or object begins that has, or would have, the next component. After a mismatch:
            where the value begins that the path does not expect.
        key_at: where the member begins: its key in an object.
        close: position of the closing bracket of the container, if the container lacks the next component.
        members: how many members this container has.
    """

    at: int
    end: int = -1
    size: int = -1
    found: int = 0
    container: int = -1
    key_at: int = -1
    close: int = -1
    members: int = 0
