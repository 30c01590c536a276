"""Rows into a bucket: by Spark, by the bulk writer alone, by `Bucket.upsert_many`, and by requests encoded beforehand.

The node has a separate process. All cases store the same documents, in turn. Each round has its own keys, so that every
SET has a new key. Spark's first round is not counted, because it includes Java's compiler and the start of the Python
workers.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.kv import SET_REPLY, make_batches, time_exchange
from benchmarks.report import Report, make_parser
from benchmarks.served import NodeProcess, run_node
from penstock.client.bucket import connect
from penstock.client.connect.address import Address, parse_address
from penstock.client.documents.bulk import BulkWriter
from penstock.spark.runtime.spark_session import local_session

WINDOW_ROWS = 32_768
PIPELINED = 5000


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000, help=f"a multiple of {PIPELINED}")
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-spark", action="store_true", help="leave Spark out")
    chosen = parser.parse_args()
    if chosen.rows % PIPELINED:
        parser.error(f"--rows {chosen.rows}, expected a multiple of {PIPELINED}")
    report = Report("How many rows a second go into a bucket?", chosen)
    rows, value = chosen.rows, b"v" * chosen.value_bytes
    with run_node(vbuckets=chosen.vbuckets) as node, ExitStack() as stack:
        address = parse_address(f"couchbase://127.0.0.1:{node.port}/default")
        cases: dict[str, Callable[[str], float]] = {
            "bulk writer": lambda name: asyncio.run(_write_bulk(address, name, rows, value)),
            "Bucket.upsert_many": lambda name: asyncio.run(_write_many(address, name, rows, value)),
            "requests made beforehand, replies counted": partial(_send_encoded, node, rows, value, chosen.vbuckets),
        }
        stored = rows * len(cases) * chosen.rounds
        if not chosen.without_spark:
            spark = local_session(2)
            stack.callback(spark.stop)
            numbers = spark.range(0, rows, numPartitions=chosen.partitions)
            by_spark = partial(_write_frame, numbers, address, value)
            by_spark("warm")
            cases = {f"Spark, {chosen.partitions} partitions": by_spark, **cases}
            stored += rows * (chosen.rounds + 1)
        seconds: dict[str, list[float]] = {case: [] for case in cases}
        for number in range(chosen.rounds):
            for case, write in cases.items():
                node.settle()
                seconds[case].append(write(f"{number}-{len(case)}"))
        found = sum(asyncio.run(_read_high_seqnos(address)))
        if found != stored:
            raise RuntimeError(f"{found} documents in the bucket, expected {stored}")
    for case, taken in seconds.items():
        rate, best = rows / statistics.median(taken), rows / min(taken)
        report.add_row(f"{case}, {chosen.value_bytes} B", f"{rate / 1e3:.0f} k rows/s (best {best / 1e3:.0f})")
    report.finish()


def _write_frame(numbers: DataFrame, address: Address, value: bytes, name: str) -> float:
    frame = numbers.select(F.format_string(f"{name}-%09d", "id").alias("key"), F.lit(value).alias("value"))
    start = time.perf_counter()
    frame.write.format("dcp").option("url", str(address)).mode("append").save()
    return time.perf_counter() - start


def _make_keys(name: str, rows: int) -> list[bytes]:
    return [b"%s-%09d" % (name.encode(), number) for number in range(rows)]


async def _write_bulk(address: Address, name: str, rows: int, value: bytes) -> float:
    """Return the seconds of encoding and writing. Making the columns is not timed, because Spark has columns."""
    keys, values = (
        pa.array(_make_keys(name, rows), pa.binary()),
        pa.array([value] * min(rows, WINDOW_ROWS), pa.binary()),
    )
    async with BulkWriter(address) as writer:
        start = time.perf_counter()
        for at in range(0, rows, WINDOW_ROWS):
            some = pa.concat_arrays([keys.slice(at, WINDOW_ROWS)])
            outcomes = await writer.upsert(some, values[: len(some)])
            if outcomes.faults:
                raise RuntimeError(f"{len(outcomes.faults)} rows were refused")
        return time.perf_counter() - start


async def _write_many(address: Address, name: str, rows: int, value: bytes) -> float:
    documents = [(key, value) for key in _make_keys(name, rows)]
    async with connect(str(address)) as bucket:
        start = time.perf_counter()
        await bucket.upsert_many(documents)
        return time.perf_counter() - start


def _send_encoded(node: NodeProcess, rows: int, value: bytes, vbuckets: int, name: str) -> float:
    pieces = make_batches(rows, PIPELINED, value, vbuckets, name.encode())
    return time_exchange(node.port, pieces, PIPELINED // 2 * SET_REPLY)


async def _read_high_seqnos(address: Address) -> Sequence[int]:
    async with connect(str(address)) as bucket:
        return [*(await bucket.high_seqnos()).values()]


if __name__ == "__main__":
    main()
