"""A batch query by number of executors, each with a bounded share of a processor.

Spark's master and workers run in the driver's Java, each executor has a process of its own with one task at a time. A
control group bounds the processor time of an executor together with the Python processes that it starts. So executors
that are added bring processor time, as further machines would. The node and the driver are not bounded. This needs
Linux and the right to make control groups.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.kept import run_in_process
from benchmarks.report import Report, make_parser
from benchmarks.served import run_node
from benchmarks.spark_query import CpuTimes, read_cpu_times

_GROUPS = Path("/sys/fs/cgroup")
_PERIOD = 100_000
"""Microseconds in which an executor may use its share."""
_EXECUTOR = b"CoarseGrainedExecutorBackend"
_MARK = "MEASURED_BY"
"""An environment variable with the process id of the driver."""
_MEMORY = 1024
"""Megabytes of an executor."""
_WARM_ROUNDS = 3
"""Reads that are not counted: in them Java compiles, and Python imports."""


@contextmanager
def bound_processes(name: str, pid: int, share: float) -> Iterator[None]:
    """Bound a process, and those that it starts, to a share of a processor.

    Args:
        name: name of a new control group.
        pid: the process.
        share: the share, 1 for a whole processor.
    """
    old, new = _GROUPS / "cpu" / name, _GROUPS / name
    group = old if (_GROUPS / "cpu").is_dir() else new
    group.mkdir()
    try:
        if group is old:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(int(_PERIOD * share)))
        else:
            (group / "cpu.max").write_text(f"{int(_PERIOD * share)} {_PERIOD}")
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for each in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):  # it has ended meanwhile
                (group.parent / "cgroup.procs").write_text(each)
        group.rmdir()


@contextmanager
def bound_all(pids: list[int], share: float) -> Iterator[None]:
    """Bound each of several processes as `bound_processes` does."""
    with ExitStack() as stack:
        for pid in pids:
            stack.enter_context(bound_processes(f"executor-{pid}", pid, share))
        yield


def find_executors() -> list[int]:
    """Return the process ids of this process's executors."""
    found, mark = [], f"\0{_MARK}={os.getpid()}\0".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended meanwhile
            is_ours = mark in (entry / "environ").read_bytes()
            if is_ours and _EXECUTOR in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return sorted(found)


def read_bucket(url: str, executors: int, share: float, rounds: int) -> list[tuple[float, CpuTimes]]:
    """Return the seconds and the CPU times of reads of a bucket.

    Args:
        url: the bucket.
        executors: number of executors.
        share: the share of a processor of each executor.
        rounds: number of counted reads.
    """
    from penstock.spark.runtime.spark_session import cluster_session

    os.environ[_MARK] = str(os.getpid())
    spark = cluster_session(f"local-cluster[{executors},1,{_MEMORY}]")
    context: Any = spark.sparkContext
    context.parallelize(range(executors * 4), executors * 4).map(lambda each: time.sleep(0.2)).count()
    pids = find_executors()
    if len(pids) != executors:
        raise RuntimeError(f"{len(pids)} executors run, expected {executors}")
    taken = []
    for at in range(_WARM_ROUNDS + rounds):
        with bound_all(pids, share if at >= _WARM_ROUNDS else 1.0):
            before, begun = read_cpu_times(), time.perf_counter()
            changes = spark.read.format("dcp").option("url", url).option("minPartitions", 4).load()
            changes.write.format("noop").mode("overwrite").save()
            taken.append((time.perf_counter() - begun, read_cpu_times().subtract(before)))
    spark.stop()
    return taken[_WARM_ROUNDS:]


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=10_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--executors", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--share", type=float, default=0.35, help="of a processor, for each executor")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    report = Report("A batch query by number of executors", chosen)
    first = 0.0
    with run_node(vbuckets=chosen.vbuckets, changes=chosen.changes, value_bytes=chosen.value_bytes) as node:
        for executors in chosen.executors:
            url = f"couchbase://127.0.0.1:{node.port}"
            taken = run_in_process(read_bucket, url, executors, chosen.share, chosen.rounds)
            seconds = statistics.median(each for each, _ in taken)
            cpu = statistics.median(sum(spent) for _, spent in taken)
            first = first or seconds
            speed = f"{chosen.changes / seconds / 1e6:.2f} M rows/s, {first / seconds:.2f} times the first"
            report.add_row(
                f"{executors} executors with {chosen.share:g} of a processor each",
                f"{seconds:.1f} s, {speed}; {cpu / chosen.changes * 1e9:.0f} ns of processors a row",
            )
    report.finish()


if __name__ == "__main__":
    main()
