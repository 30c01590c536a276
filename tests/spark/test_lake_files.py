"""Each file that the product writes into a lake has a row with its content and with its removal."""

import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from penstock.node import Node
from penstock.spark import Lake, vacuum
from penstock.spark.pipeline.definition.definition import read_definition
from penstock.spark.pipeline.maintenance.document_selection import DocumentSelection
from penstock.spark.pipeline.maintenance.erasure import erase_documents
from penstock.spark.pipeline.run.pipeline_run import run_pipeline
from penstock.spark.pipeline.state.lake_files import explain_file, list_lake_files
from penstock.spark.pipeline.state.resnapshot import request_resnapshot
from penstock.spark.pipeline.state.run_progress import DependentProgress, SourceProgress
from penstock.spark.pipeline.state.run_state import (
    ERASED_TEXT,
    create_run_state,
    read_run_state,
    request_stop,
    store_content,
)
from penstock.spark.pipeline.state.stopping import plan_removal, remove_tables
from tests.spark.buckets import numbered
from tests.spark.test_erasure import fill, find_secrets

DOCS = Path(__file__).parents[2] / "docs" / "tables.md"

PIPELINE = """
lake = "lake"
[source.default]
url = "{url}"
value_schema = "n LONG"
"""
TABLES = {
    "delta": """
[[index]]
name = "by_number"
path = "n"
type = "long"
[[fulltext]]
name = "words"
[[sink]]
kind = "bucket"
name = "copy"
url = "{copy}"
""",
    "parquet": """
[tables]
format = "parquet"
current = false
""",
    "iceberg": """
[tables]
format = "iceberg"
""",
}


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path / "lake")


def list_unexplained(lake):
    return [path.name for path in lake.path.iterdir() if explain_file(path.name) is None]


def write_small_files(lake):
    """Write the files that runs, requests and killed processes leave, each with the erased key if possible."""
    failed = DependentProgress("copy", "bucket", error="zqkey was refused")
    progress = asdict(SourceProgress(dependents=(failed,), schema_changes=("zqvalue is new",)))
    state = replace(create_run_state(), ended=True, error="transform failed for b'zqkey'", progress=progress)
    state.write(lake)
    (lake.path / "._run.json.0123.draft").write_text(state.to_json())
    (lake.path / "_reset-0-1").mkdir()
    (lake.path / "_reset-0-1" / "file.parquet").write_bytes(b"zqkey")
    store_content(lake, {"where": "n > 1"})
    request_stop(lake, "another run")


def test_erasure_reaches_all_small_files(lake):
    fill(lake)
    write_small_files(lake)
    assert not list_unexplained(lake)
    erase_documents(lake, DocumentSelection(keys=(b"zqkey",)))
    vacuum(lake, 0)
    assert not find_secrets(lake.path)
    state = read_run_state(lake)
    assert state is not None
    assert (state.error, state.progress["dependents"][0]["error"]) == (ERASED_TEXT, ERASED_TEXT)


def test_state_without_an_error_gets_none(lake):
    fill(lake)
    replace(create_run_state(), ended=True).write(lake)
    before = read_run_state(lake)
    erase_documents(lake, DocumentSelection(keys=(b"zqkey",)))
    assert read_run_state(lake) == before


def test_vacuum_removes_old_drafts_only(lake):
    fill(lake)
    draft = lake.path / ".state.json.0123.draft"
    draft.write_text("zqkey")
    vacuum(lake, 1)
    assert draft.exists()  # a process may be writing it
    vacuum(lake, 0)
    assert not draft.exists()


def test_reset_removes_every_file_of_a_run(lake):
    fill(lake)
    write_small_files(lake)
    remove_tables(plan_removal(lake, ()))
    assert {path.name for path in lake.path.iterdir()} <= {"_lock"}


def test_file_of_another_program_has_no_row():
    assert explain_file("notes.txt") is None
    row = explain_file("_run.json")
    assert row is not None
    assert row.documents == "all"


def test_file_that_may_hold_documents_has_an_erasure():
    assert not [each.pattern for each in list_lake_files() if (each.documents != "none") != bool(each.erasure)]


def test_page_lists_the_files_that_a_copy_needs():
    """The table of the page is that of the code."""
    rows = re.findall(r"^\| `([^`]+)` \| (.*?) \| (.*?) \| (.*?) \|$", DOCS.read_text(), re.MULTILINE)
    found = {name: rest for name, *rest in rows}
    for each in list_lake_files():
        expected = [each.content, each.documents, "yes" if each.is_backed_up else "no"]
        assert found.get(each.pattern) == expected, each


@pytest.mark.spark
@pytest.mark.parametrize("table_format", TABLES)
def test_pipeline_writes_no_file_without_a_row(spark, documents, tmp_path, table_format):
    documents.store(numbered(0, 100))
    with Node.running(["copy"], vbuckets=16) as other:
        text = (PIPELINE + TABLES[table_format]).format(url=documents.url, copy=other.url("copy"))
        (tmp_path / "pipeline.toml").write_text(text)
        run_pipeline(read_definition(tmp_path / "pipeline.toml"), spark=spark, available_now=True)
    lake = Lake(tmp_path / "lake")
    request_resnapshot(lake, lambda vbuckets: [0])
    names = {path.name for path in lake.path.iterdir()}
    assert {"changelog", "_checkpoint", "_run.json", "_content.json", "_resnapshot.json"} <= names
    assert not list_unexplained(lake)
