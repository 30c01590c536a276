"""The common parts of the Spark benchmarks: streaming queries in a separate process, and their CPU times."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.kept import run_in_process
from penstock.wire.codec import native

WAYS = {"native": "1", "Python": "0"}
"""Name -> value of PENSTOCK_NATIVE."""

_POLL_SECONDS = 0.02

Options = Mapping[str, object]


class CpuTimes(NamedTuple):
    """CPU seconds of a query's processes.

    Attributes:
        java: of Java.
        python: of all Python processes that Java has started.
    """

    java: float = 0.0
    python: float = 0.0

    def subtract(self, before: CpuTimes) -> CpuTimes:
        return CpuTimes(self.java - before.java, self.python - before.python)


class MicroBatch(NamedTuple):
    """One micro-batch.

    Attributes:
        rows: number of rows.
        seconds: its whole duration, including planning and logs.
    """

    rows: int
    seconds: float


class QueryResult(NamedTuple):
    """The result of a query.

    Attributes:
        batches: its batches without the empty ones. The first batch includes work that is done once.
        spent: CPU times after the first batch.
    """

    batches: list[MicroBatch]
    spent: CpuTimes

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.batches)

    @property
    def later_rows(self) -> int:
        return sum(batch.rows for batch in self.batches[1:])

    @property
    def rate(self) -> float:
        """Rows per second, without the first batch."""
        return self.later_rows / sum(batch.seconds for batch in self.batches[1:])


def run_queries(
    asked: Sequence[Options], *, way: str | None = None, processors: int = 2, tables: Path | None = None
) -> list[QueryResult]:
    """Read buckets to their end, one query after the other, in a new process with its own Java.

    Args:
        asked: for each query, the options of `format("dcp")`.
        way: one of WAYS; None: keep the environment.
        processors: number of concurrent tasks.
        tables: parent directory of the changelogs that the queries write; None: the rows are discarded.

    Returns:
        The result of each query.

    Raises:
        RuntimeError: `way` needs the extension module, which is not built.
    """
    with nullcontext() if way is None else _set_way(way):
        reads, is_native = run_in_process(_run_queries, [dict(each) for each in asked], processors, tables)
    if way is not None and is_native != (way == "native"):
        raise RuntimeError("the extension module is not built: `make install` where there is a C compiler")
    return reads


@contextmanager
def _set_way(way: str) -> Iterator[None]:
    """Set PENSTOCK_NATIVE for processes that start in the block, and for their children."""
    before = os.environ.get("PENSTOCK_NATIVE")
    os.environ["PENSTOCK_NATIVE"] = WAYS[way]
    try:
        yield
    finally:
        del os.environ["PENSTOCK_NATIVE"]
        if before is not None:
            os.environ["PENSTOCK_NATIVE"] = before


def _run_queries(
    asked: list[dict[str, object]], processors: int, tables: Path | None
) -> tuple[list[QueryResult], bool]:
    from penstock.spark.runtime.spark_session import local_session

    spark = local_session(processors)
    reads = [_run_query(spark, each, None if tables is None else tables / str(at)) for at, each in enumerate(asked)]
    spark.stop()
    return reads, native.extension is not None


def _run_query(spark: Any, options: dict[str, object], lake: Path | None) -> QueryResult:
    reader = spark.readStream.format("dcp")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = reader.load().writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        if lake is None:
            query = writer.format("noop").start()
        else:
            query = writer.format("penstock-changelog").option("path", str(lake)).start()
        while not query.awaitTermination(_POLL_SECONDS) and query.lastProgress is None:
            continue
        begun = read_cpu_times()
        query.awaitTermination()
        spent = read_cpu_times().subtract(begun)
    done = [progress for progress in query.recentProgress if progress.numInputRows]
    return QueryResult(
        [MicroBatch(each.numInputRows, each.durationMs["triggerExecution"] / 1e3) for each in done], spent
    )


def read_cpu_times(*, without: int = 0) -> CpuTimes:
    """Return the CPU times of all descendants of this process so far.

    Args:
        without: a process that is not counted: the node, if this process has started it.
    """
    ticks = os.sysconf("SC_CLK_TCK")
    parents, names, spent, ended = dict[int, int](), dict[int, str](), dict[int, float](), dict[int, float]()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            name, _, rest = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
        except OSError:
            continue  # the process has ended meanwhile
        fields, pid = rest.split(), int(entry.name)
        parents[pid], names[pid] = int(fields[1]), name.partition("(")[2]
        spent[pid], ended[pid] = (sum(map(int, fields[at : at + 2])) / ticks for at in (11, 13))
    found = {"java": 0.0, "python": 0.0}
    for pid in parents:
        above = parents[pid]
        while above not in (0, os.getpid()):
            above = parents.get(above, 0)
        if above and pid != without:
            found["java" if names[pid] == "java" else "python"] += spent[pid]
            found["python"] += ended[pid]  # its ended children, which are Python processes, also those of Java
    return CpuTimes(**found)
