"""The store without a node: commands, memory per key, backfill, snapshots of new changes, seals.

Keys have 20 bytes, values have 100, with a fixed seed. Rates are per second of this process's CPU time. Pauses are on
the clock, because a seal delays all requests that wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from resource import getpagesize
from statistics import median

from benchmarks.report import Report, make_parser
from penstock.store.bucket_store import BucketStore
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import MAX_SEQNO

VALUE = b"v" * 100
CHUNK = 2 * 1024 * 1024
SAMPLE = 300_000
BATCH = 100_000
Command = tuple[Vbucket, bytes]


class Timing:
    """A number of operations, and the CPU seconds that they took."""

    def __init__(self) -> None:
        self.done = 0
        self.seconds = 0.0

    @contextmanager
    def time_block(self, done: int = 0) -> Iterator[None]:
        started = time.process_time()
        yield
        self.seconds += time.process_time() - started
        self.done += done

    def format_rate(self, unit: str) -> str:
        return f"{self.done / self.seconds / 1e6:.2f} M {unit}/s"


def read_resident_memory() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * getpagesize()


def time_pauses(bucket: BucketStore) -> list[float]:
    """Return a list to which the bucket appends the milliseconds of each seal and rewrite."""
    pauses: list[float] = []
    make_room = bucket.log.room.make_room

    def time_make_room(nbytes: int, *, frees: bool = False) -> None:
        started = time.perf_counter()
        make_room(nbytes, frees=frees)
        milliseconds = (time.perf_counter() - started) * 1e3
        if milliseconds > 1:  # shorter calls had nothing to do
            pauses.append(milliseconds)

    bucket.log.room.make_room = time_make_room  # type: ignore[method-assign]
    return pauses


def make_commands(bucket: BucketStore, numbers: range | list[int]) -> list[Command]:
    last = len(bucket.vbuckets) - 1
    return [(bucket.vbuckets[number * 7919 & last], b"key:%016d" % number) for number in numbers]


def measure_fill(report: Report, bucket: BucketStore, keys: int) -> None:
    before, work = read_resident_memory(), Timing()
    for first in range(0, keys, BATCH):
        batch = make_commands(bucket, range(first, min(keys, first + BATCH)))
        with work.time_block(len(batch)):
            for vbucket, key in batch:
                vbucket.set(key, VALUE)
    frames, estimate = bucket.log.segments.frame_bytes, bucket.collect_stats().index_bytes
    report.add_row("set, new keys", work.format_rate("commands"))
    report.add_row("memory beside the frames", f"{(read_resident_memory() - before - frames) / keys:.0f} B/key")
    report.add_row("the node's own statistic of it", f"{estimate / keys:.0f} B/key")


def measure_backfill(report: Report, name: str, bucket: BucketStore) -> None:
    work = Timing()
    for _ in range(3):
        for vbucket in bucket.vbuckets:
            with work.time_block():
                snapshot = vbucket.history.open_snapshot(0, MAX_SEQNO)
                while (chunk := snapshot.read(7, CHUNK)).frame_count:
                    work.done += chunk.frame_count
    report.add_row(f"backfill, {name}", work.format_rate("frames"))


def measure_gets_and_sets(report: Report, name: str, chosen: list[Command]) -> None:
    gets, sets = Timing(), Timing()
    with gets.time_block(len(chosen)):
        for vbucket, key in chosen:
            vbucket.get(key)
    with sets.time_block(len(chosen)):
        for vbucket, key in chosen:
            vbucket.set(key, VALUE)
    report.add_row(f"get, {name}", gets.format_rate("commands"))
    report.add_row(f"overwrite, {name}", sets.format_rate("commands"))


def measure_snapshots(report: Report, vbucket: Vbucket) -> None:
    work = Timing()
    with work.time_block(SAMPLE):
        for _ in range(SAMPLE):
            vbucket.history.open_snapshot(vbucket.changes.high_seqno - 1, MAX_SEQNO).read(7, CHUNK, CHUNK)
    report.add_row("snapshot of one change, opened and read", f"{work.seconds / work.done * 1e6:.2f} us")


def add_pause_row(report: Report, name: str, pauses: list[float]) -> None:
    if pauses:
        report.add_row(name, f"{median(pauses):.1f} ms median of {len(pauses)}, longest {max(pauses):.1f} ms")
    pauses.clear()


def main() -> None:
    parser = make_parser("What does the store do without a network?")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--vbuckets", type=int, default=1024)
    chosen = parser.parse_args()
    report = Report("What does the store do without a network?", chosen)
    bucket = BucketStore("bench", vbuckets=chosen.vbuckets, clock=time.time_ns, new_vbuuid=lambda: 1)
    pauses = time_pauses(bucket)
    random = Random(1)
    measure_fill(report, bucket, chosen.keys)
    add_pause_row(report, "a seal, in memory never used before", pauses)
    measure_backfill(report, "nothing superseded", bucket)
    measure_gets_and_sets(report, "10 k keys", make_commands(bucket, range(10_000)) * (SAMPLE // 10_000))
    measure_gets_and_sets(
        report, "any key", make_commands(bucket, [random.randrange(chosen.keys) for _ in range(SAMPLE)])
    )
    add_pause_row(report, "a seal or rewrite", pauses)
    stats = bucket.collect_stats()
    measure_backfill(report, f"{stats.dead_bytes / (stats.live_bytes + stats.dead_bytes):.0%} superseded", bucket)
    measure_snapshots(report, bucket.vbuckets[0])
    report.finish()


if __name__ == "__main__":
    main()
