"""Tables without a declaration: each collection with JSON objects gets one, whenever its first document comes."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.names import quote_table
from penstock.spark import Lake
from penstock.spark.dependents.kinds.secondary_index import SecondaryIndexKind
from penstock.spark.dependents.kinds.table_definition import TableDefinition
from penstock.spark.lake.changelog import found_collections
from penstock.spark.lake.changelog.found_collections import COLLECTIONS, find_collections, read_collections
from penstock.spark.lake.current.typed_table import TypedTable, list_typed_tables
from penstock.spark.pipeline.checks.lake_checks import check_lake
from penstock.spark.pipeline.definition.definition import PipelineDefinition, define_bucket_pipeline
from penstock.spark.pipeline.run.dependent_tasks import create_tasks
from penstock.spark.pipeline.run.table_tasks import TableTasks
from penstock.spark.pipeline.state.changelog_meter import ChangelogMeter
from penstock.spark.pipeline.state.kept_tables import describe_left_out, list_kept
from penstock.spark.pipeline.state.lake_status import LakeStatus
from penstock.spark.pipeline.state.source_status import read_pipeline_status
from penstock.spark.pipeline.state.stopping import plan_removal, remove_tables
from tests.examples import scaled
from tests.spark.lakes import Row, append, as_documents, checkpoint, model, read_table_documents, row
from tests.spark.test_current import histories

NAMES = {8: {"scope": "shop", "collection": "c8"}, 9: {"scope": "shop", "collection": "c9"}}
COLLECTION_8: dict[str, Any] = {"collection_id": 8, **NAMES[8]}
TABLES = {0: "default", 8: "shop_x2e_c8", 9: "shop_x2e_c9"}


@pytest.fixture
def lake(tmp_path):
    lake = Lake(tmp_path / "lake")
    checkpoint(lake.checkpoint, batches=9)
    return lake


def start(lake: Lake, definition: PipelineDefinition | None = None) -> TableTasks:
    """Return the tables of a run that begins now."""
    definition = definition or define_bucket_pipeline(str(lake.path))
    tasks = create_tasks(definition, definition.sources[0], lake)[0]
    assert isinstance(tasks, TableTasks)
    return tasks


def merge(lake: Lake, definition: PipelineDefinition | None = None) -> list[str]:
    """Return the tables of a run that merges and ends."""
    tasks = start(lake, definition)
    tasks.run()
    return [each.name for each in tasks.list_progress()]


def declare(lake: Lake, *tables: TableDefinition) -> PipelineDefinition:
    return replace(define_bucket_pipeline(str(lake.path)), dependents=tables)


def read_status_of(definition: PipelineDefinition) -> LakeStatus:
    (found,) = read_pipeline_status(definition)
    return found


def read(lake: Lake, name: str) -> dict[tuple[int, int, bytes], dict[str, Any]]:
    table = TypedTable.find(lake, name)
    opened = None if table is None else table.table.open()
    lines = [] if opened is None else pa.table(opened.to_pyarrow_table()).to_pylist()
    found = {
        (line["_vbucket"], line["_collection_id"], (line["_key"] or "").encode() or line["_key_bytes"] or b""): line
        for line in lines
    }
    assert len(found) == len(lines)
    return found


def make_documents(rows: Iterable[Row]) -> list[Row]:
    """Return rows as a bucket with collections sends them. Some values are JSON objects, some are other texts."""
    found = []
    for each in rows:
        value = each.get("value")
        if value:
            value = b'{"n":%d}' % each["seqno"] if each["collection_id"] != 9 or each["seqno"] > 20 else b"[%s]" % value
        found.append(each | {"value": value} | NAMES.get(each.get("collection_id", 0), {}))
    return found


def list_collections_with_objects(rows: Iterable[Row]) -> set[int]:
    values = ((each.get("collection_id") or 0, each.get("value") or b"") for each in rows)
    return {collection for collection, value in values if value.startswith(b"{")}


@settings(max_examples=scaled(40))
@given(histories(), st.data())
def test_each_collection_with_objects_has_a_table_that_equals_the_bucket(rows, data):
    rows = make_documents(rows)
    ends = sorted({*data.draw(st.lists(st.integers(0, len(rows)), max_size=6)), 0, len(rows)})
    with TemporaryDirectory() as directory:
        lake = Lake(directory)
        tasks = start(lake)
        meter = ChangelogMeter(lake)
        for batch, (first, end) in enumerate(pairwise(ends)):
            append(lake, batch, rows[first:end])
            tasks.add_pending(meter.version, meter.update())
            if data.draw(st.booleans()):  # killed before its next merge
                tasks = start(lake)
            if not data.draw(st.booleans()) and end < len(rows):
                continue
            tasks.run()
            wanted = list_collections_with_objects(rows[:end])
            assert {table.name for table in list_typed_tables(lake)} == {TABLES[each] for each in wanted}
            assert {each.name for each in tasks.list_progress()} == {"current", *(TABLES[each] for each in wanted)}
            assert as_documents(read_table_documents(lake)) == model(rows[:end])
            for collection in wanted:
                documents = {each: v for each, (_, v) in model(rows[:end]).items() if each[1] == collection}
                lines = read(lake, TABLES[collection])
                assert lines.keys() == documents.keys()
                for identity, line in lines.items():
                    assert documents[identity] in (b'{"n":%d}' % (line["n"] or 0), (line["_rest"] or "").encode())


def test_a_table_appears_with_the_first_document_of_its_collection(lake):
    tasks, meter = start(lake), ChangelogMeter(lake)
    assert [each.name for each in tasks.list_progress()] == ["current"]
    append(lake, 0, [row(1, 1, b"a", b'{"n":1}')])
    tasks.add_pending(meter.version, meter.update())
    tasks.run()
    append(lake, 1, [row(1, 2, b"b", b'{"style":"ale"}', **COLLECTION_8)])
    tasks.add_pending(meter.version, meter.update())
    assert [(each.name, each.pending) for each in tasks.list_progress()] == [("default", 1), ("current", 1)]
    tasks.run()
    assert [(each.name, each.version, each.rows, each.pending) for each in tasks.list_progress()] == [
        ("default", 1, 1, 0),
        ("shop_x2e_c8", 1, 1, 0),
        ("current", 1, 2, 0),
    ]
    assert [line["style"] for line in read(lake, "shop_x2e_c8").values()] == ["ale"]
    append(lake, 2, [row(1, 3, None, None, "end_collection", **COLLECTION_8)])
    merge(lake)
    assert read(lake, "shop_x2e_c8") == {}
    assert merge(lake) == ["default", "shop_x2e_c8", "current"]


def test_collections_without_objects_and_system_scopes_have_no_table(lake):
    others: dict[str, Any] = {"scope": "shop", "collection": "blobs", "collection_id": 9}
    system: dict[str, Any] = {"scope": "_system", "collection": "_query", "collection_id": 10}
    unnamed: dict[str, Any] = {"scope": None, "collection": None, "collection_id": 11}
    append(lake, 0, [row(1, 1, b"a", b"\x00{}", **others), row(1, 2, b"b", b"[{}]", **others)])
    append(lake, 1, [row(1, n, b"%d" % n, b"{}", **more) for n, more in enumerate((system, unnamed), 3)])
    append(lake, 2, [row(1, 5, b"gone", None, "deletion", scope="shop", collection="empty", collection_id=12)])
    assert merge(lake) == ["current"]
    found = read_collections(lake)
    assert found.has_objects == {("shop", "blobs"): False}
    assert describe_left_out(found) == "shop.blobs has no JSON object"
    append(lake, 3, [row(1, 6, b"c", b' {"a":1}', **others)])
    assert merge(lake) == ["shop_x2e_blobs", "current"]
    assert describe_left_out(read_collections(lake)) is None
    assert len(read(lake, "shop_x2e_blobs")) == 3


def test_tables_of_collections_that_differ_in_case_do_not_meet(lake):
    for batch, name in enumerate(["Beers", "beers", "current", "Changelog", "default"]):
        more: dict[str, Any] = {"scope": "_default", "collection": name, "collection_id": 8 + batch}
        append(lake, batch, [row(1, batch + 1, b"a", b"{}", **more)])
    assert merge(lake) == ["_x43_hangelog", "_x63_urrent", "_x64_efault", "Beers", "current"]
    expected = "_default.beers has the name of another table, index or sink"
    assert describe_left_out(read_collections(lake)) == expected
    assert quote_table("_default", "currents") == "currents"
    index = replace(declare(lake), dependents=(SecondaryIndexKind(name="Beers", path="n", type="long"),))
    assert merge(lake, index) == ["_x43_hangelog", "_x63_urrent", "_x64_efault", "current"]
    assert (found := read_status_of(index).left_out) is not None
    assert found.startswith("_default.Beers, _default.beers has the name")


def test_one_look_reads_only_new_files(lake, monkeypatch):
    append(lake, 0, [row(1, 1, b"a", b"{}"), row(40, 1, b"b", b"{}")])
    find_collections(lake)
    paths: list[str] = []
    add = found_collections._add_collections

    def add_and_note(path: str, has_objects: dict[tuple[str, str], bool]) -> None:
        paths.append(path)
        add(path, has_objects)

    monkeypatch.setattr(found_collections, "_add_collections", add_and_note)
    find_collections(lake)
    assert paths == []
    append(lake, 1, [row(1, 2, b"a", b"{}")])
    assert find_collections(lake).position == (lake.changelog_table.read_id(lake.changelog_table.open()), 1)
    assert len(paths) == 1


def test_a_look_that_another_changelog_interrupts_begins_again(lake):
    append(lake, 0, [row(1, 1, b"a", b"{}", **COLLECTION_8)])
    find_collections(lake)
    text = (lake.path / COLLECTIONS).read_text()
    remove_tables(plan_removal(lake, []))
    assert not (lake.path / COLLECTIONS).exists()
    (lake.path / COLLECTIONS).write_text(text)  # of a copy of the lake
    checkpoint(lake.checkpoint)
    append(lake, 0, [row(1, 1, b"a", b"{}")])
    assert find_collections(lake).has_objects == {("_default", "_default"): True}
    (lake.path / COLLECTIONS).write_text("[]")
    with pytest.raises(UsageError, match=r"_collections.json is damaged; remove it, and the next run writes it again"):
        find_collections(lake)


def test_a_reset_table_is_built_again_although_its_documents_are_old(lake):
    append(lake, 0, [row(1, 1, b"a", b'{"n":1}')])
    merge(lake)
    remove_tables(plan_removal(lake, ["default"]))
    assert not list_typed_tables(lake)
    merge(lake)
    assert [line["n"] for line in read(lake, "default").values()] == [1]


def test_declared_tables_are_kept_alone(lake):
    append(lake, 0, [row(1, 1, b"a", b'{"n":1}'), row(1, 2, b"b", b'{"n":1}', **COLLECTION_8)])
    definition = define_bucket_pipeline(str(lake.path))
    assert merge(lake) == ["default", "shop_x2e_c8", "current"]
    declared = declare(lake, TableDefinition(collection="_default", schema="infer"))
    assert merge(lake, declared) == ["default", "current"]
    assert [each.name for each in list_kept(declared, declared.sources[0], lake)] == ["default"]
    assert [each.name for each in read_status_of(declared).removed] == ["shop_x2e_c8"]
    assert read_status_of(definition).removed == ()
    append(lake, 1, [row(1, 3, b"c", b'{"n":1}'), row(1, 4, b"d", b'{"n":1}', **COLLECTION_8)])
    merge(lake, declared)
    assert [len(read(lake, name)) for name in ("default", "shop_x2e_c8")] == [2, 1]
    merge(lake, definition)  # again without a declaration: both are caught up
    assert [len(read(lake, name)) for name in ("default", "shop_x2e_c8")] == [2, 2]
    other = declare(lake, TableDefinition(collection="_default", schema="n INT"))
    with pytest.raises(UsageError, match=r"default is a table of another declaration: n was BIGINT and is INT"):
        check_lake(other, other.sources[0], lake)


def test_a_table_of_another_collection_is_not_overwritten(lake):
    append(lake, 0, [row(1, 1, b"a", b'{"n":1}', **COLLECTION_8)])
    merge(lake, declare(lake, TableDefinition(name="default", collection="shop.c8", schema="n INT")))
    check_lake(inferred := declare(lake), inferred.sources[0], lake)
    append(lake, 1, [row(1, 2, b"a", b'{"n":1}')])
    with pytest.raises(UsageError, match=r"another declaration: collection was .shop\.c8. and is ._default"):
        merge(lake)
    with pytest.raises(UsageError, match="penstock pipeline retype FILE --table default"):
        check_lake(inferred, inferred.sources[0], lake)


@pytest.mark.parametrize(
    ("tables", "source", "kept"),
    [
        ({"infer": False}, {}, ["current"]),
        ({"current": False}, {}, []),
        ({}, {"keys_only": True}, ["current"]),
        ({}, {}, ["default", "current"]),
    ],
)
def test_a_file_can_do_without_inferred_tables(lake, tables, source, kept):
    append(lake, 0, [row(1, 1, b"a", b'{"n":1}')])
    definition = define_bucket_pipeline(str(lake.path), url="couchbase://127.0.0.1/b", **source)
    definition = replace(definition, tables=replace(definition.tables, **tables))
    tasks = create_tasks(definition, definition.sources[0], lake)
    for task in tasks:
        task.run()
    assert [each.name for task in tasks for each in task.list_progress()] == kept
    assert (lake.path / COLLECTIONS).exists() == ("default" in kept)
