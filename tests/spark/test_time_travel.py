"""Time travel: past versions of typed tables can be read for a day, and their files go after that."""

import json
import os
import re
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.errors import UsageError
from penstock.spark import Lake, compact, vacuum
from penstock.spark.lake.current.current_table import merge_tables
from penstock.spark.lake.current.document_table import describe_current
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.lake.maintenance.time_travel import parse_time_travel, set_time_travel
from penstock.spark.lake.tables.delta_store import DEFAULT_HOURS, REPLACED_HOURS, make_table_properties
from penstock.spark.lake.tables.iceberg.iceberg_files import SNAPSHOT_AGE
from penstock.spark.pipeline.definition.definition import TableSettings, read_definition
from penstock.spark.runtime.changelog_sink import open_lake
from penstock.spark.values.json_types import from_ddl
from tests.spark.lakes import append, as_documents, checkpoint, model, read_table_documents, row
from tests.spark.test_iceberg import open_by_pyiceberg

TYPED = TableShape(name="orders", fields=from_ddl("n BIGINT"))


@pytest.mark.parametrize(
    ("text", "hours"), [("1 day", 24), ("12 hours", 12), ("1hour", 1), ("2 Weeks", 336), ("10 days", 240)]
)
def test_times(text, hours):
    assert parse_time_travel(text) == hours


@pytest.mark.parametrize("text", ["", "day", "0 days", "30 minutes", "1.5 days", "5 years", "9999999 days", "100 GB"])
def test_other_texts_are_refused(text):
    expected = f"time_travel is {text!r}, expected 1 hour to 10 years, such as 12 hours, 1 day or 2 weeks"
    with pytest.raises(UsageError, match=re.escape(expected)):
        TableSettings(time_travel=text)


def test_the_file_decides_about_new_tables(tmp_path):
    file = tmp_path / "pipeline.toml"
    for keys, hours in (("", DEFAULT_HOURS), ('[tables]\ntime_travel = "2 days"', 48)):
        file.write_text(f'lake = "lake"\n[source.s]\nurl = "couchbase://127.0.0.1/b"\n{keys}\n')
        assert read_definition(str(file)).open_lake(str(tmp_path / "lake")).keep_hours == hours
    assert open_lake({"path": str(tmp_path), "keepHours": "48"}, "sink")[0].keep_hours == 48
    with pytest.raises(UsageError, match="sink has keepHours '0'; expected 1 to 87840"):
        open_lake({"path": str(tmp_path), "keepHours": "0"}, "sink")


@pytest.fixture
def lake(tmp_path):
    lake = Lake(tmp_path / "lake")
    checkpoint(lake.checkpoint, batches=10)
    return lake


def rows(batch):
    return [row(n % 64, 100 * batch + n, b"k%d" % n, b'{"n": %d}' % batch) for n in range(1, 65)]


def fill(lake, batches):
    """Append batches, and merge each into current and a typed table."""
    targets = [describe_current(lake), TypedTable(lake, TYPED).describe()]
    for batch in batches:
        append(lake, batch, rows(batch))
        merge_tables(targets)


def list_places(lake):
    return [Path(lake.path) / name for name in ("changelog", "current", "tables/orders")]


def read(place, version):
    table = DeltaTable(str(place), version=version).to_pyarrow_table()
    return table.sort_by([(name, "ascending") for name in table.column_names if name in ("vbucket", "seqno", "_key")])


def let_pass(place, hours):
    """Make a table older: its logs and its files."""

    def shift(found):
        for name, value in found.items():
            if name in ("timestamp", "modificationTime", "deletionTimestamp", "lastUpdated"):
                found[name] = value - round(hours * 3_600_000)
            elif isinstance(value, dict):
                shift(value)

    for path in [*place.rglob("*.json"), *place.rglob("*.parquet")]:
        at = path.stat().st_mtime - 3600 * hours
        if path.suffix == ".json":
            actions = [json.loads(line) for line in path.read_text().splitlines()]
            for action in actions:
                shift(action)
            path.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
        os.utime(path, (at, at))


