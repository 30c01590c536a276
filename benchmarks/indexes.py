"""Dependents of a changelog (secondary index, full text, invalidation): how fast they are built and queried.

Documents have a number, a name and tags, about 100 bytes, in 1024 vbuckets, with a fixed seed. The text comes from a
file with one JSON object per line, or consists of random words.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.report import Report, make_parser
from penstock.spark import Lake
from penstock.spark.dependents.dependent import catch_up
from penstock.spark.dependents.kinds.fulltext import FullText
from penstock.spark.dependents.kinds.invalidation import Invalidation
from penstock.spark.dependents.kinds.secondary_index import SecondaryIndex
from penstock.spark.lake.changelog import changelog_writer as changelog
from penstock.spark.lake.changelog.changelog_delta import find_delta
from penstock.wire.columns.schema import CHANGE_SCHEMA

VBUCKETS = 1024
WORDS = [f"word{number}" for number in range(5000)]


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--changed", type=int, default=50_000)
    parser.add_argument("--text", type=Path, help="a file of documents, one JSON object a line")
    chosen = parser.parse_args()
    report = Report("Dependents of a changelog", chosen)
    with tempfile.TemporaryDirectory() as directory:
        measure_index(report, Lake(Path(directory) / "numbers"), chosen.documents, chosen.changed)
        measure_full_text(report, Lake(Path(directory) / "words"), read_texts(chosen.text))
    report.finish()


def measure_index(report: Report, lake: Lake, documents: int, changed: int) -> None:
    random = np.random.default_rng(6)
    values = random.permutation(documents)
    append_numbers(lake, 0, np.arange(documents), values)
    index = SecondaryIndex(lake, "number", "number", "double")
    seconds = time_call(lambda: catch_up(index, lake))
    report.add_row(f"index of {documents} numbers, built", f"{documents / seconds / 1e3:.0f} k documents/s")
    one, hundred = random.integers(0, documents, 200), random.integers(0, documents - 100, 50)
    plan = index.plan(float(one[0]), float(one[0]))
    report.add_row(
        "lookup of one number reads", f"{plan.row_groups} row group of {plan.files} file of {plan.total_files}"
    )
    report.add_row(
        "lookup of one number, median", f"{median_milliseconds(lambda at: index.lookup(float(at)), one):.1f} ms"
    )
    report.add_row(
        "range of 100, median",
        f"{median_milliseconds(lambda at: index.range(float(at), float(at + 99)), hundred):.1f} ms",
    )
    append_numbers(lake, 1, random.choice(documents, changed, replace=False), documents + np.arange(changed))
    seconds = time_call(lambda: index.lookup(5.0))
    report.add_row(f"first lookup with {changed} changes pending", f"{seconds * 1e3:.0f} ms")
    report.add_row("later ones, median", f"{median_milliseconds(lambda at: index.lookup(float(at)), one):.1f} ms")
    with run_accepting_server() as url:
        invalidation = Invalidation(lake, "cache", url)
        invalidation.path.parent.mkdir()
        invalidation.path.write_text(json.dumps({"changelog": read_changelog_id(lake), "version": 0}))
        seconds = time_call(lambda: catch_up(invalidation, lake))
        report.add_row(f"{changed} keys sent over HTTP, 1000 per request", f"{changed / seconds / 1e3:.0f} k keys/s")
        invalidation.close()
    seconds = time_call(lambda: catch_up(index, lake))
    report.add_row(f"{changed} changes merged into the index", f"{seconds:.2f} s")


def measure_full_text(report: Report, lake: Lake, values: list[bytes]) -> None:
    count = len(values)
    append_documents(lake, 0, np.arange(count), pa.array(values, pa.binary()))
    text = FullText(lake, "text")
    seconds = time_call(lambda: catch_up(text, lake))
    size = sum(map(len, values)) / 1e6
    report.add_row(f"full text of {count} documents, {size:.1f} MB", f"{count / seconds / 1e3:.1f} k documents/s")
    report.add_row("its size on disk", f"{text.path.stat().st_size / 1e6:.1f} MB")
    append_documents(lake, 1, np.arange(count // 10), pa.array(values[-(count // 10) :], pa.binary()))
    seconds = time_call(lambda: catch_up(text, lake))
    report.add_row(f"{count // 10} of them changed", f"{count // 10 / seconds / 1e3:.1f} k documents/s")
    queries = ["citrus AND hop*", "lager OR pilsner", '"pale ale"', "word17 word23"]
    report.add_row("search, 20 best, median", f"{median_milliseconds(text.search, queries * 10):.1f} ms")


def append_numbers(lake: Lake, batch: int, documents: np.ndarray, values: np.ndarray) -> None:
    texts = [f'{{"number":{value},"name":"document {value:09}","tags":["a","b"]}}' for value in values.tolist()]
    append_documents(lake, batch, documents, pa.array([f"{text:<100}" for text in texts]).cast(pa.binary()))


def append_documents(lake: Lake, batch: int, documents: np.ndarray, values: pa.Array) -> None:
    count = len(documents)
    known = {
        "vbucket": pa.array(documents % VBUCKETS, pa.int32()),
        "seqno": pa.array(np.arange(count) + 1 + batch * 10_000_000),
        "event": pa.repeat("mutation", count),
        "key": pa.array([b"key %012d" % number for number in documents.tolist()]),
        "value": values,
        "collection_id": pa.repeat(pa.scalar(0, pa.int64()), count),
        "history": pa.repeat(pa.scalar(0, pa.int32()), count),
    }
    columns = [known.get(field.name, pa.nulls(count, field.type)) for field in CHANGE_SCHEMA]
    batches = pa.table(columns, schema=CHANGE_SCHEMA).to_batches(max_chunksize=65_536)
    files = changelog.write_files(batches, lake.changelog_table.path, VBUCKETS)
    changelog.commit_batch(lake, "benchmark", batch, files, vbuckets=VBUCKETS)


def read_texts(file: Path | None) -> list[bytes]:
    if file is not None:
        return [json.dumps(json.loads(line)).encode() for line in file.read_text().splitlines()]
    random = np.random.default_rng(6)
    chosen = random.zipf(1.3, (10_000, 60)) % len(WORDS)
    return [json.dumps({"text": " ".join(WORDS[word] for word in line)}).encode() for line in chosen.tolist()]


def read_changelog_id(lake: Lake) -> str:
    delta = find_delta(lake, None)
    if delta is None:
        raise RuntimeError("the changelog was deleted")
    return delta.changelog_id


@contextmanager
def run_accepting_server() -> Iterator[str]:
    """Run an HTTP server that accepts all requests, and yield its URL."""

    class AcceptingHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), AcceptingHandler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def time_call(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def median_milliseconds(call: Callable[..., object], arguments: Iterable[object]) -> float:
    """Return the median of milliseconds per call."""
    return statistics.median(time_call(partial(call, each)) for each in arguments) * 1e3


if __name__ == "__main__":
    main()
