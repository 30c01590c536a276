"""A move whose command is killed in the middle is finished by the same command."""

import asyncio
import subprocess
import sys

import pytest

from penstock.client.bucket import Bucket
from penstock.client.cluster.vbucket_mover import MoveStep, Place, find_step
from penstock.client.connect.address import parse_address
from penstock.node import Node
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.wire.codec.constants import VbucketState
from tests.client.test_vbucket_mover import VBUCKETS, list_active
from tests.node.test_durability import wait_until
from tests.node.watch import run
from tests.patience import PATIENCE

MOVED = [1, 3, 5]
KEYS = [f"key-{number}" for number in range(200)]
ACTIVE, REPLICA, PENDING, DEAD = (
    VbucketState.ACTIVE,
    VbucketState.REPLICA,
    VbucketState.PENDING,
    VbucketState.DEAD,
)


class Killer:
    """Kills a process at the first event of a kind, before the node does anything else."""

    def __init__(self, node, event):
        self.process = None
        self._node = node
        self._event = event

    def start(self):
        """Watch from now on. Runs on the loop of the node."""
        served = self._node.buckets["beer"]
        if self._event == "map":
            served.cluster_map.watch(self._kill)
        else:
            served.listeners[self] = None

    def _kill(self):
        if self.process is not None:
            self.process.kill()

    def vbucket_changed(self, vbucket, event):
        deleted = event is VbucketEvent.DELETED
        if vbucket.id in MOVED and self._event == ("deleted" if deleted else vbucket.history.state):
            self._kill()


def start_move(source, target):
    options = [option for vbucket in MOVED for option in ("--vbucket", str(vbucket))]
    urls = ["--from", source.url("beer"), "--to", target.url("beer")]
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "move", *options, *urls], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


async def write(node, keys):
    async with Bucket(parse_address(node.url("beer"))) as bucket:
        await bucket.upsert_many([(key, key.encode()) for key in keys])


async def read_all(node, keys):
    async with Bucket(parse_address(node.url("beer"))) as bucket:
        return [None if found is None else found.value for found in await bucket.get_many(keys)]


PHASES = [
    ("target", REPLICA),
    ("target", PENDING),
    ("source", DEAD),
    ("target", ACTIVE),
    ("target", "map"),
    ("source", "map"),
    ("source", "deleted"),
]


@pytest.mark.process
@pytest.mark.parametrize(("side", "event"), PHASES, ids=[f"{side} {event}" for side, event in PHASES])
def test_killed_move_is_finished_by_the_same_command(side, event):
    with Node.running(["beer"], VBUCKETS) as source, Node.running(["beer"], VBUCKETS) as target:
        asyncio.run(write(source, KEYS))
        killer = Killer(source if side == "source" else target, event)
        run(killer._node, killer.start)
        killer.process = start_move(source, target)
        killer.process.communicate(timeout=PATIENCE)
        assert killer.process.returncode == -9
        killer.process = None
        for node in (source, target):
            wait_until(lambda node=node: run(node, lambda: not node.buckets["beer"].endpoints))
        again = start_move(source, target)
        _, errors = again.communicate(timeout=PATIENCE)
        assert again.returncode == 0, errors
        assert run(target, lambda: list_active(target)) == MOVED
        assert run(source, lambda: list_active(source)) == [vb for vb in range(VBUCKETS) if vb not in MOVED]
        asyncio.run(write(source, ["new", *KEYS[:20]]))
        for node in (source, target):
            assert asyncio.run(read_all(node, KEYS)) == [key.encode() for key in KEYS]


@pytest.mark.parametrize(
    ("source", "target", "mapped", "same", "step"),
    [
        (ACTIVE, None, Place.SOURCE, False, MoveStep.MOVE),
        (ACTIVE, ACTIVE, Place.OTHER, False, MoveStep.MOVE),  # refused later: the target has changes of its own
        (DEAD, PENDING, Place.SOURCE, True, MoveStep.SETTLE),
        (DEAD, REPLICA, Place.NONE, True, MoveStep.SETTLE),
        (DEAD, REPLICA, Place.OTHER, True, MoveStep.REFUSE),
        (DEAD, ACTIVE, Place.SOURCE, True, MoveStep.FINISH),
        (DEAD, ACTIVE, Place.NONE, False, MoveStep.REFUSE),  # an empty vbucket of a new bucket
        (DEAD, None, Place.SOURCE, False, MoveStep.REFUSE),
        (None, ACTIVE, Place.TARGET, False, MoveStep.DONE),
        (None, ACTIVE, Place.OTHER, False, MoveStep.REFUSE),
        (None, None, Place.NONE, False, MoveStep.REFUSE),
        (REPLICA, ACTIVE, Place.TARGET, True, MoveStep.REFUSE),
    ],
)
def test_next_step_of_a_move(source, target, mapped, same, step):
    assert find_step(source, target, mapped, has_same_history=same) is step
