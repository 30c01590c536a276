"""Backfills from disk, without a node: `vbucket.history.open_snapshot(0, …)` read to its end, of every vbucket.

Warm reads find the files in the page cache. Their rates are per second of CPU time, with the stores in turns. Cold
reads are of Penstock's store alone, on the clock, in turns with plain reads of the same files. `--ahead` adds a reader
with a thread that reads the files into the page cache ahead of it.
"""

from __future__ import annotations

import argparse
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from mmap import MADV_DONTNEED, mmap
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.kept import (
    OURS,
    Changes,
    add_store_options,
    evict_files,
    fill_bucket,
    format_ratios,
    list_kinds,
    make_scratch_directory,
    open_bucket,
    read_all_changes,
    run_in_process,
)
from benchmarks.report import Report, make_parser, time_in_turns
from penstock.store.bucket_store import BucketStore

MIB = 1024 * 1024
PLAIN_READ = 4 * MIB

_PLAIN = "plain reads of the same files"


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument(
        "--changes", type=int, default=1_000_000, help="of 100 B in one vbucket; of 1 KB a third; 0: none"
    )
    parser.add_argument("--many-changes", type=int, default=3_000_000, help="in many vbuckets; 0: none")
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold-changes", type=int, default=3_000_000, help="0: nothing cold")
    parser.add_argument("--cold-rounds", type=int, default=9)
    parser.add_argument("--ahead", type=int, nargs="*", default=[], help="MiB of each file that a thread reads ahead")
    add_store_options(parser)
    chosen = parser.parse_args()
    report = Report("Backfills from disk, against stores that keep rows", chosen)
    if chosen.changes:
        measure_warm(report, chosen, "one vbucket", changes=chosen.changes, vbuckets=1, value_bytes=100)
        measure_warm(report, chosen, "one vbucket", changes=chosen.changes // 3, vbuckets=1, value_bytes=1024)
    if chosen.many_changes:
        many = f"{chosen.vbuckets} vbuckets"
        measure_warm(report, chosen, many, changes=chosen.many_changes, vbuckets=chosen.vbuckets, value_bytes=100)
    if chosen.cold_changes:
        measure_cold(report, chosen)
    report.finish()


def measure_warm(
    report: Report, chosen: argparse.Namespace, name: str, *, changes: int, vbuckets: int, value_bytes: int
) -> None:
    about = f"{name}, {changes} changes of {value_bytes} B"
    with make_scratch_directory(chosen) as directory:
        for kind in list_kinds(chosen):
            bucket = open_bucket(kind, directory / kind, vbuckets)
            fill_bucket(bucket, Changes(vbuckets=vbuckets, value_bytes=value_bytes), changes)
            bucket.close()
        buckets = {kind: open_bucket(kind, directory / kind, vbuckets) for kind in list_kinds(chosen)}
        add_rows(report, f"{about}, as written", buckets, chosen.rounds)
        for bucket in buckets.values():
            bucket.compactor.rewrite_all()
        add_rows(report, f"{about}, compacted", buckets, chosen.rounds)
        for bucket in buckets.values():
            bucket.close()


def add_rows(report: Report, about: str, buckets: dict[str, BucketStore], rounds: int) -> None:
    volumes = {kind: read_all_changes(bucket) for kind, bucket in buckets.items()}
    if len({volume.frames for volume in volumes.values()}) > 1:
        raise RuntimeError(f"the stores have different volumes: {volumes}")
    times = time_in_turns({kind: partial(read_all_changes, bucket) for kind, bucket in buckets.items()}, rounds)
    rates = {kind: volumes[kind].frames / each.median for kind, each in times.items()}
    for kind, each in times.items():
        report.add_row(
            f"{about}, {kind}",
            f"{rates[kind] / 1e6:.2f} M items/s (best {volumes[kind].frames / each.best / 1e6:.2f}), "
            f"{volumes[kind].nbytes / each.median / 1e6:.0f} MB/s{format_ratios(rates, kind)}",
        )


def measure_cold(report: Report, chosen: argparse.Namespace) -> None:
    """Measure reads of all changes in a new process, and plain reads of the files, each time from the disk."""
    with make_scratch_directory(chosen) as directory:
        ours = directory / "ours"
        run_in_process(_make_compacted, ours, chosen.vbuckets, chosen.cold_changes)
        taken: dict[str, list[ColdRead]] = {}
        for _ in range(chosen.cold_rounds):
            taken.setdefault(_PLAIN, []).append(run_in_process(_read_plainly, ours))
            for ahead in (0, *chosen.ahead):
                name = f"{OURS}, {ahead} MiB read ahead" if ahead else OURS
                taken.setdefault(name, []).append(run_in_process(_read_cold, ours, chosen.vbuckets, ahead * MIB))
        about = f"{chosen.vbuckets} vbuckets, {chosen.cold_changes} changes of 100 B, compacted, cold"
        for name, each in taken.items():
            report.add_row(f"{about}, {name}", _describe_reads(each, taken[_PLAIN]))


def _make_compacted(directory: Path, vbuckets: int, changes: int) -> None:
    bucket = open_bucket(OURS, directory, vbuckets)
    fill_bucket(bucket, Changes(vbuckets=vbuckets, value_bytes=100), changes)
    bucket.compactor.rewrite_all()
    bucket.close()


class ColdRead(NamedTuple):
    """One read of all segments from the disk.

    Attributes:
        nbytes: number of bytes.
        seconds: seconds on the clock.
        user: CPU seconds of the process.
        system: CPU seconds of the kernel for the process.
        waits: page faults that waited for the disk.
        cached: share of the files that was in the page cache before, from 0 to 1.
    """

    nbytes: int
    seconds: float
    user: float
    system: float
    waits: int
    cached: float


def _describe_reads(taken: list[ColdRead], plain: list[ColdRead]) -> str:
    """Return the figures of reads as text, with their ratio to the plain read of the same round."""
    middle = sorted(taken, key=attrgetter("seconds"))[len(taken) // 2]
    ratios = [theirs.seconds / own.seconds for own, theirs in zip(taken, plain, strict=True)]
    best = min(each.seconds for each in taken)
    return (
        f"{middle.nbytes / middle.seconds / 1e6:.0f} MB/s (best {middle.nbytes / best / 1e6:.0f}), "
        f"{median(ratios):.2f}x plain reads (best against best {min(each.seconds for each in plain) / best:.2f}x); "
        f"{middle.seconds * 1e3:.0f} ms, of which CPU {middle.user * 1e3:.0f} and kernel {middle.system * 1e3:.0f}; "
        f"{middle.waits} faults waited; {max(each.cached for each in taken):.0%} were in the cache"
    )


@contextmanager
def _time_read(taken: list[ColdRead], nbytes: int, cached: float) -> Iterator[None]:
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    yield
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    taken.append(ColdRead(nbytes, seconds, user, system, after.ru_majflt - before.ru_majflt, cached))


def _read_cold(directory: Path, vbuckets: int, ahead: int) -> ColdRead:
    """Return a cold read of all changes.

    Opening a bucket reads all segments to check them. So their mapped pages must be released before the eviction.
    """
    bucket = open_bucket(OURS, directory, vbuckets)
    for segment in bucket.log.segments.sealed:
        if isinstance(segment.buffer.obj, mmap):
            segment.buffer.obj.madvise(MADV_DONTNEED)
    taken: list[ColdRead] = []
    files = _list_segments(directory)
    with _time_read(taken, sum(file.stat().st_size for file in files), evict_files(directory)):
        if ahead:
            threading.Thread(target=_read_ahead, args=(files, ahead), daemon=True).start()
        read_all_changes(bucket)
    bucket.close()
    return taken[0]


def _read_plainly(directory: Path) -> ColdRead:
    """Return a plain read of all segments, one after the other."""
    room, taken, files = bytearray(PLAIN_READ), list[ColdRead](), _list_segments(directory)
    with _time_read(taken, sum(file.stat().st_size for file in files), evict_files(directory)):
        for file in files:
            with file.open("rb", buffering=0) as opened:
                while opened.readinto(room):
                    pass
    return taken[0]


def _read_ahead(files: list[Path], nbytes: int) -> None:
    """Read files into the page cache, `nbytes` of each in turn, because a backfill reads all files concurrently."""
    room = bytearray(nbytes)
    opened = [file.open("rb", buffering=0) for file in files]
    while sum(file.readinto(room) or 0 for file in opened):
        pass


def _list_segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("segment-*"))


if __name__ == "__main__":
    main()
