"""Backfills from disk, without a node: `vbucket.history.open_snapshot(0, …)` read to its end, of every vbucket.

Warm is what the page cache holds; rates are of CPU time, the stores in turns. Cold is not in the page cache: ours
alone, on the clock, in turns with plain reads of the same files. `--ahead` adds a reader for which a thread reads the
files into the page cache ahead of it.
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
    add_options,
    against,
    apart,
    evict,
    fill,
    kinds,
    open_bucket,
    read_all,
    scratch,
)
from benchmarks.report import Report, interleaved, options
from penstock.store.bucket_store import BucketStore

MIB = 1024 * 1024
PLAIN_READ = 4 * MIB

_PLAIN = "plain reads of the same files"


def main() -> None:
    parser = options(__doc__.partition("\n")[0])
    parser.add_argument(
        "--changes", type=int, default=1_000_000, help="of 100 B in one vbucket; of 1 KB a third; 0: none"
    )
    parser.add_argument("--many-changes", type=int, default=3_000_000, help="in many vbuckets; 0: none")
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold-changes", type=int, default=3_000_000, help="0: nothing cold")
    parser.add_argument("--cold-rounds", type=int, default=9)
    parser.add_argument("--ahead", type=int, nargs="*", default=[], help="MiB of each file that a thread reads ahead")
    add_options(parser)
    chosen = parser.parse_args()
    report = Report("Backfills from disk, against stores that keep rows", chosen)
    if chosen.changes:
        warm(report, chosen, "one vbucket", changes=chosen.changes, vbuckets=1, value_bytes=100)
        warm(report, chosen, "one vbucket", changes=chosen.changes // 3, vbuckets=1, value_bytes=1024)
    if chosen.many_changes:
        many = f"{chosen.vbuckets} vbuckets"
        warm(report, chosen, many, changes=chosen.many_changes, vbuckets=chosen.vbuckets, value_bytes=100)
    if chosen.cold_changes:
        cold(report, chosen)
    report.finish()


def warm(
    report: Report, chosen: argparse.Namespace, name: str, *, changes: int, vbuckets: int, value_bytes: int
) -> None:
    about = f"{name}, {changes} changes of {value_bytes} B"
    with scratch(chosen) as directory:
        for kind in kinds(chosen):
            bucket = open_bucket(kind, directory / kind, vbuckets)
            fill(bucket, Changes(vbuckets=vbuckets, value_bytes=value_bytes), changes)
            bucket.close()
        buckets = {kind: open_bucket(kind, directory / kind, vbuckets) for kind in kinds(chosen)}
        rows(report, f"{about}, as written", buckets, chosen.rounds)
        for bucket in buckets.values():
            bucket.compactor.rewrite_all()
        rows(report, f"{about}, compacted", buckets, chosen.rounds)
        for bucket in buckets.values():
            bucket.close()


def rows(report: Report, about: str, buckets: dict[str, BucketStore], rounds: int) -> None:
    volumes = {kind: read_all(bucket) for kind, bucket in buckets.items()}
    if len({volume.frames for volume in volumes.values()}) > 1:
        raise RuntimeError(f"not the same is there to read: {volumes}")
    times = interleaved({kind: partial(read_all, bucket) for kind, bucket in buckets.items()}, rounds)
    rates = {kind: volumes[kind].frames / each.median for kind, each in times.items()}
    for kind, each in times.items():
        report.row(
            f"{about}, {kind}",
            f"{rates[kind] / 1e6:.2f} M items/s (best {volumes[kind].frames / each.best / 1e6:.2f}), "
            f"{volumes[kind].nbytes / each.median / 1e6:.0f} MB/s{against(rates, kind)}",
        )


def cold(report: Report, chosen: argparse.Namespace) -> None:
    """Read everything in a process that has just opened it, and its files plainly, each time from the disk."""
    with scratch(chosen) as directory:
        ours = directory / "ours"
        apart(_make_compacted, ours, chosen.vbuckets, chosen.cold_changes)
        taken: dict[str, list[Cold]] = {}
        for _ in range(chosen.cold_rounds):
            taken.setdefault(_PLAIN, []).append(apart(_read_plainly, ours))
            for ahead in (0, *chosen.ahead):
                name = f"{OURS}, {ahead} MiB read ahead" if ahead else OURS
                taken.setdefault(name, []).append(apart(_read_cold, ours, chosen.vbuckets, ahead * MIB))
        about = f"{chosen.vbuckets} vbuckets, {chosen.cold_changes} changes of 100 B, compacted, cold"
        for name, each in taken.items():
            report.row(f"{about}, {name}", _describe(each, taken[_PLAIN]))


def _make_compacted(directory: Path, vbuckets: int, changes: int) -> None:
    bucket = open_bucket(OURS, directory, vbuckets)
    fill(bucket, Changes(vbuckets=vbuckets, value_bytes=100), changes)
    bucket.compactor.rewrite_all()
    bucket.close()


class Cold(NamedTuple):
    """What a read of all segments from the disk took.

    Attributes:
        nbytes: bytes that were read.
        seconds: on the clock.
        user: CPU seconds of the process.
        system: CPU seconds of the kernel for the process.
        waits: page faults that waited for the disk.
        cached: share of the files that was in the page cache before.
    """

    nbytes: int
    seconds: float
    user: float
    system: float
    waits: int
    cached: float


def _describe(taken: list[Cold], plain: list[Cold]) -> str:
    """Return what reads took, and how fast they were against the plain read of the same round."""
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
def _timed(taken: list[Cold], nbytes: int, cached: float) -> Iterator[None]:
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    yield
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    taken.append(Cold(nbytes, seconds, user, system, after.ru_majflt - before.ru_majflt, cached))


def _read_cold(directory: Path, vbuckets: int, ahead: int) -> Cold:
    """Opening reads everything to check it; so what is mapped has to be let go of before it can be evicted."""
    bucket = open_bucket(OURS, directory, vbuckets)
    for segment in bucket.log.segments.sealed:
        if isinstance(segment.buffer.obj, mmap):
            segment.buffer.obj.madvise(MADV_DONTNEED)
    taken: list[Cold] = []
    files = _segments(directory)
    with _timed(taken, sum(file.stat().st_size for file in files), evict(directory)):
        if ahead:
            threading.Thread(target=_read_ahead, args=(files, ahead), daemon=True).start()
        read_all(bucket)
    bucket.close()
    return taken[0]


def _read_plainly(directory: Path) -> Cold:
    """Read all segments from the first byte to the last, one after the other."""
    room, taken, files = bytearray(PLAIN_READ), list[Cold](), _segments(directory)
    with _timed(taken, sum(file.stat().st_size for file in files), evict(directory)):
        for file in files:
            with file.open("rb", buffering=0) as opened:
                while opened.readinto(room):
                    pass
    return taken[0]


def _read_ahead(files: list[Path], nbytes: int) -> None:
    """Read files into the page cache, so many bytes of each in turn: a backfill reads them side by side."""
    room = bytearray(nbytes)
    opened = [file.open("rb", buffering=0) for file in files]
    while sum(file.readinto(room) or 0 for file in opened):
        pass


def _segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("segment-*"))


if __name__ == "__main__":
    main()
