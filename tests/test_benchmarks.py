"""The benchmarks run, and their baselines do the same as the measured code. Nothing is timed here."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.rowstores import ROW_BUCKETS
from benchmarks.served import run_node
from penstock.errors import StatusError
from penstock.store.bucket_store import BucketStore
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import MAX_SEQNO
from tests.examples import scaled
from tests.store.model import START, decode_chunk, read_all

ROOT = Path(__file__).parent.parent
SQLITE = ROW_BUCKETS["SQLite"]
VBUCKETS = 2

keys = st.sampled_from([b"a", b"a", b"bb", b"ccc"])
values = st.sampled_from([b"", b"1", b"v" * 300])
steps = st.one_of(
    st.tuples(st.just("set"), keys, values, st.sampled_from([0, 0, 1, 10])),
    st.tuples(st.sampled_from(["add", "replace"]), keys, values, st.just(0)),
    st.tuples(st.sampled_from(["get", "delete"]), keys, st.none(), st.none()),
    st.tuples(st.sampled_from(["commit", "reopen", "snapshot"]), st.none(), st.none(), st.integers(0, 5)),
)


def times() -> Callable[[], int]:
    """Return a clock that goes on by a second each time."""
    ticking = count(START, 10**9)
    return lambda: next(ticking)


def outcome(vbucket: Vbucket, command: str, key: bytes, value: bytes | None, expiry: int | None) -> Any:
    try:
        if value is None:
            return getattr(vbucket, command)(key)
        return getattr(vbucket, command)(key, value, expiry=expiry)
    except StatusError as error:
        return type(error)


@settings(max_examples=scaled(40))
@given(st.lists(st.tuples(st.integers(0, VBUCKETS - 1), steps), max_size=40))
def test_a_bucket_of_rows_does_as_one_in_memory(story):
    clock, row_clock, vbuuids = times(), times(), count(1)
    made: dict[str, Any] = {"vbuckets": VBUCKETS, "new_vbuuid": lambda: next(vbuuids)}
    expected = BucketStore("b", clock=clock, **made)
    with tempfile.TemporaryDirectory() as directory:
        rows = SQLITE.open(Path(directory), "b", clock=row_clock, **made)
        for number, (command, key, value, extra) in story:
            vbucket, other = expected.vbuckets[number], rows.vbuckets[number]
            match command:
                case "commit":
                    rows.log.commits.run()
                    assert [v.history.persisted_seqno for v in rows.vbuckets] == [
                        v.changes.high_seqno for v in expected.vbuckets
                    ]
                case "reopen":
                    branches = [v.history.failover_log for v in rows.vbuckets]
                    rows.close()
                    rows = SQLITE.open(Path(directory), "b", clock=row_clock, **made)
                    assert [v.history.failover_log for v in rows.vbuckets] == branches
                case "snapshot":
                    snapshots = [each.history.open_snapshot(extra, MAX_SEQNO) for each in (vbucket, other)]
                    written = [outcome(each, "set", b"a", b"later", 0) for each in (vbucket, other)]
                    assert written[0] == written[1]
                    assert snapshots[0].end_seqno == snapshots[1].end_seqno
                    assert read_all(snapshots[1], 7, 200) == read_all(snapshots[0], 7, 200)
                case _:
                    assert outcome(other, command, key, value, extra) == outcome(vbucket, command, key, value, extra)
            assert other.changes.high_seqno == vbucket.changes.high_seqno
        rows.close()


def test_a_snapshot_of_rows_keeps_to_its_bounds(tmp_path):
    rows = SQLITE.open(tmp_path, "b", vbuckets=1, clock=times(), new_vbuuid=lambda: 1)
    for number in range(2000):
        rows.vbuckets[0].set(b"%04d" % number, b"v" * (number % 100))
    snapshot = rows.vbuckets[0].history.open_snapshot(0, MAX_SEQNO)
    assert snapshot.read(7, 1000, window=0).frame_count == 0
    assert [message.by_seqno for message in decode_chunk(snapshot.read(7, 1000, max_frames=3))] == [1, 2, 3]
    assert len(snapshot.read(7, 1000).data) <= 1000
    assert snapshot.read(7, 10).frame_count == 1
    assert snapshot.read(7, 10_000, window=1).frame_count == 1
    seqnos = [message.by_seqno for message in read_all(snapshot)]
    assert seqnos == list(range(seqnos[0], 2001))
    rows.close()


@pytest.mark.process
@pytest.mark.parametrize(
    ("benchmark", "options", "rows"),
    [
        ("durable", ["--changes", "500", "--rounds", "1", "--value-bytes", "100"], [", Penstock ", ", SQLite "]),
        (
            "durable_read",
            [
                "--changes",
                "600",
                "--many-changes",
                "600",
                "--rounds",
                "1",
                "--cold-changes",
                "600",
                "--cold-rounds",
                "1",
            ],
            [", Penstock ", ", SQLite ", "cold, Penstock "],
        ),
        ("durable_open", ["--items", "600", "--rounds", "1"], [", Penstock ", ", SQLite "]),
        (
            "durable_pause",
            ["--changes", "600", "--rounds", "1", "--seconds", "0.1", "--pipelined", "20"],
            ["in memory, under load ", "everything being rewritten "],
        ),
        ("durable_scaling", ["--changes", "200", "600", "--rounds", "1"], [", Penstock ", ", SQLite "]),
        (
            "pauses",
            ["--documents", "600", "--seconds", "0.1", "--rest", "0.01"],
            ["first commands after the start", "is deleted"],
        ),
    ],
)
def test_a_benchmark_of_durable_buckets_runs(tmp_path, benchmark, options, rows):
    common = ["--directory", str(tmp_path), "--vbuckets", "8"]
    if benchmark not in ("durable_pause", "pauses"):
        common += ["--against", "SQLite"]
    run = [sys.executable, "-m", f"benchmarks.{benchmark}", *common, *options]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for row in rows:
        assert row in done.stdout
    assert not list(tmp_path.iterdir())  # it has deleted its files


@pytest.mark.process
def test_the_benchmark_of_the_current_table_runs():
    run = [sys.executable, "-m", "benchmarks.current", "--documents", "2000", "4000", "--rounds", "1"]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(", Penstock ") == done.stdout.count(", deltalake's merge ") == 2


@pytest.mark.process
@pytest.mark.long
def test_the_benchmark_of_a_large_lake_runs():
    run = [sys.executable, "-m", "benchmarks.large_lake", "--rows", "4000"]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("; peak ") == 10


@pytest.mark.process
def test_the_benchmark_of_typed_documents_runs():
    run = [sys.executable, "-m", "benchmarks.typed_documents", "--documents", "500", "--rounds", "1"]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(" us/document, ") == 11


@pytest.mark.process
def test_the_benchmark_of_handlers_runs():
    run = [sys.executable, "-m", "benchmarks.kv", "--keys", "--json-bytes", "--rounds", "1"]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(" of a GET") == 9


@pytest.mark.process
def test_the_benchmark_of_writing_runs():
    run = [sys.executable, "-m", "benchmarks.sink", "--rows", "5000", "--rounds", "1", "--without-spark"]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(" k rows/s ") == 3


@pytest.mark.process
def test_the_benchmark_of_xdcr_runs():
    run = [sys.executable, "-m", "benchmarks.xdcr", "--changes", "500", "--rounds", "1", "--vbuckets", "8"]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(" of consumer and bulk writer") == 6


@pytest.mark.spark
@pytest.mark.parametrize(
    ("benchmark", "options", "row"),
    [
        (
            "spark_changelog",
            ["--changes", "3000", "--per-batch", "1000", "--ways", "Python"],
            "Python, 2000 rows of 100 B",
        ),
        (
            "spark_latency",
            ["--rate", "50", "--seconds", "2", "--warm-seconds", "1", "--empty", "2"],
            "an empty trigger",
        ),
    ],
)
def test_a_benchmark_of_spark_runs(benchmark, options, row):
    run = [sys.executable, "-m", f"benchmarks.{benchmark}", "--vbuckets", "8", *options]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert row in done.stdout


@pytest.mark.process
def test_the_benchmark_of_replication_runs():
    options = ["--changes", "2000", "--move-changes", "500", "--failover-changes", "500", "--vbuckets", "4"]
    run = [sys.executable, "-m", "benchmarks.replicate", *options, "--rounds", "1"]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for row in ("400 changes of 1024 B", "longest pause of the writer", "first accepted write"):
        assert row in done.stdout


@pytest.mark.process
def test_only_changes_after_the_common_point_travel_after_a_rollback():
    options = ["--changes", "2000", "--lost", "40", "--vbuckets", "4"]
    run = [sys.executable, "-m", "benchmarks.rollback_travel", *options]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"the whole bucket +2000 items", done.stdout)
    assert re.search(r"after a loss of 40 items +40 items", done.stdout)


@pytest.mark.process
def test_a_node_that_ends_before_it_is_ready_ends_the_benchmark():
    with pytest.raises(RuntimeError, match="exit code 1"), run_node(vbuckets=3):
        pass


@pytest.mark.process
def test_the_benchmark_of_overwrites_runs():
    run = [sys.executable, "-m", "benchmarks.overwrite", "--documents", "3000", "--turns", "1"]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for row in ("CPU of a change", "copied", "at most"):
        assert row in done.stdout


@pytest.mark.process
def test_the_benchmark_of_durable_writes_over_replicas_runs():
    run = [sys.executable, "-m", "benchmarks.sync_writes", "--writes", "40", "--clients", "4", "--vbuckets", "8"]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for row in ("plain", "majority of two nodes"):
        assert row in done.stdout


@pytest.mark.process
@pytest.mark.parametrize(
    ("filtered", "rows"),
    [
        ([], ["native", "read_changes", "Python"]),
        (["--filtered"], ["filtered by the node", "filtered by the consumer"]),
    ],
    ids=["whole", "filtered"],
)
def test_the_benchmark_of_consumers_runs(filtered, rows):
    options = ["--changes", "5000", "--vbuckets", "8", "--value-bytes", "100", "--rounds", "1", *filtered]
    run = [sys.executable, "-m", "benchmarks.stream", *options]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.findall(r", 8 vbuckets, (.*?) +[0-9.]+ M changes", done.stdout) == rows


@pytest.mark.process
def test_the_benchmark_of_fronts_runs():
    run = [sys.executable, "-m", "benchmarks.fronts", "--changes", "2000", "--rounds", "1"]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for row in ("read_changes against Bucket.batches", "first batch of a process", "penstock --version"):
        assert row in done.stdout
