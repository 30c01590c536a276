"""Erased documents are in no file of a lake after vacuum, and all other documents are as before."""

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import LakeRefused, UsageError
from penstock.spark import Lake, vacuum
from penstock.spark.dependents.dependent import catch_up
from penstock.spark.dependents.kinds.fulltext import FullText
from penstock.spark.dependents.kinds.secondary_index import SecondaryIndex
from penstock.spark.lake.changelog import changelog_writer
from penstock.spark.lake.changelog.boundaries import EVIDENCE, find_boundaries
from penstock.spark.lake.current.current_table import merge_current
from penstock.spark.lake.reading.lake_views import boundaries_of
from penstock.spark.lake.tables.lake_lock import hold_lock
from penstock.spark.pipeline.maintenance.document_selection import DocumentSelection
from penstock.spark.pipeline.maintenance.erasure import erase_documents
from penstock.spark.pipeline.state.lake_files import ERASURE
from penstock.spark.storage.object_path import LakePath
from tests.examples import scaled
from tests.patience import PATIENCE
from tests.spark.lakes import (
    QUERY,
    ROOT,
    VBUCKETS,
    Row,
    append,
    as_documents,
    identities,
    model,
    read_table_documents,
    row,
    table,
    write,
)
from tests.spark.test_current import KEYS, histories

SECRETS = (b"zqkey", b"zqvalue", b"zqolder")
"""The key of the erased document, and words of its values; no other document has a byte string of these."""
INDEXES = (("by_name", "name", "string"),)


def document(name: str) -> bytes:
    return json.dumps({"name": name, "text": f"about {name}"}).encode()


def find_secrets(root: LakePath) -> list[tuple[str, bytes]]:
    """Return the files below a directory that hold a secret: in their bytes, or in the decompressed columns."""
    return [
        (str(path).removeprefix(f"{root}/"), secret)
        for path in root.rglob("*")
        if path.is_file()
        for secret in SECRETS
        if any(secret in content.lower() for content in read_contents(path))
    ]


def read_contents(path: LakePath):
    content = path.read_bytes()
    yield content
    if path.name.endswith(".parquet"):
        sink = pa.BufferOutputStream()
        found = pq.read_table(pa.BufferReader(content))
        with pa.ipc.new_stream(sink, found.schema) as stream:
            stream.write_table(found)
        yield sink.getvalue().to_pybytes()
    elif path.name.endswith(".sqlite"):
        with sqlite3.connect(path if isinstance(path, Path) else ":memory:") as connection:
            if not isinstance(path, Path):
                connection.deserialize(content)
            yield "\n".join(connection.iterdump()).encode()


def fill(lake: Lake, vbuckets: Iterable[int] = range(0, 64, 5)) -> list[Row]:
    """Write a lake with all kinds of files that hold the secrets: replaced ones, pending ones and those of a kill."""
    written = []

    def add(batch, rows):
        written.extend(rows)
        append(lake, batch, rows)

    others = [row(vb, 1, b"other %d" % vb, document(f"other {vb}")) for vb in vbuckets]
    add(0, [*others, row(10, 2, b"zqkey", document("zqolder"))])
    merge_current(lake)
    for each in open_indexes(lake):
        catch_up(each, lake)
    # An OPTIMIZE of another program, whose commit has the least and the greatest value of each column.
    DeltaTable(lake.changelog_table.path.as_uri()).optimize.compact()
    add(1, [row(10, 3, b"zqkey", document("zqvalue")), row(10, 4, b"later", document("later"))])
    merge_current(lake)
    for each in open_indexes(lake):
        catch_up(each, lake)
    add(2, [row(10, 5, b"zqkey", document("zqvalue again")), row(11, 9, b"pending", document("pending"))])
    write(lake, [row(10, 6, b"zqkey", document("zqvalue of a killed task"))])
    return written


def open_indexes(lake):
    return [*(SecondaryIndex(lake, *each) for each in INDEXES), FullText(lake, "words", ["name"])]


def without(rows, key):
    return [each for each in rows if each["key"] != key]


