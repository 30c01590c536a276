"""Opening a bucket of millions of documents: until every vbucket can be streamed, and until all keys are loaded.

Each time is measured in a new process. "Ready to stream" means that `BucketStore.open` has returned, and that the first
frames of a snapshot of every vbucket have been read. After that, `bucket.keys.load_some` loads the keys; a command on a
vbucket loads them too. Before a clean stop the bucket is closed; otherwise the process just ends. "Warm" means that the
files are in the page cache.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.kept import (
    Changes,
    add_store_options,
    evict_files,
    fill_bucket,
    format_ratios,
    list_kinds,
    make_scratch_directory,
    open_bucket,
    run_in_process,
)
from benchmarks.report import Report, make_parser
from penstock.wire.codec.constants import MAX_SEQNO

_FIRST_BYTES = 64 * 1024


class Opened(NamedTuple):
    """Times of one opening, in seconds from its start.

    Attributes:
        opened: until the bucket is open.
        ready: until it is ready to stream.
        keys: until all keys are loaded.
        memory: anonymous memory of the process at the end, in MiB.
    """

    opened: float
    ready: float
    keys: float
    memory: int


def fill_store(kind: str, directory: Path, vbuckets: int, items: int) -> None:
    """Store documents, without closing the bucket."""
    fill_bucket(open_bucket(kind, directory, vbuckets), Changes(vbuckets=vbuckets, value_bytes=100, new=1), items)


def open_once(kind: str, directory: Path, vbuckets: int, is_clean: bool) -> Opened:
    began = time.perf_counter()
    bucket = open_bucket(kind, directory, vbuckets)
    opened = time.perf_counter() - began
    for vbucket in bucket.vbuckets:
        if not vbucket.history.open_snapshot(0, MAX_SEQNO).read(7, _FIRST_BYTES).frame_count:
            raise RuntimeError(f"nothing to stream from vbucket {vbucket.id}")
    ready = time.perf_counter() - began
    while bucket.keys.load_some():
        pass
    keys = time.perf_counter() - began
    if is_clean:
        bucket.close()
    return Opened(opened, ready, keys, _read_memory())


def _read_memory() -> int:
    """Return the anonymous memory of this process in MiB; mapped files do not count."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) // 1024
    return 0


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=5_000_000)
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    add_store_options(parser, against=[])
    chosen = parser.parse_args()
    report = Report("Opening a bucket", chosen)
    with make_scratch_directory(chosen) as directory:
        for kind in list_kinds(chosen):
            run_in_process(fill_store, kind, directory / kind, chosen.vbuckets, chosen.items)
        about = f"{chosen.items} documents of 100 B, {chosen.vbuckets} vbuckets"
        measure_openings(report, chosen, directory, f"{about}, after a stop that was not clean, warm", is_clean=False)
        for kind in list_kinds(chosen):
            run_in_process(open_once, kind, directory / kind, chosen.vbuckets, True)
        measure_openings(report, chosen, directory, f"{about}, after a clean stop, warm", is_clean=True)
        measure_openings(report, chosen, directory, f"{about}, after a clean stop, cold", is_clean=True, is_cold=True)
    report.finish()


def measure_openings(
    report: Report, chosen: argparse.Namespace, directory: Path, about: str, *, is_clean: bool, is_cold: bool = False
) -> None:
    taken: dict[str, list[Opened]] = {kind: [] for kind in list_kinds(chosen)}
    for _ in range(chosen.rounds):
        for kind, opened in taken.items():
            if is_cold:
                evict_files(directory / kind)
            opened.append(run_in_process(open_once, kind, directory / kind, chosen.vbuckets, is_clean))
    rates = {kind: 1 / median(each.ready for each in opened) for kind, opened in taken.items()}
    for kind, opened in taken.items():
        report.add_row(
            f"{about}, {kind}",
            f"open after {median(each.opened for each in opened):.3f} s, "
            f"ready to stream after {1 / rates[kind]:.3f} s (best {min(each.ready for each in opened):.3f}), "
            f"keys there after {median(each.keys for each in opened):.2f} s, "
            f"{median(each.memory for each in opened):.0f} MiB{format_ratios(rates, kind)}",
        )


if __name__ == "__main__":
    main()
