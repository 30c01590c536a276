"""Dependents of a changelog: when they catch up, whose failure is whose, and what commits say of themselves."""

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
from penstock.spark.lake.current.current_table import merged_version
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.reading.lake_positions import position
from penstock.spark.lake.reading.lake_readers import count_rows
from penstock.spark.lake.tables.lake_lock import locked
from penstock.spark.pipeline.definition.definition import of_one
from penstock.spark.pipeline.run.dependent_runner import DependentRunner, DependentTask
from penstock.spark.pipeline.run.dependent_tasks import current_task, tasks_of
from penstock.spark.pipeline.run.source_run import SourceRun
from penstock.spark.pipeline.state import run_state as control
from penstock.spark.pipeline.state.changelog_meter import Meter, last_rollback
from penstock.spark.pipeline.state.lag import behind
from penstock.spark.pipeline.state.lake_status import applied_versions, status_of
from penstock.spark.pipeline.state.stopping import removals, reset, stop
from penstock.spark.source.offsets import beginning, settled_at
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


def look(meter: Meter, *tasks: DependentTask) -> None:
    files = meter.look()
    for task in tasks:
        task.gained(meter.version, files)


def test_a_table_that_is_not_there_is_made_at_once_and_then_waits_for_its_policy(lake):
    append(lake, 0, changes(1, 11))
    meter, task = Meter(lake), current_task(lake, PATIENT)
    assert (task.now.version, task.now.pending, meter.total_rows) == (-1, 10, 10)
    assert task.is_due(0.0)
    task.run()
    assert (task.now.version, task.now.pending, task.now.taken) == (0, 0, 10)
    append(lake, 1, changes(11, 61))
    append(lake, 2, changes(61, 101))
    look(meter, task)
    assert (task.now.pending, task.is_due(0.0)) == (90, False)
    assert task.is_due(task._pending[0].at + 600.0)
    append(lake, 3, changes(101, 111))
    look(meter, task)
    assert (task.now.pending, task.is_due(0.0)) == (100, True)
    task.run()
    assert (task.now.version, task.now.pending, count_rows(lake.current_table)) == (3, 0, 110)


def test_what_waits_is_known_to_the_next_run(lake):
    append(lake, 0, changes(1, 11))
    current_task(lake, PATIENT).run()
    append(lake, 1, changes(11, 41))
    assert current_task(lake, PATIENT).now.pending == 30


def test_a_table_with_no_news_for_long_moves_its_place(lake):
    append(lake, 0, changes(1, 11))
    meter, task = Meter(lake), current_task(lake, PATIENT)
    task.run()
    for batch in range(1, 65):
        append(lake, batch, [])
        look(meter, task)
        assert task.is_due(0.0) == (batch == 64)
    task.run()
    known = merged_version(lake, lake.current_table.open())
    assert known is not None
    assert known[1] == 64


def test_finishing_merges_what_waits_and_only_that(lake):
    append(lake, 0, changes(1, 11))
    task = current_task(lake, PATIENT)
    task.run()
    append(lake, 1, changes(11, 21))
    for _ in range(2):
        keeper = DependentRunner([task := current_task(lake, PATIENT)])
        keeper.start()
        keeper.finish()
        assert keeper.wait(PATIENCE)
        assert keeper.failure is None
    assert (task.now.version, task.now.times) == (1, 0)
    assert count_rows(lake.current_table) == 20


def test_one_that_is_away_is_tried_again_and_holds_up_nobody(lake, caplog):
    append(lake, 0, changes(1, 11))
    meter, tries = Meter(lake), threading.Semaphore(0)
    is_away = True

    def tell() -> int:
        tries.release()
        if is_away:
            raise Error("the cache\nis away")
        return meter.version

    table = current_task(lake, MergePolicy(rows=1))
    cache = DependentTask("cache", "invalidate", tell, AT_ONCE, is_local=False)
    cache.begins(-1, meter.version, lake.changelog_table.files(lake.changelog_table.open()))
    keepers = [DependentRunner([table], 0.01), DependentRunner([cache], 0.01)]
    for keeper in keepers:
        keeper.start()
    assert tries.acquire(timeout=PATIENCE)
    assert tries.acquire(timeout=PATIENCE)
    assert cache.now.error == "the cache is away"
    assert cache.now.failures >= 1
    is_away = False
    assert tries.acquire(timeout=PATIENCE)
    for keeper in keepers:
        keeper.finish()
        assert keeper.wait(PATIENCE)
    now = cache.now
    assert (now.error, now.failures, now.version, now.pending) == (None, 0, 0, 0)
    assert table.now.version == 0
    assert caplog.text.count("invalidate cache is behind and will be tried again: the cache is away") == 1


