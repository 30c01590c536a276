"""Spark sessions for the pipeline, quiet and with short micro-batches: on this machine, or on a cluster."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from socketserver import BaseServer
from typing import Any

import pyspark
from pyspark import SparkConf, SparkContext, accumulators
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from penstock.spark.runtime.changelog_sink import ChangelogSink
from penstock.spark.runtime.data_source import register
from penstock.spark.runtime.java import java_environment
from penstock.spark.shipping import ship

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # A Python task's round trip takes half as long over a Unix socket.
    "spark.python.unix.domain.socket.enabled": "true",
    # The default one forks chmod four times a batch on a local directory.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Rows go to Python in batches of so many. Spark can also limit their bytes, but counts these anew for every row,
    # which took more of Java's time than all else that a changelog needs.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.streaming.stopTimeout": "60s",
    # Errors with all their causes, among which the pipeline looks for its own.
    "spark.sql.pyspark.jvmStacktrace.enabled": "true",
}


FOR_ONE_MACHINE = {
    "spark.ui.enabled",
    "spark.sql.shuffle.partitions",
    "spark.sql.streaming.checkpointFileManagerClass",
}
"""Settings that a cluster's own take the place of."""


def local_session(processors: int | None = None, *, inherit: Sequence[int] = ()) -> SparkSession:
    """Start Spark in this process's own Java, or return the session there is, with Penstock's formats registered.

    processors: how many tasks run at once, all there are if not given. inherit: open files that Java is to keep open as
    long as it lives; of no effect if it runs already. Raises UsageError if there is no fitting Java.
    """
    with as_file(files("penstock.spark.runtime") / "worker-python") as worker:
        spark = _session(f"local[{processors or '*'}]", SETTINGS, _worker_environment(worker), inherit)
    add_formats(spark)
    return spark


def cluster_session(master: str, *, inherit: Sequence[int] = ()) -> SparkSession:
    """Start a session whose tasks run on a cluster, and send this package to the executors.

    master: as of spark-submit, such as spark://HOST:7077. What else the cluster wants stands where Spark looks for it,
    in spark-defaults.conf; and in PYSPARK_PYTHON which Python to run, on every machine of the cluster and on this one,
    where it has to have the package. inherit and errors: as of `local_session`.
    """
    settings = {name: value for name, value in SETTINGS.items() if name not in FOR_ONE_MACHINE}
    chosen = {name: os.environ[name] for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON") if name in os.environ}
    spark = _session(master, settings, chosen, inherit)
    ship(spark)
    add_formats(spark)
    return spark


def _session(
    master: str, settings: Mapping[str, str], environment: Mapping[str, str], inherit: Sequence[int]
) -> SparkSession:
    """Start Spark, or return the session there is. environment: variables beside Java's, for what Spark starts."""
    with as_file(files("penstock.spark.runtime") / "log4j2.properties") as log4j, warnings.catch_warnings():
        # As it starts, Spark imports what it tests itself with, and that warns of every pandas from 3 on.
        warnings.simplefilter("ignore", FutureWarning)
        conf = SparkConf().setMaster(master).setAppName("penstock")
        conf.set("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={log4j}").setAll([*settings.items()])
        if SparkContext._gateway is None:  # Spark keeps its Java for the next session
            os.environ.update({**java_environment(), **environment})
            if inherit:
                gateway = launch_gateway(conf, {"pass_fds": tuple(inherit)})  # type: ignore[no-untyped-call]
                SparkContext(conf=conf, gateway=gateway)
        spark = SparkSession.Builder().config(conf=conf).getOrCreate()
    _end_accumulators_quietly()
    _raise_quietly()
    return spark


def _raise_quietly() -> None:
    """Keep errors in SQL out of the log, where Spark puts all of Java's stack, of what it raises besides."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def _end_accumulators_quietly() -> None:
    """Keep one expected error quiet: the socket of accumulators ends when Java and this process stop."""
    for name in ("AccumulatorTCPServer", "AccumulatorUnixServer"):
        if hasattr(accumulators, name):
            setattr(getattr(accumulators, name), "handle_error", _handle_error)  # noqa: B010 - not ours to declare


def _handle_error(server: BaseServer, request: Any, client_address: Any) -> None:
    if not isinstance(sys.exc_info()[1], EOFError):
        BaseServer.handle_error(server, request, client_address)


def _worker_environment(launcher: Path) -> dict[str, str]:
    """Return the variables with which Spark starts its Python processes by `launcher`, where that can be."""
    if not os.access(launcher, os.X_OK) or not Path(pyspark.__file__).is_file():
        return {}
    python = str(launcher)
    return {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "PENSTOCK_PYTHON": sys.executable}


def add_formats(spark: SparkSession) -> None:
    """Register all of Penstock's formats with a session."""
    register(spark)
    spark.dataSource.register(ChangelogSink)
