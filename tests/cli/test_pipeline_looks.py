"""Commands that only look at a pipeline's file run none of its programs, and create no file."""

from pathlib import Path

import pytest

from penstock.spark import Lake
from penstock.spark.dependents.dependent import catch_up
from penstock.spark.pipeline.definition.definition import read_definition
from tests.spark.lakes import append, checkpoint, row

TRAPS = """
lake = "lake"
[source.beer]
url = "{url}"
username = "ada"
password_command = ["sh", "-c", "touch {trap}/source; echo secret"]
transform = "trap:clean"
[[index]]
name = "by_abv"
path = "abv"
[[fulltext]]
name = "words"
paths = ["name"]
[[sink]]
kind = "bucket"
name = "copy"
url = "couchbase://127.0.0.1:1/copy?retrySeconds=0.1"
username = "ada"
password_command = ["sh", "-c", "touch {trap}/copy; echo secret"]
[[sink]]
kind = "kafka"
name = "events"
brokers = ["127.0.0.1:1"]
topic = "beer"
timeout = 0.3
sasl_mechanism = "SCRAM-SHA-512"
username = "ada"
password_command = ["sh", "-c", "touch {trap}/kafka; echo secret"]
[[sink]]
kind = "invalidate"
name = "cache"
url = "http://127.0.0.1:1/"
headers_command = ["sh", "-c", "touch {trap}/headers; echo X: secret"]
[metrics]
port = 0
host = "0.0.0.0"
username = "ada"
password_command = ["sh", "-c", "touch {trap}/metrics; echo secret"]
[dashboard]
username = "ada"
password_command = ["sh", "-c", "touch {trap}/dashboard; echo secret"]
[lineage]
url = "http://127.0.0.1:1/"
headers_command = ["sh", "-c", "touch {trap}/lineage; echo X: secret"]
"""
LOOKS = [
    ["validate", "FILE"],
    ["validate", "FILE", "--json"],
    ["plan", "FILE"],
    ["plan", "FILE", "--json"],
    ["status", "FILE"],
    ["show", "FILE", "current"],
    ["find", "FILE", "by_abv", "5"],
    ["search", "FILE", "words", "pale"],
    ["vacuum", "FILE", "--dry-run"],
    ["erase", "FILE", "--key", "pale", "--dry-run"],
    ["reset", "FILE"],
    ["stop", "FILE"],
]


@pytest.fixture
def file(tmp_path, node):
    """The file of somebody else, whose programs leave a trace, beside the tables of an earlier run."""
    trap = tmp_path / "trap"
    trap.mkdir()
    traced = f"import pathlib\npathlib.Path({str(trap / 'transform')!r}).touch()"
    (tmp_path / "trap.py").write_text(f"{traced}\ndef clean(changes):\n    return changes\n")
    path = tmp_path / "pipeline.toml"
    path.write_text(TRAPS.format(url=node.url("beer"), trap=trap))
    definition = read_definition(str(path))
    lake = Lake(definition.lake)
    checkpoint(lake.checkpoint, batches=1)
    append(lake, 0, [row(1, 1, b"pale", b'{"abv": 5, "name": "pale"}')])
    for each in definition.dependents:
        if each.is_local:
            catch_up(each.open(lake), lake)
    Path(definition.lake, "_lock").touch()  # every run leaves it
    return path


def list_files(directory: Path) -> set[str]:
    """Return all files below a directory, without those that SQLite opens beside its own."""
    return {str(each) for each in directory.rglob("*") if each.suffix not in (".sqlite-shm", ".sqlite-wal")}


@pytest.mark.parametrize("words", LOOKS)
def test_looking_runs_no_program_and_creates_no_file(run, file, words):
    before = list_files(file.parent)
    result = run("pipeline", *(file if word == "FILE" else word for word in words))
    assert list_files(file.parent) == before
    assert "secret" not in result.out + result.err


def test_plan_names_the_checks_that_it_did_not_make(run, file):
    found = run("pipeline", "plan", file, "--json").json
    assert found["lag"] is None
    because = "it runs a program that the file names"
    parts = ["[source.beer] transform", "[source.beer] the bucket"]
    parts += [f"[[sink]] {name} the target" for name in ("copy", "events", "cache")]
    assert found["unchecked"] == [f"{part}: {because}" for part in parts]
    shown = run("pipeline", "plan", file).out
    assert f"not checked              [source.beer] transform: {because}\n" in shown


@pytest.mark.process
@pytest.mark.parametrize("words", [["plan", "FILE", "--execute"], ["validate", "FILE", "--connect"]])
def test_an_option_runs_the_programs(run, file, words):
    run("pipeline", *(file if word == "FILE" else word for word in words))
    assert {"transform", "source"} <= {each.name for each in (file.parent / "trap").iterdir()}
