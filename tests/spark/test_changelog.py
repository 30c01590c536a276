"""The changelog after batches that were written, committed, repeated, aborted and killed."""

import errno
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StructType

from penstock.errors import LakeRefused, UsageError
from penstock.spark import Lake
from penstock.spark.lake.changelog import changelog_writer as changelog
from penstock.spark.lake.changelog.changelog_writer import abort_batch, commit_batch, split_by_range, write_files
from penstock.spark.lake.reading.lake_readers import count_rows, read_changelog
from penstock.spark.lake.tables import data_files
from penstock.spark.runtime.changelog_sink import ChangelogSink
from penstock.wire.columns.schema import CHANGE_SCHEMA
from tests.patience import PATIENCE
from tests.spark import lakes
from tests.spark.lakes import QUERY, VBUCKETS, append, checkpoint, row, run_driver, table, write


def rows(batch, count=40):
    return [row(n % VBUCKETS, 1000 * batch + n, b"k%d" % n, b"v%d" % batch) for n in range(count)]


@given(st.lists(st.integers(0, 1023), max_size=60), st.sampled_from([1, 4, 16, 64, 1024]))
def test_a_batch_is_split_by_range_and_keeps_its_order(numbers, count):
    numbers = [number % count for number in numbers]
    batch = pa.record_batch({"vbucket": pa.array(numbers, pa.int32()), "at": list(range(len(numbers)))})
    parts = list(split_by_range(batch, count))
    assert [part for part, _ in parts] == sorted({number * 16 // count for number in numbers})
    for part, piece in parts:
        wanted = [(number, at) for at, number in enumerate(numbers) if number * 16 // count == part]
        assert list(zip(*piece.to_pydict().values(), strict=True)) == wanted


def test_files_hold_their_range_and_the_log_counts_rows_without_keys(lake):
    assert append(lake, 0, rows(1, 200))
    opened = lake.changelog_table.open()
    files = lake.changelog_table.list_files(opened)
    assert sorted(file.vbucket_range for file in files) == list(range(16))
    assert sum(file.rows for file in files) == 200
    for file in files:
        found = pq.ParquetFile(lake.changelog_table.path / file.path).read()
        assert found.schema.names == lake.changelog_table.schema.names
        assert set(found["vbucket_range"].to_pylist()) == {file.vbucket_range}
    stats = pa.table(opened.get_add_actions(flatten=True)).to_pylist()
    for line in stats:
        found = pq.ParquetFile(lake.changelog_table.path / line["path"]).read()
        assert line["null_count.key"] == found["key"].null_count
        # deltalake compares columns with null if others have bounds, so that conditions on them find no row
        assert not [name for name in line if name.startswith(("min.", "max.")) and line[name] is not None]
    assert opened.metadata().partition_columns == ["vbucket_range"]


def test_delta_readers_see_the_rows_that_were_written(lake):
    written = [*rows(1), row(5, 77, b"\xff\xfe", None, "deletion", xattrs={"_sync": b"\x00"}), lakes.rollback(5, 9, 1)]
    append(lake, 0, written)
    opened = DeltaTable(lake.changelog_table.path)
    wanted = sorted(table(written).to_pylist(), key=lambda r: r["seqno"])
    for found in (opened.to_pyarrow_table(), pa.table(opened.scan()), pa.table(opened.scan(predicate="vbucket < 99"))):
        assert sorted(found.select(CHANGE_SCHEMA.names).to_pylist(), key=lambda r: r["seqno"]) == wanted
    assert pa.table(opened.scan(predicate="vbucket_range = 1")).num_rows == sum(r["vbucket"] // 4 == 1 for r in written)


def test_big_batches_become_several_row_groups_and_files(lake, monkeypatch):
    monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", 50_000)
    monkeypatch.setattr(data_files, "FILE_BYTES", 200_000)
    monkeypatch.setattr(changelog, "POOL_BYTES", 300_000)
    many = [row(n % VBUCKETS, n + 1, b"key %d" % n, bytes(100)) for n in range(30_000)]
    files = write(lake, many, step=7_000)
    assert len(files) > 16
    assert max(pq.ParquetFile(path).num_row_groups for path in lake.changelog_table.list_paths(files)) > 1
    assert commit_batch(lake, QUERY, 0, files, vbuckets=VBUCKETS)
    assert lakes.identities(lake) == sorted((r["vbucket"], 0, r["seqno"]) for r in many)


def test_columns_are_reordered_and_cast(lake):
    wide = table(rows(1)).select(CHANGE_SCHEMA.names[::-1])
    wide = wide.set_column(wide.schema.get_field_index("key"), "key", wide["key"].cast(pa.large_binary()))
    files = write_files(wide.to_batches(), lake.changelog_table.path, VBUCKETS)
    assert commit_batch(lake, QUERY, 0, files, vbuckets=VBUCKETS)
    assert sorted(read_changelog(lake)["seqno"].to_pylist()) == [r["seqno"] for r in rows(1)]


def test_no_file_is_left_when_writing_fails(lake):
    def batches():
        yield from table(rows(1)).to_batches()
        raise ConnectionError("the node was closed")

    with pytest.raises(ConnectionError):
        write_files(batches(), lake.changelog_table.path, VBUCKETS)
    assert lakes.orphans(lake) == []


_FULL = """
import os, resource, signal
from tests.spark.lakes import row, write
from penstock.spark import Lake

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
lake = Lake({path!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))
try:
    write(lake, [row(n % 64, n + 1, b"k%d" % n, os.urandom(1000)) for n in range(10_000)])
except OSError as error:
    print(error)
"""


@pytest.mark.process
def test_full_disk_leaves_no_file_and_is_reported(lake):
    """A file size limit stands for the full disk: in both cases the file can neither be written nor closed."""
    run = [sys.executable, "-c", _FULL.format(path=str(lake.path))]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=lakes.ROOT, timeout=PATIENCE)
    assert os.strerror(errno.EFBIG) in done.stdout
    assert not list(lake.path.rglob("*.parquet"))


def test_repeated_batch_adds_nothing_and_leaves_no_files(lake):
    assert append(lake, 0, rows(0))
    assert append(lake, 1, rows(1))
    assert not append(lake, 1, rows(1))
    assert not append(lake, 0, rows(0))
    assert count_rows(lake.changelog_table) == 80
    assert lakes.orphans(lake) == []


def test_empty_batch_is_recorded(lake):
    assert append(lake, 0, [])
    assert count_rows(lake.changelog_table) == 0
    assert read_changelog(lake).num_rows == 0
    assert append(lake, 1, [])
    assert not append(lake, 1, rows(1))
    assert append(lake, 2, rows(2))
    assert count_rows(lake.changelog_table) == 40


def test_aborted_batch_removes_only_its_files(lake):
    append(lake, 0, rows(0))
    files = write(lake, rows(1))
    abort_batch(lake, files)
    assert lakes.orphans(lake) == []
    assert count_rows(lake.changelog_table) == 40


def test_abort_before_the_first_commit_leaves_nothing(lake):
    abort_batch(lake, write(lake, rows(0)))
    assert lakes.orphans(lake) == []
    assert append(lake, 0, rows(0))


def test_abort_after_the_commit_keeps_the_batch(lake):
    """Spark calls abort with the same messages when commit raises, even after commit has changed the table."""
    files = write(lake, rows(0))
    commit_batch(lake, QUERY, 0, files, vbuckets=VBUCKETS)
    abort_batch(lake, files)
    assert lakes.identities(lake) == sorted((r["vbucket"], 0, r["seqno"]) for r in rows(0))


def test_one_of_two_drivers_commits_the_batch(lake):
    """A driver that was assumed dead commits at the same time as its successor; only Delta's log separates the two."""
    barrier = Barrier(2)

    def both(batch, files):
        barrier.wait(PATIENCE)
        return commit_batch(Lake(lake.path), QUERY, batch, files, vbuckets=VBUCKETS)

    with ThreadPoolExecutor(2) as pool:
        for batch in range(8):
            tasks = [pool.submit(both, batch, write(lake, rows(batch))) for _ in range(2)]
            assert sorted(task.result(PATIENCE) for task in tasks) == [False, True]
    assert count_rows(lake.changelog_table) == 8 * 40
    assert lakes.orphans(lake) == []


def test_another_query_or_another_bucket_size_is_refused(lake):
    append(lake, 0, rows(0))
    files = write(lake, rows(1))
    with pytest.raises(LakeRefused, match="another query"):
        commit_batch(lake, "0b3f", 1, files, vbuckets=VBUCKETS)
    with pytest.raises(LakeRefused, match="64 vbuckets, and this one has 1024"):
        commit_batch(lake, QUERY, 1, files, vbuckets=1024)
    assert count_rows(lake.changelog_table) == 40


@pytest.mark.long
def test_many_commits_keep_the_log_short_and_the_transaction_known(lake, monkeypatch):
    monkeypatch.setitem(lake.changelog_table.configuration, "delta.logRetentionDuration", "interval 0 seconds")
    for batch in range(120):
        append(lake, batch, rows(batch, 3))
    log = lake.changelog_table.path / "_delta_log"
    assert len(list(log.glob("*.json"))) < 60
    assert list(log.glob("*.checkpoint.parquet"))
    assert count_rows(lake.changelog_table) == 360
    assert not append(lake, 119, rows(119, 3))


def test_old_logs_are_removed_at_checkpoints_alone(lake, monkeypatch):
    """Looking for old logs lists the whole log, so most commits must not do it."""
    monkeypatch.setitem(lake.changelog_table.configuration, "delta.checkpointInterval", "4")
    log = lake.changelog_table.path / "_delta_log"
    for batch in range(6):
        append(lake, batch, rows(batch, 3))
    for name in log.glob("*.json"):
        os.utime(name, (0, 0))
    append(lake, 6, rows(6, 3))
    assert len(list(log.glob("*.json"))) == 7
    for batch in range(7, 9):
        append(lake, batch, rows(batch, 3))
    assert not (log / f"{0:020d}.json").exists()


KILLS = [
    ("written", 0),
    ("committed", 0),
    ("merge written", 0),
    ("written", 3),
    ("committed", 4),
    ("merge written", 4),
    ("merged 2", 3),
    ("found", 2),
]


ICEBERG_KILLS = [("committed", 0), ("committed", 4), ("merge written", 3)]


@pytest.mark.process
@pytest.mark.parametrize(
    ("table_format", "point", "batch"),
    [*(("delta", *kill) for kill in KILLS), *(("iceberg", *kill) for kill in ICEBERG_KILLS)],
)
def test_a_driver_killed_between_two_steps_loses_and_repeats_nothing(tmp_path, table_format, point, batch):
    lake = Lake(tmp_path / "lake", table_format)
    assert run_driver(lake, 6, point, batch) == -signal.SIGKILL
    assert run_driver(lake, 6) == 0
    lakes.check_driven(lake, 6)


@pytest.mark.process
@pytest.mark.parametrize(("table_format", "kills"), [("delta", 6), ("iceberg", 3)])
def test_a_driver_killed_at_any_moment_loses_and_repeats_nothing(tmp_path, table_format, kills):
    lake = Lake(tmp_path / "lake", table_format)
    batches = 10
    deaths = [run_driver(lake, batches, f"timer:{seconds}") for seconds in lakes.delays(seed=1, count=kills)]
    assert -signal.SIGALRM in deaths
    assert run_driver(lake, batches) == 0
    lakes.check_driven(lake, batches)


def sink(lake, **more):
    options = {"path": str(lake.path), "checkpointLocation": str(lake.checkpoint), "vbuckets": str(VBUCKETS)} | more
    return ChangelogSink({name: value for name, value in options.items() if value})


def change_type(*without):
    struct = StructType()
    for name in CHANGE_SCHEMA.names:
        if name not in without:
            struct.add(name, BinaryType())
    return struct


def test_the_sink_takes_its_query_from_the_checkpoint(lake):
    checkpoint(lake.checkpoint)
    writer = pickle.loads(pickle.dumps(sink(lake).streamWriter(change_type(), False)))
    message = pickle.loads(pickle.dumps(writer.write(iter(table(rows(0)).to_batches()))))
    writer.commit([message, None], 0)
    writer.abort([message, None], 0)
    opened = lake.changelog_table.open()
    assert opened.transaction_version(QUERY) == 0
    assert count_rows(lake.changelog_table) == 40
    again = writer.write(iter(table(rows(1)).to_batches()))
    writer.abort([again], 1)
    assert lakes.orphans(lake) == []


@pytest.mark.parametrize(
    ("options", "without", "message"),
    [
        ({"path": ""}, (), "no option path"),
        ({"checkpointLocation": ""}, (), "no option checkpointLocation"),
        ({"vbuckets": "many"}, (), "vbuckets 'many'"),
        ({"vbuckets": "0"}, (), "vbuckets '0'"),
        ({}, ("cas", "key"), "cas, key"),
        ({"path": "hdfs://bucket/lake"}, (), "expected a directory"),
    ],
)
def test_invalid_sink_raises_one_sentence(lake, options, without, message):
    with pytest.raises(UsageError, match=message):
        sink(lake, **options).streamWriter(change_type(*without), False)


def test_the_sink_needs_the_metadata_of_a_query(lake):
    writer = sink(lake).streamWriter(change_type(), False)
    with pytest.raises(UsageError, match="no metadata"):
        writer.commit([], 0)
    sink(lake, queryId="given").streamWriter(change_type(), False).commit([], 0)
    assert lake.changelog_table.open().transaction_version("given") == 0


def test_ranges_cover_the_bucket_evenly():
    counts = np.bincount(changelog.compute_ranges(pa.array(range(1024), pa.int32()), 1024))
    assert counts.tolist() == [64] * 16
