"""The changelog as plain Parquet files: each batch is there once for whoever reads the directory, through kills too."""

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
from penstock.spark.lake.changelog import plain_changelog as plain
from penstock.spark.lake.changelog.changelog_writer import write_files
from penstock.spark.lake.changelog.plain_changelog import abort, commit
from penstock.spark.lake.tables import plain_manifests
from penstock.spark.runtime.changelog_sink import ChangelogSink
from penstock.wire.columns.schema import CHANGE_SCHEMA
from tests.patience import PATIENCE
from tests.spark import lakes
from tests.spark.lakes import QUERY, VBUCKETS, checkpoint, row, table

IDENTITY = ["vbucket", "history", "seqno"]


@pytest.fixture
def root(lake):
    return lake.changelog_table.path


def rows(batch, count=40):
    return [row(n % VBUCKETS, 1000 * batch + n, b"k%d" % n, b"v%d" % batch) for n in range(count)]


def written(lake, batch):
    return write_files(table(rows(batch)).to_batches(), plain.pending(lake), VBUCKETS)


def append(lake, batch):
    return commit(lake, QUERY, batch, written(lake, batch), vbuckets=VBUCKETS)


def found(root):
    """Return what a reader finds who knows nothing of manifests."""
    parts = [pq.ParquetFile(path).read() for path in root.glob("*/*.parquet")]
    return pa.concat_tables(parts) if parts else CHANGE_SCHEMA.empty_table()


def identities(columns):
    return sorted(zip(*(columns[name] for name in IDENTITY), strict=True))


def wanted(*batches):
    return sorted((r["vbucket"], r["history"], r["seqno"]) for batch in batches for r in rows(batch))


def pending(lake):
    return list(plain.pending(lake).rglob("*.parquet"))


def test_readers_of_the_directory_find_committed_rows_only(lake, root):
    files = written(lake, 0)
    assert found(root).num_rows == 0
    assert commit(lake, QUERY, 0, files, vbuckets=VBUCKETS)
    written(lake, 1)
    assert found(root).sort_by("seqno").select(CHANGE_SCHEMA.names).to_pylist() == table(rows(0)).to_pylist()
    pattern = f"{root}/*/*.parquet"
    assert identities(pl.read_parquet(pattern, hive_partitioning=False).to_dict(as_series=False)) == wanted(0)
    assert identities(duckdb.read_parquet(pattern).to_arrow_table().to_pydict()) == wanted(0)


def test_a_batch_that_is_run_again_adds_nothing_and_leaves_no_files(lake, root):
    assert append(lake, 0)
    assert append(lake, 1)
    assert not append(lake, 1)
    assert not append(lake, 0)
    assert identities(found(root).to_pydict()) == wanted(0, 1)
    assert pending(lake) == []


def test_giving_up_a_batch_removes_its_files_and_no_others(lake, root):
    append(lake, 0)
    abort(lake, written(lake, 1))
    assert pending(lake) == []
    files = written(lake, 1)
    commit(lake, QUERY, 1, files, vbuckets=VBUCKETS)
    abort(lake, files)
    assert identities(found(root).to_pydict()) == wanted(0, 1)


def test_of_two_drivers_that_commit_the_same_batch_one_wins(lake, root):
    barrier = Barrier(2)

    def both(batch, files):
        barrier.wait(PATIENCE)
        return commit(lake, QUERY, batch, files, vbuckets=VBUCKETS)

    with ThreadPoolExecutor(2) as pool:
        for batch in range(6):
            tasks = [pool.submit(both, batch, written(lake, batch)) for _ in range(2)]
            assert sorted(task.result(PATIENCE) for task in tasks) == [False, True]
    assert identities(found(root).to_pydict()) == wanted(*range(6))
    assert pending(lake) == []


def test_manifests_stay_few(lake, root, monkeypatch):
    monkeypatch.setattr(plain, "KEPT_BATCHES", 3)
    for batch in range(8):
        append(lake, batch)
    assert sorted(int(path.stem) for path in (root / plain_manifests.BATCHES).iterdir()) == [5, 6, 7]
    assert found(root).num_rows == 8 * 40


DRIVER = """
import pathlib, signal, sys
from penstock.spark import Lake
from tests.spark.test_changelog_plain import append
lake, ended, batches, seconds = Lake(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
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
        assert set(wanted(*range(done))) <= set(identities(found(root).to_pydict()))
    assert deaths == [-signal.SIGALRM] * 3 + [0]
    assert identities(found(root).to_pydict()) == wanted(*range(batches))


def test_a_lake_of_plain_files_has_one_owner(lake):
    lake.check_owner("parquet")
    checkpoint(lake.checkpoint, batches=2)
    append(lake, 1)
    lake.check_owner("parquet")
    with pytest.raises(LakeRefused, match="another query"):
        commit(lake, "0b3f", 2, [], vbuckets=VBUCKETS)
    with pytest.raises(LakeRefused, match="64 vbuckets, and this one has 1024"):
        commit(lake, QUERY, 2, [], vbuckets=1024)
    with pytest.raises(UsageError, match="'_batches', which is not"):
        lake.check_owner()
    (lake.checkpoint / "metadata").write_text('{"id":"another"}')
    with pytest.raises(LakeRefused, match="not written by the query"):
        lake.check_owner("parquet")


def test_a_delta_table_is_no_place_for_plain_files(lake):
    lakes.append(lake, 0, rows(0))
    for refused in (lambda: lake.check_owner("parquet"), lambda: commit(lake, QUERY, 1, [], vbuckets=VBUCKETS)):
        with pytest.raises(UsageError, match="expected a changelog of plain Parquet files"):
            refused()


def test_the_sink_writes_plain_files_when_told(lake, root):
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
    assert identities(found(root).to_pydict()) == wanted(0, 1)
    assert pending(lake) == []
    with pytest.raises(UsageError, match="tableFormat 'csv'; expected one of delta, parquet"):
        ChangelogSink({**options, "tableFormat": "csv"}).streamWriter(struct, False)


@pytest.mark.spark
def test_spark_reads_the_directory(spark, tmp_path):
    lake = Lake(tmp_path / "lake")
    append(lake, 0)
    append(lake, 1)
    written(lake, 2)
    lines = spark.read.parquet(str(lake.changelog_table.path)).select(*IDENTITY).collect()
    assert sorted(tuple(line) for line in lines) == wanted(0, 1)
