"""Jumps of the system clock: connections, streams and locks use another clock, and no cas goes back."""

import random
import time

import pytest

from penstock.node import Node
from penstock.node.transport.machine import Machine
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import Mutation
from penstock.wire.messages.kv import GetLocked, Noop
from tests.node.wire_client import connected

HOUR, DAY = 60 * 60, 24 * 60 * 60
JUMPS = (1, 30, HOUR, DAY, 40 * DAY)


class SystemClock:
    """System clock of a node, shifted by a test.

    Attributes:
        seconds: added to the real time.
    """

    def __init__(self) -> None:
        self.seconds = 0

    def time_ns(self) -> int:
        return time.time_ns() + self.seconds * 10**9


@pytest.fixture
def system_clock():
    return SystemClock()


@pytest.fixture(params=[False, True], ids=["in memory", "on disk"])
def node(request, system_clock, tmp_path):
    machine = Machine(time_ns=system_clock.time_ns)
    with Node.running(["default"], 2, data_dir=tmp_path if request.param else None, machine=machine) as node:
        yield node


def test_clock_jump_keeps_streams_and_cas_order(node, system_clock):
    chance = random.Random(7)
    with connected(node) as writer, connected(node) as consumer:
        consumer.open().stream()
        newest = 0
        for number in range(48):
            system_clock.seconds += chance.choice(JUMPS) * chance.choice((-1, 1))
            reply = writer.set(b"key %d" % (number % 5), b"%d" % number)
            assert (reply.specific, reply.cas > newest) == (Status.SUCCESS, True)
            newest = reply.cas
            assert consumer.message().end_seqno == number + 1
            change = consumer.message()
            assert isinstance(change, Mutation)
            assert (change.by_seqno, change.cas) == (number + 1, newest)


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_clock_jump_does_not_end_a_lock(node, system_clock, jump):
    with connected(node) as holder, connected(node) as other:
        holder.set(b"k", b"v")
        locked = holder.ask(GetLocked(key=b"k", lock_time=30))
        system_clock.seconds += jump
        assert other.set(b"k", b"w").specific == Status.KEY_EEXISTS
        assert holder.set(b"k", b"x", cas=locked.cas).specific == Status.SUCCESS
        assert other.set(b"k", b"y").specific == Status.SUCCESS


def test_clock_jump_does_not_restore_expired_documents(node, system_clock):
    with connected(node) as client:
        client.set(b"k", b"v", expiry=HOUR)
        system_clock.seconds -= DAY
        assert client.get(b"k").specific == Status.SUCCESS
        system_clock.seconds += DAY + 2 * HOUR
        assert client.get(b"k").specific == Status.KEY_ENOENT
        system_clock.seconds -= 2 * DAY
        assert client.get(b"k").specific == Status.KEY_ENOENT
        assert client.status(Noop()) == Status.SUCCESS


def test_cas_continues_after_a_restart(system_clock, tmp_path):
    with Node.running(["default"], vbuckets=2, data_dir=tmp_path) as node, connected(node) as client:
        system_clock.seconds = DAY
        before = client.set(b"k", b"v").cas
    system_clock.seconds = -DAY
    with Node.running(["default"], vbuckets=2, data_dir=tmp_path) as node, connected(node) as client:
        assert client.get(b"k").cas == before
        assert client.set(b"k", b"w").cas > before
