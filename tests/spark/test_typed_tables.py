"""Typed tables: compared with a model of the bucket, and read with programs that do not know Penstock."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.names import unquote_column
from penstock.spark import Lake
from penstock.spark.lake.changelog.changelog_delta import ChangelogDelta
from penstock.spark.lake.current import current_table
from penstock.spark.lake.current.current_table import PreparedMerge, merge_current, merge_tables, prepare_merges
from penstock.spark.lake.current.document_table import describe_current
from penstock.spark.lake.current.inferred_table import InferredTable
from penstock.spark.lake.current.table_shape import METADATA, TableShape
from penstock.spark.lake.current.typed_table import TypedTable, list_document_tables, list_typed_tables
from penstock.spark.lake.maintenance.lake_compaction import compact
from penstock.spark.lake.tables import data_files
from penstock.spark.lake.tables.data_files import RANGE_COLUMN
from penstock.spark.lake.tables.delta_table import DeltaLakeTable
from penstock.spark.lake.tables.lake_table import CommitFailed
from penstock.spark.tables.key_pattern import KeyPattern
from penstock.spark.values.json_types import from_ddl
from tests.examples import scaled
from tests.patience import PATIENCE
from tests.spark.lakes import QUERY, append, as_documents, checkpoint, model, read_table_documents, rollback, row
from tests.spark.test_current import histories
from tests.spark.typed_readers import FORMATS, find_version, list_changes, read_rows, scan_table

FIELDS = from_ddl("n BIGINT, name STRING, tags ARRAY<STRING>")
PLAIN = TableShape(name="orders", fields=FIELDS)
IN_8 = TableShape(name="eight", fields=FIELDS, scope="shop", collection="c8")
NAMES = {8: {"scope": "shop", "collection": "c8"}, 9: {"scope": "shop", "collection": "c9"}}
PARTITION = pa.schema([(RANGE_COLUMN, pa.int32())])
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
    """Return the rows of a typed table by document; fails if a document has two rows."""
    found = {}
    for line in read_rows(table):
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


def apply_changes(state, table, version):
    """Apply the changes after a version to a Counter of rows, as a job downstream does."""
    changes = list(list_changes(table, version))
    for sign, line in changes:
        state[repr(sorted(line.items()))] += sign
    return [line for _, line in changes]


@settings(max_examples=scaled(40))
@given(histories(), FORMATS, st.data())
def test_tables_equal_the_bucket_and_their_changes_lead_to_them(rows, table_format, data):
    rows = name_rows(rows)
    ends = sorted({*data.draw(st.lists(st.integers(0, len(rows)), max_size=6)), 0, len(rows)})
    with TemporaryDirectory() as directory:
        lake = Lake(directory, table_format)
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
                if table.table.open() is None:
                    continue
                apply_changes(state, table, version)
                states[collection] = state, find_version(lake, table.name)
                assert +state == Counter(repr(sorted(line.items())) for line in lines.values())
                assert min(state.values(), default=0) >= 0


@settings(max_examples=scaled(20))
@given(histories(), FORMATS, st.integers(0, 40))
def test_a_table_merged_in_parts_equals_one_that_is_built_at_once(rows, table_format, middle):
    rows = name_rows(rows)
    with TemporaryDirectory() as directory:
        lake = Lake(directory, table_format)
        shape = TableShape(name="parts", fields=FIELDS, deletes="mark")
        parts = TypedTable(lake, shape)
        for batch, some in enumerate([rows[:middle], rows[middle:]]):
            append(lake, batch, some)
            parts.merge()
        once = TypedTable(lake, TableShape(name="once", fields=FIELDS, deletes="mark"))
        once.merge()
        found, wanted = (
            {key: {n: v for n, v in line.items() if n not in OWN} for key, line in read(each).items()}
            for each in (parts, once)
        )
        assert found == wanted
        assert {key for key, line in found.items() if not line["_deleted"]} == expect(rows, 0).keys()


@pytest.fixture(params=["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def lake(request, tmp_path):
    return Lake(tmp_path / "lake", request.param)


@pytest.fixture
def delta_lake(tmp_path):
    return Lake(tmp_path / "lake")


def documents(first, last, seqno, **more):
    return [row(n % 64, seqno + n, b"k%d" % n, b'{"n": %d}' % (seqno + n), **more) for n in range(first, last)]


def open_files(table):
    """Return the Parquet files of a table's newest version."""
    opened = table.open()
    return [pq.ParquetFile(path) for path in table.table.list_paths(table.table.list_files(opened))]


