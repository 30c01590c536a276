"""Tables of a lake on a local disk are opened again only if they have changed."""

import shutil

import pytest
from deltalake import DeltaTable

from penstock.spark import Lake
from penstock.spark.lake.maintenance.lake_compaction import compact
from penstock.spark.lake.maintenance.time_travel import set_time_travel
from penstock.spark.lake.tables import delta_store
from tests.spark.lakes import append, row


@pytest.fixture
def lake(tmp_path):
    lake = Lake(tmp_path / "lake")
    append(lake, 0, [row(1, 1)])
    return lake


def test_a_table_without_a_new_commit_is_read_once(lake):
    first = lake.changelog_table.open()
    assert Lake(lake.path).changelog_table.open() is first
    append(lake, 1, [row(1, 2)])
    second = lake.changelog_table.open()
    assert first is not None
    assert second is not None
    assert (first.version(), second.version()) == (0, 1)
    assert first.transaction_version("nobody") is second.transaction_version("nobody") is None


def test_commits_of_other_programs_and_of_deltalake_are_seen(lake):
    opened = lake.changelog_table.open()
    DeltaTable(str(lake.changelog_table.path)).alter.set_table_properties({"delta.checkpointInterval": "7"})
    assert lake.changelog_table.open().version() == 1
    set_time_travel(Lake(lake.path, keep_hours=48))
    append(lake, 1, [row(1, 2)])
    compact(lake)
    lake.changelog_table.remove_unused_files(0)
    newest = DeltaTable(str(lake.changelog_table.path))
    assert lake.changelog_table.open().version() == newest.version()
    assert opened.version() == 0
    assert lake.changelog_table.list_files(opened)[0].rows == 1


def test_a_table_without_its_old_commits_is_read_again(lake):
    """An opened version reads files of its log later, and another program may have removed some of them since."""
    append(lake, 1, [row(1, 2)])
    first, log = lake.changelog_table.open(), lake.changelog_table.path / "_delta_log"
    DeltaTable(str(lake.changelog_table.path)).create_checkpoint()
    (log / f"{0:020d}.json").unlink()
    second = lake.changelog_table.open()
    assert second is not first
    assert second.version() == first.version()
    assert second.vacuum(0, enforce_retention_duration=False) == []


def test_a_table_that_was_removed_or_created_again_is_another_one(lake, tmp_path):
    opened, path = lake.changelog_table.open(), lake.changelog_table.path
    identity = lake.changelog_table.read_id(opened)
    shutil.rmtree(path)
    assert lake.changelog_table.open() is None
    append(lake, 0, [row(1, 1)])
    assert lake.changelog_table.read_id(lake.changelog_table.open()) != identity
    path.rename(tmp_path / "elsewhere")
    assert lake.changelog_table.open() is None


def test_few_tables_are_remembered(lake, monkeypatch):
    monkeypatch.setattr(delta_store, "MOST_OPENED", 1)
    other = Lake(lake.path.parent / "other")
    append(other, 0, [row(1, 1)])
    first, second = lake.changelog_table.open(), other.changelog_table.open()
    assert lake.changelog_table.open() is not first
    assert other.changelog_table.open() is not second
    assert other.changelog_table.open() is other.changelog_table.open()
