"""A lake of Iceberg tables: other programs read them, and their changes are refused or repaired."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog import load_catalog

from penstock.errors import Error, LakeRefused, UsageError
from penstock.spark import Lake, compact, vacuum
from penstock.spark.lake.changelog.changelog_writer import commit_batch
from penstock.spark.lake.current import current_table as current
from penstock.spark.lake.current.current_table import PreparedMerge, merge_current
from penstock.spark.lake.reading.lake_readers import count_rows, read_changelog
from penstock.spark.lake.tables.iceberg import iceberg_files
from penstock.spark.lake.tables.iceberg import iceberg_table as iceberg
from penstock.spark.lake.tables.iceberg.iceberg_catalog import MARKER, OWN_CATALOG
from penstock.spark.lake.tables.lake_table import CommitFailed
from penstock.spark.pipeline.state.stopping import plan_removal, remove_tables
from penstock.wire.columns.schema import CHANGE_SCHEMA
from tests.patience import PATIENCE
from tests.spark import lakes
from tests.spark.lakes import (
    QUERY,
    VBUCKETS,
    append,
    as_documents,
    batch_rows,
    checkpoint,
    model,
    prepare_merge,
    rollback,
    row,
    write,
)
from tests.spark.rest_catalog import serve_catalog


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path / "lake", "iceberg")


def expected(first, end):
    """Return the rows of some batches, of few vbuckets."""
    rows = [change for batch in range(first, end) for change in batch_rows(batch)]
    return [change for change in rows if change["vbucket"] < 8]


def fill(lake, batches):
    for batch in batches:
        assert append(lake, batch, expected(batch, batch + 1))
        merge_current(lake)


def open_by_pyiceberg(lake, name):
    """Return a table as a program without Penstock opens it."""
    catalog = load_catalog("any", type="sql", uri=f"sqlite:///{lake.path / OWN_CATALOG}")
    # An SQLite catalog keeps its tables under the name of the catalog that created them.
    catalog.name = "penstock"
    return catalog.load_table(("lake", name))


def test_other_programs_read_the_tables(lake):
    special = [
        row(5, 901, b"\xff\xfe", b"v", xattrs=[("_sync", b"\x00")]),
        rollback(5, 900, 1),
        row(7, -2, b"big", b""),
    ]
    fill(lake, range(3))
    append(lake, 3, special)
    merge_current(lake)
    changes, documents = (open_by_pyiceberg(lake, name) for name in ("changelog", "current"))
    rows = pa.table(changes.scan().to_arrow()).select(CHANGE_SCHEMA.names).cast(CHANGE_SCHEMA)
    wanted = lakes.table([*expected(0, 3), *special])
    order = [("vbucket", "ascending"), ("history", "ascending"), ("seqno", "ascending")]
    assert rows.sort_by(order).to_pylist() == wanted.sort_by(order).to_pylist()
    assert as_documents(documents.scan().to_arrow()) == model([*expected(0, 3), *special])
    # Statistics and partitions leave out files, and no row.
    assert changes.scan(row_filter="seqno < 0").to_arrow()["key"].to_pylist() == [b"big"]
    in_range = sum(line["vbucket"] // 4 == 1 for line in wanted.to_pylist())
    found = changes.scan(row_filter="vbucket_range = 1")
    assert found.to_arrow().num_rows == in_range
    assert {task.file.partition[0] for task in found.plan_files()} == {1}
    counted = documents.scan().to_duckdb("documents").execute("SELECT count(*), min(vbucket) FROM documents").fetchall()
    assert counted == [(count_rows(lake.current_table), 0)]
    assert duckdb.from_arrow(rows).count("*").fetchall() == [(wanted.num_rows,)]


@pytest.mark.spark
def test_spark_reads_the_tables(spark, lake):
    fill(lake, range(2))
    append(lake, 2, expected(2, 3))
    assert lake.changelog_frame(spark).count() == len(expected(0, 3))
    assert as_documents(pa.table(lake.current_frame(spark).toArrow())) == model(expected(0, 3))


def test_a_lake_knows_its_format_and_is_of_one_format(lake):
    early = Lake(lake.path)
    checkpoint(lake.checkpoint, batches=1)
    lake.check_owner()
    fill(lake, [0])
    lake.check_owner()
    assert early.changelog_table.format == Lake(lake.path).current_table.format == "iceberg"
    assert as_documents(early.current()) == model(expected(0, 1))
    with pytest.raises(UsageError, match="'metadata', which is not a Penstock table's; expected a Delta table"):
        Lake(lake.path, "delta").check_owner()
    with pytest.raises(UsageError, match="is an Iceberg table; expected a changelog of plain Parquet files"):
        Lake(lake.path, "parquet").check_owner()
    (lake.checkpoint / "metadata").write_text('{"id":"another"}')
    with pytest.raises(LakeRefused, match="not written by the query"):
        lake.check_owner()


def test_delta_tables_are_not_taken_for_iceberg(tmp_path):
    append(Lake(tmp_path), 0, [row(1, 1)])
    with pytest.raises(UsageError, match="'_delta_log', which is not a Penstock table's; expected an Iceberg table"):
        Lake(tmp_path, "iceberg").check_owner()


def test_repeated_and_aborted_batches_leave_nothing(lake):
    fill(lake, [0])
    assert not append(lake, 0, expected(0, 1))
    assert append(lake, 1, [])
    assert not append(lake, 1, expected(1, 2))
    lake.changelog_table.discard_uncommitted(write(lake, expected(2, 3)))
    table = lake.changelog_table
    table.discard_uncommitted(table.list_files(table.open()))
    assert lakes.orphans(lake) == []
    assert read_changelog(lake).num_rows == len(expected(0, 1))
    snapshot = open_by_pyiceberg(lake, "changelog").current_snapshot()
    assert json.loads(snapshot.summary["penstock.transactions"]) == {QUERY: 1}
    with pytest.raises(LakeRefused, match="another query"):
        commit_batch(lake, "0b3f", 1, [], vbuckets=VBUCKETS)
    with pytest.raises(LakeRefused, match="64 vbuckets, and this one has 1024"):
        commit_batch(lake, QUERY, 2, [], vbuckets=1024)


def test_a_meter_opens_the_table_only_after_a_commit(lake):
    assert lake.changelog_table.has_grown(-1)
    fill(lake, [0])
    assert lake.changelog_table.open().version() == 0
    assert not lake.changelog_table.has_grown(0)
    assert append(Lake(lake.path), 1, [])
    assert lake.changelog_table.has_grown(0)
    assert lake.changelog_table.open().version() == 1
    assert not lake.changelog_table.has_grown(1)


def test_one_of_two_drivers_commits_the_batch(lake):
    barrier = Barrier(2)

    def both(batch, files):
        barrier.wait(PATIENCE)
        return commit_batch(pickle.loads(pickle.dumps(lake)), QUERY, batch, files, vbuckets=VBUCKETS)

    with ThreadPoolExecutor(2) as pool:
        for batch in range(3):
            tasks = [pool.submit(both, batch, write(lake, expected(batch, batch + 1))) for _ in range(2)]
            assert sorted(task.result(PATIENCE) for task in tasks) == [False, True]
    assert read_changelog(lake).num_rows == len(expected(0, 3))


def test_one_of_two_merges_fails_and_a_batch_meanwhile_is_no_conflict(lake):
    fill(lake, [0])
    append(lake, 1, expected(1, 2))
    first, second = prepare_merge(lake), prepare_merge(lake)
    assert isinstance(first, PreparedMerge)
    assert isinstance(second, PreparedMerge)
    first.commit()
    with pytest.raises(CommitFailed, match="has committed meanwhile"):
        second.commit()
    table = lake.changelog_table
    opened, files = table.open(), write(lake, expected(2, 3))
    assert compact(lake).changelog.files_after == 2
    table.commit(opened, (QUERY, 2), files)
    assert as_documents(lake.current()) == model(expected(0, 3))


def test_a_small_batch_rewrites_only_its_range(lake):
    append(lake, 0, [row(n % 64, n, b"k%d" % n, b"0") for n in range(1, 641)])
    merge_current(lake)
    before = {file.path for file in lake.current_table.list_files(lake.current_table.open())}
    append(lake, 1, [row(9, 700, b"k9", b"1")])
    merge_current(lake)
    after = {file.path for file in lake.current_table.list_files(lake.current_table.open())}
    assert (len(before), len(after), len(before & after)) == (16, 16, 15)


def test_joined_files_are_no_delta_and_a_past_state_stays(lake):
    fill(lake, range(3))
    table = lake.changelog_table
    times = {each.snapshot_id: each.timestamp_ms for each in open_by_pyiceberg(lake, "changelog").snapshots()}
    middle = datetime.fromtimestamp(sorted(times.values())[1] / 1000, UTC)
    joined = compact(lake).changelog
    assert (joined.files_before, joined.files_after) == (6, 2)
    assert table.list_added_since(table.open(), 2) == []
    assert table.list_added_since(table.open(), 1) is None
    assert merge_current(lake).changes == 0
    assert sum(file.rows for file in table.list_files_at(table.open(), middle)) == len(expected(0, 2))
    vacuum(lake, 0)
    assert lakes.orphans(lake) == []
    with pytest.raises(UsageError, match="its snapshot has expired; expected a time from"):
        table.list_files_at(table.open(), middle)
    fill(lake, [3])
    assert as_documents(lake.current()) == model(expected(0, 4))


def test_snapshots_expire_while_a_run_commits(lake, monkeypatch):
    monkeypatch.setattr(iceberg, "MAX_EXPIRED", 3)
    monkeypatch.setattr(iceberg_files, "datetime", Later)
    monkeypatch.setattr(current, "VACUUM_EVERY", 2)
    fill(lake, range(6))
    assert len(open_by_pyiceberg(lake, "changelog").snapshots()) <= 3
    table = lake.changelog_table
    files = table.list_added_since(table.open(), 3)
    assert sum(file.rows for file in files) == len(expected(4, 6))
    assert not append(lake, 5, expected(5, 6))
    assert as_documents(lakes.read_table_documents(lake)) == model(expected(0, 6))


class Later(datetime):
    """A clock on which every commit was made an hour ago."""

    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) + timedelta(hours=1)


CHANGES = {
    "delete": lambda table: table.delete("seqno < 200"),
    "append": lambda table: table.append(table.scan(limit=5).to_arrow()),
}


@pytest.mark.parametrize("operation", CHANGES)
def test_changed_current_is_computed_again(lake, operation):
    fill(lake, range(3))
    CHANGES[operation](open_by_pyiceberg(lake, "current"))
    assert as_documents(lake.current()) == model(expected(0, 3))
    assert merge_current(lake).rewritten
    assert as_documents(lakes.read_table_documents(lake)) == model(expected(0, 3))


@pytest.mark.parametrize("operation", CHANGES)
def test_changed_changelog_is_refused_until_that_is_undone(lake, operation):
    fill(lake, range(3))
    append(lake, 3, expected(3, 4))
    checkpoint(lake.checkpoint, batches=4)
    table = open_by_pyiceberg(lake, "changelog")
    before = table.current_snapshot().snapshot_id
    CHANGES[operation](table)
    files = write(lake, expected(4, 5))
    refused = (lake.check_owner, lambda: commit_batch(lake, QUERY, 4, files, vbuckets=VBUCKETS), lambda: compact(lake))
    for call in (*refused, lambda: merge_current(lake), lake.current):
        with pytest.raises(LakeRefused, match=rf"in version 4 \(.*rollback_to_snapshot\({before}\)"):
            call()
    open_by_pyiceberg(lake, "changelog").manage_snapshots().rollback_to_snapshot(before).commit()
    assert commit_batch(lake, QUERY, 4, files, vbuckets=VBUCKETS)
    merge_current(lake)
    assert as_documents(lake.current()) == model(expected(0, 5))


def test_a_change_that_lands_just_before_a_commit_is_found(lake):
    fill(lake, range(2))
    opened, files = lake.changelog_table.open(), write(lake, expected(2, 3))
    CHANGES["append"](open_by_pyiceberg(lake, "changelog"))
    with pytest.raises(CommitFailed, match="another program changed rows"):
        lake.changelog_table.commit(opened, (QUERY, 2), files)


def test_an_undone_batch_is_refused(lake):
    fill(lake, range(3))
    table = open_by_pyiceberg(lake, "changelog")
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[1].snapshot_id).commit()
    with pytest.raises(LakeRefused, match=r"set .* back to version 1, before version 2 of Penstock"):
        append(lake, 3, expected(3, 4))


def test_a_catalog_of_several_lakes_holds_no_credentials(tmp_path, monkeypatch):
    monkeypatch.setenv("PYICEBERG_CATALOG__PENSTOCK__TOKEN", "a-secret")
    catalog = f"sqlite:///{tmp_path / 'catalog.sqlite'}"
    for name in ("one", "two"):
        lake = Lake(tmp_path / name, "iceberg", catalog)
        fill(lake, [0])
        assert as_documents(Lake(lake.path).current()) == model(expected(0, 1))
        assert json.loads((lake.path / MARKER).read_text()) == {"catalog": catalog}
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or b"a-secret" not in path.read_bytes()
    with pytest.raises(UsageError, match=r"are in the catalog sqlite:.*; expected it, not sqlite:///elsewhere"):
        Lake(tmp_path / "one", "iceberg", "sqlite:///elsewhere").check_owner()
    (tmp_path / "more").mkdir()
    with pytest.raises(UsageError, match=r"has the table one\.changelog at .*cannot be moved"):
        fill(Lake(tmp_path / "more" / "one", "iceberg", catalog), [0])
    remove_tables(plan_removal(Lake(tmp_path / "one"), []))
    assert [*(tmp_path / "one").iterdir()] == [tmp_path / "one" / "_lock"]
    fill(Lake(tmp_path / "one", "iceberg", catalog), [0])


REST = """
import sys
from penstock.spark import Lake
from penstock.spark.lake.tables.lake_table import CommitFailed
from penstock.spark.pipeline.state.stopping import plan_removal, remove_tables
from tests.spark.lakes import append, as_documents, model, prepare_merge
from tests.spark.test_iceberg import expected, fill