@pytest.mark.parametrize("mode", ["current", "history", "changes"])
def test_rows_of_a_file_have_the_declared_order(lake, monkeypatch, mode):
    """Row groups have ranges of values that do not overlap, and the rows are those of a table without an order."""
    monkeypatch.setattr(data_files, "SORTED_ROWS", 8)
    shape = replace(PLAIN, mode=mode)
    tables = [TypedTable(lake, shape), TypedTable(lake, replace(shape, name="sorted", cluster_by=("n", "name")))]
    for batch in range(3):
        rows = [row(1, 100 * batch + n, b"k%d" % (n * 7 % 90), b'{"n": %d}' % (n * 37 % 100)) for n in range(1, 80)]
        append(lake, batch, rows)
        merge_tables([table.describe() for table in tables])
    compact(lake)
    plain, ordered = ([{**line, "_loaded_at": None} for line in read_rows(table)] for table in tables)
    assert sorted(map(repr, ordered)) == sorted(map(repr, plain))
    for file in open_files(tables[1]):
        numbers = file.read(columns=["n"])["n"].to_pylist()
        column = file.schema_arrow.names.index("n")
        parts = [file.metadata.row_group(each).column(column).statistics for each in range(file.num_row_groups)]
        assert numbers == sorted(numbers)
        assert len(parts) == -(-len(numbers) // 8)
        assert all(before.max <= after.min for before, after in pairwise(parts))


def test_an_order_by_a_column_that_is_inferred_later_begins_then(delta_lake):
    found = InferredTable(delta_lake, replace(PLAIN, fields=pa.schema([]), cluster_by=("later", "tags")), "add")
    append(delta_lake, 0, [row(1, 1, b"a", b'{"tags": [1]}')])
    found.merge()
    append(delta_lake, 1, [row(1, n, b"k%d" % n, b'{"later": %d}' % (n * 37 % 50)) for n in range(2, 50)])
    found.merge()
    [file] = open_files(TypedTable.find(delta_lake, "orders"))
    numbers = file.read(columns=["later"])["later"].to_pylist()
    assert numbers[-1] is None
    assert numbers[:-1] == sorted(numbers[:-1])


def test_the_feed_has_only_the_rows_that_changed(delta_lake):
    lake, table = delta_lake, TypedTable(delta_lake, PLAIN)
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
    lost = apply_changes(Counter(), table, 1)
    assert sorted(line["_key"] for line in lost) == ["k1", "k1", "k101"]
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
    found = scan_table(lake, "orders").sort("_seqno").collect()
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
    for other in ({"collection": "lines"}, {"deletes": "mark"}, {"metadata": ()}, {"fields": from_ddl("n INT")}):
        changed = TypedTable(lake, TableShape(**({"name": "orders", "fields": FIELDS} | other)))
        with pytest.raises(UsageError, match=r"orders is a table of another declaration: .*retype FILE --table orders"):
            changed.merge()


def test_a_table_knows_its_own_shape(lake):
    append(lake, 0, documents(0, 3, 0))
    key = KeyPattern.parse("k{n BIGINT}")
    fields = from_ddl("`a b` STRUCT<`x.y`: ARRAY<STRUCT<`ß`: INT>>>")
    shapes = (
        PLAIN,
        IN_8,
        TableShape(name="keys", fields=fields, key=key, metadata=("seqno",), deletes="mark"),
        TableShape(name="empty", fields=pa.schema([])),
    )
    for shape in shapes:
        TypedTable(lake, shape).merge()
    found = {table.name: table.shape for table in list_typed_tables(lake)}
    assert found == {shape.name: shape for shape in shapes}
    assert [table.name for table in list_document_tables(lake)] == ["eight", "empty", "keys", "orders"]
    merge_current(lake)
    assert next(table.name for table in list_document_tables(lake)) == "current"
    assert TypedTable.find(lake, "other") is None
    lake.make_table(lake.path / "tables" / "foreign", PARTITION, {"delta": {}}).commit(None, ("other", 1), [])
    with pytest.raises(UsageError, match="foreign is a table of another program"):
        list_typed_tables(lake)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("_key STRING", {"_key": [None, "k1", "k1::2", "k1::x"]}),
        ("id STRING", {"id": [None, "k1", "k1::2", "k1::x"]}),
        (
            "k{a BIGINT}::{b INT}",
            {"a": [None, None, 1, None], "b": [None, None, 2, None], "_key": [None, "k1", "k1::2", "k1::x"]},
        ),
    ],
)
def test_keys_become_columns(lake, key, expected):
    keys = [b"\xff", b"k1", b"k1::2", b"k1::x"]
    append(lake, 0, [row(1, n, name, b"{}") for n, name in enumerate(keys, 1)])
    table = TypedTable(lake, TableShape(name="keys", fields=FIELDS, key=KeyPattern.parse(key)))
    table.merge()
    append(lake, 1, [row(1, n, name, b"{}") for n, name in enumerate(keys, 5)])
    table.merge()
    found = scan_table(lake, "keys").sort("_seqno").collect()
    assert {name: found[name].to_list() for name in expected} == expected
    assert found["_key_bytes"].to_list() == [b"\xff", None, None, None]
    assert found.columns[0] == next(iter(expected))


