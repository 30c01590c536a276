"""Spark sessions for pipelines, with little log output and short micro-batches: on this machine or on a cluster."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from socketserver import BaseServer
from typing import Any

import pyspark
from pyspark import SparkConf, SparkContext, accumulators
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from penstock.argument_types import check_arguments
from penstock.spark.runtime.data_source import register
from penstock.spark.runtime.fork_server import start_fork_server
from penstock.spark.runtime.java import java_environment, list_archive_options
from penstock.spark.shipping import ship

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # A Python task's round trip takes half as long over a Unix socket.
    "spark.python.unix.domain.socket.enabled": "true",
    # Spark's default class forks chmod four times a batch on a local directory.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Rows go to Python in batches of this size. Spark can also limit their bytes, but counts them again for every row.
    # That took more of Java's time than the rest of the work for a changelog.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.streaming.stopTimeout": "60s",
    # Errors with all their causes, so that the pipeline finds its own errors among them.
    "spark.sql.pyspark.jvmStacktrace.enabled": "true",
}


SINGLE_MACHINE_SETTINGS = {
    "spark.ui.enabled",
    "spark.sql.shuffle.partitions",
    "spark.sql.streaming.checkpointFileManagerClass",
}
"""Settings for one machine only: a cluster has its own values."""

TASK_ATTEMPTS = 3
"""Attempts of a task on one machine. Spark's default there is 1, so a killed worker would end the run."""

_TRACE_LAUNCHER = ("opentelemetry", "instrumentation", "auto_instrumentation")
"""The end of the directory that `opentelemetry-instrument` puts into PYTHONPATH. It has a sitecustomize.py."""


@check_arguments
def local_session(
    processors: int | None = None, *, inherit: Sequence[int] = (), java_options: Sequence[str] | None = None
) -> SparkSession:
    """Start Spark in this process's own Java, or return the existing session. Penstock's formats are registered.

    Args:
        processors: the number of tasks at a time; all processors if not given.
        inherit: file descriptors that Java keeps open as long as it lives. They have no effect if Java already runs.
        java_options: options of Java; None for those of the archive of loaded classes.

    Returns:
        The session.

    Raises:
        UsageError: there is no fitting Java.
    """
    with hide_trace_launcher(), as_file(files("penstock.spark.runtime") / "worker-python") as worker:
        has_java = SparkContext._gateway is not None  # Spark keeps its Java process for the next session
        environment = {} if has_java else _make_worker_environment(worker)
        master = f"local[{processors or '*'}, {TASK_ATTEMPTS}]"
        spark = _start_session(master, SETTINGS, environment, inherit, java_options)
    register(spark)
    return spark


@check_arguments
def cluster_session(master: str, *, inherit: Sequence[int] = ()) -> SparkSession:
    """Start a session whose tasks run on a cluster, and send this package to the executors.

    The cluster's own settings are in spark-defaults.conf, as for every Spark program. PYSPARK_PYTHON names the Python
    to run. It must exist on every machine of the cluster and on this one.

    Args:
        master: the master as of spark-submit, for example spark://HOST:7077.
        inherit: as of `local_session`.

    Returns:
        The session.

    Raises:
        UsageError: there is no fitting Java.
    """
    settings = {name: value for name, value in SETTINGS.items() if name not in SINGLE_MACHINE_SETTINGS}
    chosen = {name: os.environ[name] for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON") if name in os.environ}
    with hide_trace_launcher():
        spark = _start_session(master, settings, chosen, inherit)
    ship(spark)
    register(spark)
    return spark


@contextmanager
def hide_trace_launcher() -> Iterator[None]:
    """Start processes that `opentelemetry-instrument` does not trace, in the block.

    The launcher traces all Python processes that inherit its directory in PYTHONPATH. Each of Spark's processes would
    have an exporter of its own, and send spans of its connections that belong to no micro-batch.
    """
    whole = os.environ.get("PYTHONPATH")
    if whole is None:
        yield
        return
    entries = whole.split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(each for each in entries if Path(each).parts[-3:] != _TRACE_LAUNCHER)
    try:
        yield
    finally:
        os.environ["PYTHONPATH"] = whole


def _start_session(
    master: str,
    settings: Mapping[str, str],
    environment: Mapping[str, str],
    inherit: Sequence[int],
    java_options: Sequence[str] | None = None,
) -> SparkSession:
    """Return a new session, or the existing one.

    Args:
        master: the master as of spark-submit.
        settings: names of Spark's settings with values.
        environment: variables beside those for Java, for the processes that Spark starts.
        inherit: file descriptors that Java keeps open.
        java_options: as of `local_session`.
    """
    with as_file(files("penstock.spark.runtime") / "log4j2.properties") as log4j, warnings.catch_warnings():
        # At its start Spark imports its test utilities, which warn of every pandas from 3 on.
        warnings.simplefilter("ignore", FutureWarning)
        conf = SparkConf().setMaster(master).setAppName("penstock")
        options = [
            f"-Dlog4j2.configurationFile={log4j}",
            *(list_archive_options() if java_options is None else java_options),
        ]
        conf.set("spark.driver.extraJavaOptions", shlex.join(options)).setAll([*settings.items()])
        if SparkContext._gateway is None:
            os.environ.update({**java_environment(), **environment})
            if inherit:
                gateway = launch_gateway(conf, {"pass_fds": tuple(inherit)})  # type: ignore[no-untyped-call]
                SparkContext(conf=conf, gateway=gateway)
        spark = SparkSession.Builder().config(conf=conf).getOrCreate()
    _silence_accumulator_end()
    _silence_sql_errors()
    return spark


def _silence_sql_errors() -> None:
    """Keep SQL errors out of the log: Spark logs them with all of Java's stack, and also raises them."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def _silence_accumulator_end() -> None:
    """Keep one expected error out of the log: the socket of accumulators ends when Java and this process stop."""
    for name in ("AccumulatorTCPServer", "AccumulatorUnixServer"):
        if hasattr(accumulators, name):
            setattr(getattr(accumulators, name), "handle_error", _handle_accumulator_error)  # noqa: B010 - not ours to declare


def _handle_accumulator_error(server: BaseServer, request: Any, client_address: Any) -> None:
    if not isinstance(sys.exc_info()[1], EOFError):
        BaseServer.handle_error(server, request, client_address)


def _make_worker_environment(launcher: Path) -> dict[str, str]:
    """Return the variables with which Spark starts its Python processes through `launcher`, where possible."""
    if not os.access(launcher, os.X_OK) or not Path(pyspark.__file__).is_file():
        return {}
    python = str(launcher)
    names = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "PENSTOCK_PYTHON": sys.executable}
    return {**names, **start_fork_server()}
