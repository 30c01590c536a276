"""The directory of a lake: its owner, refused directories, and reading its tables."""

import json
from shutil import rmtree

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from penstock.errors import LakeRefused, UsageError
from penstock.spark import Lake
from penstock.spark.lake.current.current_table import merge_current
from penstock.spark.lake.reading.lake_readers import count_rows, read_changelog, read_current, read_documents
from penstock.spark.lake.tables.directory import read_query_id
from penstock.wire.columns.schema import CHANGE_SCHEMA
from tests.spark.lakes import QUERY, append, checkpoint, rollback, row, write


@pytest.mark.parametrize(
    "path", ["", "s3://bucket", "s3:///lake", "s3://b/a?x=1", "hdfs://a/b", "/tmp/50%20", "/tmp/a\\b"]
)
def test_invalid_path_is_refused(path):
    with pytest.raises(UsageError, match=r"the lake is|the lake cannot be used"):
        Lake(path)


def test_file_url_is_a_directory(tmp_path):
    assert Lake((tmp_path / "a b").as_uri()).path == tmp_path / "a b"


def test_error_about_a_url_does_not_show_its_login():
    with pytest.raises(UsageError, match="login") as refused:
        Lake("s3://user:secret@bucket/lake")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["a b", "ü", "#x", "q?", "50%", "[x]", "*", "a'b", 'a"b', "a:b", "日本"])
def test_a_path_may_hold_any_other_character(tmp_path, name):
    lake = Lake(tmp_path / name)
    for batch in range(2):
        append(lake, batch, [row(1, batch + 1, b"a", b"1")])
        merge_current(lake)
    assert [count_rows(lake.changelog_table), count_rows(lake.current_table)] == [2, 1]
    assert read_current(lake, 5)["key"].to_pylist() == ["a"]


def test_relative_path_is_resolved_at_creation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lake = Lake("./lake")
    monkeypatch.chdir("/")
    assert lake.path == tmp_path / "lake"


def test_an_empty_or_missing_directory_is_a_new_lake(lake):
    lake.check_owner()
    assert not lake.path.exists()
    lake.changelog_table.path.mkdir(parents=True)
    lake.check_owner()
    assert lake.read_query_id() is None


def test_files_left_before_the_first_commit_are_a_new_lake(lake):
    write(lake, [row(1, 1)])
    (lake.changelog_table.path / "_delta_log").mkdir()
    lake.check_owner()
    assert append(lake, 0, [row(1, 1)])


def test_query_of_the_checkpoint_can_continue(lake):
    checkpoint(lake.checkpoint, batches=2)
    append(lake, 1, [row(1, 1)])
    lake.check_owner()
    assert lake.read_query_id() == QUERY


def test_moved_lake_keeps_its_query(lake, tmp_path):
    checkpoint(lake.checkpoint, batches=1)
    append(lake, 0, [row(1, 1, b"a")])
    merge_current(lake)
    moved = Lake(lake.path.rename(tmp_path / "moved"))
    moved.check_owner()
    assert read_current(moved)["key"].to_pylist() == ["a"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda lake: (lake.checkpoint / "metadata").unlink(), "_checkpoint is missing"),
        (lambda lake: checkpoint(lake.checkpoint, query="another"), "not written by the query"),
        (lambda lake: (lake.checkpoint / "offsets" / "1").unlink(), "newest planned batch is 0"),
        (lambda lake: (lake.checkpoint / "commits" / "2").touch(), "newest ended batch is 2"),
        (lambda lake: rmtree(lake.changelog_table.path), "ends with batch -1"),
    ],
)
def test_a_lake_of_another_query_is_refused(lake, spoil, message):
    checkpoint(lake.checkpoint, batches=2)
    append(lake, 1, [row(1, 1)])
    (lake.checkpoint / "commits").mkdir()
    (lake.checkpoint / "commits" / "1").touch()
    lake.check_owner()
    spoil(lake)
    with pytest.raises(LakeRefused, match=message) as refusal:
        lake.check_owner()
    assert "choose another directory" in str(refusal.value)


