"""Dependents in a run: when they catch up, how failures are handled, and the state of runs."""

import json
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import Error, LakeRefused, Unreachable, UsageError
from penstock.spark import Lake
from penstock.spark.dependents.kinds.secondary_index import SecondaryIndex
from penstock.spark.dependents.registry import AT_ONCE
from penstock.spark.lake.current.current_table import read_merged_version
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.reading.lake_positions import read_position
from penstock.spark.lake.reading.lake_readers import count_rows
from penstock.spark.lake.tables.lake_lock import hold_lock
from penstock.spark.pipeline.definition.definition import define_bucket_pipeline
from penstock.spark.pipeline.run import dependent_runner
from penstock.spark.pipeline.run.dependent_runner import DependentRunner, DependentTask
from penstock.spark.pipeline.run.dependent_tasks import create_tasks
from penstock.spark.pipeline.run.run_metrics import PipelineMetrics
from penstock.spark.pipeline.run.source_run import SourceRun
from penstock.spark.pipeline.run.table_tasks import TableTargets, TableTasks
from penstock.spark.pipeline.state import run_state as control
from penstock.spark.pipeline.state.changelog_meter import ChangelogMeter, find_last_rollback
from penstock.spark.pipeline.state.lag import compute_lag
from penstock.spark.pipeline.state.lake_status import list_applied_versions, read_status
from penstock.spark.pipeline.state.run_progress import DependentProgress, SourceProgress
from penstock.spark.pipeline.state.source_lakes import find_lakes
from penstock.spark.pipeline.state.stopping import plan_removal, remove_tables, stop_runs
from penstock.spark.source.offsets import make_first_offset, make_proven_offset
from tests.patience import PATIENCE
from tests.spark.lakes import append, checkpoint, rollback, row

PATIENT = MergePolicy(rows=100, share=0.5, age_seconds=600.0)


@pytest.fixture
def lake(tmp_path):
    lake = Lake(tmp_path / "lake")
    checkpoint(lake.checkpoint)
    return lake


def changes(first: int, behind: int, vbucket: int = 1):
    return [row(vbucket, seqno, b"key %d" % seqno, b'{"abv": %d}' % seqno) for seqno in range(first, behind)]


def create_current_task(lake: Lake, policy: MergePolicy = PATIENT) -> DependentTask:
    return TableTasks(lake, TableTargets(lake, (), has_current=True, is_inferring=False), policy).tasks[0]


def add_pending(meter: ChangelogMeter, *tasks: DependentTask) -> None:
    files = meter.update()
    for task in tasks:
        task.add_pending(meter.version, files)


def test_missing_table_is_merged_at_once_and_later_by_policy(lake):
    append(lake, 0, changes(1, 11))
    meter, task = ChangelogMeter(lake), create_current_task(lake)
    assert (task.progress.version, task.progress.pending, meter.total_rows) == (-1, 10, 10)
    assert task.is_due(0.0)
    task.run()
    assert (task.progress.version, task.progress.pending, task.progress.applied_rows) == (0, 0, 10)
    append(lake, 1, changes(11, 61))
    append(lake, 2, changes(61, 101))
    add_pending(meter, task)
    assert (task.progress.pending, task.is_due(0.0)) == (90, False)
    assert task.is_due(task._pending[0].at + 600.0)
    append(lake, 3, changes(101, 111))
    add_pending(meter, task)
    assert (task.progress.pending, task.is_due(0.0)) == (100, True)
    task.run()
    assert (task.progress.version, task.progress.pending, count_rows(lake.current_table)) == (3, 0, 110)


def test_rows_are_those_of_the_table_and_applied_rows_those_of_the_changelog(lake):
    append(lake, 0, [*changes(1, 11), row(1, 20, b"key 1", b"{}"), row(1, 21, b"key 2", event="deletion")])
    task = create_current_task(lake)
    before = task.progress.rows
    task.run()
    assert (before, task.progress.rows, task.progress.applied_rows) == (None, 9, 12)
    metrics = PipelineMetrics([None])
    metrics.update(SourceProgress(dependents=(task.progress, DependentProgress("cache", "invalidate"))))
    shown = {
        (each.name, each.labels.get("name")): each.value for family in metrics.collect() for each in family.samples
    }
    prefix = "penstock_pipeline_dependent_"
    assert shown[prefix + "rows", "current"] == 9
    assert shown[prefix + "applied_rows_total", "current"] == 12
    assert (prefix + "rows", "cache") not in shown
    assert create_current_task(lake).progress.rows == 9  # the next run


