"""A local Spark session for the pipeline: on all processors, quiet, with the settings that make micro-batches short."""

from __future__ import annotations

import os
from importlib.resources import as_file, files

from pyspark.sql import SparkSession

from penstock.spark import register
from penstock.spark.changelog import ChangelogSink
from penstock.spark.java import java_environment

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
    "spark.sql.streaming.stopTimeout": "60s",
}


def local_session(processors: int | None = None) -> SparkSession:
    """Start Spark in this process's own Java, or return the session there is, with Penstock's formats registered.

    processors: how many tasks run at once, all there are if not given. Raises UsageError if there is no fitting Java.
    """
    os.environ.update(java_environment())
    with as_file(files("penstock.spark") / "log4j2.properties") as logging:
        builder = SparkSession.Builder().master(f"local[{processors or '*'}]").appName("penstock")
        builder = builder.config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={logging}")
        for name, value in SETTINGS.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
    register(spark)
    spark.dataSource.register(ChangelogSink)
    return spark
