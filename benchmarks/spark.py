"""`format("dcp")` into Spark's noop sink: a streaming query over a filled bucket, without its first batch.

The node has a separate process. Spark runs two tasks at once, with the extension module and without it, each time in a
new Java process. The first batch includes Java's compiler and the start of the Python workers, so rates are those of
later batches. The CPU times of node, Python workers and Java show the bottleneck.
"""

from __future__ import annotations

import statistics

from benchmarks.report import Report, make_parser
from benchmarks.served import run_node
from benchmarks.spark_query import WAYS, run_queries


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=24_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--per-batch", type=int, default=4_000_000)
    parser.add_argument("--columns", help="comma-separated names; default: all")
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=[*WAYS])
    chosen = parser.parse_args()
    report = Report("Spark's streaming read into the noop sink, with the extension module and without", chosen)
    rates: dict[str, float] = {}
    with run_node(vbuckets=chosen.vbuckets, changes=chosen.changes, value_bytes=chosen.value_bytes) as node:
        given = {
            "url": f"couchbase://127.0.0.1:{node.port}",
            "maxPartitions": chosen.partitions,
            "maxChangesPerTrigger": chosen.per_batch,
        }
        if chosen.columns:
            given["columns"] = chosen.columns
        for way in chosen.ways:
            before = node.read_cpu_seconds()
            (found,) = run_queries([given], way=way)
            by_node = (node.read_cpu_seconds() - before) / found.rows
            if found.rows != chosen.changes:
                raise RuntimeError(f"Spark read {found.rows} rows of {chosen.changes}")
            for number, batch in enumerate(found.batches):
                report.add_row(
                    f"{way}, batch {number}, {batch.rows} rows", f"{batch.rows / batch.seconds / 1e6:.2f} M rows/s"
                )
            rates[way] = found.rate
            java, python = (seconds / found.later_rows * 1e9 for seconds in found.spent)
            median = statistics.median(batch.rows / batch.seconds for batch in found.batches[1:])
            report.add_row(
                f"{way}, {found.later_rows} rows of {chosen.value_bytes} B, {chosen.partitions} partitions, later ones",
                f"{found.rate / 1e6:.2f} M rows/s (median batch {median / 1e6:.2f}); processor time a row: "
                f"node {by_node * 1e9:.0f} ns, Python workers {python:.0f} ns, Java {java:.0f} ns",
            )
    if len(rates) > 1:
        report.add_row("native, times Python", f"{rates['native'] / rates['Python']:.2f}")
    report.finish()


if __name__ == "__main__":
    main()