def test_pending_changes_are_known_to_the_next_run(lake):
    append(lake, 0, changes(1, 11))
    create_current_task(lake).run()
    append(lake, 1, changes(11, 41))
    assert create_current_task(lake).progress.pending == 30


@pytest.mark.long
def test_idle_table_advances_its_version(lake):
    append(lake, 0, changes(1, 11))
    meter, task = ChangelogMeter(lake), create_current_task(lake)
    task.run()
    for batch in range(1, 65):
        append(lake, batch, [])
        add_pending(meter, task)
        assert task.is_due(0.0) == (batch == 64)
    task.run()
    known = read_merged_version(lake, lake.current_table, lake.current_table.open())
    assert known is not None
    assert known[1] == 64


def test_finish_applies_only_pending_changes(lake):
    append(lake, 0, changes(1, 11))
    task = create_current_task(lake)
    task.run()
    append(lake, 1, changes(11, 21))
    for _ in range(2):
        runner = DependentRunner([task := create_current_task(lake)])
        runner.start()
        runner.finish()
        assert runner.wait(PATIENCE)
        assert runner.failure is None
    assert (task.progress.version, task.progress.merges) == (1, 0)
    assert count_rows(lake.current_table) == 20


def test_unreachable_dependent_is_retried_and_delays_no_other(lake, caplog, monkeypatch):
    monkeypatch.setattr(dependent_runner, "FIRST_PAUSE", 0.05)
    append(lake, 0, changes(1, 11))
    meter, tries = ChangelogMeter(lake), threading.Semaphore(0)
    is_away = True

    def send() -> int:
        tries.release()
        if is_away:
            raise Error("the cache\nis away")
        return meter.version

    table = create_current_task(lake, MergePolicy(rows=1))
    cache = DependentTask("cache", "invalidate", send, AT_ONCE, is_local=False)
    cache.set_position(-1, meter.version, lake.changelog_table.list_files(lake.changelog_table.open()))
    runners = [DependentRunner([table], 0.01), DependentRunner([cache], 0.01)]
    for runner in runners:
        runner.start()
    assert tries.acquire(timeout=PATIENCE)
    assert tries.acquire(timeout=PATIENCE)
    assert cache.progress.error == "the cache is away"
    assert cache.progress.failures >= 1
    is_away = False
    assert tries.acquire(timeout=PATIENCE)
    for runner in runners:
        runner.finish()
        assert runner.wait(PATIENCE)
    now = cache.progress
    assert (now.error, now.failures, now.version, now.pending) == (None, 0, 0, 0)
    assert table.progress.version == 0
    assert caplog.text.count("invalidate cache failed and will be retried: the cache is away") == 1


def test_other_tasks_continue_after_any_exception(lake):
    append(lake, 0, changes(1, 11))
    files = lake.changelog_table.list_files(lake.changelog_table.open())
    tasks = [
        DependentTask("broken", "index", lambda: int("x"), AT_ONCE),
        DependentTask("whole", "index", lambda: 0, AT_ONCE),
    ]
    for task in tasks:
        task.set_position(-1, 0, files)
    runner = DependentRunner(tasks, 0.01)
    runner.start()
    runner.finish()
    assert runner.wait(PATIENCE)
    assert runner.failure is None
    assert [task.progress.error for task in tasks] == ["ValueError: invalid literal for int() with base 10: 'x'", None]


def test_missing_high_seqnos_are_not_a_failure(lake):
    append(lake, 0, changes(1, 11))
    answers: list[Future[dict[int, int]]] = [Future(), Future(), Future()]
    answers[0].set_exception(Unreachable("gone for 30 s"))
    answers[1].set_result({1: 12})
    end = json.dumps(make_first_offset(64).to_json())
    following = SourceRun(define_bucket_pipeline(str(lake.path)).sources[0], lake, 64, iter(answers).__next__, tasks=())
    shown = SimpleNamespace(batchId=0, sources=[SimpleNamespace(endOffset=end)], durationMs={}, numInputRows=0)
    following.query = cast("StreamingQuery", SimpleNamespace(lastProgress=shown))
    assert [following.update_progress().lag for _ in range(3)] == [None, 12, None]
    assert following.progress.rows == 0


