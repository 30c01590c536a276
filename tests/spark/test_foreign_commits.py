"""Commits of other programs to a lake's tables: joined files are read, changed rows are repaired or refused."""

import time
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.errors import LakeRefused, UsageError
from penstock.spark import Lake, compact, vacuum
from penstock.spark.lake.current import current_table as current
from penstock.spark.lake.current import table_rewrite
from penstock.spark.lake.current.current_table import merge_current, prepare_merges
from penstock.spark.lake.tables.lake_table import AnyTable, CommitFailed
from tests.spark.lakes import (
    QUERY,
    append,
    as_documents,
    batch_rows,
    checkpoint,
    identities,
    model,
    orphans,
    read_table_documents,
    row,
    write,
)

NEW = [
    row(3, 301, b"\xff\xfe", b"binary", xattrs=[("a", b"1")]),
    row(3, 302, b"", None),
    *(row(vbucket, 303, b"new", b"1") for vbucket in (0, 6)),
]
"""Batch 3: no document of an older batch, so that merging it leaves the older files."""

JOINS = {
    "OPTIMIZE": lambda table: table.optimize.compact(),
    "Z-ORDER": lambda table: table.optimize.z_order(["seqno", "vbucket"]),
}
CHANGES = {
    "DELETE": lambda table: table.delete("seqno < 200"),
    "DELETE of all rows": lambda table: table.delete(),
    "UPDATE": lambda table: table.update(predicate="vbucket < 4", updates={"cas": "7"}),
    "INSERT": lambda table: write_deltalake(table, pa.table(table.to_pyarrow_dataset().head(5)), mode="append"),
}


def run(lake: Lake, batches, merges=True):
    """Append batches, with a merge after each."""
    for batch in batches:
        append(lake, batch, expected(batch, batch + 1))
        if merges:
            merge_current(lake)


def expected(first, end):
    """Return the rows of some batches."""
    rows = [change for batch in range(first, end) for change in (NEW if batch == 3 else batch_rows(batch))]
    return [change for change in rows if change["vbucket"] < 8]


def foreign(table: AnyTable, operation):
    """Run another program's operation, and fail if it commits nothing."""
    opened = DeltaTable(table.path.as_uri())
    before = opened.version()
    operation(opened)
    opened.update_incremental()
    assert opened.version() > before


def check(lake: Lake, rows):
    """Assert that readers and the merged table have the documents that the rows leave."""
    assert as_documents(lake.current()) == model(rows)
    merge_current(lake)
    assert as_documents(read_table_documents(lake)) == model(rows)


@pytest.mark.parametrize("name", ["changelog_table", "current_table"])
@pytest.mark.parametrize("operation", JOINS)
def test_joined_files_change_no_result(lake, monkeypatch, name, operation):
    monkeypatch.setattr(table_rewrite, "SMALL_ROWS", 0)  # else the first merge would rewrite all joined files
    run(lake, range(4))
    append(lake, 4, expected(4, 5))
    foreign(getattr(lake, name), JOINS[operation])
    assert as_documents(lake.current()) == model(expected(0, 5))
    wanted = pc.field("key").isin(["document 3"])
    assert lake.current(["key"], where=wanted).num_rows == lake.current(["key"]).filter(wanted).num_rows > 0
    assert not merge_current(lake).rewritten
    run(lake, range(5, 9), merges=False)  # with a rollback that needs the joined files
    foreign(lake.changelog_table, JOINS[operation])
    check(lake, expected(0, 9))
    compact(lake)
    vacuum(lake, 0)
    check(lake, expected(0, 9))
    assert orphans(lake) == []
    assert identities(lake) == sorted((r["vbucket"], r["history"], r["seqno"]) for r in expected(0, 9))


@pytest.mark.parametrize("change", CHANGES)
def test_changed_rows_of_current_are_computed_again(lake, change):
    run(lake, range(4))
    foreign(lake.current_table, CHANGES[change])
    assert sorted(read_table_documents(lake)["cas"].to_pylist()) != sorted(
        cas for cas, _ in model(expected(0, 4)).values()
    )
    append(lake, 4, expected(4, 5))
    check(lake, expected(0, 5))
    run(lake, range(5, 7), merges=False)
    assert merge_current(lake).changes == len(expected(5, 7))  # no longer the whole changelog
    check(lake, expected(0, 7))


