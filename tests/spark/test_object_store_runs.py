"""Runs of a pipeline into an object store: a run is killed, another machine continues it, and requests fail."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyiceberg.utils.config import Config

from penstock.spark import Lake
from penstock.spark.dependents.kinds.fulltext import FullText
from penstock.spark.dependents.kinds.secondary_index import SecondaryIndex
from penstock.spark.pipeline.state.lake_status import read_status
from penstock.spark.storage.lake_lease import LEASE_VARIABLE
from tests.patience import PATIENCE
from tests.spark.buckets import check_changelog, current_of
from tests.spark.object_store import BUCKET, SECRET, Fault, FaultyProxy, list_objects, make_environment, serve_objects
from tests.spark.rest_catalog import serve_catalog
from tests.spark.typed_readers import find_s3_properties, read_lines

ROOT = Path(__file__).parents[2]
PIPELINE = """
lake = "s3://{bucket}/lake"
[source.default]
url = "{url}"
max_changes_per_trigger = 300
trigger_seconds = 0.1
[current]
merge_rows = 100
merge_share = 0
[[table]]
collection = "_default"
name = "numbers"
schema = "infer"
key = "k{{number INT}}"
children = ["parts"]
[[index]]
name = "by_number"
path = "n"
type = "long"
[[fulltext]]
name = "words"
"""
CONTINUE = """
import os, sys
from penstock.spark import Pipeline
from penstock.spark.runtime.spark_session import local_session
os.chdir(os.environ["TMPDIR"])  # Spark makes a directory for tables
pipeline, session = Pipeline.from_file(sys.argv[1]), local_session(2)
pipeline.run(available_now=True, spark=session)
lake = pipeline.lakes["default"]
print("frames", lake.current_frame(session).count(), lake.changelog_frame(session).where("key is not null").count())
lake.create_tables(session, "beers", "n BIGINT")
changes = session.read.format("penstock-lake").option("table", "changelog").load(str(lake.path))
print("tables", session.table("beers").count(), session.table("beers_json").where("n < 0").count(), changes.count())
session.stop()
"""
TOKEN = "a-catalog-token-0123456789"
FAULTS: list[Fault] = ["refuse", "tear", "forget", "delay"]


def read_numbers(lake: Lake) -> dict[bytes, dict[str, object]]:
    """Return the documents in the typed table and its child."""
    found: dict[bytes, dict[str, object]] = {}
    for name in ("numbers", "numbers_parts"):
        for line in read_lines(lake, name):
            assert line["_rest"] is None
            assert line["_key"] == f"k{line['number']}"
            fields = ("n", "t") if name == "numbers" else ("part",)
            found.setdefault(line["_key"].encode(), {}).update({field: line[field] for field in fields})
    return {key: value | {"parts": [{"part": value.pop("part")}]} for key, value in found.items()}


def make_document(number: int, text: str) -> bytes:
    return json.dumps({"n": number, "t": text, "parts": [{"part": number}]}).encode()


class Machine:
    """A machine that knows the store only by its environment: it has a directory of its own for all local files."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.directory.mkdir()
        self.output = ""
        self._environment = os.environ | make_environment(port) | {"TMPDIR": str(directory), LEASE_VARIABLE: "5"}

    def run(self, *command: str) -> int:
        """Run a Python program and return its exit status (minus the signal, if it was killed)."""
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT, env=self._environment, timeout=PATIENCE, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self.output += done.stdout
        return done.returncode


@pytest.fixture
def network(monkeypatch):
    with serve_objects() as port, FaultyProxy.before(port) as proxy:
        for name, value in make_environment(port).items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture(params=["delta", pytest.param("iceberg", marks=pytest.mark.soak)])
def tables(request, network, tmp_path, monkeypatch):
    """Return the table [tables] of the pipeline's file."""
    if request.param == "delta":
        yield ""
        return
    monkeypatch.setenv("PYICEBERG_CATALOG__PENSTOCK__TOKEN", TOKEN)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    with serve_catalog(tmp_path, TOKEN, find_s3_properties(make_environment(network.target))) as uri:
        yield f'[tables]\nformat = "iceberg"\ncatalog = "{uri}"'


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.long
def test_another_machine_continues_a_killed_run(network, node, documents, tables, tmp_path):
    file = tmp_path / "pipeline.toml"
    file.write_text(PIPELINE.format(bucket=BUCKET, url=node.url("default")) + tables)
    documents.store({f"k{number}": make_document(number, f"word{number}") for number in range(1500)})
    lake = Lake(f"s3://{BUCKET}/lake")

    first = Machine(tmp_path / "first", network.port)
    assert first.run("-m", "tests.spark.driver", str(file), "committed") == -signal.SIGKILL, first.output
    shutil.rmtree(first.directory)  # the checkpoint of its query was there
    assert check_changelog(lake).num_rows == 900
    documents.remove(["k7"])
    documents.store({"k8": make_document(-8, "changed")})

    chance = random.Random(3)
    network.choose = lambda method, path, body: chance.choice(FAULTS) if chance.random() < 0.03 else None
    second = Machine(tmp_path / "second", network.port)
    assert second.run("-c", CONTINUE, str(file)) == 0, second.output
    assert "frames 1499 1502\n" in second.output
    assert f"tables 1499 1 {check_changelog(lake).num_rows}\n" in second.output
    assert not [path for path in second.directory.iterdir() if path.name.startswith("penstock-c")]  # no copy is left

    rows = check_changelog(lake)
    found = list(zip(*(rows[name].to_pylist() for name in ("vbucket", "seqno", "key", "cas")), strict=True))
    assert len({each[:2] for each in found}) == len(found)
    assert documents.newest() <= set(found)
    assert current_of(lake) == documents.contents()
    assert read_numbers(lake) == {key: json.loads(value) for key, (_, value) in documents.contents().items()}
    assert SecondaryIndex.stored(lake, "by_number").range(high=5)["key"].to_pylist() == [
        "k8",
        *(f"k{n}" for n in range(6)),
    ]
    assert FullText.stored(lake, "words").search("changed")["key"].to_pylist() == ["k8"]
    state = lake.position(1)
    assert state is not None
    assert lake.as_of(state).num_rows == 600
    status = read_status(lake)
    assert (status.state, status.lag, status.error) == ("ended", 0, None)
    assert {each.pending for each in status.dependents} == {0}
    assert {fault for fault, _, _ in network.faults} == set(FAULTS)

    network.choose = lambda method, path, body: None
    for command in ("plan", "status", "check"):
        second.run("-m", "penstock", "pipeline", command, str(file))
    assert second.run("-m", "penstock", "pipeline", "status", str(file), "--json") == 0
    assert json.loads(second.output.splitlines()[-1])["lake"] == f"s3://{BUCKET}/lake"

    assert second.run("-m", "penstock", "pipeline", "resnapshot", str(file), "--vbuckets", "0-3") == 0, second.output
    assert second.run("-c", CONTINUE, str(file)) == 0, second.output
    cuts = lake.changelog(["vbucket", "seqno"], pc.field("event") == "rollback").to_pylist()
    assert sorted((each["vbucket"], each["seqno"]) for each in cuts) == [(vbucket, 0) for vbucket in range(4)]
    assert current_of(lake) == documents.contents()
    assert read_numbers(lake) == {key: json.loads(value) for key, (_, value) in documents.contents().items()}
    assert SECRET not in first.output + second.output
    assert TOKEN not in first.output + second.output
    assert not [key for key, content in list_objects("").items() if SECRET.encode() in content]
