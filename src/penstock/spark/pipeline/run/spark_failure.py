"""Failures of a run: the exceptions of Spark and its processes, as one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from penstock import errors
from penstock.errors import Error

__all__ = ["parse_failure", "translate_errors"]


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
