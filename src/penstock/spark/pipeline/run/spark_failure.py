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
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w{5}$")
_CAUSE = re.compile(r"^Caused by: (.*\S)", re.MULTILINE)
_LOST_PROCESS = re.compile(
    r"Python worker (?:exited unexpectedly|failed to connect back)"
    # Java saw the end of a connection within the code that talks to a Python process.
    r"|(?:EOFException|Broken pipe|Connection reset[^\n]*|ClosedChannelException)\n"
    r"(?:\s+at (?!org\.apache\.spark)[^\n]*\n)*"
    r"\s+at org\.apache\.spark\.(?:api\.python|sql\.execution\.(?:python|datasources\.v2\.python))\."
)


def parse_failure(text: str) -> Error:
    """Return Spark's report as an error of one sentence: the Python error that it wraps, if there is one."""
    if not (wrapped := _PYTHON_ERROR.findall(text)):
        return Error(_describe_failure(text.strip()))
    name, _, message = wrapped[-1].partition(": ")
    cls = getattr(errors, name.removeprefix("penstock.errors."), None)
    if isinstance(cls, type) and issubclass(cls, Error):
        return cls(message)
    return Error(f"the query failed: {wrapped[-1]}")


def _describe_failure(text: str) -> str:
    """Return a sentence for a report of Spark that wraps no Python error."""
    if _LOST_PROCESS.search(text):
        return (
            "a Python process of Spark ended unexpectedly: it was killed, or the machine had too little memory. Run "
            "again to continue after the last commit"
        )
    message = _SQL_STATE.sub("", _SPARK_PREFACE.sub("", text).partition("\n")[0])
    if not message:  # the exception had no message, but a class, and perhaps a cause with one
        causes = _CAUSE.findall(text)
        message = next((cause for cause in reversed(causes) if ": " in cause), causes[-1] if causes else "")
    return f"Spark failed: {message or 'it reported no cause; its log may have one'}"
