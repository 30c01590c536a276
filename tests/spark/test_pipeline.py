"""The pipeline end to end: a bucket into a lake through Spark, with failing nodes and networks."""

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from deltalake.exceptions import TableNotFoundError

from penstock.errors import Error, LakeRefused, Unreachable, UnsupportedServer, UsageError
from penstock.node import Node
from penstock.spark import Lake
from penstock.spark.lake.reading.lake_readers import count_rows
from penstock.spark.lake.tables.lake_lock import hold_lock
from penstock.spark.pipeline.definition.definition import define_bucket_pipeline
from penstock.spark.pipeline.run.pipeline_run import run_pipeline
from penstock.spark.pipeline.run.run_plan import plan_run, validate_definition
from penstock.spark.pipeline.run.spark_failure import parse_failure, translate_errors
from penstock.spark.pipeline.state.lake_status import read_status
from penstock.spark.pipeline.state.run_progress import SourceProgress
from penstock.spark.pipeline.state.stopping import stop_runs
from tests.client.old_server import COUCHBASE_2_5, COUCHBASE_3_1, OldServer, without_map
from tests.patience import PATIENCE
from tests.spark.buckets import Documents, Proxy, check_changelog, compact, current_of, generated, numbered
from tests.spark.running import catch_up, running

BEER = Path(__file__).parents[3] / "shared" / "data" / "beer-sample.jsonl"

pytestmark = pytest.mark.spark


def values(lake):
    return {key: value for key, (_, value) in current_of(lake).items()}


@pytest.mark.parametrize("source", ["beer", "generated"])
def test_the_tables_are_the_bucket_byte_for_byte(spark, documents, lake, source):
    if source == "beer":
        if not BEER.exists():
            pytest.skip(f"{BEER} is not there: the generated documents stand for it")
        lines = map(json.loads, BEER.read_text("utf-8").splitlines())
        stored = {line["id"]: compact(line["doc"]) for line in lines}
        assert len(stored) == 7_303
    else:
        stored = generated(3_000)
    documents.store(stored)
    first = catch_up(spark, documents.url, lake)
    assert first.rows == len(stored)
    assert values(lake) == {key.encode(): value for key, value in stored.items()}

    keys = sorted(stored)
    documents.store({key: b"changed " + stored[key] for key in keys[:1_000]})
    assert documents.remove(keys[1_000:1_500]) == 500
    documents.store(numbered(0, 100))
    second = catch_up(spark, documents.url, lake)
    assert second.rows == 1_600
    assert second.lag == 0
    assert count_rows(lake.changelog_table) == len(stored) + 1_600
    assert current_of(lake) == documents.contents()
    check_changelog(lake)


def test_a_limit_makes_more_batches_of_the_same_rows(spark, documents, lake):
    documents.store(numbered(0, 2_000))
    done = catch_up(spark, documents.url, lake, max_changes_per_trigger=700, max_partitions=1)
    assert (done.rows, done.batches) == (2_000, 4)  # the last one stores the proof of the third
    assert current_of(lake) == documents.contents()
    assert catch_up(spark, documents.url, lake).rows == 0


def test_a_node_that_lost_its_data_while_a_query_runs(spark, lake):
    """The node loses its data twice: its new history is first shorter than the old one, then longer."""
    with Node.running(["default"], vbuckets=16) as node:
        port = node.kv_port
        with Documents.of(node.url("default")) as documents:
            url = documents.url
            documents.store(numbered(0, 1_000))
            following = running(spark, url, lake, recreated_bucket="rollback")
            run_ = following.__enter__()
            run_.reached(1_000)
    for round_, (count, rows) in enumerate([(300, 1_000 + 16 + 300), (2_000, 1_316 + 16 + 2_000)], 1):
        with Node.running(["default"], vbuckets=16, port=port) as node, Documents.of(url) as documents:
            documents.store(numbered(0, count, f"round {round_}"))
            run_.reached(rows)
            if round_ == 2:
                following.__exit__(None, None, None)
            assert current_of(lake) == documents.contents()
    changes = check_changelog(lake)
    assert changes.num_rows == 3_332
    rollbacks = [
        (row["vbucket"], row["history"], row["seqno"]) for row in changes.to_pylist() if row["event"] == "rollback"
    ]
    assert sorted(rollbacks) == sorted((vbucket, history, 0) for vbucket in range(16) for history in (1, 2))


