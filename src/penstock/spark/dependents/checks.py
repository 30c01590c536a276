"""Checks of the names that users give to sources and dependents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NoReturn

from penstock.errors import UsageError
from penstock.spark.lake.tables.directory import LakeDirectory

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
MOST_BYTES = 200
"""Bytes of a name. File systems take 255, and a catalog may put the name of its schema before it."""
_EXPECTED = "expected 1 to 64 letters, digits, - and _, the first no - or _"


def check_declared_name(subject: str, name: str) -> None:
    """Check that a name in a pipeline's file can be the name of a directory.

    Args:
        subject: the kind of table for the error: source, index, sink.
        name: the name.

    Raises:
        UsageError: the name has other characters, or too many.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"the name of the {subject} is {name!r}, {_EXPECTED}")


def check_directory_name(subject: str, name: str) -> None:
    """Check that a name which follows from other names is short enough for a directory.

    Args:
        subject: the origin of the name for the error.
        name: the name.

    Raises:
        UsageError: the name is too long.
    """
    if (size := len(name.encode())) > MOST_BYTES:
        raise UsageError(f"{subject} makes a table whose name has {size} bytes; expected at most {MOST_BYTES}")


def validate_name(name: str) -> str:
    """Return the name of a dependent, if it can be the name of a file.

    Args:
        name: the name.

    Returns:
        The same name.

    Raises:
        UsageError: the name has other characters, or too many.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"the name is {name!r}; {_EXPECTED}")
    return name


def refuse_missing_index(kind: str, name: str, lake: LakeDirectory, known: Sequence[str]) -> NoReturn:
    """Raise the error for an index that a lake does not have.

    Args:
        kind: the kind of index for the error.
        name: the name that the lake does not have.
        lake: the lake.
        known: names of the lake's indexes of this kind.

    Raises:
        UsageError: always.
    """
    expected = " or ".join(known) or "an index that a pipeline has written"
    raise UsageError(f"there is no {kind} {name!r} in {lake.path}, expected {expected}")
