"""A pipeline from a bucket into changelog and tables on Delta, as `penstock pipeline run --available-now` does.

The node has a separate process. Spark runs two tasks at once. The driver merges the current table. With --where, rows
pass through Spark, which evaluates the filter; without one, the tasks that read the changes also write the files.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.orders import DDL, list_orders
from benchmarks.report import Report, make_parser
from benchmarks.served import NodeProcess, run_node
from benchmarks.spark_query import read_cpu_times
from penstock.spark import Pipeline
from penstock.spark.runtime.spark_session import local_session


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=10_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=2, help="the first one includes Java's compiler")
    parser.add_argument("--where", help="a filter in SQL on the field a")
    parser.add_argument("--no-current", action="store_true", help="no current table")
    parser.add_argument("--typed", action="store_true", help="a typed table of JSON documents of 300 B with 12 fields")
    chosen = parser.parse_args()
    report = Report("A pipeline into changelog and current", chosen)
    with (
        run_node(
            vbuckets=chosen.vbuckets,
            changes=chosen.changes,
            value_bytes=chosen.value_bytes,
            make_values=list_orders if chosen.typed else None,
        ) as node,
        tempfile.TemporaryDirectory() as directory,
    ):
        spark = local_session(2)
        for number in range(chosen.rounds):
            file = declare_pipeline(Path(directory) / str(number), node.port, chosen)
            size = node.frame_bytes // max(1, chosen.changes)
            report.add_row(
                f"round {number}, {chosen.changes} changes of {size} B on the wire",
                run(file, spark, node, chosen),
            )
        spark.stop()
    report.finish()


def declare_pipeline(directory: Path, port: int, chosen: argparse.Namespace) -> Path:
    """Write the file of a pipeline into a new directory, and return it."""
    directory.mkdir()
    where = f"where = {chosen.where!r}\nvalue_schema = 'a STRING'\n" if chosen.where else ""
    table = f"[[table]]\ncollection = '_default'\nname = 'orders'\nschema = '{DDL}'\n" if chosen.typed else ""
    file = directory / "pipeline.toml"
    file.write_text(
        f"lake = 'lake'\n[source.beer]\nurl = 'couchbase://127.0.0.1:{port}/default'\n{where}"
        f"[tables]\ncurrent = {'false' if chosen.no_current else 'true'}\n{table}",
        encoding="utf-8",
    )
    return file


def run(file: Path, spark: SparkSession, node: NodeProcess, chosen: argparse.Namespace) -> str:
    """Run a pipeline to the end of the bucket, and return its figures."""
    before, begun, own = read_cpu_times(without=node.pid), time.perf_counter(), _read_own_seconds()
    (found,) = Pipeline.from_file(str(file)).run(available_now=True, spark=spark)
    seconds, own = time.perf_counter() - begun, _read_own_seconds() - own
    spent = read_cpu_times(without=node.pid).subtract(before)
    if found.rows != chosen.changes:
        raise RuntimeError(f"the changelog has {found.rows} rows of {chosen.changes}")
    java, python, driver = (each / chosen.changes * 1e9 for each in (spent.java, spent.python, own))
    return (
        f"{chosen.changes / seconds / 1e6:.2f} M rows/s; processor time a row: Java {java:.0f} ns, "
        f"Python workers {python:.0f} ns, driver {driver:.0f} ns"
    )


def _read_own_seconds() -> float:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


if __name__ == "__main__":
    main()