def foreign_file(lake):
    lake.path.parent.mkdir(exist_ok=True)
    lake.path.write_text("not a directory")


def file_above(lake):
    lake.path.parent.rmdir()
    lake.path.parent.write_text("not a directory")


def file_for_table(lake):
    lake.path.mkdir()
    lake.changelog_table.path.write_text("not a table")


def foreign_content(lake):
    lake.current_table.path.mkdir(parents=True)
    (lake.current_table.path / "holiday.jpg").touch()


def foreign_table(lake):
    write_deltalake(str(lake.changelog_table.path), pa.table({"name": ["x"]}))


def broken_log(lake):
    append(lake, 0, [row(1, 1)])
    (lake.changelog_table.path / "_delta_log" / "00000000000000000000.json").write_text("{")


def broken_metadata(lake):
    append(lake, 0, [row(1, 1)])
    checkpoint(lake.checkpoint)
    (lake.checkpoint / "metadata").write_text("[]")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (foreign_file, "cannot create the lake's directory .*lake: File exists"),
        (file_above, "cannot create the lake's directory .*lake: Not a directory"),
        (file_for_table, "changelog is a file"),
        (foreign_content, "'holiday.jpg'"),
        (foreign_table, "columns name; expected Penstock's changelog"),
        (broken_log, "cannot be read"),
        (broken_metadata, "expected a Spark query's metadata"),
    ],
)
def test_foreign_file_in_place_of_a_table_raises_one_sentence(lake, spoil, message):
    spoil(lake)
    with pytest.raises(UsageError, match=message) as refusal:
        lake.check_owner()
    assert "\n" not in str(refusal.value)


def test_reading_a_missing_table_is_refused(lake):
    for read in (read_current, read_changelog, read_documents):
        with pytest.raises(UsageError, match="there is no table at"):
            read(lake)
    assert count_rows(lake.current_table) == 0


def test_the_query_id_is_read_as_spark_writes_it(tmp_path):
    assert read_query_id(tmp_path) is None
    (tmp_path / "metadata").write_text(json.dumps({"id": "abc"}))
    assert read_query_id(tmp_path) == "abc"


def test_read_current_sorts_by_key(lake):
    keys = [b"pear", b"\xff\xff", b"apple", b"fig", b"\xfe", "äpfel".encode()]
    append(lake, 0, [row(7 * number % 64, number, key, key) for number, key in enumerate(keys, 1)])
    merge_current(lake)
    everything = read_current(lake)
    assert everything["key"].to_pylist() == ["apple", "fig", "pear", "äpfel", None, None]
    assert everything["key_bytes"].to_pylist()[4:] == [b"\xfe", b"\xff\xff"]
    for limit in range(7):
        assert read_current(lake, limit).equals(everything.slice(0, limit))


def test_a_key_in_two_collections_is_two_documents(lake):
    append(lake, 0, [row(1, n, b"a", b"%d" % n, collection_id=n % 3) for n in range(1, 7)])
    merge_current(lake)
    assert read_current(lake, 2)["collection_id"].to_pylist() == [0, 1]
    assert sorted(read_documents(lake)["value"].to_pylist()) == [b"4", b"5", b"6"]


def test_read_changelog_returns_newest_rows_first(lake, monkeypatch):
    clock = iter(range(10**18, 2 * 10**18, 10**9))
    monkeypatch.setattr("penstock.spark.lake.tables.delta_table.time.time_ns", lambda: next(clock))
    append(lake, 0, [row(50, 1, b"a", cas=10), row(2, 9, b"b", cas=30), row(2, 8, b"c", cas=20)])
    append(lake, 1, [row(1, 5, b"d", cas=15), rollback(2, 7, 1), row(40, 6, b"e", cas=16)])
    shown = read_changelog(lake)
    assert shown.schema.equals(CHANGE_SCHEMA)
    assert shown["seqno"].to_pylist() == [7, 6, 5, 9, 8, 1]
    for limit in range(8):
        assert read_changelog(lake, limit).equals(shown.slice(0, limit))
