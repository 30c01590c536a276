"""Where a path leads in JSON text."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["MISMATCH", "MISSING", "PathPlace"]

MISSING: Final = -1
MISMATCH: Final = -2


class PathPlace(NamedTuple):
    """Where a path leads. Places are numbers of bytes from the beginning of the text; -1 where there is none.

    Attributes:
        at: where the value begins. MISSING: there is none. MISMATCH: something on the way is neither the array nor the
            object that the path takes it for.
        end: where the value ends.
        size: members of the value, -1 if it is a scalar.
        found: components of the path that are there.
        container: where the array or object begins that has, or would have, the next component; of a mismatch, what
            is neither.
        key_at: where the member begins, with its key if it has one.
        close: where the container ends that lacks the next component.
        members: how many it has.
    """

    at: int
    end: int = -1
    size: int = -1
    found: int = 0
    container: int = -1
    key_at: int = -1
    close: int = -1
    members: int = 0