def test_erased_document_is_in_no_file_after_vacuum(lake, tmp_path):
    written = fill(lake)
    letters = tmp_path / "letters"
    letters.mkdir()
    pq.write_table(pa.table({"key": [b"zqkey", b"other 0"], "value": [b"zqvalue", b"v"]}), letters / "batch-1.parquet")
    assert {name.partition("/")[0] for name, _ in find_secrets(lake.path)} == {"changelog", "current", "indexes"}
    before = lake.changelog(["vbucket", "seqno"]).num_rows
    report = erase_documents(lake, DocumentSelection((b"zqkey",)), [letters])
    vacuum(lake, 0)
    assert find_secrets(tmp_path) == []

    assert (report.documents, report.existing) == (1, 1)
    assert {part.table: part.rows for part in report.parts} == {
        "changelog": 3, "current": 1, "by_name": 1, "words": 1, str(letters): 1
    }  # fmt: skip
    assert lake.changelog().num_rows == before
    assert as_documents(lake.current()) == model(without(written, b"zqkey"))
    index, words = open_indexes(lake)
    assert index.scan()["value"].to_pylist() == sorted(
        json.loads(each["value"])["name"] for each in without(written, b"zqkey")
    )
    assert words.search("pending OR zqvalue OR zqolder")["key"].to_pylist() == ["pending"]
    assert pq.read_table(letters / "batch-1.parquet")["key"].to_pylist() == [b"other 0"]
    # Everything goes on: a later change of the same key, and tables that are computed again.
    append(lake, 3, [row(10, 7, b"zqkey", b"{}")])
    merge_current(lake)
    shutil.rmtree(lake.current_table.path)
    assert as_documents(lake.current()) == model([*without(written, b"zqkey"), row(10, 7, b"zqkey", b"{}")])


def test_second_erasure_finds_nothing(lake):
    fill(lake)
    erase_documents(lake, DocumentSelection((b"zqkey",)))
    versions = [each.open().version() for each in (lake.changelog_table, lake.current_table)]
    report = erase_documents(lake, DocumentSelection((b"zqkey", b"unknown")))
    assert (report.documents, {part.rows for part in report.parts}) == (0, {0})
    assert [each.open().version() for each in (lake.changelog_table, lake.current_table)] == versions
    with pytest.raises(UsageError, match="no documents are named; expected keys or a condition"):
        erase_documents(lake, DocumentSelection())


@settings(max_examples=scaled(20))
@given(histories(20), st.sets(st.sampled_from(KEYS), min_size=1, max_size=3), st.integers(0, 20), st.booleans())
def test_states_are_those_of_the_other_documents(history, erased, at, is_merged):
    """After an erasure at any point of any history, current and later deltas lack only these documents."""
    with TemporaryDirectory() as path:
        lake = Lake(path)
        append(lake, 0, history[:at])
        if is_merged:
            merge_current(lake)
        places = identities(lake)
        erase_documents(lake, DocumentSelection(tuple(erased)))
        assert identities(lake) == places
        rest = [each for number, each in enumerate(history) if number >= at or each.get("key") not in erased]
        append(lake, 1, history[at:])
        assert as_documents(lake.current()) == model(rest)
        merge_current(lake)
        assert as_documents(read_table_documents(lake)) == model(rest)


def list_commit_times(lake):
    return sorted(file.modified for file in lake.changelog_table.list_files(lake.changelog_table.open()))


def test_past_states_keep_their_boundaries(lake):
    def snapshot(seqno, key, start, end):
        return row(1, seqno, key, key, snapshot_start=start, snapshot_end=end)

    append(lake, 0, [snapshot(1, b"a", 0, 2), snapshot(2, b"secret", 0, 2)])
    append(lake, 1, [snapshot(3, b"b", 2, 3)])
    times = list_commit_times(lake)
    erase_documents(lake, DocumentSelection((b"secret",)))
    assert list_commit_times(lake) == times
    assert find_boundaries(lake.changelog(list(EVIDENCE)))[1].seqno == 3
    at = datetime.fromtimestamp(times[0] / 1000, UTC)
    assert boundaries_of(lake, at)[1].seqno == 2
    assert lake.as_of(at)["key"].to_pylist() == ["a"]


def test_only_the_collection_is_erased(lake):
    other = row(3, 2, b"k", b"2", scope="app", collection="users", collection_id=8)
    append(lake, 0, [row(3, 1, b"k", b"1"), other])
    erase_documents(lake, DocumentSelection((b"k",), collection="app.users"))
    assert lake.current()["value"].to_pylist() == [b"1"]
    erase_documents(lake, DocumentSelection((b"k",), collection="_default"))
    assert lake.current().num_rows == 0


def test_dry_run_counts_and_changes_nothing(lake):
    fill(lake)
    report = erase_documents(lake, DocumentSelection((b"zqkey",)), dry_run=True)
    assert (report.documents, report.existing, report.is_done) == (1, 1, False)
    assert [(part.table, part.rows) for part in report.parts] == [("changelog", 3), ("current", 1)]
    assert lake.changelog(where=pa.compute.field("key") == b"zqkey").num_rows == 3
    assert not (lake.path / ERASURE).exists()


