"""Failures of a run: the exceptions of Spark and its processes, and a full disk, as one sentence."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from penstock import errors
from penstock.errors import DiskFull, Error

__all__ = ["parse_failure", "translate_errors", "translate_full_disk"]


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise exceptions of Spark, of deltalake, and of calls to a dead Java process as Error.

    Yields:
        Once, for the block.

    Raises:
        Error: one of these exceptions.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        problem: Error = parse_failure(str(error))
        raise problem from None
    except DeltaError as error:
        raise Error(f"a Delta table failed: {' '.join(str(error).split())}") from error
    except (Py4JError, ConnectionError) as error:
        raise Error(f"Spark's Java process ended unexpectedly ({error})") from None


_NO_ROOM = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))
"""The texts of a full disk and of a used quota. Java, Arrow and deltalake pass them on, and not the numbers."""


@contextmanager
def translate_full_disk(lake: str) -> Iterator[None]:
    """Raise every error that a full disk causes as DiskFull.

    Args:
        lake: the place of the tables, for the sentence.

    Yields:
        Once, for the block.

    Raises:
        DiskFull: a disk had no room, or the user's quota is used.
        Error: the block failed for another reason.
        OSError: the block failed for another reason.
    """
    try:
        yield
    except (Error, OSError) as error:
        reason = next((text for text in _NO_ROOM if text in str(error)), None)
        if reason is None or isinstance(error, DiskFull):
            raise
        raise DiskFull(
            f"a disk is full while {lake} is written ({reason}): make room, and run again to continue after the last"
            " commit"
        ) from error


_PYTHON_ERROR = re.compile(r"^(?:.*: )?Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)", re.MULTILINE)
_SPARK_PREFACE = re.compile(
    r"^(?:An error occurred while calling \w+(?:\.\w+)*\.\n: )?"
    r"(?:\[\w+(?:\.\w+)*\] )?(?:Query \[.*?\] terminated with exception: )?"
)


def parse_failure(text: str) -> Error:
    """Return Spark's report as an error of one sentence: the Python error that it wraps, if there is one."""
    if not (wrapped := _PYTHON_ERROR.findall(text)):
        return Error(f"Spark failed: {_SPARK_PREFACE.sub('', text.strip()).partition(chr(10))[0]}")
    name, _, message = wrapped[-1].partition(": ")
    cls = getattr(errors, name.removeprefix("penstock.errors."), None)
    if isinstance(cls, type) and issubclass(cls, Error):
        return cls(message)
    return Error(f"the query failed: {wrapped[-1]}")