def test_failure_of_current_ends_the_run(lake):
    append(lake, 0, changes(1, 11))
    lake.current_table.path.write_text("not a table")
    task = DependentTask(
        "current",
        "current",
        lambda: create_current_task(lake).progress.version,
        AT_ONCE,
        is_vital=True,
    )
    task.set_position(-1, 0, lake.changelog_table.list_files(lake.changelog_table.open()))
    runner = DependentRunner([task], 0.01)
    runner.start()
    assert runner.wait(PATIENCE)
    assert isinstance(runner.failure, UsageError)


def test_meter_counts_rows_bytes_and_rollbacks(lake):
    meter = ChangelogMeter(lake)
    assert (meter.version, meter.total_rows, meter.update(), find_last_rollback(lake)) == (-1, 0, [], None)
    append(lake, 0, changes(1, 11) + changes(1, 6, vbucket=60))
    assert len(meter.update()) == 2
    append(lake, 1, [rollback(1, 4, 1), rollback(60, 0, 1), *changes(5, 8, vbucket=2)])
    append(lake, 2, changes(8, 9, vbucket=2))
    meter.update()
    assert (meter.version, meter.rows, meter.total_rows, meter.rollbacks) == (2, 21, 21, 2)
    assert meter.bytes == sum(file.size for file in lake.changelog_table.list_files(lake.changelog_table.open()))
    assert meter.last_rollback is not None
    assert meter.last_rollback.vbuckets == (1, 60)
    assert find_last_rollback(lake) == meter.last_rollback
    assert (ChangelogMeter(lake).total_rows, meter.update()) == (21, [])


def test_lag_counts_seqnos_beyond_the_position(lake):
    assert read_position(lake) is None
    assert compute_lag(None, {0: 5, 1: 7}) == 12
    append(lake, 0, changes(1, 11))
    end = make_proven_offset({0: (11, 4), 1: (12, 9)}, 2)
    lines = ["v1", "{}", json.dumps(end.to_json())]
    (lake.checkpoint / "offsets" / "0").write_text("\n".join(lines))
    (lake.checkpoint / "offsets" / "1").write_text("v1\n{}\n{}")  # planned, but not committed to the changelog
    found = read_position(lake)
    assert found is not None
    assert (found.batch, found.offset) == (0, end)
    assert compute_lag(end, {0: 5, 1: 7}) == 1
    assert compute_lag(make_first_offset(2), {0: 5, 1: 7}, [1]) == 7
    (lake.checkpoint / "offsets" / "0").write_text("broken")
    with pytest.raises(UsageError, match="is not an offset file of Spark"):
        read_position(lake)


# State of runs


def test_a_lake_without_a_run(lake):
    found = read_status(lake)
    assert (found.state, found.pid, found.changelog, found.dependents) == ("new", None, None, ())
    append(lake, 0, [*changes(1, 11), rollback(1, 4, 1)])
    create_current_task(lake).run()
    append(lake, 1, changes(11, 14))
    found = read_status(lake)
    shown = found.to_dict()
    assert (shown["version"], shown["changelog"]["rows"], shown["last_rollback"]["vbuckets"]) == (1, 14, (1,))
    (table,) = shown["dependents"]
    assert (table["name"], table["version"], table["pending"], table["size"]["rows"]) == ("current", 0, 3, 4)


def write_state(lake: Lake, **fields) -> control.RunState:
    mine = control.create_run_state()
    mine = control.RunState(**{name: getattr(mine, name) for name in mine.__slots__} | fields)
    mine.write(lake)
    return mine


def test_status_shows_the_run_of_a_lake(lake):
    mine = write_state(lake)
    assert read_status(lake).state == "killed"
    with hold_lock(lake.path, 0):
        assert control.is_locked(lake)
        found = read_status(lake)
        assert (found.state, found.pid) == ("running", mine.pid)
        write_state(lake, pid=2**22 - 3)  # near Linux's limit of 2**22: no process has it
        assert read_status(lake).state == "stopping"
    write_state(lake, ended=True, error="it was too much")
    assert (read_status(lake).state, read_status(lake).error) == ("ended", "it was too much")
    (lake.path / "_run.json").write_text("{}")
    with pytest.raises(UsageError, match="is damaged or of another version"):
        read_status(lake)