def test_whatever_one_raises_the_others_go_on(lake):
    append(lake, 0, changes(1, 11))
    files = lake.changelog_table.files(lake.changelog_table.open())
    tasks = [
        DependentTask("broken", "index", lambda: int("x"), AT_ONCE),
        DependentTask("whole", "index", lambda: 0, AT_ONCE),
    ]
    for task in tasks:
        task.begins(-1, 0, files)
    keeper = DependentRunner(tasks, 0.01)
    keeper.start()
    keeper.finish()
    assert keeper.wait(PATIENCE)
    assert keeper.failure is None
    assert [task.now.error for task in tasks] == ["ValueError: invalid literal for int() with base 10: 'x'", None]


def test_a_node_that_does_not_say_how_far_it_is_is_no_failure(lake):
    append(lake, 0, changes(1, 11))
    asked: list[Future[dict[int, int]]] = [Future(), Future(), Future()]
    asked[0].set_exception(Unreachable("gone for 30 s"))
    asked[1].set_result({1: 12})
    end = json.dumps(beginning(64).to_json())
    following = SourceRun(of_one(str(lake.path)).sources[0], lake, 64, iter(asked).__next__, tasks=())
    said = SimpleNamespace(batchId=0, sources=[SimpleNamespace(endOffset=end)])
    following.query = cast("StreamingQuery", SimpleNamespace(lastProgress=said))
    assert [following.look().lag for _ in range(3)] == [None, 12, None]
    assert following.progress.rows == 0


def test_the_current_tables_failure_is_the_runs(lake):
    append(lake, 0, changes(1, 11))
    lake.current_table.path.write_text("not a table")
    task = DependentTask("current", "current", lambda: current_task(lake, PATIENT).now.version, AT_ONCE, vital=True)
    task.begins(-1, 0, lake.changelog_table.files(lake.changelog_table.open()))
    keeper = DependentRunner([task], 0.01)
    keeper.start()
    assert keeper.wait(PATIENCE)
    assert isinstance(keeper.failure, UsageError)


def test_commits_say_rows_bytes_and_rollbacks(lake):
    meter = Meter(lake)
    assert (meter.version, meter.total_rows, meter.look(), last_rollback(lake)) == (-1, 0, [], None)
    append(lake, 0, changes(1, 11) + changes(1, 6, vbucket=60))
    assert len(meter.look()) == 2
    append(lake, 1, [rollback(1, 4, 1), rollback(60, 0, 1), *changes(5, 8, vbucket=2)])
    append(lake, 2, changes(8, 9, vbucket=2))
    meter.look()
    assert (meter.version, meter.rows, meter.total_rows, meter.rollbacks) == (2, 21, 21, 2)
    assert meter.bytes == sum(file.size for file in lake.changelog_table.files(lake.changelog_table.open()))
    assert meter.last_rollback is not None
    assert meter.last_rollback.vbuckets == (1, 60)
    assert last_rollback(lake) == meter.last_rollback
    assert (Meter(lake).total_rows, meter.look()) == (21, [])


def test_positions_and_what_a_bucket_has_beyond_them(lake):
    assert position(lake) is None
    assert behind(None, {0: 5, 1: 7}) == 12
    append(lake, 0, changes(1, 11))
    end = settled_at({0: (11, 4), 1: (12, 9)}, 2)
    lines = ["v1", "{}", json.dumps(end.to_json())]
    (lake.checkpoint / "offsets" / "0").write_text("\n".join(lines))
    (lake.checkpoint / "offsets" / "1").write_text("v1\n{}\n{}")  # planned, and not written
    found = position(lake)
    assert found is not None
    assert (found.batch, found.offset) == (0, end)
    assert behind(end, {0: 5, 1: 7}) == 1
    assert behind(beginning(2), {0: 5, 1: 7}, [1]) == 7
    (lake.checkpoint / "offsets" / "0").write_text("broken")
    with pytest.raises(UsageError, match="is not what Spark writes"):
        position(lake)


# A lake and its runs


def test_a_lake_without_a_run(lake):
    found = status_of(lake)
    assert (found.state, found.pid, found.changelog, found.kept) == ("new", None, None, ())
    append(lake, 0, [*changes(1, 11), rollback(1, 4, 1)])
    current_task(lake, PATIENT).run()
    append(lake, 1, changes(11, 14))
    found = status_of(lake)
    said = found.to_json()
    assert (said["version"], said["changelog"]["rows"], said["last_rollback"]["vbuckets"]) == (1, 14, (1,))
    (table,) = said["kept"]
    assert (table["name"], table["version"], table["pending"], table["size"]["rows"]) == ("current", 0, 3, 4)


def account(lake: Lake, **said) -> control.RunState:
    mine = control.begin()
    mine = control.RunState(**{name: getattr(mine, name) for name in mine.__slots__} | said)
    mine.write(lake)
    return mine


