"""What test_cluster submits: `cluster_app.py EXAMPLE URL LAKE` runs the example.

Prints as JSON where each executor found the package, and how many of the example's tasks each of them began.
"""

import json
import runpy
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession


def what_is_there(_: Iterator[int]) -> Iterator[dict[str, Any]]:
    """Return where a task has the package from, and whether it has the extension module."""
    import penstock
    from penstock.wire.codec import native

    yield {"place": penstock.__file__, "native": native.extension is not None}


def main(example: str, *arguments: str) -> None:
    spark = SparkSession.Builder().appName("cluster").getOrCreate()
    context: Any = spark.sparkContext
    tell("found", context.parallelize(range(2), 2).mapPartitions(what_is_there).collect())
    before = tasks(context)
    sys.argv = [example, *arguments]
    runpy.run_path(example, run_name="__main__")
    tell("tasks", {executor: number - before.get(executor, 0) for executor, number in tasks(context).items()})


def tasks(context: Any) -> dict[str, int]:
    """Return how many tasks each executor has begun, those that were lost included."""
    executors = context._jsc.sc().statusStore().executorList(False)
    found = [executors.apply(number) for number in range(executors.size())]
    return {executor.id(): executor.totalTasks() for executor in found if executor.id() != "driver"}


def tell(name: str, what: object) -> None:
    print(name, json.dumps(what), flush=True)  # noqa: T201 - read by the test


if __name__ == "__main__":
    main(*sys.argv[1:])
