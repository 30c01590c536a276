"""Histories compared with a model, while tiny log files are sealed, rewritten, committed, lost and opened again."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.store.definition.bucket_settings import BucketSettings
from penstock.wire.codec.constants import VbucketState
from tests.examples import scaled
from tests.store.durable_story import CrashPlan, DurableStory

VBUCKETS = 2

numbers = st.sampled_from([0, 0, 0, 1])
keys = st.sampled_from([b"a", b"a", b"bb", b"ccc", b"d" * 40])
changes = st.tuples(keys, st.sampled_from([0, 0, 1, 4]), st.sampled_from([0, 0, 1, 3, 6]))
nothing = st.just(0)
crashes = st.builds(
    CrashPlan,
    st.sampled_from(["nothing", "commit", "commit", "close", "compact", "run", "manifest"]),
    st.integers(0, 12) | st.integers(0, 60),
    st.booleans(),
    st.integers(0, 99),
    st.just([]) | st.lists(st.integers(0, 8), max_size=2),
)


STEPS: list[tuple[int, str, st.SearchStrategy[Any]]] = [
    # weight, step, its detail
    (30, "set", keys),
    (8, "set", st.integers(0, 30).map(lambda number: b"%d" % number)),
    (3, "set", st.tuples(keys, st.integers(1, 20))),
    (10, "delete", keys),
    (3, "get", keys),
    (5, "apply", changes),
    (3, "apply_tombstone", changes),
    (4, "change_manifest", st.sampled_from([0, 1, 9, 9, -1, -2])),
    (
        14,
        "change_in_collection",
        st.tuples(st.sampled_from(["set", "set", "set", "delete", "get"]), st.integers(0, 2), keys),
    ),
    (2, "erase", st.integers(1, 5)),
    (7, "rollback", st.sampled_from([1, 1, 2, 3])),
    (2, "promote", st.booleans()),
    (1, "set_state", st.tuples(st.sampled_from(VbucketState), st.booleans())),
    (1, "reset", nothing),
    (1, "remove", nothing),
    (5, "open_snapshot", st.tuples(st.sampled_from([0, 0, 3, 10]), st.sampled_from([5, 40]))),
    (3, "read_snapshots", st.tuples(st.integers(0, 400), st.none() | st.integers(0, 200))),
    (5, "seal", nothing),
    (8, "commit", nothing),
    (6, "begin", st.booleans()),
    (6, "run", nothing),
    (6, "finish", nothing),
    (6, "cluster", nothing),
    (2, "compact", nothing),
    (4, "load_keys", st.booleans()),
    (5, "wait", st.integers(1, 15)),
    (2, "expire", nothing),
    (4, "reopen", st.integers(0, 2)),
    (4, "crash", crashes),
]


def make_step(action: str, detail: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, int, Any]]:
    return st.tuples(st.just(action), numbers, detail)


step_of_any_kind = st.one_of([make_step(action, detail) for weight, action, detail in STEPS for _ in range(weight)])


def make_stories(*least: int) -> st.SearchStrategy[list[tuple[str, int, Any]]]:
    """Return a strategy of stories whose lowest number of steps is one of `least`.

    Hypothesis prefers short lists, so long stories need a minimum.
    """
    return st.sampled_from(least).flatmap(
        lambda count: st.lists(step_of_any_kind, min_size=count, max_size=3 * count // 2 + 10)
    )


chosen = st.builds(
    BucketSettings,
    segment_bytes=st.sampled_from([300, 800, 1500, 4000]),
    retention_seconds=st.sampled_from([0, 0, None, 7, 7]),
    retention_bytes=st.sampled_from([None, None, 300, 2000]),
    purge_age=st.sampled_from([0, 5, 10**6]),
)


def run_story(story: list[tuple[str, int, Any]], settings: BucketSettings, *, vbuckets: int = VBUCKETS) -> None:
    runner = DurableStory(settings, vbuckets=vbuckets)
    for step in story:
        runner.step(*step)
    runner.check()
    runner.check_documents()
    for reader in runner.readers:
        reader.read_to_the_end()
    runner.step("reopen", 0, 2)


compaction = [("begin", 0, True), ("run", 0, 0), ("finish", 0, 0)]
clustered = [("seal", 0, 0), ("commit", 0, 0), *compaction]
purged = [("set", 0, b"a"), ("set", 0, b"bb"), ("delete", 0, b"bb"), ("set", 0, b"ccc"), ("wait", 0, 1), *clustered]


def crash_in_commit(calls: int) -> tuple[str, int, CrashPlan]:
    return "crash", 0, CrashPlan("commit", calls, power=False, seed=1, openings=[])


STORIES: dict[str, tuple[BucketSettings, list[tuple[str, int, Any]]]] = {
    "compaction ends, although each one writes a note that begins a log file": (
        BucketSettings(segment_bytes=300),
        [("set", 1, b"a"), ("compact", 0, 0)],
    ),
    "the active log file keeps what its changes have superseded, when all others are too old for that": (
        BucketSettings(retention_seconds=60),
        [
            ("set", 0, b"a"),
            *clustered,
            ("commit", 0, 0),
            ("wait", 0, 100),
            ("set", 0, b"a"),
            ("commit", 0, 0),
            *compaction,
        ],
    ),
    "the retained log is measured from the change, not from the beginning of its file": (
        BucketSettings(retention_seconds=None, retention_bytes=1200),
        [*(("set", 0, b"%d" % number * 90) for number in range(6)), ("set", 0, b"0" * 90), *clustered],
    ),
    "the retained log is not measured from a file that the note behind the change has started": (
        BucketSettings(segment_bytes=300, retention_seconds=None, retention_bytes=300),
        [
            *[*[("set", 0, b"a")] * 3, ("apply", 0, (b"a", 0, 1)), ("set_state", 0, (VbucketState.PENDING, False))],
            *[("set", 0, b"a"), ("compact", 0, 0)],
        ],
    ),
    "frames that were cut off are dead also when nothing else is in their file": (
        BucketSettings(),
        [("set", 0, b"a"), ("reset", 0, 0), ("compact", 0, 0)],
    ),
    "frames that were cut off count as dead once": (
        BucketSettings(),
        [("set", 0, b"a"), ("set", 0, b"bb"), ("rollback", 0, 1), ("seal", 0, 0)],
    ),
    "a cas that is too high for the clock does not hide a lower one": (
        BucketSettings(),
        [*[("set", 0, b"a")] * 9, ("apply", 0, (b"a", 0, 0)), ("reopen", 0, 0), ("set", 0, b"a")],
    ),
    "a snapshot that has lost its first change does not exist": (
        BucketSettings(),
        [("apply", 0, (b"long" * 50, 0, 3)), crash_in_commit(0), ("set", 0, b"a")],
    ),
    "keys in a log file that is sealed while they are loaded are found": (
        BucketSettings(),
        [
            *[("set", 0, b"a"), ("seal", 0, 0), ("set", 0, b"bb"), ("reopen", 0, 1)],
            *[("seal", 0, 0), ("get", 0, b"bb")],
        ],
    ),
    "a rollback to a tombstone that was purged leaves no history without an end": (
        BucketSettings(purge_age=0),
        [*purged, ("rollback", 0, 1)],
    ),
    "a rollback to a tombstone that was purged leaves no history with a seqno twice": (
        BucketSettings(purge_age=0),
        [*purged, ("rollback", 0, 1), ("set", 0, b"e"), ("set", 0, b"f"), crash_in_commit(2)],
    ),
    "a cut is known as long as there is a file from before it": (
        BucketSettings(),
        [
            *[("set", 0, b"a"), ("set", 0, b"bb"), *clustered, ("rollback", 0, 1), ("set", 0, b"ccc"), *clustered],
            *[("commit", 0, 0), *compaction, ("seal", 0, 0), crash_in_commit(5)],
        ],
    ),
    "a snapshot that is open sees nothing of what comes after a rollback": (
        BucketSettings(),
        [
            *[("set", 0, b"a"), ("set", 0, b"bb"), ("seal", 0, 0), ("set", 0, b"ccc"), ("commit", 0, 0)],
            *[("open_snapshot", 0, (0, 40)), ("rollback", 0, 1), ("set", 0, b"a")],
        ],
    ),
    "the modify event of a collection ends with the collection, also after a restart": (
        BucketSettings(),
        [
            *[
                ("change_manifest", 0, 9),
                ("change_manifest", 0, -1),
                ("change_manifest", 0, -1),
                *clustered,
                ("change_manifest", 0, 0),
            ],
            *[("reopen", 0, 2), ("rollback", 0, 1), *clustered, ("reopen", 0, 2)],
        ],
    ),
    **{
        f"no purged tombstone returns in front of its key's newer change, after {calls} calls": (
            BucketSettings(purge_age=0),
            [*purged, ("set", 0, b"bb"), crash_in_commit(calls)],
        )
        for calls in range(1, 5)
    },
    "a crash that undoes a rollback leaves the system event from before it": (
        BucketSettings(segment_bytes=300, purge_age=0),
        [
            *[("apply", 1, (b"d" * 40, 1, 3)), ("commit", 1, 0), ("change_manifest", 0, 0), ("commit", 0, 0)],
            *[("rollback", 1, 1), ("change_manifest", 0, 0)],
            *[("crash", 0, CrashPlan("manifest", 10, power=True, seed=88, openings=[])), ("set", 1, b"a")],
        ],
    ),
    "a full compaction starts at the oldest segment": (
        BucketSettings(),
        [
            *[("set", 0, b"a"), *clustered, ("set", 0, b"d" * 40), *clustered, ("commit", 0, 0), *compaction],
            *[("set", 0, b"a"), ("compact", 0, 0)],
        ],
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_earlier_failures_do_not_return(name: str) -> None:
    settings, story = STORIES[name]
    run_story(story, settings, vbuckets=4)


def test_tombstones_are_purged_after_a_restart() -> None:
    runner = DurableStory(BucketSettings(purge_age=60))
    for number in range(10):
        runner.step("set", 0, b"%d" % number)
    for number in range(9):
        runner.step("delete", 0, b"%d" % number)
    for one in [*clustered, ("commit", 0, 0), ("reopen", 0, 0)]:
        runner.step(*one)
    assert not runner.begin_compaction(everything=False)
    runner.step("wait", 0, 62)
    assert runner.begin_compaction(everything=False)
    runner.step("run", 0, 0)
    runner.step("finish", 0, 0)
    assert runner.bucket.vbuckets[0].index.purge_seqno == 18
    runner.check()


@pytest.mark.long
@settings(max_examples=scaled(120))
@given(make_stories(0, 50, 100), chosen)
def test_histories_are_exact(story: list[tuple[str, int, Any]], settings: BucketSettings) -> None:
    run_story(story, settings)


@pytest.mark.soak
@given(make_stories(0, 50, 100, 250), chosen)
def test_long_histories_are_exact(story: list[tuple[str, int, Any]], settings: BucketSettings) -> None:
    run_story(story, settings)
