"""A node that is killed in a phase of a takeover: at most one node owns the vbucket, and no persisted write is lost."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest

from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.flags import StreamFlag
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import GetVbucket, SeqnoPersistence, SetVbucket
from tests.kills.served import NodeProcess
from tests.node.frame_proxy import replicating
from tests.node.test_moves import PHASES, Nth
from tests.node.wire_client import connected
from tests.patience import PATIENCE

pytestmark = pytest.mark.process

BUCKET = "beer"
KEYS = [b"key %d" % number for number in range(50)]
ACTIVE, REPLICA, DEAD = VbucketState.ACTIVE, VbucketState.REPLICA, VbucketState.DEAD


@contextmanager
def running(path):
    """Run a node in a process of its own, and yield its address and its process."""
    with NodeProcess.start(path) as process:
        yield SimpleNamespace(host="127.0.0.1", kv_port=process.port, process=process)


def get_state(node, number):
    with connected(node, BUCKET) as client:
        return VbucketState(client.ask(GetVbucket(vbucket=number)).value[-1])


def set_state(node, number, state):
    with connected(node, BUCKET) as client:
        assert client.status(SetVbucket(vbucket=number, state=state)) == Status.SUCCESS


def write(node, number):
    """Write documents, and wait until they are on disk."""
    with connected(node, BUCKET) as client:
        for key in KEYS:
            assert client.set(key, b"v", vbucket=number).specific == Status.SUCCESS
        assert client.status(SeqnoPersistence(vbucket=number, seqno=len(KEYS))) == Status.SUCCESS


class Killer:
    """Kills a process instead of passing on the frame of a phase.

    Attributes:
        has_killed: set once the process has ended.
    """

    def __init__(self, process, is_due):
        self.has_killed = threading.Event()
        self._process = process
        self._is_due = is_due

    def __call__(self, frame):
        if not self._is_due(frame):
            return False
        self._process.kill()
        self.has_killed.set()
        return True


KILLED_IN = ["answer to pending", "active", "answer to active"]
"""The phases, each with a vbucket of its own. Before them, nothing has changed yet."""


@pytest.mark.parametrize("side", ["source", "target"])
def test_killed_node_leaves_at_most_one_owner_and_all_persisted_writes(tmp_path, side):
    with ExitStack() as stack:
        nodes = {name: stack.enter_context(running(tmp_path / name)) for name in ("source", "target")}
        for number, phase in enumerate(KILLED_IN):
            write(nodes["source"], number)
            set_state(nodes["target"], number, REPLICA)
            count, has_property, *_ = PHASES[phase]
            killer = Killer(nodes[side].process, Nth(count, has_property))
            with replicating(
                nodes["source"], nodes["target"], BUCKET, [number], flags=StreamFlag.TAKEOVER, cuts=killer
            ):
                assert killer.has_killed.wait(PATIENCE)
            nodes[side] = stack.enter_context(running(tmp_path / side))
            states = get_state(nodes["source"], number), get_state(nodes["target"], number)
            assert states[0] in (ACTIVE, DEAD)
            assert states.count(ACTIVE) <= 1
            owner = nodes["target"] if states[1] is ACTIVE else nodes["source"]
            set_state(owner, number, ACTIVE)
            with connected(owner, BUCKET) as client:
                missing = [key for key in KEYS if client.get(key, vbucket=number).specific != Status.SUCCESS]
            assert missing == []
