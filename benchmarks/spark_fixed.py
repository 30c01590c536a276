"""The fixed cost of Spark: a batch query over one vbucket and over all of them, after the session is up.

The node has a separate process. Each query discards its rows. The first ones, in which Java compiles and Python
imports, are shown apart.
"""

from __future__ import annotations

import statistics
import time

from benchmarks.report import Report, make_parser
from benchmarks.served import run_node
from benchmarks.spark_query import CpuTimes, read_cpu_times
from penstock.spark.runtime.spark_session import local_session


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=3_000_000)
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    report = Report("Batch queries of Spark", chosen)
    with run_node(vbuckets=chosen.vbuckets, changes=chosen.changes, value_bytes=chosen.value_bytes) as node:
        spark = local_session(2)
        for name, options in {"one vbucket": {"vbuckets": "7"}, "all vbuckets": {}}.items():
            url = f"couchbase://127.0.0.1:{node.port}"
            taken, rows = list[tuple[float, CpuTimes]](), 0
            for _ in range(chosen.rounds):
                before, begun = read_cpu_times(without=node.pid), time.perf_counter()
                changes = spark.read.format("dcp").option("url", url).options(**options).load()
                changes.write.format("noop").mode("overwrite").save()
                spent = read_cpu_times(without=node.pid).subtract(before)
                taken.append((time.perf_counter() - begun, spent))
                rows = chosen.changes if not options else rows
            for which, some in {"first": taken[:1], "later": taken[2:]}.items():
                seconds = statistics.median(each for each, _ in some)
                java, python = (statistics.median(cpu[at] for _, cpu in some) for at in (0, 1))
                each = f", {(java + python) / rows * 1e9:.0f} ns a row" if rows else ""
                report.add_row(
                    f"{name}, {which} query",
                    f"{seconds:.2f} s; CPU of Java {java:.2f} s, of Python {python:.2f} s{each}",
                )
        spark.stop()
    report.finish()


if __name__ == "__main__":
    main()
