"""Changelog rows for tests, a model of the documents that the rows leave, and a driver that can be killed.

As a program, `python -m tests.spark.lakes LAKE FORMAT BATCHES POINT BATCH` works like a Spark driver: it logs a batch,
runs the batch, logs its end, and merges. After a restart it repeats the batch whose end is not logged. The driver kills
itself at POINT of BATCH. With `timer:SECONDS` as POINT, a timer kills it at any point.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.spark import Lake
from penstock.spark.lake.changelog import changelog_writer as changelog
from penstock.spark.lake.changelog.found_collections import find_collections
from penstock.spark.lake.current import current_table as current
from penstock.spark.lake.current.child_shape import ChildShape
from penstock.spark.lake.current.document_table import DocumentTable, describe_current
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.lake.reading.lake_readers import read_changelog, read_documents
from penstock.spark.lake.tables.data_files import DataFile, open_dataset
from penstock.spark.lake.tables.lake_table import CommitFailed
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS
from penstock.spark.pipeline.state.kept_tables import infer_tables
from penstock.spark.storage.object_path import LakePath
from penstock.spark.values.json_types import from_ddl
from penstock.wire.columns.schema import CHANGE_SCHEMA
from tests.patience import PATIENCE
from tests.spark.typed_readers import read_rows
from tests.spark.version_model import model_versions, read_versions

ROOT = Path(__file__).parents[2]
VBUCKETS = 64
QUERY = "6f1c0a52-2a5b-4e0e-9d1c-9c7b7e9f4d11"

TYPED = TableShape(name="documents", fields=from_ddl("n BIGINT"))
LINES = ChildShape.of_table(TYPED, "documents_lines", ("lines",), from_ddl("lines ARRAY<STRING>"))
"""A child table of the values of `batch_rows`."""

ORDERS: dict[str, Any] = {"collection_id": 8, "scope": "shop", "collection": "orders"}
"""The collection whose JSON objects come with a later batch of the killable driver. No column has their field."""
INFERRED_ORDERS = TableShape(name="shop_x2e_orders", fields=pa.schema([]), scope="shop", collection="orders")
VERSIONS, CHANGES = (replace(TYPED, name=mode, mode=mode) for mode in ("history", "changes"))

Row = dict[str, Any]
Documents = dict[tuple[int, int, bytes], tuple[int, bytes]]


def prepare_merge(lake: Lake) -> current.PreparedMerge | current.MergeProgress:
    """Write the files of the next merge of `current`."""
    return current.prepare_merges([describe_current(lake)])[0]


def row(
    vbucket: int, seqno: int, key: bytes | None = b"", value: bytes | None = b"", event: str = "mutation", **more
) -> Row:
    """Return a change whose CAS is computed from vbucket, history and seqno, so that no two rows share a CAS."""
    history = more.get("history", 0)
    cas = (vbucket << 48) + (history << 32) + seqno
    if event != "mutation":
        value = None
    found = {"vbucket": vbucket, "seqno": seqno, "event": event, "key": key, "value": value, "cas": cas}
    return found | {"history": 0, "vbuuid": 1000 + history, "rev_seqno": 1, "collection_id": 0, "flags": 0} | more


def rollback(vbucket: int, seqno: int | None, history: int, event: str = "rollback") -> Row:
    return {
        "vbucket": vbucket,
        "seqno": seqno,
        "history": history,
        "event": event,
        "vbuuid": 1000 + history,
        "requested_seqno": seqno,
    }


def table(rows: Iterable[Row]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=CHANGE_SCHEMA)


def write(lake: Lake, rows: Iterable[Row], *, step: int = 1000) -> list[DataFile]:
    batches = table(rows).to_batches(max_chunksize=step)
    return changelog.write_files(batches, lake.changelog_table.write_root, VBUCKETS)


def append(lake: Lake, batch_id: int, rows: Iterable[Row]) -> bool:
    return changelog.commit_batch(lake, QUERY, batch_id, write(lake, rows), vbuckets=VBUCKETS)


def checkpoint(path: LakePath, query: str = QUERY, batches: int = 0) -> None:
    """Write the checkpoint files that Spark leaves after it has planned `batches` batches of a query."""
    (path / "offsets").mkdir(parents=True, exist_ok=True)
    metadata, text = path / "metadata", f'{{"id":"{query}"}}'
    if not metadata.exists() or metadata.read_text() != text:  # a thread that waits for writes may read it now
        metadata.write_text(text)
    for batch in range(batches):
        (path / "offsets" / str(batch)).write_text("")


def model(rows: Iterable[Row]) -> Documents:
    """Return the documents after the given rows, in their order; a rollback undoes the newest changes one by one."""
    logs: dict[object, list[Row]] = {}
    for change in rows:
        log = logs.setdefault(change["vbucket"], [])
        if change["event"] in ("rollback", "flush"):
            while log and log[-1]["seqno"] > change["seqno"]:
                log.pop()
        else:
            log.append(change)
    found: Documents = {}
    for change in (change for log in logs.values() for change in log):
        collection = (change["vbucket"], change.get("collection_id") or 0)
        identity = (*collection, change["key"])
        if change["event"] == "mutation":
            found[identity] = (change["cas"], change["value"])
        elif change["event"] in ("deletion", "expiration"):
            found.pop(identity, None)
        elif change["event"] in ("begin_collection", "end_collection"):
            found = {other: document for other, document in found.items() if other[:2] != collection}
    return found


def as_documents(rows: pa.Table) -> Documents:
    """Return rows of the current table by document; fails if a document has two rows."""
    found: Documents = {}
    for line in rows.to_pylist():
        key = line["key_bytes"] if line["key"] is None else line["key"].encode()
        identity = (line["vbucket"], line["collection_id"], key)
        assert identity not in found
        found[identity] = (line["cas"], line["value"])
    return found


def read_table_documents(lake: Lake) -> pa.Table:
    """Return the documents in the files of the current table, without pending changes."""
    table = lake.current_table.open()
    files = lake.current_table.list_paths(lake.current_table.list_files(table)) if table is not None else []
    return open_dataset(files, CURRENT_COLUMNS).to_table()


def identities(lake: Lake) -> list[tuple[int, int, int]]:
    """Return (vbucket, history, seqno) of every row of the changelog, sorted."""
    columns = read_changelog(lake).select(["vbucket", "history", "seqno"]).to_pydict().values()
    return sorted(zip(*columns, strict=True))


def orphans(lake: Lake) -> list[str]:
    """Return the data files on disk that neither table's log names."""
    found = []
    for part in (lake.changelog_table, lake.current_table):
        opened = part.open()
        live = set(part.list_paths(part.list_files(opened))) if opened is not None else set()
        found += [str(path) for path in part.path.rglob("*.parquet") if "_delta_log" not in str(path)]
        found = [path for path in found if path not in live]
    return found