def test_any_field_is_a_column(lake):
    fields = from_ddl("`a b` BIGINT, A_B BIGINT, a_b BIGINT, _seqno BIGINT, o STRUCT<`x.y`: ARRAY<STRUCT<`p q`: INT>>>")
    value = b'{"a b": 1, "A_B": 2, "a_b": 3, "_seqno": 4, "o": {"x.y": [{"p q": 5}, null, {}]}}'
    append(lake, 0, [row(1, 1, b"k", value), row(1, 2, b"l", b'{"o": null}'), row(1, 3, b"m", b'{"o": {"x.y": []}}')])
    table = TypedTable(lake, TableShape(name="odd", fields=fields))
    table.merge()
    found = sorted(read_rows(table), key=lambda line: line["_seqno"])
    found_names = [*found[0]][1:6]
    assert [unquote_column(name) for name in found_names] == fields.names
    assert [found[0][name] for name in found_names[:4]] == [1, 2, 3, 4]
    assert [line["o"] for line in found] == [
        {"x_x2e_y": [{"p_x20_q": 5}, None, {"p_x20_q": None}]},
        None,
        {"x_x2e_y": []},
    ]


@pytest.mark.parametrize("metadata", [(), ("changed_at",), ("batch", "seqno"), ("loaded_at", "history", "vbucket")])
def test_metadata_are_columns_if_they_are_named(lake, metadata):
    append(lake, 0, documents(0, 3, 0))
    table = TypedTable(lake, TableShape(name="orders", fields=FIELDS, metadata=metadata))
    table.merge()
    found = set(read_rows(table)[0]) & {f"_{name}" for name in METADATA}
    assert found == {f"_{name}" for name in (*metadata, "vbucket", "history", "seqno")}


@pytest.mark.parametrize(
    ("fields", "key", "text"),
    [
        ("n BIGINT", "n STRING", "column 'n' is in schema and in key 'n STRING', expected another name"),
        ("N BIGINT", "x::{n INT}", "column 'N' is in schema"),
        ("o STRUCT<x: INT, x: INT>", "id STRING", "fields x, x; expected each name once"),
        (
            "l ARRAY<STRUCT<o: STRUCT<x: INT, y: INT, x: STRING>>>",
            "id STRING",
            "fields x, y, x; expected each name once",
        ),
        ("n BIGINT", "`a b` STRING", "where a column is 'a b'; expected letters, digits and underscores"),
        ("n BIGINT", "x{_key STRING}", "where a column is '_key'; expected letters"),
        ("n BIGINT", "_seqno BIGINT", "where a column is '_seqno'; expected letters"),
    ],
)
def test_two_columns_of_one_name_are_refused(fields, key, text):
    with pytest.raises(UsageError, match=re.escape(text)):
        TableShape(name="orders", fields=from_ddl(fields), key=KeyPattern.parse(key))


def test_tables_at_one_version_share_the_read_of_the_changelog(lake, monkeypatch):
    reads = []
    read_range = ChangelogDelta.read_range

    def count(self, vbucket_range, *arguments):
        reads.append(vbucket_range)
        return read_range(self, vbucket_range, *arguments)

    monkeypatch.setattr(ChangelogDelta, "read_range", count)
    targets = [describe_current(lake), *(TypedTable(lake, shape).describe() for shape in (PLAIN, IN_8))]
    for batch in range(3):
        append(lake, batch, documents(0, 64, 1000 * batch))
        assert [each.changes for each in merge_tables(targets)] == [64] * 3
        assert sorted(reads) == list(range(16))
        reads.clear()
    append(lake, 3, documents(0, 64, 4000))
    merge_current(lake)
    append(lake, 4, documents(0, 64, 5000))
    assert [each.changes for each in merge_tables(targets)] == [64, 128, 128]
    assert len(reads) == 3 * 16


