"""Definitions for Spark Declarative Pipelines: their queries equal the merge, and the example project runs."""

import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.pipelines.flow import AutoCdcFlow, Flow
from pyspark.pipelines.graph_element_registry import GraphElementRegistry, graph_element_registration_context
from pyspark.pipelines.output import Output

import penstock
from penstock.node import Node
from penstock.spark.declarative import IS_DELETE, SEQUENCE, current_by_cdc, documents_of, keyed_changes
from penstock.spark.lake.changelog.merge_rules import IDENTITY, merge_changes
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS, MERGE_SCHEMA
from tests.patience import PATIENCE
from tests.spark.buckets import Documents, numbered
from tests.spark.cluster import SPARK_HOME, environment_with
from tests.spark.lakes import Documents as LakeDocuments
from tests.spark.lakes import Row, as_documents, rollback, row, table

pytestmark = pytest.mark.spark

SIGNED_END = 2**63  # seqnos are unsigned, but Spark's integers are signed


def make_changes(vbucket: int) -> list[Row]:
    """Return random changes of one vbucket in their order; odd vbuckets have huge seqnos."""
    chance = random.Random(vbucket)
    base = SIGNED_END - 5 if vbucket % 2 else 0
    rows: list[Row] = []
    high = history = 0

    def signed(seqno):
        return seqno + base - 2**64 if seqno + base >= SIGNED_END else seqno + base

    for _ in range(chance.randrange(60)):
        kind = chance.choices(["set", "delete", "expire", "end", "rollback", "flush"], [8, 3, 1, 1, 2, 0.3])[0]
        key = chance.choice([b"a", b"b", b"c", b"\xff", "bräu".encode(), b"\xed\xa0\x80"])
        collection = chance.choice([0, 8, None])
        if kind in ("rollback", "flush"):
            history += 1
            high = chance.randrange(high + 1) if kind == "rollback" else 0
            rows.append(rollback(vbucket, signed(high) if high else chance.choice([0, None]), history, kind))
            continue
        high += chance.randrange(1, 3)
        where: Row = {"history": history, "collection_id": collection, "cas": len(rows)}
        if kind == "set":
            rows.append(row(vbucket, signed(high), key, b"%d" % len(rows), xattrs={"x": key}, **where))
        elif kind == "end":
            rows.append(row(vbucket, signed(high), None, None, "end_collection", **where))
        else:
            rows.append(row(vbucket, signed(high), key, None, {"delete": "deletion"}.get(kind, "expiration"), **where))
    return rows


@pytest.fixture(scope="module")
def rows():
    """Return the changes of many independent vbuckets, shuffled."""
    found = [change for vbucket in range(300) for change in make_changes(vbucket)]
    random.Random(0).shuffle(found)
    return table(found)


def in_order(documents: pa.Table) -> list[Row]:
    return sorted(documents.to_pylist(), key=lambda line: (line["vbucket"], line["collection_id"], line["cas"]))


def test_documents_of_a_changelog_equal_the_merge(spark, rows):
    found = documents_of(spark.createDataFrame(rows)).toArrow()
    assert found.schema.names == CURRENT_COLUMNS.names
    assert found.cast(CURRENT_COLUMNS).num_rows > 300
    assert in_order(found) == in_order(merge_changes(rows))


def test_auto_cdc_of_all_changes_gives_the_same_documents(spark, rows):
    frame = spark.createDataFrame(rows)
    changes = keyed_changes(frame, frame).toArrow()
    assert not any(changes[name].null_count for name in (*IDENTITY, SEQUENCE, IS_DELETE))
    assert apply_changes(changes) == as_documents(merge_changes(rows))


def apply_changes(changes: pa.Table) -> LakeDocuments:
    """Return the documents that AUTO CDC keeps of changes in any order."""
    newest = {}
    for line in sorted(changes.to_pylist(), key=lambda line: line[SEQUENCE]):
        newest[tuple(line[name] for name in IDENTITY)] = line
    return {identity: (line["cas"], line["value"]) for identity, line in newest.items() if not line[IS_DELETE]}