@pytest.mark.parametrize("change", CHANGES)
def test_changed_rows_of_the_changelog_are_refused_until_a_restore(lake, change):
    checkpoint(lake.checkpoint, batches=5)
    run(lake, range(4))
    version = lake.changelog_table.open().version()
    foreign(lake.changelog_table, CHANGES[change])
    for step in (
        lambda: merge_current(lake),
        lake.current,
        lambda: lake.as_of(datetime.now(UTC)),
        lambda: append(lake, 4, expected(4, 5)),
        lambda: compact(lake),
        lake.check_owner,
    ):
        with pytest.raises(LakeRefused) as refusal:
            step()
        operation = "WRITE" if change == "INSERT" else change.split()[0]
        assert f"changelog in version {version + 1} ({operation})" in str(refusal.value)
        assert f"changelog').restore({version})" in str(refusal.value)
        assert "\n" not in str(refusal.value)
    # The rows themselves stay readable, in the types of the table.
    rows = lake.changelog(["key", "event"], where=pc.field("event") == "mutation")
    assert rows.num_rows == lake.changelog().filter(pc.field("event") == "mutation").num_rows
    assert rows.schema.types == [pa.binary(), pa.string()]

    DeltaTable(lake.changelog_table.path.as_uri()).restore(version)
    lake.check_owner()
    append(lake, 4, expected(4, 5))
    check(lake, expected(0, 5))


def test_restore_that_undoes_an_own_commit_is_refused(lake):
    run(lake, range(3))
    foreign(lake.changelog_table, lambda table: table.restore(1))
    with pytest.raises(LakeRefused, match=r"version 3 \(RESTORE\).*restore\(2\)"):
        append(lake, 3, expected(3, 4))
    foreign(lake.changelog_table, lambda table: table.restore(2))
    run(lake, range(3, 5))
    check(lake, expected(0, 5))


def test_change_that_lands_just_before_an_own_commit_is_found(lake):
    run(lake, range(3))
    opened, files = lake.changelog_table.open(), write(lake, expected(3, 4))
    foreign(lake.changelog_table, CHANGES["INSERT"])
    lake.changelog_table.commit(opened, (QUERY, 3), files)
    with pytest.raises(LakeRefused, match=r"version 3 \(WRITE\)") as refusal:
        merge_current(lake)
    assert "restore" not in str(refusal.value)  # it would remove the rows of the own commit


@pytest.mark.parametrize("operation", [JOINS["Z-ORDER"], CHANGES["DELETE"]], ids=["Z-ORDER", "DELETE"])
def test_merge_restarts_after_another_program_replaced_its_files(lake, monkeypatch, operation):
    run(lake, range(3))
    append(lake, 3, expected(3, 4))
    merges = []

    def late(*arguments):
        merges.append(prepare_merges(*arguments))
        if len(merges) == 1:
            foreign(lake.current_table, operation)
        return merges[-1]

    monkeypatch.setattr(current, "prepare_merges", late)
    merge_current(lake)
    assert len(merges) == 2
    assert as_documents(read_table_documents(lake)) == model(expected(0, 4))


def test_compaction_of_files_that_another_program_joined_fails(lake):
    run(lake, range(3))
    table = lake.changelog_table
    opened = table.open()
    old, new = table.list_files(opened), write(lake, expected(0, 3))
    run(lake, [3])  # a batch meanwhile is no conflict
    foreign(table, JOINS["Z-ORDER"])
    with pytest.raises(CommitFailed):
        table.commit(opened, ("penstock.maintenance", 2), new, old, rows_change=False)
    check(lake, expected(0, 4))


def test_current_with_an_unknown_past_is_computed_again(lake):
    run(lake, range(4))
    table = lake.current_table
    foreign(table, CHANGES["DELETE"])
    opened = DeltaTable(table.path.as_uri())
    opened.create_checkpoint()
    foreign(table, JOINS["Z-ORDER"])
    for version in range(opened.version() + 1):
        (table.path / "_delta_log" / f"{version:020d}.json").unlink()
    check(lake, expected(0, 4))


def test_past_state_of_files_that_another_program_joined_is_refused(lake):
    run(lake, range(3))
    before = datetime.now(UTC)
    while datetime.now(UTC).timestamp() * 1000 < before.timestamp() * 1000 + 2:
        time.sleep(0)
    foreign(lake.changelog_table, JOINS["Z-ORDER"])
    with pytest.raises(UsageError, match="were joined with later files"):
        lake.as_of(before)


def test_filters_of_other_programs_find_rows_by_any_column(tmp_path):
    lake = Lake(tmp_path)
    run(lake, range(4))
    filters = (
        pc.field("key").cast(pa.binary()) == b"new",
        pc.field("cas") > 0,
        pc.field("seqno") == 303,
        pc.field("xattrs").is_null(),
        pc.field("vbucket_range") == 0,
    )
    for table in (lake.changelog_table, lake.current_table):
        dataset = DeltaTable(str(table.path)).to_pyarrow_dataset()
        for condition in filters:
            rows = dataset.to_table()
            assert 0 < dataset.count_rows(filter=condition) == rows.filter(condition).num_rows
