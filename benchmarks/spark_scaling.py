"""Spark's read by number of partitions and by size of values, as figures and as a plot.

The queries of a bucket run one after the other in one Java, two tasks at a time, into the noop sink. The first batch of
each query is not counted. A bucket has about the same number of bytes for each size of values.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.report import RESULTS, Report, make_parser
from benchmarks.served import run_node
from benchmarks.spark_query import QueryResult, run_queries

PLOT = RESULTS.with_name("spark_scaling.svg")
_FRAME_BYTES = 70
"""Bytes of a change on the wire without its value."""
_BATCHES = 4


def read_bucket(changes: int, value_bytes: int, vbuckets: int, partitions: list[int]) -> list[QueryResult]:
    """Read a bucket once for each number of partitions."""
    with run_node(vbuckets=vbuckets, changes=changes, value_bytes=value_bytes) as node:
        given = {"url": f"couchbase://127.0.0.1:{node.port}", "maxChangesPerTrigger": -(-changes // _BATCHES)}
        # Without minPartitions, Spark makes fewer partitions of a small batch. The first query only warms up Java.
        asked = [given | {"minPartitions": count, "maxPartitions": count} for count in (partitions[0], *partitions)]
        found = run_queries(asked)[1:]
    if any(each.rows != changes for each in found):
        raise RuntimeError(f"Spark read {[each.rows for each in found]} rows of {changes}")
    return found


def draw_plots(path: Path, by_partitions: dict[int, float], by_size: dict[int, float]) -> None:
    """Draw two plots side by side: million rows per second by partitions, rows and bytes by size of values."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": path.name, "font.size": 9}
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([*by_partitions], [rate / 1e6 for rate in by_partitions.values()], marker="o")
    left.set_title("million rows a second, two tasks at a time")
    left.set_xlabel("partitions")
    left.set_xscale("log", base=2)
    left.set_xticks([*by_partitions], [str(count) for count in by_partitions])
    right.plot([*by_size], [rate / 1e6 for rate in by_size.values()], marker="o", label="million rows a second")
    right.plot(
        [*by_size], [rate * size / 1e9 for size, rate in by_size.items()], marker="s", label="GB of values a second"
    )
    right.set_title("by size of values")
    right.set_xlabel("bytes")
    right.set_xscale("log")
    right.legend()
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument(
        "--changes", type=int, default=8_000_000, help="number of changes of 100 B; fewer for larger values"
    )
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--partitions", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--value-bytes", type=int, nargs="*", default=[10, 100, 1000, 10_000])
    parser.add_argument("--plot", type=Path, help=f"file of the plot; with --record the default is {PLOT.name}")
    chosen = parser.parse_args()
    report = Report("Spark's streaming read by partitions and by size of values", chosen)
    by_partitions, by_size = dict[int, float](), dict[int, float]()
    for count, found in zip(
        chosen.partitions, read_bucket(chosen.changes, 100, chosen.vbuckets, chosen.partitions), strict=True
    ):
        by_partitions[count] = found.rate
        report.add_row(f"{found.later_rows} rows of 100 B, {count} partitions", f"{found.rate / 1e6:.2f} M rows/s")
    for size in chosen.value_bytes:
        changes = min(chosen.changes, chosen.changes * (100 + _FRAME_BYTES) // (size + _FRAME_BYTES))
        (found,) = read_bucket(changes, size, chosen.vbuckets, [2])
        by_size[size] = found.rate
        report.add_row(
            f"{found.later_rows} rows of {size} B, 2 partitions",
            f"{found.rate / 1e6:.2f} M rows/s, {found.rate * size / 1e6:.0f} MB/s of values",
        )
    plot = chosen.plot or (PLOT if chosen.record else None)
    if plot is not None:
        draw_plots(plot, by_partitions, by_size)
    report.finish()


if __name__ == "__main__":
    main()
