"""From SET to a visible row in the changelog, at a steady rate of changes; and the cost of an empty trigger.

Each value is the time at which it was sent. A row is visible when its commit is in the table's log. The first seconds,
in which Java compiles, are not counted. An empty trigger finds no new changes; its whole duration is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from struct import Struct
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.report import Report, make_parser
from benchmarks.served import run_node
from penstock.client.blocking import LoopThread
from penstock.client.bucket import Bucket
from penstock.client.connect.address import parse_address
from penstock.spark import Lake
from penstock.spark.runtime.spark_session import local_session

_TIME = Struct(">d")
_PART_SECONDS = 0.02
_LOOK_SECONDS = 0.005
_PATIENCE = 300.0


class ChangeWriter:
    """Sends changes at a fixed rate, in a thread, until it is stopped.

    Attributes:
        sent: number of changes sent so far.
    """

    def __init__(self, url: str, rate: int) -> None:
        self.sent = 0
        self._url = url
        self._rate = rate
        self._stop = threading.Event()

    def run(self) -> None:
        with LoopThread() as loop:
            bucket = Bucket(parse_address(self._url))
            loop.run(bucket.connect())
            began = time.monotonic()
            while not self._stop.wait(_PART_SECONDS):
                due = int((time.monotonic() - began) * self._rate)
                value = _TIME.pack(time.time())
                loop.run(bucket.upsert_many((f"key-{number}", value) for number in range(self.sent, due)))
                self.sent = due
            loop.run(bucket.close())

    def stop(self) -> None:
        self._stop.set()


def watch_table(table: Path, latencies: list[tuple[float, float]], stop: threading.Event) -> None:
    """Append the time at which each row of a table becomes visible, and the seconds since it was sent."""
    version = 0
    while not stop.wait(_LOOK_SECONDS):
        log = table / "_delta_log" / f"{version:020}.json"
        if not log.exists():
            continue
        seen = time.time()
        for line in log.read_text(encoding="utf-8").splitlines():
            if (added := json.loads(line).get("add")) is not None:
                latencies += ((seen, seen - sent) for sent in _read_times(table / added["path"]))
        version += 1


def _read_times(file: Path) -> list[float]:
    values = pc.drop_null(pq.ParquetFile(file).read(["value"])["value"])
    return [_TIME.unpack(value)[0] for value in values.to_pylist() if len(value) == _TIME.size]


def start_query(url: str, directory: Path, lake: Lake, seconds: float) -> Any:
    """Start the query. Empty triggers report their progress too."""
    spark = local_session(2)
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "0")
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")
    changes = spark.readStream.format("dcp").option("url", url).load()
    return (
        changes.writeStream.format("penstock-changelog")
        .option("path", str(lake.path))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(processingTime=f"{int(seconds * 1000)} milliseconds")
        .start()
    )


def measure_latency(report: Report, chosen: argparse.Namespace, directory: Path, url: str) -> None:
    lake, latencies, stop = Lake(directory / "lake"), list[tuple[float, float]](), threading.Event()
    writer = ChangeWriter(url, chosen.rate)
    threads = [
        threading.Thread(target=writer.run, daemon=True),
        threading.Thread(target=watch_table, args=(lake.changelog_table.path, latencies, stop), daemon=True),
    ]
    query = start_query(url, directory, lake, chosen.trigger)
    for thread in threads:
        thread.start()
    _wait_until(query, lambda: bool(latencies))
    begun = time.time() + chosen.warm_seconds
    _wait_until(query, lambda: time.time() > begun + chosen.seconds)
    writer.stop()
    threads[0].join()
    _wait_until(query, lambda: len(latencies) >= writer.sent)
    stop.set()
    threads[1].join()
    costs = list_durations(query, empty=False)[-int(chosen.seconds / chosen.trigger) :]
    before = len(list_durations(query, empty=True))
    _wait_until(query, lambda: len(list_durations(query, empty=True)) >= before + chosen.empty)
    empty = list_durations(query, empty=True)[-chosen.empty :]
    query.stop()
    taken = sorted(seconds for seen, seconds in latencies if begun <= seen < begun + chosen.seconds)
    report.add_row(
        f"{len(taken)} changes at {chosen.rate} a second, trigger {chosen.trigger:g} s",
        f"median {statistics.median(taken):.2f} s, 99 of 100 within {taken[len(taken) * 99 // 100]:.2f} s, "
        f"at most {taken[-1]:.2f} s; a batch takes {statistics.median(costs) * 1e3:.0f} ms",
    )
    report.add_row(
        "an empty trigger, median",
        f"{statistics.median(empty) * 1e3:.0f} ms, at most {max(empty) * 1e3:.0f} ms of {len(empty)}",
    )


def list_durations(query: Any, *, empty: bool) -> list[float]:
    """Return the seconds of the recent triggers, either of those with changes or of the empty ones."""
    return [
        progress.durationMs["triggerExecution"] / 1e3
        for progress in query.recentProgress
        if (progress.numInputRows == 0) == empty and "triggerExecution" in progress.durationMs
    ]


def _wait_until(query: Any, until: Any) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not until():
        if time.monotonic() > deadline or query.awaitTermination(0.1):
            raise RuntimeError(f"the query ended, or made no progress: {query.exception()}")


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--rate", type=int, default=1000, help="changes a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm-seconds", type=float, default=20.0)
    parser.add_argument("--trigger", type=float, default=1.0, help="seconds")
    parser.add_argument("--empty", type=int, default=20, help="number of empty triggers")
    parser.add_argument("--vbuckets", type=int, default=1024)
    chosen = parser.parse_args()
    report = Report("From SET to the changelog", chosen)
    with run_node(vbuckets=chosen.vbuckets) as node, tempfile.TemporaryDirectory() as directory:
        measure_latency(report, chosen, Path(directory), f"couchbase://127.0.0.1:{node.port}/default")
    report.finish()


if __name__ == "__main__":
    main()
