"""Archive the classes that Spark loads, so that each Java of the tests starts in two thirds of the time.

.venv/bin/python tools/archive_classes.py .venv/spark.jsa

Java 17 writes the archive as it ends, and reads it only with the same jars. Another Java ignores it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from penstock import Node
from penstock.spark import Pipeline
from penstock.spark.runtime.class_archive import end_java
from penstock.spark.runtime.spark_session import local_session


def main(archive: Path) -> None:
    """Run a pipeline, which loads the classes of most sessions."""
    made = archive.with_suffix(".new")
    options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit={made} -Xlog:disable"
    os.environ["SPARK_SUBMIT_OPTS"] = options
    spark = local_session(1)
    with tempfile.TemporaryDirectory() as lake, Node.running(buckets=["beer"], vbuckets=4) as node:
        Pipeline.of_bucket(lake, node.url("beer")).run(available_now=True, spark=spark)
    spark.range(10).groupBy("id").count().collect()
    spark.stop()
    end_java()
    made.replace(archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
