"""Merges into several tables commit only those whose rows change, and the positions of the others are known."""

import json
import random

import pyarrow.parquet as pq
import pytest

from penstock.spark import Lake, compact
from penstock.spark.lake.changelog.idle_positions import IDLE_POSITIONS
from penstock.spark.lake.current.current_table import merge_tables, read_merged_version
from penstock.spark.lake.current.document_table import describe_current
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.values.json_types import from_ddl
from tests.examples import scaled
from tests.spark.lakes import append, rollback, row

BUSY = {"collection_id": 8, "scope": "shop", "collection": "busy"}
QUIET = {"collection_id": 9, "scope": "shop", "collection": "quiet"}


def make_table(lake, names, **options):
    fields = from_ddl("n BIGINT")
    name = names["collection"]
    return TypedTable(lake, TableShape(name=name, fields=fields, scope="shop", collection=name, **options))


@pytest.fixture(params=["delta", "iceberg"])
def lake(tmp_path, request):
    return Lake(tmp_path / "lake", request.param)


def change(seqno, names, **more):
    return row(1, seqno, b"k%d" % (seqno % 3), b'{"n": %d}' % seqno, **names, **more)


def read(table):
    opened = table.table.open()
    paths = table.table.list_paths(table.table.list_files(opened))
    rows = [line for path in paths for line in pq.read_table(path, partitioning=None).to_pylist()]
    return sorted((line["_vbucket"], line["_key"], line["n"], line["_seqno"]) for line in rows)


def find_position(table):
    return read_merged_version(table.lake, table.table, table.table.open())


def test_tables_without_changes_have_no_commit_and_are_up_to_date(lake):
    tables = [make_table(lake, names) for names in (BUSY, QUIET)]
    targets = [describe_current(lake), *(table.describe() for table in tables)]
    append(lake, 0, [change(1, BUSY), change(2, QUIET)])
    merge_tables(targets)
    versions = [table.table.open().version() for table in tables]
    for batch in range(1, 4):
        append(lake, batch, [change(10 * batch, BUSY)])
        assert [progress.changes for progress in merge_tables(targets)] == [1, 1, 1]
    assert [table.table.open().version() for table in tables] == [versions[0] + 3, versions[1]]
    assert find_position(tables[0]) == find_position(tables[1])
    append(lake, 4, [change(50, QUIET)])
    assert [progress.changes for progress in merge_tables(targets)] == [1, 1, 1]
    assert [table.table.open().version() for table in tables] == [versions[0] + 3, versions[1] + 1]
    assert find_position(tables[0]) == find_position(tables[1])
    assert read(tables[1]) == [(1, "k2", 50, 50)]


def test_a_compaction_joins_files_that_idle_tables_have_seen(lake):
    tables = [make_table(lake, names) for names in (BUSY, QUIET)]
    for batch in range(4):
        append(lake, batch, [change(10 * batch + 1, BUSY), *([change(2, QUIET)] if not batch else [])])
        merge_tables([table.describe() for table in tables])
    assert compact(lake).changelog.files_after == 1
    append(lake, 4, [rollback(1, 0, 1), change(1, QUIET, history=1)])
    assert [progress.changes for progress in merge_tables([table.describe() for table in tables])] == [2, 2]
    assert (read(tables[0]), read(tables[1])) == ([], [(1, "k1", 1, 1)])


@pytest.mark.parametrize("spoil", ["", "[]", '{"changelog": "other", "tables": {}}', None, "older"])
def test_a_lost_or_foreign_record_costs_a_second_look_alone(lake, spoil):
    tables = [make_table(lake, names) for names in (BUSY, QUIET)]
    targets = [table.describe() for table in tables]
    append(lake, 0, [change(1, BUSY), change(2, QUIET)])
    merge_tables(targets)
    append(lake, 1, [change(3, BUSY)])
    merge_tables(targets)
    record = lake.path / IDLE_POSITIONS
    reached = find_position(tables[1])
    if spoil is None:
        record.unlink()
    elif spoil == "older":
        found = json.loads(record.read_text())
        found["tables"] = {name: [base - 1, reached] for name, (base, reached) in found["tables"].items()}
        record.write_text(json.dumps(found))
    else:
        record.write_text(spoil)
    assert find_position(tables[1]) < reached
    append(lake, 2, [change(5, QUIET)])
    merge_tables(targets)
    assert find_position(tables[0]) == find_position(tables[1])
    assert read(tables[1]) == [(1, "k2", 5, 5)]


@pytest.mark.parametrize("seed", range(scaled(6)))
def test_tables_are_equal_to_new_ones(tmp_path, seed):
    """Random changes and rollbacks of two collections, with merges of one or both tables and lost records."""
    chance, lake = random.Random(seed), Lake(tmp_path / "lake")
    tables = [make_table(lake, names, deletes=chance.choice(["remove", "mark"])) for names in (BUSY, QUIET)]
    seqno = history = 0
    for batch in range(12):
        rows = []
        for _ in range(chance.randint(0, 3)):
            if chance.random() < 0.2:
                seqno, history = chance.randint(0, seqno), history + 1
                rows.append(rollback(1, seqno, history))
            seqno += 1
            event = chance.choice(["mutation", "mutation", "deletion"])
            names = BUSY if chance.random() < 0.8 else QUIET
            key = b"k%d" % chance.randint(0, 2)
            rows.append(row(1, seqno, key, b'{"n": %d}' % seqno, event=event, history=history, **names))
        append(lake, batch, rows)
        if chance.random() < 0.8:
            merge_tables([table.describe() for table in (tables if chance.random() < 0.7 else tables[:1])])
        if chance.random() < 0.2:
            (lake.path / IDLE_POSITIONS).unlink(missing_ok=True)
    merge_tables([table.describe() for table in tables])
    for table in tables:
        found, opened = read(table), table.table.open()
        table.table.path.rename(tmp_path / table.name)
        merge_tables([table.describe()])
        assert found == read(table)
        assert table.table.open().version() <= opened.version()
