"""A bucket whose process is killed, at any moment and again and again, is what it was at some moment before.

That moment is not before anything that had been said to be on disk; and what is there then is all that had been done
and nothing else, however the log was sealed, compacted and rolled back meanwhile.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

from penstock.errors import Error
from tests.kills.killing import Nursery
from tests.kills.victim import Victim
from tests.kills.workload import PLANS
from tests.kills.writer import OPERATIONS, READER, Clock, Doom, Life, open_bucket

pytestmark = pytest.mark.process

_LIVES = 10
_SOAK_LIVES = 2000
_SOAK_LIVES_OF_ONE = 20


def moment(chance: random.Random) -> tuple[float, Doom | None]:
    """Return after how many seconds a writer is to be killed, and where it kills itself if it gets there before."""
    kind = chance.random()
    if kind < 0.4:
        operation = chance.choice(OPERATIONS)
        most = 100 if operation in ("write", "sync") else 12
        return 0.5, Doom(operation, chance.randint(1, most), chance.randrange(3))
    return chance.uniform(0, 0.02 if kind < 0.6 else 0.3), None


def kill_at_random(path: Path, plan: str, nursery: Nursery, lives: int) -> int:
    """Return how many turns there were."""
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    victim = Victim(path, plan, seed)
    try:
        for _ in range(lives):
            victim.live(nursery, *moment(chance))
    except Error as error:
        error.add_note(str(victim.life()))
        raise
    return victim.turns


@pytest.mark.parametrize("plan", PLANS)
def test_killed_at_random(plan: str, nursery: Nursery, tmp_path: Path) -> None:
    kill_at_random(tmp_path / "beer", plan, nursery, _LIVES)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_killed_in_each_operation(operation: str, nursery: Nursery, tmp_path: Path) -> None:
    victim = Victim(tmp_path / "beer", "forgets", seed=1)
    for number in (1,) if operation == "reopen" else (1, 2):
        for done in (0, 1, 2) if operation == "write" else (0, 2):
            death = victim.live(nursery, 30.0, Doom(operation, number, done))
            assert death.by_itself


OPENING = [
    *(Doom(operation, 1, done) for operation in ("create", "write", "sync", "rename") for done in (0, 1, 2)),
    *(Doom(operation, 2, done) for operation in ("create", "write", "sync") for done in (0, 1, 2)),
    *(Doom("sync_names", number, done) for number in (1, 2) for done in (0, 2)),
]


@pytest.mark.parametrize("doom", OPENING, ids=lambda doom: "-".join(map(str, doom)))
def test_killed_while_it_is_made(doom: Doom, nursery: Nursery, tmp_path: Path) -> None:
    life = Life(str(tmp_path / "beer"), "forgets", 0, 0, doom)
    assert nursery.live(life) == (None, True)
    bucket = open_bucket(life._replace(doom=None), Clock(0), READER)
    for vbucket in bucket.vbuckets:
        assert {entry.seqno for entry in vbucket.history.failover_log} == {0}
        assert (vbucket.changes.high_seqno, vbucket.changes.items) == (0, 0)
        assert vbucket.set(b"key", b"value").seqno == 1
    bucket.close()
    assert "not clean" not in open_bucket(life._replace(doom=None), Clock(0), READER).recovery_summary


@pytest.mark.soak
def test_killed_at_random_often(nursery: Nursery, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    turns = 0
    for number, lives in enumerate(range(0, _SOAK_LIVES, _SOAK_LIVES_OF_ONE)):
        plan = list(PLANS)[number % len(PLANS)]
        turns += kill_at_random(tmp_path / str(number), plan, nursery, _SOAK_LIVES_OF_ONE)
        with capsys.disabled():
            sys.stderr.write(f"{lives + _SOAK_LIVES_OF_ONE} kills, {turns} turns, {time.monotonic() - began:.0f} s\n")