def test_a_lake_and_who_keeps_it(lake):
    mine = account(lake)
    assert status_of(lake).state == "killed"
    with locked(lake.path, 0):
        assert control.is_locked(lake)
        found = status_of(lake)
        assert (found.state, found.pid) == ("running", mine.pid)
        account(lake, pid=2**22 - 3)  # beyond what Linux gives to processes here
        assert status_of(lake).state == "stopping"
    account(lake, ended=True, error="it was too much")
    assert (status_of(lake).state, status_of(lake).error) == ("ended", "it was too much")
    (lake.path / "_run.json").write_text("{}")
    with pytest.raises(UsageError, match="is not what a run writes"):
        status_of(lake)


def test_a_request_to_stop_is_for_one_run(lake):
    mine = account(lake)
    assert not control.is_asked_to_stop(lake, mine.run)
    control.ask_to_stop(lake, "another")
    assert not control.is_asked_to_stop(lake, mine.run)
    assert not (lake.path / "_stop").exists()
    control.ask_to_stop(lake, mine.run)
    assert control.is_asked_to_stop(lake, mine.run)
    control.forget_requests(lake)
    assert not control.is_asked_to_stop(lake, mine.run)


def test_stopping_waits_for_the_end_and_not_for_ever(lake):
    assert stop([lake], 0.0)
    account(lake)  # of a run before, that was killed
    asked = threading.Event()

    def run(held: threading.Event) -> None:
        with locked(lake.path, 0):
            held.set()
            mine = account(lake)
            while not control.is_asked_to_stop(lake, mine.run):
                asked.wait(0.01)

    held = threading.Event()
    thread = threading.Thread(target=run, args=(held,))
    thread.start()
    assert held.wait(PATIENCE)
    told: list[int] = []
    assert stop([lake], PATIENCE, told.append)
    thread.join(PATIENCE)
    assert told
    with locked(lake.path, 0):
        assert not stop([lake], 0.0)


def test_tables_of_other_content_are_refused(lake):
    control.check_content(lake, {"where": "abw > 5"})  # nothing came of it
    control.check_content(lake, {"where": "abv > 5"})
    append(lake, 0, changes(1, 2))
    control.check_content(lake, {"where": "abv > 5"})
    with pytest.raises(LakeRefused, match="was written with where 'abv > 5', and now it is nothing"):
        control.check_content(lake, {})
    old = Lake(lake.path.parent / "old")
    checkpoint(old.checkpoint)
    append(old, 0, changes(1, 2))
    with pytest.raises(LakeRefused, match="was written with key_pattern nothing, and now it is '\\^a'"):
        control.check_content(old, {"key_pattern": "^a"})


def test_a_reset_makes_new_what_it_is_asked_to(lake):
    append(lake, 0, changes(1, 11))
    SecondaryIndex(lake, "by_abv", "abv", "long")
    definition = of_one(str(lake.path))
    for task in tasks_of(definition, definition.sources[0], lake):
        task.run()
    dependents = [{"name": "gone", "kind": "index", "version": 3, "pending": 0, "error": None}]
    account(lake, said={"dependents": dependents}, ended=True)
    assert applied_versions(lake)[0][1] == 3
    (lake.path / "indexes").mkdir()
    (lake.path / "indexes" / "gone.sqlite").write_text("x")
    (lake.path / "indexes" / "gone.sqlite-wal").write_text("x")
    with pytest.raises(UsageError, match=r"there is no 'x' in .*, expected some of changelog, current, gone"):
        removals(lake, ["x"])
    with locked(lake.path, 0), pytest.raises(LakeRefused):
        reset(removals(lake, ["gone"]))
    removal = removals(lake, ["gone"])
    assert len(removal.paths) == 2
    (lake.path / "indexes" / "gone.sqlite-wal").unlink()  # by its last reader
    reset(removal)
    assert [path.name for path in (lake.path / "indexes").iterdir()] == []
    assert [each.name for each in status_of(lake).kept] == ["current"]
    reset(removals(lake, ["current"]))
    assert status_of(lake).kept == ()
    current_task(lake, PATIENT).run()
    assert count_rows(lake.current_table) == 10
    reset(removals(lake, []))
    assert [path.name for path in lake.path.iterdir()] == ["_lock"]
    lake.check_owner()


def test_lakes_are_found_by_their_directory(tmp_path, lake):
    assert control.lakes_at(str(lake.path)).keys() == {None}
    assert {name: found.path for name, found in control.lakes_at(str(tmp_path)).items()} == {"lake": lake.path}
    with pytest.raises(UsageError, match="there is no lake at "):
        control.lakes_at(str(tmp_path / "elsewhere"))
