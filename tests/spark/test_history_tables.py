"""Typed tables with a row for each version: compared with a model, and read with programs that do not know Penstock."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from tempfile import TemporaryDirectory

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spark import Lake
from penstock.spark.lake.current import history_table
from penstock.spark.lake.current.current_table import merge_tables
from penstock.spark.lake.current.document_table import describe_current
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.lake.maintenance.lake_compaction import compact
from penstock.spark.lake.maintenance.lake_erasure import remove_old_logs
from penstock.spark.lake.maintenance.lake_retention import retain_changelog
from penstock.spark.lake.tables.delta_table import DeltaLakeTable
from penstock.spark.pipeline.maintenance.document_selection import DocumentSelection
from penstock.spark.pipeline.maintenance.erasure import erase_documents
from penstock.spark.tables.key_pattern import KeyPattern
from tests.examples import scaled
from tests.spark.lakes import append, as_documents, checkpoint, model, read_table_documents, rollback, row
from tests.spark.test_retention import ALL, batches, commit
from tests.spark.test_typed_tables import FIELDS, OWN, apply_changes, name_rows
from tests.spark.version_model import model_versions, read_versions
from tests.spark.versions import START, timed_histories

PLAIN = TableShape(name="orders", fields=FIELDS, mode="history")
IN_8 = replace(PLAIN, name="eight", scope="shop", collection="c8")


def list_lines(table):
    """Return the rows of a typed table, as deltalake reads them."""
    if table.table.open() is None:
        return []
    return DeltaTable(str(table.table.path)).to_pyarrow_table().to_pylist()


def read(lines):
    """Return the rows of a history table as the model has them; fails if a row has the values of another version."""
    assert all(line["n"] == line["_seqno"] for line in lines)
    return read_versions(lines)


@settings(max_examples=scaled(40))
@given(timed_histories(), st.data())
def test_versions_equal_the_bucket_and_the_feed_leads_to_them(rows, data):
    rows = name_rows(rows)
    ends = sorted({*data.draw(st.lists(st.integers(0, len(rows)), max_size=6)), 0, len(rows)})
    with TemporaryDirectory() as directory:
        lake = Lake(directory)
        tables = {0: TypedTable(lake, PLAIN), 8: TypedTable(lake, IN_8)}
        states: dict[int, tuple[Counter[str], int]] = {collection: (Counter(), -1) for collection in tables}
        for batch, (start, end) in enumerate(pairwise(ends)):
            append(lake, batch, rows[start:end])
            chosen = [each for each in tables if end == len(rows) or data.draw(st.booleans())]
            merge_tables([tables[each].describe() for each in chosen])
            if rows and data.draw(st.integers(0, 3)) == 0:
                compact(lake)
            for collection in chosen:
                table = tables[collection]
                lines = list_lines(table)
                assert read(lines) == model_versions(rows[:end], collection)
                state, version = states[collection]
                apply_changes(state, table, version)
                states[collection] = state, DeltaTable(str(table.table.path)).version()
                assert +state == Counter(repr(sorted(line.items())) for line in lines)
                assert min(state.values(), default=0) >= 0


@settings(max_examples=scaled(20))
@given(timed_histories(), st.integers(0, 40))
def test_a_table_merged_in_parts_equals_one_that_is_built_at_once(rows, middle):
    rows = name_rows(rows)
    with TemporaryDirectory() as directory:
        lake = Lake(directory)
        parts, once = TypedTable(lake, PLAIN), TypedTable(lake, replace(PLAIN, name="once"))
        for batch, some in enumerate([rows[:middle], rows[middle:]]):
            append(lake, batch, some)
            merge_tables([describe_current(lake), parts.describe()])
        once.merge()
        found, wanted = (
            sorted(repr({name: value for name, value in line.items() if name not in OWN}) for line in list_lines(each))
            for each in (parts, once)
        )
        assert found == wanted
        current = {line["_key_bytes"] or line["_key"].encode() for line in list_lines(once) if line["_is_current"]}
        assert as_documents(read_table_documents(lake)) == model(rows)
        assert current == {key for _, collection, key in model(rows) if not collection}


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path / "lake")


def documents(first, last, seqno):
    return [
        row(n % 64, seqno + n, b"k%d" % n, b'{"n": %d}' % (seqno + n), cas=START + seqno) for n in range(first, last)
    ]


def list_paths(table):
    return {file.path for file in table.table.list_files(table.table.open())}


def test_merges_leave_closed_versions_alone(lake, monkeypatch):
    for name in ("SMALL_BYTES", "SMALL_ROWS"):
        monkeypatch.setattr(history_table, name, 0)
    table = TypedTable(lake, PLAIN)
    append(lake, 0, documents(0, 640, 0))
    table.merge()
    closed: set[str] = set()
    for batch in range(1, 6):
        append(lake, batch, documents(0, 640, 1000 * batch))
        before = list_paths(table)
        table.merge()
        after = list_paths(table)
        assert closed <= after
        assert len(after - before) == 32
        closed = {path for path in after if set(read_column(table, path, "_is_current")) == {False}}
        assert len(closed) == 16 * batch
    report = compact(lake)
    assert report.tables["orders"].files_after == 32
    assert (
        sorted(read_column(table, path, "_is_current").count(True) for path in list_paths(table))
        == [0] * 16 + [40] * 16
    )


def read_column(table, path, name):
    return pq.read_table(str(table.table.path / path), columns=[name])[name].to_pylist()


def test_small_files_with_closed_versions_are_joined_at_times(lake):
    table = TypedTable(lake, PLAIN)
    written = 0
    for batch in range(64):
        append(lake, batch, [row(1, batch + 1, b"k", b'{"n": %d}' % (batch + 1), cas=START + batch)])
        before = list_paths(table) if batch else set()
        table.merge()
        written += sum(len(read_column(table, path, "_seqno")) for path in list_paths(table) - before)
    assert len(list_paths(table)) <= 8
    assert written <= 64 * 8
    assert read(list_lines(table)) == model_versions(row(1, n + 1, b"k", b"", cas=START + n) for n in range(64))


def test_the_feed_has_only_the_versions_that_changed(lake):
    table = TypedTable(lake, PLAIN)
    append(lake, 0, documents(0, 640, 0))
    table.merge()
    append(lake, 1, [*documents(0, 3, 1000), row(5, 2000, b"k5", event="deletion"), row(9, 2001, b"new", b"{}")])
    table.merge()
    append(lake, 2, [rollback(1, 900, 1)])
    table.merge()
    opened = DeltaTable(str(table.table.path))
    feeds = [opened.load_cdf(starting_version=version, ending_version=version).read_all() for version in (1, 2)]
    assert [Counter(pa.table(feed)["_change_type"].to_pylist()) for feed in feeds] == [
        {"update_preimage": 4, "update_postimage": 4, "insert": 4},
        {"update_preimage": 1, "update_postimage": 1, "delete": 1},
    ]


def forget_commits(lake):
    """Remove the log of the changelog, so that the next merge reads all changes again."""
    assert isinstance(lake.changelog_table, DeltaLakeTable)
    remove_old_logs(lake.changelog_table)


@settings(max_examples=scaled(20))
@given(batches(), st.data())
def test_tables_keep_their_rows_while_the_changelog_loses_versions(made, data):
    with TemporaryDirectory() as directory:
        lake = Lake(directory)
        history, changes = (TypedTable(lake, replace(PLAIN, name=mode, mode=mode)) for mode in ("history", "changes"))
        rows = []
        for number, (some, end) in enumerate(made):
            named = name_rows(some)
            commit(lake, number, named, end)
            rows += named
            if not number or data.draw(st.booleans()):
                merge_tables([history.describe(), changes.describe()])
            step = data.draw(st.sampled_from(["nothing", "retain", "forget"]))
            if step == "retain":
                retain_changelog(lake, ALL)
            elif step == "forget":
                merge_tables([history.describe(), changes.describe()])
                forget_commits(lake)
        merge_tables([history.describe(), changes.describe()])
        assert read(list_lines(history)) == model_versions(rows)
        found = [(line["_vbucket"], line["_history"], line["_seqno"]) for line in list_lines(changes)]
        assert sorted(found) == sorted((each["vbucket"], each["history"], each["seqno"]) for each in rows)


def test_a_query_as_of_a_time(lake):
    table = TypedTable(lake, replace(PLAIN, key=KeyPattern.parse("id STRING")))
    hour = 3_600 * 10**9

    def change(seqno, hours, event="mutation"):
        return row(1, seqno, b"k", b'{"n": %d}' % seqno, event, cas=START + hours * hour)

    append(lake, 0, [change(1, 0), change(2, 2), change(3, 4, "deletion"), change(4, 6), change(5, 5), change(6, 8)])
    table.merge()
    orders = DeltaTable(str(table.table.path)).to_pyarrow_dataset()  # noqa: F841 - DuckDB reads it
    found = {}
    for hours in range(-1, 10):
        when = datetime.fromtimestamp((START + hours * hour) / 10**9 + 60, UTC)
        found[hours] = duckdb.execute(
            "SELECT n FROM orders WHERE _valid_from <= $1 AND (_valid_to > $1 OR _valid_to IS NULL)", [when]
        ).fetchall()
    assert found == {
        -1: [], 0: [(1,)], 1: [(1,)], 2: [(2,)], 3: [(2,)], 4: [], 5: [], 6: [(5,)], 7: [(5,)], 8: [(6,)], 9: [(6,)]
    }  # fmt: skip


def test_erased_documents_leave_all_versions(lake):
    tables = [TypedTable(lake, replace(PLAIN, name=mode, mode=mode)) for mode in ("history", "changes")]
    checkpoint(lake.checkpoint)
    rows = name_rows([row(1, n, b"k%d" % (n % 3), b"v", cas=START) for n in range(1, 31)])
    for batch in range(3):
        append(lake, batch, rows[batch * 10 : batch * 10 + 10])
        merge_tables([table.describe() for table in tables])
    for dry_run in (True, False):
        parts = erase_documents(lake, DocumentSelection((b"k1",)), dry_run=dry_run).parts
        assert {part.table: part.rows for part in parts} == {"changelog": 10, "changes": 10, "history": 10}
    left = [each for each in rows if each["key"] != b"k1"]
    later = row(1, 31, b"k2", b'{"n": 31, "other": "x"}', cas=START)
    append(lake, 3, [later, rollback(2, 0, 1)])
    merge_tables([table.describe() for table in tables])
    assert read(list_lines(tables[0])) == model_versions([*left, later])
    assert sorted(line["_seqno"] for line in list_lines(tables[1])) == [0, *(each["seqno"] for each in left), 31]
