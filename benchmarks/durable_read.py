"""Backfills from disk, without a node: `vbucket.snapshot(0, …)` read to its end, of every vbucket.

Warm is what the page cache holds; rates are of CPU time, the stores in turns. Cold is not in the page cache: ours
alone, on the clock, against plain reads of a file as large as all of ours.
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from mmap import MADV_DONTNEED, mmap
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.kept import (
    OURS,
    Changes,
    add_options,
    against,
    apart,
    disk_bytes,
    evict,
    fill,
    kinds,
    open_bucket,
    read_all,
    scratch,
)
from benchmarks.report import Report, interleaved, options
from penstock.store.bucket import Bucket

PLAIN_READ = 4 * 1024 * 1024


def main() -> None:
    parser = options(__doc__.partition("\n")[0])
    parser.add_argument(
        "--changes", type=int, default=1_000_000, help="of 100 B in one vbucket; of 1 KB a third; 0: none"
    )
    parser.add_argument("--many-changes", type=int, default=3_000_000, help="in many vbuckets; 0: none")
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold-changes", type=int, default=3_000_000, help="0: nothing cold")
    parser.add_argument("--cold-rounds", type=int, default=3)
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
            bucket.compact()
        rows(report, f"{about}, compacted", buckets, chosen.rounds)
        for bucket in buckets.values():
            bucket.close()


def rows(report: Report, about: str, buckets: dict[str, Bucket], rounds: int) -> None:
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
    """Read everything in a process that has just opened it, and a plain file, while nothing of them is in the cache."""
    with scratch(chosen) as directory:
        ours, plain = directory / "ours", directory / "plain"
        apart(_make_compacted, ours, chosen.vbuckets, chosen.cold_changes)
        plain.mkdir()
        _write_plain(plain / "file", disk_bytes(ours))
        taken: list[Cold] = []
        plain_taken: list[float] = []
        for _ in range(chosen.cold_rounds):
            taken.append(apart(_read_cold, ours, chosen.vbuckets))
            evict(plain)
            plain_taken.append(_read_plain(plain / "file"))
        rate, plain_rate = median(each.rate for each in taken), median(plain_taken)
        report.row(
            f"{chosen.vbuckets} vbuckets, {chosen.cold_changes} changes of 100 B, compacted, cold, {OURS}",
            f"{rate:.0f} MB/s (best {max(each.rate for each in taken):.0f}), {taken[0].frames} items, "
            f"{rate / plain_rate:.2f}x plain reads; {max(each.cached for each in taken):.0%} were in the cache",
        )
        report.row(
            f"plain reads of {PLAIN_READ >> 20} MiB from a file as large, cold",
            f"{plain_rate:.0f} MB/s (best {max(plain_taken):.0f})",
        )


def _make_compacted(directory: Path, vbuckets: int, changes: int) -> None:
    bucket = open_bucket(OURS, directory, vbuckets)
    fill(bucket, Changes(vbuckets=vbuckets, value_bytes=100), changes)
    bucket.compact()
    bucket.close()


class Cold(NamedTuple):
    """rate: MB/s. cached: the share of it that was in the page cache before."""

    frames: int
    rate: float
    cached: float


def _read_cold(directory: Path, vbuckets: int) -> Cold:
    """Opening reads everything to check it; so what is mapped has to be let go of before it can be evicted."""
    bucket = open_bucket(OURS, directory, vbuckets)
    for segment in bucket.log.sealed:
        if isinstance(segment.buffer.obj, mmap):
            segment.buffer.obj.madvise(MADV_DONTNEED)
    cached = evict(directory)
    began = time.perf_counter()
    volume = read_all(bucket)
    seconds = time.perf_counter() - began
    bucket.close()
    return Cold(volume.frames, volume.nbytes / seconds / 1e6, cached)


def _write_plain(file: Path, nbytes: int) -> None:
    piece = os.urandom(PLAIN_READ)
    with file.open("wb") as opened:
        for _ in range(0, nbytes, len(piece)):
            opened.write(piece)


def _read_plain(file: Path) -> float:
    """Return MB/s."""
    room, done = bytearray(PLAIN_READ), 0
    began = time.perf_counter()
    with file.open("rb", buffering=0) as opened:
        while nbytes := opened.readinto(room):
            done += nbytes
    return done / (time.perf_counter() - began) / 1e6


if __name__ == "__main__":
    main()