def test_tables_of_a_failed_merge_leave_no_files(lake):
    def fail(changes, stamp):
        raise UsageError("no rows")

    append(lake, 0, documents(0, 64, 0))
    table = TypedTable(lake, PLAIN)
    with pytest.raises(UsageError, match="no rows"):
        merge_tables([describe_current(lake), table.describe(), replace(table.describe(), to_rows=fail)])
    assert [*lake.current_table.path.rglob("*.parquet"), *table.table.path.rglob("*.parquet")] == []


@settings(max_examples=scaled(20))
@given(histories(), FORMATS, st.data())
def test_tables_that_merge_together_equal_the_bucket(rows, table_format, data):
    rows = name_rows(rows)
    ends = sorted({*data.draw(st.lists(st.integers(0, len(rows)), max_size=6)), 0, len(rows)})
    with TemporaryDirectory() as directory:
        lake = Lake(directory, table_format)
        tables = {0: TypedTable(lake, PLAIN), 8: TypedTable(lake, IN_8)}
        targets = [describe_current(lake), *(table.describe() for table in tables.values())]
        for batch, (start, end) in enumerate(pairwise(ends)):
            append(lake, batch, rows[start:end])
            chosen = targets if end == len(rows) else data.draw(st.lists(st.sampled_from(targets), unique_by=id))
            merge_tables(chosen)
        assert as_documents(read_table_documents(lake)) == model(rows)
        for collection, table in tables.items():
            assert reduce(read(table)) == expect(rows, collection)


def test_one_of_two_concurrent_merges_fails(lake):
    table = TypedTable(lake, PLAIN)
    append(lake, 0, documents(0, 3, 0))
    table.merge()
    append(lake, 1, documents(0, 3, 100))
    first, second = (prepare_merges([table.describe()])[0] for _ in range(2))
    assert isinstance(first, PreparedMerge)
    assert isinstance(second, PreparedMerge)
    first.commit()
    with pytest.raises(CommitFailed):
        second.commit()
    second.discard()
    assert {line["n"] for line in read(table).values()} == {100, 101, 102}


def test_checkpoints_are_written_at_their_interval(delta_lake, monkeypatch):
    monkeypatch.setattr(current_table, "VACUUM_EVERY", 5)
    lake, table = delta_lake, TypedTable(delta_lake, PLAIN)
    assert isinstance(table.table, DeltaLakeTable)
    table.table.configuration = {**table.table.configuration, "delta.checkpointInterval": "4"}
    for batch in range(10):
        append(lake, batch, documents(0, 3, 100 * batch))
        table.merge()
    log = Path(str(table.table.path)) / "_delta_log"
    assert sorted(int(path.name[:20]) for path in log.glob("*.checkpoint.parquet")) == [4, 8]
    assert {line["n"] for line in read(table).values()} == {900, 901, 902}


def drive(place, table_format, point, where):
    """Append and merge batches; kill the process at a point of a batch."""
    lake = Lake(place, table_format)
    checkpoint(lake.checkpoint)
    table = TypedTable(lake, PLAIN)
    for batch in range(where + 1):
        append(lake, batch, documents(0, 64, 1000 * batch))
        step = prepare_merges([table.describe()])[0]
        if (point, batch) == ("written", where):
            os.kill(os.getpid(), signal.SIGKILL)
        if isinstance(step, PreparedMerge):
            step.commit()
        if (point, batch) == ("committed", where):
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.process
@pytest.mark.parametrize("point", ["written", "committed"])
def test_a_killed_merge_is_completed_by_the_next(lake, point):
    command = [
        sys.executable,
        "-m",
        "tests.spark.test_typed_tables",
        str(lake.path),
        lake.changelog_table.format,
        point,
    ]
    for where in (0, 2):
        done = subprocess.run([*command, str(where)], timeout=PATIENCE, check=False, cwd=Path(__file__).parents[2])
        assert done.returncode == -signal.SIGKILL
        TypedTable(lake, PLAIN).merge()
        found = read(TypedTable(lake, PLAIN))
        assert {line["n"] for line in found.values()} == {1000 * where + n for n in range(64)}
    assert lake.changelog_table.open().transaction_version(QUERY) == 2


if __name__ == "__main__":
    drive(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