def test_past_versions_are_read_for_a_day_and_those_of_internal_tables_for_an_hour(lake):
    fill(lake, range(3))
    past = {place: (DeltaTable(str(place)).version(), read(place, None)) for place in list_places(lake)}
    fill(lake, range(3, 6))
    compact(lake)
    vacuum(lake)
    orders = list_places(lake)[2]
    for hours, kept in ((0, [*past]), (REPLACED_HOURS - 0.5, [*past]), (1, [orders]), (22, [orders]), (2, [])):
        for place in past:
            let_pass(place, hours)
        vacuum(lake)
        for place, (version, table) in past.items():
            if place in kept:
                assert read(place, version).equals(table), (place, hours)
            else:
                with pytest.raises((FileNotFoundError, OSError)):
                    read(place, version)
    assert as_documents(read_table_documents(lake)) == model([each for batch in range(6) for each in rows(batch)])
    assert {line["n"] for line in read(list_places(lake)[2], None).to_pylist()} == {5}
    on_disk = [*list_places(lake)[2].glob("vbucket_range=*/*.parquet")]
    assert len(on_disk) == len(DeltaTable(str(list_places(lake)[2])).file_uris())


def test_a_run_removes_replaced_files_of_the_changelog_after_that_time(lake):
    fill(lake, range(3))
    compact(lake)
    changelog = lake.changelog_table
    before = {*changelog.path.rglob("*.parquet")}
    changelog.remove_unused_files(only_replaced=True)
    assert {*changelog.path.rglob("*.parquet")} == before
    let_pass(changelog.path, REPLACED_HOURS)
    Lake(lake.path).changelog_table.remove_unused_files(only_replaced=True)
    left = {str(path) for path in changelog.path.rglob("*.parquet")}
    assert left == {path.removeprefix("file://") for path in DeltaTable(str(changelog.path)).file_uris()}


def test_existing_tables_get_the_time_of_the_file(lake, monkeypatch):
    old = {
        "delta.checkpointInterval": "50",
        "delta.logRetentionDuration": "interval 1 hours",
        "delta.deletedFileRetentionDuration": "interval 5 minutes",
    }
    monkeypatch.setattr("penstock.spark.lake.tables.directory.make_table_properties", lambda *_: old)
    fill(lake, range(2))
    monkeypatch.undo()

    def read_properties():
        return [DeltaTable(str(place)).metadata().configuration.items() for place in list_places(lake)]

    assert all(found >= old.items() for found in read_properties())
    longer = Lake(lake.path, keep_hours=48)
    set_time_travel(longer)
    wanted = [(48, REPLACED_HOURS), (REPLACED_HOURS, REPLACED_HOURS), (48, 48)]
    found = zip(read_properties(), wanted, strict=True)
    assert all(properties >= make_table_properties(*hours).items() for properties, hours in found)
    versions = [DeltaTable(str(place)).version() for place in list_places(lake)]
    set_time_travel(longer)
    assert [DeltaTable(str(place)).version() for place in list_places(lake)] == versions
    longer.check_owner()
    assert merge_tables([describe_current(lake)])[0].changes == 0
    fill(lake, [2])
    append(lake, 3, rows(3))
    set_time_travel(lake)
    assert merge_tables([TypedTable(lake, TYPED).describe()])[0].changes == 64
    compact(lake)
    assert "delta.enableChangeDataFeed" in DeltaTable(str(list_places(lake)[2])).metadata().configuration
    assert pa.table(DeltaTable(str(list_places(lake)[2])).load_cdf(starting_version=0).read_all()).num_rows > 0


def test_snapshots_of_iceberg_stay_for_that_time(tmp_path):
    lake = Lake(tmp_path / "lake", "iceberg")
    targets = [describe_current(lake), TypedTable(lake, TYPED).describe()]
    for batch in range(3):
        append(lake, batch, rows(batch))
        merge_tables(targets)
    past = open_by_pyiceberg(lake, "orders")
    first = past.snapshots()[0].snapshot_id
    assert past.properties[SNAPSHOT_AGE] == str(24 * 3_600_000)
    vacuum(lake)
    found = open_by_pyiceberg(lake, "orders").scan(snapshot_id=first).to_arrow()
    assert sorted(found["_seqno"].to_pylist()) == [*range(1, 65)]
    set_time_travel(Lake(tmp_path / "lake", "iceberg", keep_hours=48))
    ages = [open_by_pyiceberg(lake, name).properties.get(SNAPSHOT_AGE) for name in ("changelog", "current", "orders")]
    assert ages == [None, str(REPLACED_HOURS * 3_600_000), str(48 * 3_600_000)]
    append(lake, 3, rows(3))
    assert [merged.changes for merged in merge_tables(targets)] == [64, 64]
    vacuum(lake, 0)
    assert len(open_by_pyiceberg(lake, "current").snapshots()) == 1
