"""Moves of a vbucket between two nodes under writers, with and without a connection that is lost on the way."""

import threading
import time

import pytest

from penstock.node import Node
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.flags import StreamFlag
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import SetVbucket
from tests.node.frame_proxy import replicating
from tests.node.watch import run
from tests.node.wire_client import connected
from tests.patience import PATIENCE

ACTIVE, REPLICA, PENDING, DEAD = (
    VbucketState.ACTIVE,
    VbucketState.REPLICA,
    VbucketState.PENDING,
    VbucketState.DEAD,
)
BUCKET, NUMBER = "beer", 1
WRITES_AFTER = 20


@pytest.fixture
def source():
    with Node.running([BUCKET], 2) as node:
        yield node


@pytest.fixture
def target():
    with Node.running([BUCKET], 2) as node:
        set_state(node, REPLICA)
        yield node


def set_state(node, state):
    with connected(node, BUCKET) as client:
        assert client.status(SetVbucket(vbucket=NUMBER, state=state)) == Status.SUCCESS


def get_vbucket(node):
    return node.buckets[BUCKET].store.vbuckets[NUMBER]


def get_state(node):
    return get_vbucket(node).history.state


def get_log(node):
    return get_vbucket(node).history.failover_log


class Writer:
    """Writes to the owner of the vbucket in a thread of its own, until it has written to the last node.

    Attributes:
        acknowledged: the keys whose writes were acknowledged.
    """

    def __init__(self, *nodes):
        self.acknowledged: list[bytes] = []
        self._nodes = nodes
        self._is_stopped = threading.Event()
        self._has_written = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self):
        self._thread.start()
        assert self._has_written.wait(PATIENCE)
        return self

    def __exit__(self, *_):
        self._is_stopped.set()
        self._thread.join()

    def finish(self):
        """Wait until it has written to the last node."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def _write(self):
        for node in self._nodes:
            with connected(node, BUCKET) as client:
                self._write_to(client, is_last=node is self._nodes[-1])

    def _write_to(self, client, *, is_last):
        count = 0
        while not self._is_stopped.is_set() and not (is_last and count == WRITES_AFTER):
            key = b"key %d" % len(self.acknowledged)
            status = client.set(key, b"v", vbucket=NUMBER).specific
            if status == Status.SUCCESS:
                self.acknowledged.append(key)
                self._has_written.set()
                count += 1
            elif not is_last:
                assert status == Status.NOT_MY_VBUCKET
                return


def check_documents(node, keys):
    with connected(node, BUCKET) as client:
        missing = [key for key in keys if client.get(key, vbucket=NUMBER).specific != Status.SUCCESS]
    assert missing == []


def move(source, target, **options):
    return replicating(source, target, BUCKET, [NUMBER], flags=StreamFlag.TAKEOVER, **options)


def test_no_acknowledged_write_is_lost_in_a_move(source, target):
    log = get_log(source)
    with Writer(source, target) as first, Writer(source, target) as second, move(source, target):
        for writer in (first, second):
            writer.finish()
        wait_for(source, lambda: not count_streams(source))
    assert (get_state(source), get_state(target)) == (DEAD, ACTIVE)
    assert get_log(target) == log
    check_documents(target, first.acknowledged + second.acknowledged)


def count_streams(node):
    return sum(len(endpoint.report().streams) for endpoint in node.buckets[BUCKET].endpoints.values())


def wait_for(node, condition):
    """Wait until a condition holds on the node's event loop."""
    end = time.monotonic() + PATIENCE
    while not run(node, condition):
        assert time.monotonic() < end


def test_vbucket_moves_back_and_forth(source, target):
    log = get_log(source)
    keys = []
    for first, second in ((source, target), (target, source), (source, target)):
        with Writer(first, second) as writer, move(first, second):
            writer.finish()
        keys += writer.acknowledged
        assert (get_state(first), get_state(second)) == (DEAD, ACTIVE)
        check_documents(second, keys)
    assert get_log(target) == log


def is_answer(frame):
    return frame[:2] == bytes((Magic.RESPONSE, Opcode.DCP_SET_VBUCKET_STATE))


def announces(frame, state):
    return frame[:2] == bytes((Magic.REQUEST, Opcode.DCP_SET_VBUCKET_STATE)) and frame[-1] == state


class Nth:
    """A condition that holds for the n-th frame that has a property."""

    def __init__(self, number, has_property):
        self._left = number
        self._has_property = has_property

    def __call__(self, frame):
        self._left -= self._has_property(frame)
        return not self._left


PHASES = {
    "marker": (1, lambda frame: frame[:2] == bytes((Magic.REQUEST, Opcode.DCP_SNAPSHOT_MARKER)), ACTIVE, REPLICA),
    "pending": (1, lambda frame: announces(frame, PENDING), ACTIVE, REPLICA),
    "answer to pending": (1, is_answer, ACTIVE, PENDING),
    "active": (1, lambda frame: announces(frame, ACTIVE), DEAD, PENDING),
    "answer to active": (2, is_answer, DEAD, ACTIVE),
}
"""The frame instead of which both connections end -> its number, its property, and the states of source and target."""


@pytest.mark.parametrize("phase", PHASES)
def test_lost_connection_leaves_at_most_one_owner_and_all_writes(source, target, phase):
    number, has_property, *states = PHASES[phase]
    with Writer(source, target) as writer:
        with move(source, target, cuts=Nth(number, has_property)):
            for node, state in zip((source, target), states, strict=True):
                wait_for(node, lambda node=node: not node.buckets[BUCKET].endpoints)
                assert get_state(node) is state
        if states == [DEAD, PENDING]:
            set_state(source, ACTIVE)  # as the orchestrator restores the owner
        if get_state(target) is not ACTIVE:
            with move(source, target):
                writer.finish()
        writer.finish()
    assert (get_state(source), get_state(target)) == (DEAD, ACTIVE)
    assert run(target, lambda: get_log(target)) == get_log(source)
    check_documents(target, writer.acknowledged)