class Definitions(GraphElementRegistry):
    """The outputs and flows that a definitions file declares.

    Attributes:
        outputs: all declared outputs.
        auto_cdc: the declared AUTO CDC flows; any other flow is an error.
    """

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.auto_cdc: list[AutoCdcFlow] = []

    def register_output(self, output: Output) -> None:
        self.outputs.append(output)

    def register_flow(self, flow: Flow) -> None:
        raise AssertionError(flow)

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
        self.auto_cdc.append(flow)

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        raise AssertionError(sql_text)


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_auto_cdc_uses_columns_of_its_source():
    """The flow is not run: Spark runs AUTO CDC only into formats that support MERGE, and brings no such format."""
    with graph_element_registration_context(definitions := Definitions()):
        current_by_cdc("documents", format="delta")
    assert [(output.name, getattr(output, "format", None)) for output in definitions.outputs] == [
        ("documents", "delta")
    ]
    (flow,) = definitions.auto_cdc
    assert (flow.target, flow.source) == ("documents", "changes_for_cdc")
    assert flow.apply_as_deletes is not None
    assert flow.except_column_list is not None
    columns = {*(field.name for field in MERGE_SCHEMA), SEQUENCE, IS_DELETE}
    used = [*flow.keys, flow.sequence_by, flow.apply_as_deletes, *flow.except_column_list]
    names = {name for column in used for name in re.findall(r"'(.*)'", repr(column))}
    assert names == {*IDENTITY, SEQUENCE, IS_DELETE} <= columns


EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative"


class Project:
    """A copy of the example project and its storage, in a separate directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        shutil.copytree(EXAMPLE, directory, ignore=shutil.ignore_patterns("__pycache__"))
        spec = directory / "spark-pipeline.yml"
        (directory / "storage").mkdir()
        text, storage = spec.read_text(), "file:///tmp/penstock-declarative/storage"
        assert storage in text
        spec.write_text(text.replace(storage, (directory / "storage").as_uri()))

    def run(self, url: str, *options: str) -> None:
        environment = environment_with(Path(sys.executable)) | {
            "PENSTOCK_URL": url,
            "PYTHONPATH": str(Path(penstock.__file__).parents[1]),
            "PYSPARK_PYTHON": "python3",
            "SPARK_TESTING": "1",  # the Connect server takes any free port
        }
        command = [str(SPARK_HOME / "bin" / "spark-pipelines"), "run", "--conf", "spark.sql.catalogImplementation=hive"]
        ran = subprocess.run(
            [*command, "--conf", "spark.ui.enabled=false", *options],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "Run is COMPLETED" in ran.stdout + ran.stderr

    def table(self, spark, name: str) -> pa.Table:
        return spark.read.parquet(str(self.directory / "spark-warehouse" / name)).toArrow()


def by_key(found: LakeDocuments) -> dict[bytes, tuple[int, bytes]]:
    return {key: document for (_, _, key), document in found.items()}


def test_the_example_follows_a_bucket_that_is_restored_from_an_older_copy(spark, tmp_path):
    project, data = Project(tmp_path / "project"), tmp_path / "data"
    with Node.running(["default"], vbuckets=16, data_dir=data) as node, Documents.of(node.url("default")) as documents:
        port = node.kv_port
        documents.store(numbered(0, 300))
        assert documents.remove(["key-0", "key-1"]) == 2
        shutil.copytree(data, tmp_path / "copy")
        documents.store(numbered(200, 400, "again"))
        documents.remove([f"key-{number}" for number in range(100, 120)])
        project.run(node.url("default"))
        keys = documents.keys
        assert by_key(as_documents(project.table(spark, "current"))) == documents.contents()
        assert by_key(apply_changes(project.table(spark, "keyed"))) == documents.contents()
    shutil.rmtree(data)
    (tmp_path / "copy").rename(data)
    with (
        Node.running(["default"], vbuckets=16, data_dir=data, port=port) as node,
        Documents.of(node.url("default")) as documents,
    ):
        documents.keys |= keys
        assert len(documents.contents()) < 400
        documents.store(numbered(250, 280, "anew"))
        project.run(node.url("default"), "--refresh", "changelog,current", "--full-refresh", "keyed")
        assert by_key(as_documents(project.table(spark, "current"))) == documents.contents()
        assert by_key(apply_changes(project.table(spark, "keyed"))) == documents.contents()
    changes = project.table(spark, "changelog")
    places = list(zip(*(changes[name].to_pylist() for name in ("vbucket", "history", "seqno", "event")), strict=True))
    assert len(places) == len(set(places))
    assert pc.any(pc.equal(changes["event"], "rollback")).as_py()
