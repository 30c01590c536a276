"""The changelog as plain Parquet files: readers of the directory see each batch once, also after kills."""

import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import BinaryType, StructType

from penstock.errors import LakeRefused, UsageError
from penstock.spark import Lake
from penstock.spark.lake.changelog.changelog_writer import abort_batch, commit_batch, write_files
from penstock.spark.lake.tables import plain_manifests
from penstock.spark.lake.tables import plain_table as plain
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.runtime.changelog_sink import ChangelogSink
from penstock.wire.columns.schema import CHANGE_SCHEMA
from tests.patience import PATIENCE
from tests.spark import lakes
from tests.spark.lakes import QUERY, VBUCKETS, checkpoint, row, table

IDENTITY = ["vbucket", "history", "seqno"]


@pytest.fixture
def lake(tmp_path):
    return LakeDirectory(tmp_path / "lake", "parquet")


@pytest.fixture
def root(lake):
    return lake.changelog_table.path


def rows(batch, count=40):
    return [row(n % VBUCKETS, 1000 * batch + n, b"k%d" % n, b"v%d" % batch) for n in range(count)]


def write_batch(lake, batch):
    return write_files(table(rows(batch)).to_batches(), lake.changelog_table.write_root, VBUCKETS)


def append(lake, batch):
    return commit_batch(lake, QUERY, batch, write_batch(lake, batch), vbuckets=VBUCKETS)


def read_directory(root):
    """Return the rows that a reader without knowledge of manifests finds."""
    parts = [pq.ParquetFile(path).read() for path in root.glob("*/*.parquet")]
    return pa.concat_tables(parts) if parts else CHANGE_SCHEMA.empty_table()


def identities(columns):
    return sorted(zip(*(columns[name] for name in IDENTITY), strict=True))


def list_identities(*batches):
    return sorted((r["vbucket"], r["history"], r["seqno"]) for batch in batches for r in rows(batch))


def list_pending_files(lake):
    return list(lake.changelog_table.write_root.rglob("*.parquet"))


def test_readers_of_the_directory_find_committed_rows_only(lake, root):
    files = write_batch(lake, 0)
    assert read_directory(root).num_rows == 0
    assert commit_batch(lake, QUERY, 0, files, vbuckets=VBUCKETS)
    write_batch(lake, 1)
    assert read_directory(root).sort_by("seqno").select(CHANGE_SCHEMA.names).to_pylist() == table(rows(0)).to_pylist()
    pattern = f"{root}/*/*.parquet"
    assert identities(pl.read_parquet(pattern, hive_partitioning=False).to_dict(as_series=False)) == list_identities(0)
    assert identities(duckdb.read_parquet(pattern).to_arrow_table().to_pydict()) == list_identities(0)


def test_repeated_plain_batch_adds_nothing_and_leaves_no_files(lake, root):
    assert append(lake, 0)
    assert append(lake, 1)
    assert not append(lake, 1)
    assert not append(lake, 0)
    assert identities(read_directory(root).to_pydict()) == list_identities(0, 1)
    assert list_pending_files(lake) == []


def test_aborted_plain_batch_removes_only_its_files(lake, root):
    append(lake, 0)
    abort_batch(lake, write_batch(lake, 1))
    assert list_pending_files(lake) == []
    files = write_batch(lake, 1)
    commit_batch(lake, QUERY, 1, files, vbuckets=VBUCKETS)
    abort_batch(lake, files)
    assert identities(read_directory(root).to_pydict()) == list_identities(0, 1)


def test_one_of_two_drivers_commits_the_plain_batch(lake, root):
    barrier = Barrier(2)

    def both(batch, files):
        barrier.wait(PATIENCE)
        return commit_batch(lake, QUERY, batch, files, vbuckets=VBUCKETS)

    with ThreadPoolExecutor(2) as pool:
        for batch in range(6):
            tasks = [pool.submit(both, batch, write_batch(lake, batch)) for _ in range(2)]
            assert sorted(task.result(PATIENCE) for task in tasks) == [False, True]
    assert identities(read_directory(root).to_pydict()) == list_identities(*range(6))
    assert list_pending_files(lake) == []


