"""Run the Python blocks of pages in one Spark session: `run_blocks.py PORT < BLOCKS`.

The program deletes everything in its working directory after each block. BLOCKS is a JSON object: names and texts of
blocks. For each block a new node with a bucket `beer` runs, and its port replaces PORT in the text. A block leaves
no running query. If it has a variable `changes`, this is a stream.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock.node import Node
from penstock.spark.runtime.spark_session import local_session


def run_block(spark: SparkSession, name: str, text: str, port: str) -> None:
    with Node.running(buckets=["beer"]) as node:
        known: dict[str, Any] = {"__name__": "__main__", "spark": spark}
        exec(compile(text.replace(port, str(node.kv_port)), name, "exec"), known)
    assert "changes" not in known or known["changes"].isStreaming, name
    assert not spark.streams.active, name


def empty_directory(directory: Path) -> None:
    """Remove the content of a directory, but not the directory, because Spark's processes work in it."""
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def main(port: str) -> None:
    spark = local_session()
    for name, text in json.load(sys.stdin).items():
        run_block(spark, name, text, port)
        empty_directory(Path.cwd())
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
