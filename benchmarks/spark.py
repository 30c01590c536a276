"""`format("dcp")` into Spark's noop sink: a streaming query over a filled bucket, its first batch left out.

The node has a process of its own; Spark runs two tasks at once in this one's Java. The first batch pays for the
Java compiler and the Python workers' start, so rates are those of the batches after it.
"""

from __future__ import annotations

import statistics
import tempfile

from benchmarks.report import Report, options
from benchmarks.served import served
from penstock.spark.session import local_session


def main() -> None:
    parser = options(__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=12_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--per-batch", type=int, default=4_000_000)
    chosen = parser.parse_args()
    report = Report("Spark's streaming read into the noop sink", chosen)
    with served(vbuckets=chosen.vbuckets, changes=chosen.changes, value_bytes=chosen.value_bytes) as node:
        spark = local_session(2)
        changes = (
            spark.readStream.format("dcp")
            .option("url", f"couchbase://127.0.0.1:{node.port}")
            .option("partitions", chosen.partitions)
            .option("maxChangesPerTrigger", chosen.per_batch)
            .load()
        )
        with tempfile.TemporaryDirectory() as checkpoint:
            query = (
                changes.writeStream.format("noop")
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            batches = [p for p in query.recentProgress if p.numInputRows]
        spark.stop()
    rows = sum(batch.numInputRows for batch in batches)
    if rows != chosen.changes:
        raise RuntimeError(f"Spark read {rows} rows of {chosen.changes}")
    for batch in batches:
        report.row(
            f"batch {batch.batchId}, {batch.numInputRows} rows", f"{_rate(batch.numInputRows, batch):.2f} M rows/s"
        )
    later = batches[1:]
    whole = sum(b.numInputRows for b in later) / sum(b.durationMs["triggerExecution"] for b in later) / 1e3
    report.row(
        f"{rows} rows of {chosen.value_bytes} B, {chosen.partitions} partitions, first batch excluded",
        f"{whole:.2f} M rows/s (median batch {statistics.median(_rate(b.numInputRows, b) for b in later):.2f})",
    )
    report.finish()


def _rate(rows: int, batch: object) -> float:
    """Return million rows a second of a batch's whole time, planning and logs included."""
    milliseconds: float = batch.durationMs["triggerExecution"]  # type: ignore[attr-defined]
    return rows / milliseconds / 1e3


if __name__ == "__main__":
    main()