def test_manifests_stay_few(lake, root, monkeypatch):
    monkeypatch.setattr(plain, "KEPT_BATCHES", 3)
    for batch in range(8):
        append(lake, batch)
    assert sorted(int(path.stem) for path in (root / plain_manifests.BATCHES).iterdir()) == [5, 6, 7]
    assert read_directory(root).num_rows == 8 * 40


DRIVER = """
import pathlib, signal, sys
from penstock.spark.lake.tables.directory import LakeDirectory
from tests.spark.test_changelog_plain import append
lake = LakeDirectory(sys.argv[1], "parquet")
ended, batches, seconds = pathlib.Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
signal.setitimer(signal.ITIMER_REAL, seconds)
for batch in range(int(ended.read_text() or 0), batches):
    append(lake, batch)
    draft = ended.with_suffix(".draft")
    draft.write_text(str(batch + 1))
    draft.rename(ended)
"""


@pytest.mark.process
def test_a_driver_killed_at_any_moment_loses_and_repeats_nothing(lake, root, tmp_path):
    batches, ended = 40, tmp_path / "ended"
    ended.touch()
    deaths = []
    for seconds in (0.03, 0.1, 0.2, 0.0):
        command = [sys.executable, "-c", DRIVER, str(lake.path), str(ended), str(batches), str(seconds)]
        deaths.append(subprocess.run(command, cwd=lakes.ROOT, timeout=PATIENCE, check=False).returncode)
        done = int(ended.read_text() or 0)
        assert set(list_identities(*range(done))) <= set(identities(read_directory(root).to_pydict()))
    assert deaths == [-signal.SIGALRM] * 3 + [0]
    assert identities(read_directory(root).to_pydict()) == list_identities(*range(batches))


def test_a_lake_of_plain_files_has_one_owner(lake):
    lake.check_owner()
    checkpoint(lake.checkpoint, batches=2)
    append(lake, 1)
    lake.check_owner()
    with pytest.raises(LakeRefused, match="another query"):
        commit_batch(lake, "0b3f", 2, [], vbuckets=VBUCKETS)
    with pytest.raises(LakeRefused, match="64 vbuckets, and this one has 1024"):
        commit_batch(lake, QUERY, 2, [], vbuckets=1024)
    with pytest.raises(UsageError, match="'_batches', which is not"):
        LakeDirectory(lake.path, "delta").check_owner()
    (lake.checkpoint / "metadata").write_text('{"id":"another"}')
    with pytest.raises(LakeRefused, match="not written by the query"):
        lake.check_owner()


def test_plain_files_are_refused_in_a_delta_table(lake):
    lakes.append(Lake(lake.path), 0, rows(0))
    for refused in (lake.check_owner, lambda: commit_batch(lake, QUERY, 1, [], vbuckets=VBUCKETS)):
        with pytest.raises(UsageError, match="expected a changelog of plain Parquet files"):
            refused()


def test_sink_with_format_parquet_writes_plain_files(lake, root):
    checkpoint(lake.checkpoint)
    struct = StructType()
    for name in CHANGE_SCHEMA.names:
        struct.add(name, BinaryType())
    options = {"path": str(lake.path), "checkpointLocation": str(lake.checkpoint), "vbuckets": str(VBUCKETS)}
    writer = ChangelogSink({**options, "tableFormat": "parquet"}).streamWriter(struct, False)
    writer = pickle.loads(pickle.dumps(writer))
    for batch in (0, 0, 1):
        message = pickle.loads(pickle.dumps(writer.write(iter(table(rows(batch)).to_batches()))))
        writer.commit([message, None], batch)
    writer.abort([writer.write(iter(table(rows(2)).to_batches()))], 2)
    assert identities(read_directory(root).to_pydict()) == list_identities(0, 1)
    assert list_pending_files(lake) == []
    with pytest.raises(UsageError, match="tableFormat 'csv'; expected one of delta, iceberg, parquet"):
        ChangelogSink({**options, "tableFormat": "csv"}).streamWriter(struct, False)


@pytest.mark.spark
def test_spark_reads_the_directory(spark, lake):
    append(lake, 0)
    append(lake, 1)
    write_batch(lake, 2)
    lines = spark.read.parquet(str(lake.changelog_table.path)).select(*IDENTITY).collect()
    assert sorted(tuple(line) for line in lines) == list_identities(0, 1)