def list_targets(lake: Lake) -> list[DocumentTable]:
    """Return the tables of documents that the killable driver merges."""
    inferred = [each.open(lake).describe() for each in infer_tables(find_collections(lake))]
    shapes = (TYPED, LINES, VERSIONS, CHANGES)
    return [describe_current(lake), *(TypedTable(lake, shape).describe() for shape in shapes), *inferred]


def read_typed_documents(lake: Lake, shape: TableShape = TYPED) -> dict[tuple[int, int, bytes], bytes]:
    """Return the values of a typed table, which no field of it fits, by document; fails at a second row."""
    found: dict[tuple[int, int, bytes], bytes] = {}
    for line in read_rows(TypedTable(lake, shape)):
        identity = (line["_vbucket"], line["_collection_id"], line["_key"].encode())
        assert identity not in found
        found[identity] = line["_rest"].encode()
    return found


def read_typed_lines(lake: Lake) -> dict[tuple[int, int, bytes], list[str]]:
    """Return the values of the child table by document, in the order of their positions; fails at a gap."""
    found: dict[tuple[int, int, bytes], list[str]] = {}
    for line in sorted(read_rows(TypedTable(lake, LINES)), key=lambda line: line["_position"]):
        values = found.setdefault((line["_vbucket"], line["_collection_id"], line["_key"].encode()), [])
        assert len(values) == line["_position"]
        values.append(line["value"])
    return found


def batch_rows(batch: int) -> list[Row]:
    """Return the rows of one batch of the killable driver: changes over all ranges, with a rollback in every fourth."""
    history, rows = batch // 4, []
    for vbucket in range(0, VBUCKETS, 3):
        base = 100 * (batch - 2) if batch % 4 == 0 and batch else 100 * batch
        if batch % 4 == 0 and batch:
            rows.append(rollback(vbucket, base, history))
        for number in range(1, 5):
            event = "deletion" if (batch + number + vbucket) % 5 == 0 else "mutation"
            key = b"document %d" % ((batch + number) % 7)
            more = ORDERS if number == 3 and batch > 1 else {}
            text = b'{"":%d}' % batch if more else b'{"lines":["%d of %d"%s]}' % (number, batch, b',"x"' * (number % 3))
            rows.append(row(vbucket, base + number, key, text, event, history=history, **more))
    return rows