def test_interrupted_run_merges_pending_changes(spark, documents, lake):
    documents.store(numbered(0, 500))
    catch_up(spark, documents.url, lake)
    documents.store(numbered(400, 600, "anew"))

    def interrupt(progress: SourceProgress) -> None:
        if progress.rows == 200:
            assert [each.pending for each in progress.dependents] in ([200], [0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_pipeline(define_bucket_pipeline(str(lake.path), url=documents.url), spark=spark, report=interrupt)
    found = read_status(lake)
    assert (found.state, found.error, found.dependents[0].pending) == ("ended", None, 0)
    assert count_rows(lake.current_table) == 600
    assert current_of(lake) == documents.contents()


def test_run_ends_at_a_stop_request_in_its_lake(spark, documents, lake):
    documents.store(numbered(0, 100))
    with ThreadPoolExecutor(1) as pool:
        begun = threading.Event()
        running_ = pool.submit(
            run_pipeline,
            define_bucket_pipeline(str(lake.path), url=documents.url),
            spark=spark,
            report=lambda progress: begun.set(),
        )
        assert begun.wait(PATIENCE)
        assert stop_runs([lake], PATIENCE)
        (progress,) = running_.result(PATIENCE)
    assert progress.dependents[0].pending == 0
    assert not (lake.path / "_stop").exists()


def test_a_lake_belongs_to_its_checkpoint(spark, documents, lake, tmp_path):
    documents.store(numbered(0, 100))
    catch_up(spark, documents.url, lake)

    moved = Lake(tmp_path / "elsewhere" / "moved")
    moved.path.parent.mkdir()
    lake.path.rename(moved.path)
    documents.store(numbered(100, 150))
    assert catch_up(spark, documents.url, moved).rows == 50
    assert current_of(moved) == documents.contents()

    other = Lake(tmp_path / "other")
    catch_up(spark, documents.url, other)
    Path(str(moved.checkpoint)).rename(tmp_path / "checkpoint")
    with pytest.raises(LakeRefused, match=r"was written by a query, but its checkpoint .*_checkpoint is missing: "):
        catch_up(spark, documents.url, moved)
    shutil.copytree(str(other.checkpoint), str(moved.checkpoint))
    with pytest.raises(LakeRefused, match="was not written by the query of "):
        catch_up(spark, documents.url, moved)
    assert current_of(moved) == documents.contents()


def test_two_runs_do_not_write_one_lake(documents, lake, monkeypatch):
    lake.path.mkdir()
    monkeypatch.setattr("penstock.spark.pipeline.run.pipeline_run.LOCK_SECONDS", 0.0)
    with hold_lock(lake.path, 0), pytest.raises(LakeRefused, match=r"another run writes .*lake; stop it first"):
        run_pipeline(define_bucket_pipeline(str(lake.path), url=documents.url))


def test_run_waits_for_the_java_process_of_a_killed_run(lake):
    lake.path.mkdir()
    with ThreadPoolExecutor(1) as pool:
        with hold_lock(lake.path, 0):
            waiting = pool.submit(lambda: hold_lock(lake.path, PATIENCE).__enter__())
            assert not waiting.done()
        assert waiting.result(PATIENCE).descriptors


@pytest.mark.parametrize(
    ("url", "kind", "sentence"),
    [
        ("couchbase://127.0.0.1:1/default?retrySeconds=0.2", Unreachable, "127.0.0.1:1/default did not serve for"),
        ("http://127.0.0.1/default", UsageError, "begins with http://, expected couchbase://"),
        ("{}/nowhere", UsageError, "no bucket 'nowhere'"),
    ],
)
def test_unusable_bucket_is_reported_before_spark_starts(node, lake, url, kind, sentence):
    with pytest.raises(kind) as raised:
        run_pipeline(
            define_bucket_pipeline(str(lake.path), url=url.format(node.url("default").removesuffix("/default")))
        )
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not lake.path.exists() or not [*lake.path.iterdir()]


def test_a_server_without_dcp_is_refused_before_spark_starts(node, lake):
    with OldServer(node, COUCHBASE_2_5, bucket="default") as server:
        definition = define_bucket_pipeline(str(lake.path), url=server.url())
        expected = (
            "is Couchbase 2.5.1, which has no DCP: try protocol=tap, "
            "which all but pipelines and streaming queries can use"
        )
        for use in (run_pipeline, partial(validate_definition, connect=True, execute=True)):
            with pytest.raises(UnsupportedServer, match=expected):
                use(definition)
        (planned,) = plan_run(definition).sources
        assert planned.unreachable == f"127.0.0.1:{server.port} {expected}"
    assert not lake.path.exists() or not [*lake.path.iterdir()]


def test_a_server_of_2014_fills_a_lake(spark, node, documents, lake):
    documents.store(numbered(0, 300))
    release = without_map(COUCHBASE_3_1).override(stats={"": {"ep_max_vbuckets": "1024"}})
    with OldServer(node, release, bucket="default") as server:
        catch_up(spark, server.url(vbucketCount=16), lake)
        documents.store(dict.fromkeys(numbered(0, 10), b"changed"))
        catch_up(spark, server.url(vbucketCount=16), lake)
    assert current_of(lake) == documents.contents()
    check_changelog(lake)


def test_a_bucket_of_another_size_is_refused_by_the_lake(spark, documents, lake):
    documents.store(numbered(0, 100))
    catch_up(spark, documents.url, lake)
    with Node.running(["default"], vbuckets=32) as other, Documents.of(other.url("default")) as others:
        others.store(numbered(0, 10))
        with pytest.raises(UsageError, match=r"the bucket has 32 vbuckets, expected 16"):
            catch_up(spark, others.url, lake, recreated_bucket="rollback")


def test_cut_connections_lose_and_repeat_nothing(spark, node, lake):
    with Proxy.before(node.kv_port) as proxy, Documents.of(node.url("default")) as documents:
        documents.store(numbered(0, 4_000, size=2_000))
        proxy.cut_after = 1 << 20  # bytes; the batch has 8 MB, so that every task loses its connection several times
        with running(spark, proxy.url, lake) as run_:
            run_.reached(4_000)
            assert proxy.cuts >= 4
            proxy.cut_after = None
            missed = threading.Event()
            proxy.on_refusal = missed.set
            proxy.cut()
            documents.store(numbered(3_000, 4_500, "while it was away"))
            assert missed.wait(PATIENCE)
            proxy.is_down = False
            run_.reached(5_500)
        assert current_of(lake) == documents.contents()
        assert check_changelog(lake).num_rows == 5_500


def test_unreachable_node_ends_the_run_and_the_next_run_continues(spark, node, lake, capfd):
    with Proxy.before(node.kv_port) as proxy, Documents.of(node.url("default")) as documents:
        documents.store(numbered(0, 500))

        def follow() -> None:
            with running(spark, proxy.url + "?retrySeconds=0.5", lake) as run_:
                run_.reached(500)
                proxy.cut()
                done = threading.Event()
                proxy.on_refusal = done.set
                assert done.wait(PATIENCE)

        with pytest.raises(Unreachable) as raised:
            follow()
        assert "did not serve for" in str(raised.value)
        documents.store(numbered(400, 700, "later"))
        proxy.is_down = False
        assert catch_up(spark, proxy.url, lake).rows == 300
        assert current_of(lake) == documents.contents()
        assert check_changelog(lake).num_rows == 800
    assert "Traceback" not in capfd.readouterr().err


def test_errors_of_spark_processes_are_one_sentence(spark, documents, lake, capfd):
    documents.store(numbered(0, 100))

    def follow() -> None:
        with running(spark, documents.url, lake) as run_:
            run_.reached(100)
            shutil.rmtree(lake.changelog_table.path)
            lake.changelog_table.path.write_text("not a table")
            documents.store(numbered(0, 100, "again"))
            run_.reached(200)

    with pytest.raises(UsageError) as raised:
        follow()
    assert str(raised.value).startswith(f"{lake.changelog_table.path} is a file; expected ")
    written = capfd.readouterr().err
    assert "Traceback" not in written
    assert "\tat org.apache" not in written


STREAM_FAILED = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception:"
JAVA_FRAME = "\tat java.base/sun.nio.ch.IOUtil.write(IOUtil.java:53)\n"
PYTHON_FRAME = (
    "\tat org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner.latestOffset(P.scala:1)\n"
)
LOST_PROCESS = (
    "a Python process of Spark ended unexpectedly: it was killed, or the machine had too little memory. Run again to "
    "continue after the last commit"
)


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        (
            "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Traceback (most recent call last):\n"
            '  File "x.py", line 1, in f\n    g()\npenstock.errors.Unreachable: gone for 30 s\n\nJVM stacktrace:\n'
            "org.apache.spark.SparkException\n",
            Unreachable,
            "gone for 30 s",
        ),
        (
            "Job aborted: Traceback (most recent call last):\n  File\nOSError: [Errno 28] No space left on device\n",
            Error,
            "the query failed: OSError: [Errno 28] No space left on device",
        ),
        (
            "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Concurrent update to the log.\nx",
            Error,
            "Spark failed: Concurrent update to the log.",
        ),
        (
            "An error occurred while calling o128.start.\n: java.io.IOException: No space left on device\n\tat x\n",
            Error,
            "Spark failed: java.io.IOException: No space left on device",
        ),
        *(
            (f"{STREAM_FAILED} {message} SQLSTATE: XXKST\n=== Streaming Query ===\n{trace}", Error, sentence)
            for message, trace, sentence in [
                ("", f"Caused by: java.io.EOFException\n{JAVA_FRAME}{PYTHON_FRAME}", LOST_PROCESS),
                (
                    "Broken pipe",
                    f"Caused by: java.io.IOException: Broken pipe\n{JAVA_FRAME}{PYTHON_FRAME}",
                    LOST_PROCESS,
                ),
                ("Connection reset", f"x: Connection reset by peer\n{PYTHON_FRAME}", LOST_PROCESS),
                ("Job aborted: Python worker exited unexpectedly (crashed).", "", LOST_PROCESS),
                (
                    "Broken pipe",
                    f"x: Broken pipe\n{JAVA_FRAME}\tat org.apache.spark.rpc.X.y\n",
                    "Spark failed: Broken pipe",
                ),
                ("", "Caused by: a.B: why\n\tat c\nCaused by: d.E\n\tat f\n", "Spark failed: a.B: why"),
                ("", "Caused by: d.E\n\tat f\n", "Spark failed: d.E"),
                ("", "", "Spark failed: it reported no cause; its log may have one"),
            ]
        ),
    ],
)
def test_a_failure_is_one_sentence(text, kind, sentence):
    error = parse_failure(text)
    assert type(error) is kind
    assert str(error) == sentence


def test_a_failure_of_the_tables_library_is_one_sentence():
    with pytest.raises(Error, match=r"^a Delta table failed: no such table$"), translate_errors():
        raise TableNotFoundError("no such\n  table")