lake = Lake(sys.argv[1], "iceberg", sys.argv[2])
fill(lake, [0])
remove_tables(plan_removal(lake, []))
fill(lake, range(2))
append(lake, 2, expected(2, 3))
assert not append(Lake(lake.path), 2, [])
assert as_documents(Lake(lake.path).current()) == model(expected(0, 3))
first, second = prepare_merge(lake), prepare_merge(lake)
first.commit()
try:
    second.commit()
except CommitFailed:
    print("one of two")
"""


@pytest.mark.process
def test_a_rest_catalog_gets_its_token_from_the_environment(tmp_path):
    with serve_catalog(tmp_path, "a-secret") as uri:
        lake = Lake(tmp_path / "lake", "iceberg", uri)
        with pytest.raises(Error, match=rf"the catalog {uri} did not answer as expected \(UnauthorizedError\)"):
            append(lake, 0, expected(0, 1))
        program = [sys.executable, "-c", REST, str(lake.path), uri]
        login = os.environ | {"PYICEBERG_CATALOG__PENSTOCK__TOKEN": "a-secret"}
        done = subprocess.run(
            program, env=login, cwd=lakes.ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.stdout == "one of two\n", done.stderr
        for path in lake.path.rglob("*"):
            assert path.is_dir() or b"a-secret" not in path.read_bytes()
    with pytest.raises(Error, match=r"did not answer as expected \(ConnectionError\)"):
        Lake(lake.path).current()


def test_a_moved_lake_is_refused_and_removed_directories_are_made_again(lake, tmp_path):
    fill(lake, range(2))
    shutil.copytree(lake.path, tmp_path / "copy" / "lake")
    with pytest.raises(UsageError, match="Iceberg tables cannot be moved"):
        Lake(tmp_path / "copy" / "lake").current()
    shutil.rmtree(lake.current_table.path)
    assert as_documents(lake.current()) == model(expected(0, 2))
    merge_current(lake)
    assert as_documents(lakes.read_table_documents(lake)) == model(expected(0, 2))
    remove_tables(plan_removal(lake, ["current"]))
    merge_current(lake)
    assert lake.current(where=pc.field("vbucket") == 3).num_rows == sum(key[0] == 3 for key in model(expected(0, 2)))