def commit_merge(merge: current.PreparedMerge) -> None:
    """Commit a merge. If a compaction came first, prepare it again, as `merge_tables` does."""
    try:
        merge.commit()
    except CommitFailed:
        merge.discard()
        assert not merge.was_overtaken()
        current.merge_tables([merge.target])


def steps(lake: Lake, batch: int) -> Iterator[str]:
    """Run one batch as a driver does, and yield the name of each step after it is done."""
    (lake.checkpoint / "offsets" / str(batch)).write_text("")
    yield "planned"
    files = write(lake, batch_rows(batch))
    yield "written"
    changelog.commit_batch(lake, QUERY, batch, files, vbuckets=VBUCKETS)
    yield "committed"
    (lake.checkpoint / "commits" / str(batch)).write_text("")
    yield "logged"
    targets = list_targets(lake)
    yield "found"
    merges = current.prepare_merges(targets)
    yield "merge written"
    for number, merge in enumerate(merges, 1):
        if isinstance(merge, current.PreparedMerge):
            commit_merge(merge)
        yield f"merged {number}"
    yield "merged"


def drive(lake: Lake, batches: int, point: str, where: int) -> None:
    checkpoint(lake.checkpoint)
    (lake.checkpoint / "commits").mkdir(exist_ok=True)
    lake.check_owner()
    current.merge_tables(list_targets(lake))
    if point.startswith("timer:"):
        signal.setitimer(signal.ITIMER_REAL, float(point.removeprefix("timer:")))  # SIGALRM kills by default
    done = [int(entry.name) for entry in (lake.checkpoint / "commits").iterdir()]
    for batch in range(max(done, default=-1) + 1, batches):
        for step in steps(lake, batch):
            if (step, batch) == (point, where):
                os.kill(os.getpid(), signal.SIGKILL)


def run_driver(lake: Lake, batches: int, point: str = "never", where: int = 0) -> int:
    """Run the killable driver as a process of its own and return its exit status (minus the signal, if killed)."""
    place = [str(lake.path), lake.changelog_table.format]
    command = [sys.executable, "-m", "tests.spark.lakes", *place, str(batches), point, str(where)]
    done = subprocess.run(command, cwd=ROOT, timeout=PATIENCE, check=False, capture_output=True, text=True)
    assert done.returncode <= 0, done.stderr
    return done.returncode


def check_driven(lake: Lake, batches: int) -> None:
    """Assert that the lake has all rows of `batches` batches once, and the documents that these rows leave."""
    rows = [change for batch in range(batches) for change in batch_rows(batch)]
    assert identities(lake) == sorted((r["vbucket"], r["history"], r["seqno"]) for r in rows)
    assert as_documents(read_table_documents(lake)) == model(rows)
    documents = {identity: value for identity, (_, value) in model(rows).items()}
    for collection_id, shape in ((0, TYPED), (8, INFERRED_ORDERS)):
        wanted = {identity: value for identity, value in documents.items() if identity[1] == collection_id}
        assert read_typed_documents(lake, shape) == wanted
    lines = {at: json.loads(value)["lines"] for at, value in documents.items() if at[1] == 0}
    assert read_typed_lines(lake) == lines
    own = [change for change in rows if not change.get("collection_id")]
    versions = read_rows(TypedTable(lake, VERSIONS))
    places = {(r["vbucket"], r["history"], r["seqno"]): r for r in own}
    assert read_versions(versions) == model_versions(own)
    for line in versions:
        assert line["_rest"].encode() == places[line["_vbucket"], line["_history"], line["_seqno"]]["value"]
    changes = [(line["_vbucket"], line["_history"], line["_seqno"]) for line in read_rows(TypedTable(lake, CHANGES))]
    assert sorted(changes) == sorted(places)
    assert read_documents(lake).num_rows == len(model(rows))


def delays(seed: int, count: int) -> list[float]:
    return [random.Random(seed).uniform(0.002, 0.3) for _ in range(count)]


if __name__ == "__main__":
    drive(Lake(sys.argv[1], sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