def test_a_request_to_stop_is_for_one_run(lake):
    mine = write_state(lake)
    assert not control.is_stop_requested(lake, mine.run)
    control.request_stop(lake, "another")
    assert not control.is_stop_requested(lake, mine.run)
    assert not (lake.path / "_stop").exists()
    control.request_stop(lake, mine.run)
    assert control.is_stop_requested(lake, mine.run)
    control.clear_stop_request(lake)
    assert not control.is_stop_requested(lake, mine.run)


def test_stop_waits_until_the_end_or_the_timeout(lake):
    assert stop_runs([lake], 0.0)
    write_state(lake)  # left by an earlier run that was killed
    pause = threading.Event()

    def run(held: threading.Event) -> None:
        with hold_lock(lake.path, 0):
            held.set()
            mine = write_state(lake)
            while not control.is_stop_requested(lake, mine.run):
                pause.wait(0.01)

    held = threading.Event()
    thread = threading.Thread(target=run, args=(held,))
    thread.start()
    assert held.wait(PATIENCE)
    requested: list[int] = []
    assert stop_runs([lake], PATIENCE, requested.append)
    thread.join(PATIENCE)
    assert requested
    with hold_lock(lake.path, 0):
        assert not stop_runs([lake], 0.0)


def test_changed_content_options_are_refused(lake):
    control.store_content(lake, {"where": "abw > 5"})
    control.check_content(lake, {"where": "abv > 5"})  # the changelog is still empty, so that the condition may change
    control.store_content(lake, {"where": "abv > 5"})
    append(lake, 0, changes(1, 2))
    control.check_content(lake, {"where": "abv > 5"})
    with pytest.raises(LakeRefused, match="was written with where 'abv > 5', and where is unset now"):
        control.check_content(lake, {})
    old = Lake(lake.path.parent / "old")
    checkpoint(old.checkpoint)
    append(old, 0, changes(1, 2))
    with pytest.raises(LakeRefused, match="was written with key_pattern unset, and key_pattern is '\\^a' now"):
        control.check_content(old, {"key_pattern": "^a"})


def test_reset_removes_the_named_tables(lake):
    append(lake, 0, changes(1, 11))
    SecondaryIndex(lake, "by_abv", "abv", "long")
    definition = define_bucket_pipeline(str(lake.path))
    for task in create_tasks(definition, definition.sources[0], lake):
        task.run()
    dependents = [{"name": "gone", "kind": "index", "version": 3, "pending": 0, "error": None}]
    write_state(lake, progress={"dependents": dependents}, ended=True)
    assert list_applied_versions(lake)[0][1] == 3
    (lake.path / "indexes").mkdir()
    (lake.path / "indexes" / "gone.sqlite").write_text("x")
    (lake.path / "indexes" / "gone.sqlite-wal").write_text("x")
    with pytest.raises(UsageError, match=r"there is no 'x' in .*, expected some of changelog, current, default, gone"):
        plan_removal(lake, ["x"])
    with hold_lock(lake.path, 0), pytest.raises(LakeRefused):
        remove_tables(plan_removal(lake, ["gone"]))
    removal = plan_removal(lake, ["gone"])
    assert len(removal.paths) == 2
    (
        lake.path / "indexes" / "gone.sqlite-wal"
    ).unlink()  # SQLite's last reader removes this file between plan and removal
    remove_tables(removal)
    assert [path.name for path in (lake.path / "indexes").iterdir()] == []
    assert [each.name for each in read_status(lake).dependents] == ["default", "current"]
    remove_tables(plan_removal(lake, ["current", "default"]))
    assert read_status(lake).dependents == ()
    create_current_task(lake).run()
    assert count_rows(lake.current_table) == 10
    remove_tables(plan_removal(lake, []))
    assert [path.name for path in lake.path.iterdir()] == ["_lock"]
    lake.check_owner()


def test_lakes_are_found_by_their_directory(tmp_path, lake):
    assert find_lakes(str(lake.path)).keys() == {None}
    assert {name: found.path for name, found in find_lakes(str(tmp_path)).items()} == {"lake": lake.path}
    with pytest.raises(UsageError, match="there is no lake at "):
        find_lakes(str(tmp_path / "elsewhere"))
