"""The lock of an orchestrator at nodes that do not answer at first."""

import asyncio
from contextlib import contextmanager

import pytest

from penstock.client.blocking import LoopThread
from penstock.client.cluster.orchestrator_lock import LockRole, OrchestratorLock
from penstock.client.connect.address import parse_address
from penstock.errors import Unreachable, UsageError
from penstock.node import Node
from penstock.pytest import FaultProxy
from tests.client.peer import in_loop
from tests.patience import PATIENCE
from tests.waiting import wait_until


@contextmanager
def locked_node():
    """Run a node and a proxy that refuses its clients; yield the proxy and the node's address."""
    with (
        Node.running(["beer"], 4) as node,
        LoopThread() as loop,
        FaultProxy(("127.0.0.1", node.kv_port), loop) as proxy,
    ):
        proxy.refuse()
        yield proxy, parse_address(node.url("beer"))


def make_lock(proxy, seconds):
    address = parse_address(f"couchbase://127.0.0.1:{proxy.port}/beer?retrySeconds={seconds}")
    return OrchestratorLock(address, LockRole.MAP), address.hosts


@in_loop
async def take_while_another_holds(proxy, address):
    async with OrchestratorLock(address, LockRole.MAP) as held:
        await held.take(address.hosts)
        lock, endpoints = make_lock(proxy, PATIENCE)
        async with lock:
            taking = asyncio.create_task(lock.take(endpoints))
            await wait_until(lambda: proxy.accepted > 0, taking)
            proxy.heal()
            await taking


def test_lock_of_another_program_is_found_once_its_node_answers():
    with locked_node() as (proxy, address), pytest.raises(UsageError, match="expected one orchestrator at a time"):
        take_while_another_holds(proxy, address)


@in_loop
async def take_at_a_lost_node(proxy):
    lock, endpoints = make_lock(proxy, 0.001)
    async with lock:
        await lock.take_reachable(endpoints)
        with pytest.raises(Unreachable):
            await lock.take(endpoints)
        proxy.heal()
        await lock.take(endpoints)
        before = proxy.accepted
        await lock.take_reachable(endpoints)  # it is held there
        assert proxy.accepted == before


def test_lock_that_is_needed_waits_and_that_of_streams_does_not():
    with locked_node() as (proxy, _):
        take_at_a_lost_node(proxy)
