"""Typed tables with a row for each change: compared with the changelog, and read as streams of rows."""

import shutil
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from tempfile import TemporaryDirectory

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spark import Lake
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.lake.maintenance.lake_compaction import MAX_ADDED_FILES, compact, join_added_files
from tests.examples import scaled
from tests.spark.lakes import append, rollback, row
from tests.spark.test_history_tables import forget_commits, list_lines
from tests.spark.test_typed_tables import FIELDS, apply_changes, name_rows
from tests.spark.version_model import list_collection_changes, read_time
from tests.spark.versions import timed_histories

PLAIN = TableShape(name="orders", fields=FIELDS, mode="changes")
IN_8 = replace(PLAIN, name="eight", scope="shop", collection="c8")


def read(lines):
    """Return place, event, key, number and time of each row, sorted."""
    found = []
    for line in lines:
        key = line["_key_bytes"] if line["_key"] is None else line["_key"].encode()
        place = (line["_vbucket"], line["_history"], line["_seqno"], line["_event"])
        found.append((*place, line["_collection_id"], key, line["n"], line["_changed_at"]))
    return sorted(found, key=repr)


def expect(rows, collection):
    found = []
    for each in list_collection_changes(rows, collection):
        ids = None if each["event"] in ("rollback", "flush") else each["collection_id"] or 0
        number = each["seqno"] if each["event"] == "mutation" else None
        place = (each["vbucket"], each["history"], each["seqno"], each["event"])
        found.append((*place, ids, each.get("key"), number, read_time(each.get("cas"))))
    return sorted(found, key=repr)


@settings(max_examples=scaled(40))
@given(timed_histories(), st.data())
def test_rows_equal_the_changelog_and_only_come(rows, data):
    rows = name_rows(rows)
    ends = sorted({*data.draw(st.lists(st.integers(0, len(rows)), max_size=6)), 0, len(rows)})
    with TemporaryDirectory() as directory:
        lake = Lake(directory)
        tables = {0: TypedTable(lake, PLAIN), 8: TypedTable(lake, IN_8)}
        states: dict[int, tuple[Counter[str], int]] = {collection: (Counter(), -1) for collection in tables}
        for batch, (start, end) in enumerate(pairwise(ends)):
            append(lake, batch, rows[start:end])
            if rows and data.draw(st.integers(0, 3)) == 0:
                compact(lake)
            for collection, table in tables.items():
                if not data.draw(st.booleans()) and end < len(rows):
                    continue
                table.merge()
                lines = list_lines(table)
                assert read(lines) == expect(rows[:end], collection)
                state, version = states[collection]
                known = sum(state.values())
                came = apply_changes(state, table, version)
                assert +state == Counter(repr(sorted(line.items())) for line in lines)
                assert min(state.values(), default=1) == 1
                assert sum(state.values()) == known + len(came)
                states[collection] = state, DeltaTable(str(table.table.path)).version()


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path / "lake")


def test_the_end_of_a_selected_collection_is_known_by_its_id(lake):
    """A selection of collections makes the event of an end itself, without names and at the place of a change."""
    table = TypedTable(lake, IN_8)
    first = [row(1, 1, b"a", b"1", collection_id=8), row(1, 2, b"a", b"2", collection_id=9)]
    append(lake, 0, name_rows(first))
    table.merge()
    append(lake, 1, [row(1, 3, None, event="end_collection", collection_id=each) for each in (8, 9, 10)])
    table.merge()
    later = [row(2, 1, b"b", b"1", collection_id=8), row(2, 2, None, event="end_collection", collection_id=8)]
    append(lake, 2, [name_rows(later)[0], later[1]])
    table.merge()
    found = [(line["_vbucket"], line["_seqno"], line["_event"], line["_collection_id"]) for line in list_lines(table)]
    assert sorted(found) == [
        (1, 1, "mutation", 8),
        (1, 3, "end_collection", 8),
        (2, 1, "mutation", 8),
        (2, 2, "end_collection", 8),
    ]


def test_a_merge_after_a_removed_log_adds_only_missing_rows(lake):
    table = TypedTable(lake, PLAIN)
    rows = [*(row(1, n, b"k%d" % n, b"%d" % n) for n in range(1, 9)), rollback(1, 4, 1), row(2, 1, b"x", b"1")]
    append(lake, 0, name_rows(rows))
    table.merge()
    before = list_lines(table)
    rows.append(row(1, 5, b"k5", event="deletion", history=1))
    append(lake, 1, name_rows(rows[-1:]))
    append(lake, 2, [])
    forget_commits(lake)
    progress = table.merge()
    assert (progress.changes, progress.rewritten) == (len(rows), True)
    after = list_lines(table)
    assert read(after) == expect(rows, 0)
    assert {repr(line) for line in before} < {repr(line) for line in after}
    assert {line["_batch"] for line in after} == {0, 2}


def test_rows_of_another_changelog_are_replaced(lake):
    table = TypedTable(lake, PLAIN)
    append(lake, 0, name_rows([row(1, 1, b"a", b"1"), row(1, 2, b"b", b"2")]))
    table.merge()
    shutil.rmtree(lake.changelog_table.path)
    rows = [row(1, 1, b"c", b"1")]
    append(lake, 0, name_rows(rows))
    table.merge()
    assert read(list_lines(table)) == expect(rows, 0)


def test_joined_files_are_no_change(lake, monkeypatch):
    table = TypedTable(lake, PLAIN)
    rows = []
    for batch in range(40):
        some = [row(1, batch + 1, b"k", b"1"), row(2, batch + 1, b"k", b"1")]
        append(lake, batch, name_rows(some))
        rows += some
        table.merge()
        join_added_files([table.describe()])
        count = len(DeltaTable(str(table.table.path)).file_uris())
        assert count <= 2 * MAX_ADDED_FILES
    assert count < 40
    assert read(list_lines(table)) == expect(rows, 0)
    state: Counter[str] = Counter()
    apply_changes(state, table, -1)
    assert +state == Counter(repr(sorted(line.items())) for line in list_lines(table))
    assert set(state.values()) == {1}
