"""Wider types of inferred columns, readers that refuse Delta's type widening, and warnings about other types."""

import json
import logging
import time

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, DeltaProtocolError
from polars.exceptions import PolarsError

from penstock.spark import Lake
from penstock.spark.dependents.kinds.table_definition import TableDefinition
from penstock.spark.lake.current.inferred_table import InferredTable
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.pipeline.run.table_tasks import TableTargets, TableTasks
from penstock.spark.pipeline.state.lake_status import read_status
from penstock.spark.values.json_types import from_ddl
from tests.spark.lakes import append, row

NOTHING = TableShape(name="orders", fields=pa.schema([]))
FIELDS = from_ddl("n INT, name STRING")


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path / "lake")


def documents(first, last, seqno, **fields):
    return [row(n % 64, seqno + n, b"k%d" % n, json.dumps({"n": n, **fields}).encode()) for n in range(first, last)]


def test_all_files_have_the_wider_type(lake):
    table = InferredTable(lake, NOTHING)
    append(lake, 0, documents(0, 128, 1))
    table.merge()
    append(lake, 1, documents(0, 1, 1000, **{"n": 0.5}))
    table.merge()
    opened = DeltaTable(str(lake.path / "tables" / "orders"))
    assert {pq.read_schema(lake.path / "tables" / "orders" / path).field("n").type for path in opened.file_uris()} == {
        pa.float64()
    }
    place = str(lake.path / "tables" / "orders")
    assert pl.scan_delta(place).select(pl.col("n").sum()).collect().item() == sum(range(1, 128)) + 0.5
    assert DeltaTable(place, version=0).to_pyarrow_table()["n"].type == pa.int64()
    assert opened.protocol().reader_features is None


def test_readers_refuse_delta_type_widening(tmp_path):
    """If this fails, readers have learnt it: a wider type then needs no new files."""
    pq.write_table(pa.table({"n": pa.array([1], pa.int32())}), tmp_path / "old.parquet")
    pq.write_table(pa.table({"n": pa.array([2**40], pa.int64())}), tmp_path / "new.parquet")
    now = int(time.time() * 1000)
    features = ["typeWidening"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}

    def describe(of, **notes):
        fields = [{"name": "n", "type": of, "nullable": True, "metadata": notes}]
        schema = json.dumps({"type": "struct", "fields": fields})
        configuration = {"delta.enableTypeWidening": "true"}
        about = {"id": "0", "format": {"provider": "parquet", "options": {}}, "partitionColumns": []}
        return {"metaData": about | {"schemaString": schema, "configuration": configuration, "createdTime": now}}

    def add(name):
        size = (tmp_path / name).stat().st_size
        file = {"path": name, "partitionValues": {}, "size": size, "modificationTime": now, "dataChange": True}
        return {"add": file}

    (tmp_path / "_delta_log").mkdir()
    changes = [{"fromType": "integer", "toType": "long"}]
    commits = [
        [{"protocol": protocol}, describe("integer"), add("old.parquet")],
        [describe("long", **{"delta.typeChanges": changes}), add("new.parquet")],
    ]
    for number, actions in enumerate(commits):
        text = "".join(f"{json.dumps(action)}\n" for action in actions)
        (tmp_path / "_delta_log" / f"{number:020d}.json").write_text(text)
    versions: list[int | None] = [None, 0]
    for version in versions:
        with pytest.raises(DeltaProtocolError, match="typeWidening"):
            DeltaTable(str(tmp_path), version=version).to_pyarrow_table()
    with pytest.raises((PolarsError, DeltaProtocolError), match="typeWidening"):
        pl.scan_delta(str(tmp_path)).collect()
    with pytest.raises(DeltaError, match="enableTypeWidening"):
        DeltaTable.create(
            str(tmp_path / "other"), pa.schema([("n", pa.int32())]), configuration={"delta.enableTypeWidening": "true"}
        )


def merge(lake, tasks, batch, rows):
    """Append rows, and merge them as a run does."""
    append(lake, batch, rows)
    for task in tasks.tasks:
        task.add_pending(batch, [])
    tasks.run()


def test_a_conflict_is_logged_once(lake, caplog):
    declared = TableDefinition(name="orders", collection="_default", schema="n INT, name STRING")
    targets = TableTargets(lake, [declared], has_current=True, is_inferring=False)
    append(lake, 0, documents(0, 100, 1, name="x"))
    tasks = TableTasks(lake, targets, MergePolicy())
    with caplog.at_level(logging.WARNING, "penstock.pipeline"):
        tasks.run()
        merge(lake, tasks, 1, documents(0, 50, 1000, new=1))  # a field that the schema lacks is no conflict
        assert caplog.messages == []
        merge(lake, tasks, 2, documents(7, 8, 2000, name=5))
        merge(lake, tasks, 3, documents(0, 30, 3000, name=[1]))
        merge(lake, tasks, 4, documents(0, 30, 4000, name=6, n="many"))
        merge(lake, tasks, 5, documents(30, 60, 5000, name=[7], n="more"))
    assert caplog.messages[0].endswith("1 values, expected STRING; they are in _rest, for example of k7")
    assert [text.partition(";")[0] for text in caplog.messages] == [
        "table orders: field name is number in 1 values, expected STRING",
        "table orders: field name is array in 30 values, expected STRING",
        "table orders: field n is text in 30 values, expected INT",
    ]
    again = TableTasks(lake, targets, MergePolicy())
    with caplog.at_level(logging.WARNING, "penstock.pipeline"):
        merge(lake, again, 6, documents(0, 1, 6000, name=1))
    assert len(caplog.messages) == 3


def test_the_status_reports_the_sample_of_inference(lake, monkeypatch):
    monkeypatch.setattr("penstock.spark.lake.current.inferred_table.FIRST_VALUES", 100)
    monkeypatch.setattr("penstock.spark.lake.current.inferred_table.LATER_VALUES", 10)
    table = InferredTable(lake, NOTHING)
    append(lake, 0, documents(0, 1000, 1))
    table.merge()

    def describe():
        found = next(each for each in read_status(lake).dependents if each.name == "orders")
        return found.describe_sample()

    assert describe() == "columns inferred from 96 of 1,000 documents"  # 6 of each file
    append(lake, 1, documents(1000, 1005, 3000, new=1))
    table.merge()
    assert describe() == "columns inferred from 101 of 1,005 documents"
    table.infer_again().describe_replacement()
    assert table.infer_again().sample == 1005
