"""After a kill at any moment, a bucket is in a state that it was in before, and this holds for repeated kills.

The state includes all changes that had been reported as on disk. It has all earlier changes and no others, although the
log is sealed, compacted and rolled back at the same time.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

from penstock.errors import Error
from tests.kills.killing import ForkServer
from tests.kills.victim import KilledBucket
from tests.kills.workload import PLANS
from tests.kills.writer import OPERATIONS, READER, Clock, KillPoint, Life, open_bucket

pytestmark = pytest.mark.process

_LIVES = 10
_SOAK_LIVES = 2000
_SOAK_LIVES_OF_ONE = 20


def choose_kill(chance: random.Random) -> tuple[float, KillPoint | None]:
    """Return after how many seconds a writer is killed, and the point at which it kills itself if it is earlier."""
    kind = chance.random()
    if kind < 0.4:
        operation = chance.choice(OPERATIONS)
        most = 100 if operation in ("write", "sync") else 12
        return 0.5, KillPoint(operation, chance.randint(1, most), chance.randrange(3))
    return chance.uniform(0, 0.02 if kind < 0.6 else 0.3), None


def kill_at_random(path: Path, plan: str, fork_server: ForkServer, lives: int) -> int:
    """Run and kill writers, and check the bucket after each kill.

    Returns:
        How many turns were on disk in all lives.
    """
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    killed = KilledBucket(path, plan, seed)
    try:
        for _ in range(lives):
            killed.run_life(fork_server, *choose_kill(chance))
    except Error as error:
        error.add_note(str(killed.make_life()))
        raise
    return killed.turns


@pytest.mark.parametrize("plan", PLANS)
def test_bucket_recovers_after_kills_at_random_moments(plan: str, fork_server: ForkServer, tmp_path: Path) -> None:
    kill_at_random(tmp_path / "beer", plan, fork_server, _LIVES)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_bucket_recovers_after_a_kill_in_each_file_operation(
    operation: str, fork_server: ForkServer, tmp_path: Path
) -> None:
    killed = KilledBucket(tmp_path / "beer", "forgets", seed=1)
    for number in (1,) if operation == "reopen" else (1, 2):
        for done in (0, 1, 2) if operation == "write" else (0, 2):
            death = killed.run_life(fork_server, 30.0, KillPoint(operation, number, done))
            assert death.by_itself


OPENING = [
    *(KillPoint(operation, 1, done) for operation in ("create", "write", "sync", "rename") for done in (0, 1, 2)),
    *(KillPoint(operation, 2, done) for operation in ("create", "write", "sync") for done in (0, 1, 2)),
    *(KillPoint("sync_names", number, done) for number in (1, 2) for done in (0, 2)),
]


@pytest.mark.parametrize("kill_point", OPENING, ids=lambda kill_point: "-".join(map(str, kill_point)))
def test_bucket_recovers_after_a_kill_during_its_creation(
    kill_point: KillPoint, fork_server: ForkServer, tmp_path: Path
) -> None:
    life = Life(str(tmp_path / "beer"), "forgets", 0, 0, kill_point)
    assert fork_server.run_writer(life) == (None, True)
    bucket = open_bucket(life._replace(kill_point=None), Clock(0), READER)
    for vbucket in bucket.vbuckets:
        assert {entry.seqno for entry in vbucket.history.failover_log} == {0}
        assert (vbucket.changes.high_seqno, vbucket.changes.items) == (0, 0)
        assert vbucket.set(b"key", b"value").seqno == 1
    bucket.close()
    assert "not clean" not in open_bucket(life._replace(kill_point=None), Clock(0), READER).recovery_summary


@pytest.mark.soak
def test_bucket_recovers_after_many_kills(
    fork_server: ForkServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    turns = 0
    for number, lives in enumerate(range(0, _SOAK_LIVES, _SOAK_LIVES_OF_ONE)):
        plan = list(PLANS)[number % len(PLANS)]
        turns += kill_at_random(tmp_path / str(number), plan, fork_server, _SOAK_LIVES_OF_ONE)
        with capsys.disabled():
            sys.stderr.write(f"{lives + _SOAK_LIVES_OF_ONE} kills, {turns} turns, {time.monotonic() - began:.0f} s\n")
