"""Histories against plain lists, while tiny log files are sealed, rewritten, committed, lost and opened again."""

from typing import Any

import pytest

from penstock.store.settings import Settings
from tests.store.durable_story import Crash, DurableStory


def follow(story: list[tuple[str, int, Any]], settings: Settings) -> None:
    told = DurableStory(settings)
    for one in story:
        told.step(*one)
    told.check()
    told.check_documents()
    for reader in told.readers:
        reader.read_to_the_end()
    told.step("reopen", 0, True)


compaction = [("begin", 0, True), ("run", 0, 0), ("finish", 0, 0)]
clustered = [("seal", 0, 0), ("commit", 0, 0), *compaction]
purged = [("set", 0, b"a"), ("set", 0, b"bb"), ("delete", 0, b"bb"), ("set", 0, b"ccc"), ("wait", 0, 1), *clustered]


def killed_in_commit(calls: int) -> tuple[str, int, Crash]:
    return "crash", 0, Crash("commit", calls, power=False, seed=1, openings=[])


STORIES: dict[str, tuple[Settings, list[tuple[str, int, Any]]]] = {
    "compaction ends, although each one writes a note that begins a log file": (
        Settings(segment_bytes=300),
        [("set", 1, b"a"), ("compact", 0, 0)],
    ),
    "the active log file keeps what its changes have superseded, when all others are too old for that": (
        Settings(retention_seconds=60),
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
    "the log since then is measured from the change, not from the beginning of its file": (
        Settings(retention_seconds=None, retention_bytes=1200),
        [*(("set", 0, b"%d" % number * 90) for number in range(6)), ("set", 0, b"0" * 90), *clustered],
    ),
    "frames that were cut off are dead also when nothing else is in their file": (
        Settings(),
        [("set", 0, b"a"), ("reset", 0, 0), ("compact", 0, 0)],
    ),
    "and count as dead once": (
        Settings(),
        [("set", 0, b"a"), ("set", 0, b"bb"), ("rollback", 0, 1), ("seal", 0, 0)],
    ),
    "a cas that is too high to count hides none that does": (
        Settings(),
        [*[("set", 0, b"a")] * 9, ("apply", 0, (b"a", 0, 0)), ("reopen", 0, False), ("set", 0, b"a")],
    ),
    "a snapshot that has begun and lost its first change is none": (
        Settings(),
        [("apply", 0, (b"long" * 50, 0, 3)), killed_in_commit(0), ("set", 0, b"a")],
    ),
    "keys in a log file that is sealed while they are loaded are found": (
        Settings(),
        [
            *[("set", 0, b"a"), ("seal", 0, 0), ("set", 0, b"bb"), ("reopen", 0, False)],
            *[("load", 0, False), ("seal", 0, 0), ("get", 0, b"bb")],
        ],
    ),
    "a rollback to a tombstone that was purged leaves no history without an end": (
        Settings(purge_age=0),
        [*purged, ("rollback", 0, 1)],
    ),
    "nor one whose seqnos come twice": (
        Settings(purge_age=0),
        [*purged, ("rollback", 0, 1), ("set", 0, b"e"), ("set", 0, b"f"), killed_in_commit(2)],
    ),
    "a cut is known as long as there is a file from before it": (
        Settings(),
        [
            *[("set", 0, b"a"), ("set", 0, b"bb"), *clustered, ("rollback", 0, 1), ("set", 0, b"ccc"), *clustered],
            *[("commit", 0, 0), *compaction, ("seal", 0, 0), killed_in_commit(5)],
        ],
    ),
    "a pass over everything begins at the beginning": (
        Settings(),
        [
            *[("set", 0, b"a"), *clustered, ("set", 0, b"d" * 40), *clustered, ("commit", 0, 0), *compaction],
            *[("set", 0, b"a"), ("compact", 0, 0)],
        ],
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_what_has_gone_wrong_once(name: str) -> None:
    settings, story = STORIES[name]
    follow(story, settings)
