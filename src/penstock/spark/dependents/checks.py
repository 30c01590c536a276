"""Checks of names that a pipeline's file, or a caller, gives."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.errors import UsageError
from penstock.spark.lake.tables.directory import LakeDirectory

__all__ = ["check_declared_name", "checked_name", "missing_index"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_declared_name(what: str, name: str) -> None:
    """Raises UsageError for a name in a pipeline's file that no directory can have. what: source, index, sink."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"the {what} is called {name!r}, expected 1 to 64 letters, digits, - and _")


def checked_name(name: str) -> str:
    """Return the name of a dependent. Raises UsageError if no file can have it."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"the name is {name!r}; expected up to 64 letters, digits, - and _, the first no - or _")
    return name


def missing_index(kind: str, name: str, lake: LakeDirectory, there: Sequence[str]) -> UsageError:
    """Return the error for an index that a lake does not have. there: the names of those it has."""
    expected = " or ".join(there) or "one that a pipeline has kept"
    return UsageError(f"there is no {kind} {name!r} in {lake.path}, expected {expected}")
