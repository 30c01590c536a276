"""The program that test_cluster submits: `cluster_app.py EXAMPLE URL LAKE` runs the example.

It prints as JSON where each executor found the package, and how many of the example's tasks each executor began.
"""

import json
import runpy
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession


def find_package(_: Iterator[int]) -> Iterator[dict[str, Any]]:
    """Yield the path from which a task imports the package, and whether the package has its extension module."""
    import penstock
    from penstock.wire.codec import native

    yield {"place": penstock.__file__, "native": native.extension is not None}


def main(example: str, *arguments: str) -> None:
    spark = SparkSession.Builder().appName("cluster").getOrCreate()
    context: Any = spark.sparkContext
    print_result("found", context.parallelize(range(2), 2).mapPartitions(find_package).collect())
    before = count_tasks(context)
    sys.argv = [example, *arguments]
    runpy.run_path(example, run_name="__main__")
    print_result(
        "tasks", {executor: number - before.get(executor, 0) for executor, number in count_tasks(context).items()}
    )


def count_tasks(context: Any) -> dict[str, int]:
    """Return how many tasks each executor has begun; lost executors are included."""
    executors = context._jsc.sc().statusStore().executorList(False)
    found = [executors.apply(number) for number in range(executors.size())]
    return {executor.id(): executor.totalTasks() for executor in found if executor.id() != "driver"}


def print_result(name: str, value: object) -> None:
    print(name, json.dumps(value), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
