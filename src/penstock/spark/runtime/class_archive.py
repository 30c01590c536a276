"""Makes Java's archive of loaded classes, with which Spark starts in half the processor time.

`python -m penstock.spark.runtime.class_archive` writes it into the user's cache. It runs queries over a small bucket,
and Java writes the classes that it has loaded when it ends. Later sessions map the file, and need not read, check and
link these classes again.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.client.blocking import LoopThread
from penstock.errors import UsageError
from penstock.node import Node
from penstock.spark.runtime.java import QUIET_ARCHIVE, find_class_archive
from penstock.spark.runtime.spark_session import local_session

VBUCKETS, DOCUMENTS = 64, 2_000


def make_class_archive(environ: Mapping[str, str] = os.environ) -> Path:
    """Write the archive in place of an earlier one. Spark must not run in this process.

    Args:
        environ: the variables XDG_CACHE_HOME and HOME.

    Returns:
        The path of the archive.

    Raises:
        UsageError: no variable names the cache, or Java did not write the archive.
    """
    archive = find_class_archive(environ)
    if archive is None:
        raise UsageError("no directory for the archive of classes: set XDG_CACHE_HOME or HOME")
    archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        draft = Path(directory) / archive.name
        spark = local_session(2, java_options=[f"-XX:ArchiveClassesAtExit={draft}", *QUIET_ARCHIVE])
        run_queries(spark, directory)
        spark.stop()
        end_java()
        if not draft.is_file():
            raise UsageError(f"Java wrote no archive of classes to {archive.parent}; expected one when it ends")
        with draft.open("rb") as written:
            os.fsync(written)  # Java crashes at an archive whose end a loss of power has cut off
        os.replace(draft, archive)
    return archive


def run_queries(spark: SparkSession, directory: str) -> None:
    """Write a bucket, read it as a batch, and stream it into a changelog.

    Args:
        spark: a session.
        directory: the parent of the changelog.
    """
    with LoopThread() as loop:
        node = loop.run(Node.start(port=0, vbuckets=VBUCKETS))
        try:
            url = f"couchbase://127.0.0.1:{node.kv_port}/default"
            keys = spark.range(DOCUMENTS).selectExpr("binary(string(id)) AS key", "binary('{}') AS value")
            keys.write.format("dcp").options(url=url, operation="upsert").mode("append").save()
            changes = spark.read.format("dcp").option("url", url).load()
            changes.write.format("noop").mode("overwrite").save()
            changes.groupBy("event").count().collect()
            writer = spark.readStream.format("dcp").option("url", url).load().writeStream.format("penstock-changelog")
            writer = writer.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
            writer.option("path", f"{directory}/lake").start().awaitTermination()
        finally:
            loop.run(node.stop())


def end_java() -> None:
    """End the Java of this process, and wait until it has ended. By itself it would end after this process."""
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None


def main() -> None:
    """Make the archive, and print its path and size."""
    archive = make_class_archive()
    sys.stdout.write(f"{archive}: {archive.stat().st_size >> 20} MiB\n")


if __name__ == "__main__":
    main()
