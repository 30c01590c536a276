"""`format("dcp")` into a changelog on Delta: a streaming query over a filled bucket, without its first batch.

The values are random bytes, which Parquet cannot compress.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.report import Report, make_parser
from benchmarks.served import run_node
from benchmarks.spark_query import WAYS, run_queries


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=8_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--per-batch", type=int, default=1_000_000)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=["native"])
    parser.add_argument("--directory", type=Path, help="directory for the table; default: that of temporary files")
    chosen = parser.parse_args()
    report = Report("Spark's streaming read into a changelog on Delta", chosen)
    sizes = {"vbuckets": chosen.vbuckets, "changes": chosen.changes, "value_bytes": chosen.value_bytes}
    with run_node(**sizes, varied=True) as node:
        given = {
            "url": f"couchbase://127.0.0.1:{node.port}",
            "maxPartitions": chosen.partitions,
            "maxChangesPerTrigger": chosen.per_batch,
        }
        for way in chosen.ways:
            with tempfile.TemporaryDirectory(dir=chosen.directory) as directory:
                (found,) = run_queries([given], way=way, tables=Path(directory))
                nbytes = sum(file.stat().st_size for file in Path(directory).rglob("*.parquet"))
            if found.rows != chosen.changes:
                raise RuntimeError(f"Spark read {found.rows} rows of {chosen.changes}")
            java, python = (seconds / found.later_rows * 1e9 for seconds in found.spent)
            report.add_row(
                f"{way}, {found.later_rows} rows of {chosen.value_bytes} B, {chosen.partitions} partitions",
                f"{found.rate / 1e3:.0f} k rows/s, {nbytes / found.rows:.0f} bytes a row in files; "
                f"processor time a row: Python workers {python:.0f} ns, Java {java:.0f} ns",
            )
    report.finish()


if __name__ == "__main__":
    main()
