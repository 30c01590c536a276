"""Typed tables: compared with a model of the bucket, and read with programs that do not know Penstock."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.spark import Lake
from penstock.spark.lake.current import current_table
from penstock.spark.lake.current.current_table import PreparedMerge, prepare_table_merge
from penstock.spark.lake.current.typed_table import TypedShape, TypedTable
from penstock.spark.lake.tables.lake_table import CommitFailed
from penstock.spark.values.json_types import from_ddl
from tests.examples import scaled
from tests.patience import PATIENCE
from tests.spark.lakes import QUERY, append, checkpoint, model, rollback, row
from tests.spark.test_current import histories

FIELDS = from_ddl("n BIGINT, name STRING, tags ARRAY<STRING>")
PLAIN = TypedShape(name="orders", fields=FIELDS)
IN_8 = TypedShape(name="eight", fields=FIELDS, scope="shop", collection="c8")
NAMES = {8: {"scope": "shop", "collection": "c8"}, 9: {"scope": "shop", "collection": "c9"}}
OWN = {"_loaded_at", "_batch", "vbucket_range"}


def name_rows(rows):
    """Return rows as a bucket with collections sends them: with names, and with values that are JSON."""
    found = []
    for each in rows:
        value = each.get("value")
        value = None if value is None else b'{"n": %d, "other": "%s"}' % (each["seqno"], value)
        found.append(each | {"value": value} | NAMES.get(each.get("collection_id"), {}))
    return found


def read(table):
    """Return the rows of a typed table by document, as deltalake reads them; fails if a document has two rows."""
    found = {}
    opened = DeltaTable(str(table.table.path)) if table.table.open() is not None else None
    for line in opened.to_pyarrow_table().to_pylist() if opened is not None else []:
        key = line["_key_bytes"] if line["_key"] is None else line["_key"].encode()
        identity = (line["_vbucket"], line["_collection_id"], key)
        assert identity not in found
        found[identity] = line
    return found


def expect(rows, collection):
    """Return n and rest of the documents that the bucket has."""
    return {
        identity: (json.loads(value)["n"], {"other": json.loads(value)["other"]})
        for identity, (_, value) in model(rows).items()
        if identity[1] == collection
    }


def reduce(lines):
    return {identity: (line["n"], json.loads(line["_rest"])) for identity, line in lines.items()}


def apply_feed(state, table, version):
    """Apply the change feed of the versions after one to a Counter of rows, as a job downstream does."""
    opened = DeltaTable(str(table.table.path))
    if opened.version() <= version:
        return []
    changes = pa.table(opened.load_cdf(starting_version=version + 1).read_all()).to_pylist()
    for line in changes:
        kind = line.pop("_change_type")
        line.pop("_commit_timestamp")
        line.pop("_commit_version")
        state[repr(sorted(line.items()))] += 1 if kind in ("insert", "update_postimage") else -1
    return changes


@settings(max_examples=scaled(40))
@given(histories(), st.data())
def test_tables_equal_the_bucket_and_the_feed_leads_to_them(rows, data):
    rows = name_rows(rows)
    ends = sorted({*data.draw(st.lists(st.integers(0, len(rows)), max_size=6)), 0, len(rows)})
    with TemporaryDirectory() as directory:
        lake = Lake(directory)
        tables = {0: TypedTable(lake, PLAIN), 8: TypedTable(lake, IN_8)}
        states: dict[int, tuple[Counter[str], int]] = {collection: (Counter(), -1) for collection in tables}
        for batch, (start, end) in enumerate(pairwise(ends)):
            append(lake, batch, rows[start:end])
            for collection, table in tables.items():
                if not data.draw(st.booleans()) and end < len(rows):
                    continue
                table.merge()
                lines = read(table)
                assert reduce(lines) == expect(rows[:end], collection)
                state, version = states[collection]
                apply_feed(state, table, version)
                states[collection] = state, DeltaTable(str(table.table.path)).version()
                assert +state == Counter(repr(sorted(line.items())) for line in lines.values())
                assert min(state.values(), default=0) >= 0


@settings(max_examples=scaled(20))
@given(histories(), st.integers(0, 40))
def test_a_table_merged_in_parts_equals_one_that_is_built_at_once(rows, middle):
    rows = name_rows(rows)
    with TemporaryDirectory() as directory:
        lake = Lake(directory)
        shape = TypedShape(name="parts", fields=FIELDS, deletes="mark")
        parts = TypedTable(lake, shape)
        for batch, some in enumerate([rows[:middle], rows[middle:]]):
            append(lake, batch, some)
            parts.merge()
        once = TypedTable(lake, TypedShape(name="once", fields=FIELDS, deletes="mark"))
        once.merge()
        found, wanted = (
            {key: {n: v for n, v in line.items() if n not in OWN} for key, line in read(each).items()}
            for each in (parts, once)
        )
        assert found == wanted
        assert {key for key, line in found.items() if not line["_deleted"]} == expect(rows, 0).keys()


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path / "lake")


def documents(first, last, seqno, **more):
    return [row(n % 64, seqno + n, b"k%d" % n, b'{"n": %d}' % (seqno + n), **more) for n in range(first, last)]


def test_the_feed_has_only_the_rows_that_changed(lake):
    table = TypedTable(lake, PLAIN)
    append(lake, 0, documents(0, 640, 0))
    table.merge()
    append(lake, 1, [*documents(0, 3, 1000), row(5, 2000, b"k5", event="deletion"), row(9, 2001, b"new", b"{}")])
    table.merge()
    found = pa.table(DeltaTable(str(table.table.path)).load_cdf(starting_version=1).read_all())
    assert Counter(found["_change_type"].to_pylist()) == {
        "update_preimage": 3,
        "update_postimage": 3,
        "delete": 1,
        "insert": 1,
    }


def test_a_rollback_changes_only_the_rows_that_were_lost(lake):
    table = TypedTable(lake, PLAIN)
    append(lake, 0, [row(1, n, b"k%d" % n, b'{"n": %d}' % n) for n in range(1, 101)])
    table.merge()
    before = read(table)
    append(lake, 1, [row(1, 101, b"k1", b'{"n": 101}'), row(1, 102, b"k101", b'{"n": 102}')])
    table.merge()
    append(lake, 2, [rollback(1, 100, 1)])
    table.merge()
    lost = apply_feed(Counter(), table, 1)
    assert [line["_key"] for line in lost] == ["k1", "k101", "k1"]
    after = read(table)
    changed = {key for key in before if before[key] != after[key]}
    assert after.keys() == before.keys()
    assert {key[2] for key in changed} == {b"k1"}  # it has a new load time
    assert after[1, 0, b"k1"]["_batch"] == 2


def test_other_readers_see_types(lake):
    cas = 1_700_000_000_123_456_789
    value = b'{"n": 9007199254740993, "name": "\xc3\xa9", "tags": ["a"], "x": 1}'
    append(lake, 0, [row(1, 1, b"k", value, cas=cas), row(1, 2, b"\xff", b"no json")])
    TypedTable(lake, PLAIN).merge()
    place = str(lake.path / "tables" / "orders")
    found = pl.scan_delta(place).sort("_seqno").collect()
    assert found.schema["n"] == pl.Int64
    assert found.schema["tags"] == pl.List(pl.String)
    columns = ("_key", "_key_bytes", "n", "name", "tags", "_rest")
    assert found.select(columns).rows() == [
        ("k", None, 9007199254740993, "é", ["a"], '{"x":1}'),
        (None, b"\xff", None, None, None, "no json"),
    ]
    assert found["_changed_at"].to_list() == [datetime(2023, 11, 14, 22, 13, 20, 123404, UTC), None]


def test_a_table_of_another_shape_is_refused(lake):
    append(lake, 0, documents(0, 3, 0))
    TypedTable(lake, PLAIN).merge()
    other = TypedTable(lake, TypedShape(name="orders", fields=FIELDS, collection="lines"))
    with pytest.raises(UsageError, match=r"orders is a table of .*; expected|expected"):
        other.merge()
    with pytest.raises(UsageError, match="field '_seqno'"):
        TypedTable(lake, TypedShape(name="odd", fields=from_ddl("_seqno BIGINT")))


def test_one_of_two_concurrent_merges_fails(lake):
    table = TypedTable(lake, PLAIN)
    append(lake, 0, documents(0, 3, 0))
    table.merge()
    append(lake, 1, documents(0, 3, 100))
    first, second = (prepare_table_merge(table.describe()) for _ in range(2))
    assert isinstance(first, PreparedMerge)
    assert isinstance(second, PreparedMerge)
    first.commit()
    with pytest.raises(CommitFailed):
        second.commit()
    second.discard()
    assert {line["n"] for line in read(table).values()} == {100, 101, 102}


def test_checkpoints_are_written_at_their_interval(lake, monkeypatch):
    monkeypatch.setattr(current_table, "VACUUM_EVERY", 5)
    table = TypedTable(lake, PLAIN)
    table.table.configuration = {**table.table.configuration, "delta.checkpointInterval": "4"}
    for batch in range(10):
        append(lake, batch, documents(0, 3, 100 * batch))
        table.merge()
    log = Path(str(table.table.path)) / "_delta_log"
    assert sorted(int(path.name[:20]) for path in log.glob("*.checkpoint.parquet")) == [4, 8]
    assert {line["n"] for line in read(table).values()} == {900, 901, 902}


def drive(place, point, where):
    """Append and merge batches; kill the process at a point of a batch."""
    lake = Lake(place)
    checkpoint(lake.checkpoint)
    table = TypedTable(lake, PLAIN)
    for batch in range(where + 1):
        append(lake, batch, documents(0, 64, 1000 * batch))
        step = prepare_table_merge(table.describe())
        if (point, batch) == ("written", where):
            os.kill(os.getpid(), signal.SIGKILL)
        if isinstance(step, PreparedMerge):
            step.commit()
        if (point, batch) == ("committed", where):
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.process
@pytest.mark.parametrize("point", ["written", "committed"])
def test_a_killed_merge_is_completed_by_the_next(lake, point):
    command = [sys.executable, "-m", "tests.spark.test_typed_tables", str(lake.path), point]
    for where in (0, 2):
        done = subprocess.run([*command, str(where)], timeout=PATIENCE, check=False, cwd=Path(__file__).parents[2])
        assert done.returncode == -signal.SIGKILL
        TypedTable(lake, PLAIN).merge()
        found = read(TypedTable(lake, PLAIN))
        assert {line["n"] for line in found.values()} == {1000 * where + n for n in range(64)}
    assert lake.changelog_table.open().transaction_version(QUERY) == 2


if __name__ == "__main__":
    drive(sys.argv[1], sys.argv[2], int(sys.argv[3]))
