"""The Python of Spark's workers: the one that Spark starts for planners, readers and writers of the formats."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from pyspark import SparkContext

from penstock.errors import UsageError

_FIND_PACKAGE = "import sys, importlib.util; sys.exit(importlib.util.find_spec('penstock') is None)"


def choose_worker_python(context: SparkContext) -> None:
    """Let Spark start this process's Python where it would start `python3` of the PATH, on this machine.

    A program that runs as `/path/.venv/bin/python app.py`, without an activated environment, has another `python3` in
    its PATH. A Python that the user has chosen stays.

    Args:
        context: the context of a session, before a format is registered: a registered format keeps its Python.

    Raises:
        UsageError: the Python that Spark starts on this machine does not have this package.
    """
    if str(context.master).startswith("local") and "PYSPARK_PYTHON" not in os.environ and sys.executable:
        context.pythonExec = context.getConf().get("spark.pyspark.python") or sys.executable
    if os.environ.get("PENSTOCK_PYTHON") == sys.executable:
        return  # a session of `local_session`, whose launcher starts this Python
    python = shutil.which(context.pythonExec)
    if python in {None, sys.executable} or _has_sent_modules(context):
        return  # a name that only the executors know, or a package that Spark brings them
    if subprocess.run([python, "-c", _FIND_PACKAGE], check=False, capture_output=True).returncode:
        raise UsageError(
            f"Spark starts its workers with {context.pythonExec!r}, here {python}, which does not have penstock: set "
            f"PYSPARK_PYTHON to a Python that has it, such as {sys.executable}, before the session starts. On a "
            "cluster all machines need that Python, or call penstock.spark.ship(session) first"
        )


def _has_sent_modules(context: SparkContext) -> bool:
    """Return whether workers receive modules of Python from the driver, this package perhaps among them."""
    sent = [*context.listFiles, *context.getConf().get("spark.submit.pyFiles", "").split(",")]
    return any(file.endswith((".zip", ".egg", ".whl", ".py")) for file in sent)
