"""Live tails of the dashboard beside a server that does not answer for a while."""

import asyncio

import pytest

import penstock
from penstock.client.blocking import LoopThread
from penstock.client.dashboard.live_tail import TailList
from penstock.client.dashboard.shown_change import TailRequest
from penstock.errors import Error
from penstock.node import Node
from penstock.pytest.fault_proxy import FaultProxy
from tests.client.peer import in_loop
from tests.node.wire_client import connected
from tests.patience import PATIENCE
from tests.waiting import pass_turns


async def read_changes(tails, positions, count):
    """Ask as the page does until there are so many changes; return their keys, the left out ones, and the positions."""
    keys: list[str] = []
    skipped = 0
    async with asyncio.timeout(PATIENCE):
        while len(keys) + skipped < count:
            await pass_turns()
            try:
                answer = await tails.read(TailRequest(positions=tuple(positions)))
            except (Error, OSError):
                continue  # the page asks again, with the positions that it has
            keys += [change["key"] for change in answer["changes"]]
            skipped, positions = skipped + answer["skipped"], answer["positions"]
    return keys, skipped, positions


async def read_until_refused(tails, positions):
    async with asyncio.timeout(PATIENCE):
        while True:
            await pass_turns()
            await tails.read(TailRequest(positions=tuple(positions)))


@pytest.mark.parametrize("missed", [3, 6])
@in_loop
async def test_tail_continues_after_an_outage(missed):
    """Changes of the outage are shown; more than the limit, here 5, are counted."""
    with (
        Node.running(["beer"], vbuckets=4) as node,
        LoopThread() as loop,
        FaultProxy(("127.0.0.1", node.kv_port), loop) as proxy,
        connected(node, "beer") as client,
    ):
        url = f"couchbase://127.0.0.1:{proxy.port}/beer?retrySeconds=0.001"
        async with penstock.connect(url) as bucket:
            tails = TailList(bucket, max_gap=5)
            first = (await tails.read(TailRequest()))["positions"]
            client.set(b"before", b"{}", vbucket=1)
            keys, skipped, positions = await read_changes(tails, first, 1)
            assert (keys, skipped, positions[0]) == (["before"], 0, first[0])
            proxy.refuse()
            proxy.cut()
            with pytest.raises((Error, OSError)):
                await read_until_refused(tails, positions)
            for number in range(missed):
                client.set(b"missed-%d" % number, b"{}", vbucket=number % 2)
            proxy.heal()
            keys, skipped, positions = await read_changes(tails, positions, missed)
            assert (sorted(keys), skipped) == (
                ([f"missed-{number}" for number in range(missed)], 0) if missed <= 5 else ([], missed)
            )
            client.set(b"after", b"{}", vbucket=1)
            assert await read_changes(tails, positions, 1) == (["after"], 0, [first[0], missed + 2])
            await tails.close()