def test_erasure_waits_for_no_run(lake):
    fill(lake)
    with hold_lock(lake.path, 0), pytest.raises(LakeRefused, match=r"another run writes .*; stop it first"):
        erase_documents(lake, DocumentSelection((b"zqkey",)))


def test_plain_files_are_erased_in_place(tmp_path):
    lake = Lake(tmp_path / "lake", "parquet")

    def write_plain(rows):
        return changelog_writer.write_files(table(rows).to_batches(), lake.changelog_table.write_root, VBUCKETS)

    def add(batch, rows):
        changelog_writer.commit_batch(lake, QUERY, batch, write_plain(rows), vbuckets=VBUCKETS)

    add(0, [row(10, 1, b"zqkey", document("zqvalue")), row(10, 2, b"other", document("other"))])
    add(1, [row(11, 1, b"another", document("another"))])
    write_plain([row(10, 3, b"zqkey", document("zqolder"))])
    paths = sorted(lake.changelog_table.path.rglob("*.parquet"))
    assert find_secrets(lake.path)
    report = erase_documents(lake, DocumentSelection((b"zqkey",)))
    assert find_secrets(lake.path) == []
    assert [(part.rows, part.files) for part in report.parts if part.table == "changelog"] == [(1, 1)]
    assert sorted(lake.changelog_table.path.rglob("*.parquet")) == paths
    rows = [each for path in paths for each in pq.read_table(path, partitioning=None).to_pylist()]
    assert sorted((each["vbucket"], each["seqno"], each["event"], each["vbucket_range"]) for each in rows) == [
        (10, 1, "erased", 2), (10, 2, "mutation", 2), (11, 1, "mutation", 2)
    ]  # fmt: skip


def test_condition_selects_documents_by_any_version(lake, spark):
    append(lake, 0, [row(1, 1, b"a", b'{"user": {"id": 7}}'), row(1, 2, b"b", b'{"user": {"id": 8}}')])
    append(lake, 1, [row(1, 3, b"a", b'{"user": {}}'), row(1, 4, b"c", b"no JSON"), row(1, 5, b"b", None, "deletion")])
    report = erase_documents(lake, DocumentSelection(where="user.id = 7 -- a comment"), spark=spark)
    assert {part.table: part.rows for part in report.parts} == {"changelog": 2}
    assert sorted(lake.changelog(["key"])["key"].drop_null().to_pylist()) == [b"b", b"b", b"c"]
    with pytest.raises(UsageError, match="where is 'nothing = 7', expected a condition on "):
        erase_documents(lake, DocumentSelection(where="nothing = 7"), spark=spark)


# An erasure that is killed


KILLED = """
import os, signal, sys
from penstock.spark import Lake
from penstock.spark.pipeline.maintenance.document_selection import DocumentSelection
from penstock.spark.pipeline.maintenance.erasure import erase_documents
from penstock.spark.pipeline.state.lake_files import ERASURE

def kill(name):
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2].startswith("timer:"):
    signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2].removeprefix("timer:")))
erase_documents(Lake(sys.argv[1]), DocumentSelection((b"zqkey",)), after_step=kill)
"""


def kill_erasure(lake: Lake, point: str) -> int:
    command = [sys.executable, "-c", KILLED, str(lake.path), point]
    done = subprocess.run(command, cwd=ROOT, timeout=PATIENCE, check=False, capture_output=True, text=True)
    assert done.returncode <= 0, done.stderr
    return done.returncode


@pytest.mark.process
@pytest.mark.long
def test_killed_erasure_is_completed_by_the_next(tmp_path):
    prepared = Lake(tmp_path / "prepared")
    written = fill(prepared)
    places = identities(prepared)
    for point in ("changelog", "by_name", "timer:0.1"):
        lake = Lake(shutil.copytree(str(prepared.path), tmp_path / point.replace(":", "-")))
        assert kill_erasure(lake, point) == (-signal.SIGALRM if point.startswith("timer") else -signal.SIGKILL)
        assert identities(lake) == places
        if (lake.path / ERASURE).exists():
            erase_documents(lake, DocumentSelection())
        else:  # killed by the timer before the documents were stored
            erase_documents(lake, DocumentSelection((b"zqkey",)))
        vacuum(lake, 0)
        assert find_secrets(lake.path) == []
        assert as_documents(read_table_documents(lake)) == model(without(written, b"zqkey"))
