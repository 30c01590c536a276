"""Writing, backfilling and opening at one, two, four and eight million changes, as figures and as a plot.

Each store grows from one size to the next. The rate of writing is that of the changes between two sizes, on the clock,
with a sync for every thousand changes. Then the store is closed, and is opened in a new process until every vbucket can
be streamed. Last, all its changes are read from the page cache.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.durable_open import open_once
from benchmarks.kept import (
    Changes,
    add_store_options,
    count_disk_bytes,
    fill_bucket,
    list_kinds,
    make_scratch_directory,
    open_bucket,
    read_all_changes,
    run_in_process,
)
from benchmarks.report import RESULTS, Report, make_parser

PLOT = RESULTS.with_name("durable_scaling.svg")


class Size(NamedTuple):
    """The figures of a store at one size.

    Attributes:
        write: changes written per second.
        read: items read per CPU second.
        ready: seconds until ready to stream.
        nbytes: bytes on disk.
    """

    write: float
    read: float
    ready: float
    nbytes: int


def grow_store(kind: str, directory: Path, vbuckets: int, sizes: list[int], number: int) -> float:
    """Return the rate of writing the changes between the previous size and this one."""
    changes = Changes(vbuckets=vbuckets, value_bytes=100)
    before = sizes[number - 1] if number else 0
    for _ in changes.take(before):
        pass
    bucket = open_bucket(kind, directory, vbuckets)
    while bucket.keys.load_some():
        pass
    seconds = fill_bucket(bucket, changes, sizes[number] - before).wall
    bucket.close()
    return (sizes[number] - before) / seconds


def measure_read_rate(kind: str, directory: Path, vbuckets: int, rounds: int) -> float:
    """Return the items read per CPU second."""
    bucket = open_bucket(kind, directory, vbuckets)
    read_all_changes(bucket)
    rates = []
    for _ in range(rounds):
        began = time.process_time()
        frames = read_all_changes(bucket).frames
        rates.append(frames / (time.process_time() - began))
    bucket.close()
    return median(rates)


def measure_size(chosen: argparse.Namespace, kind: str, directory: Path, number: int) -> Size:
    write = run_in_process(grow_store, kind, directory, chosen.vbuckets, chosen.changes, number)
    opened = [run_in_process(open_once, kind, directory, chosen.vbuckets, True).ready for _ in range(chosen.rounds)]
    rate = run_in_process(measure_read_rate, kind, directory, chosen.vbuckets, chosen.rounds)
    return Size(write, rate, median(opened), count_disk_bytes(directory))


def draw_plot(path: Path, sizes: list[int], measured: dict[str, list[Size]]) -> None:
    """Draw three plots side by side, with a line for each store."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": path.name, "font.size": 9}
    panels = (
        ("written, thousand changes a second", lambda size: size.write / 1e3),
        ("backfill, million items a second", lambda size: size.read / 1e6),
        ("opened until ready to stream, seconds", lambda size: size.ready),
    )
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    for axes, (title, of) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for kind, line in measured.items():
            axes.plot([size / 1e6 for size in sizes], [of(size) for size in line], marker="o", label=kind)
        axes.set_title(title)
        axes.set_xlabel("million changes")
        axes.set_xscale("log", base=2)
        axes.set_xticks([size / 1e6 for size in sizes], [f"{size / 1e6:g}" for size in sizes])
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.axes[0].legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, nargs="*", default=[1_000_000, 2_000_000, 4_000_000, 8_000_000])
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of opening and reading")
    parser.add_argument("--plot", type=Path, help=f"file of the plot; with --record the default is {PLOT.name}")
    add_store_options(parser)
    chosen = parser.parse_args()
    report = Report("Durable buckets as they grow", chosen)
    measured: dict[str, list[Size]] = {kind: [] for kind in list_kinds(chosen)}
    with make_scratch_directory(chosen) as directory:
        for number, changes in enumerate(chosen.changes):
            for kind, line in measured.items():
                line.append(measure_size(chosen, kind, directory / kind, number))
            for kind in measured:
                add_size_row(report, f"{changes} changes of 100 B, {chosen.vbuckets} vbuckets", kind, number, measured)
    plot = chosen.plot or (PLOT if chosen.record else None)
    if plot is not None:
        draw_plot(plot, chosen.changes, measured)
    report.finish()


def add_size_row(report: Report, about: str, kind: str, number: int, measured: dict[str, list[Size]]) -> None:
    size = measured[kind][number]
    report.add_row(
        f"{about}, {kind}",
        f"written at {size.write / 1e3:.0f} k/s, read at {size.read / 1e6:.2f} M items/s, "
        f"ready to stream after {size.ready:.2f} s, {size.nbytes / 1e6:.0f} MB on disk",
    )


if __name__ == "__main__":
    main()
