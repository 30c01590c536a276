"""A model of replication both ways: random writes and deletions on both sides, while replications start and are killed.

Afterwards both sides settle: equal documents, cas and revisions, and no further traffic.
"""

import asyncio
import itertools
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import BucketReplication, Node, XdcrOptions, connect
from penstock.errors import KeyNotFound
from tests.client.replicated import create_bucket, read_versions
from tests.examples import scaled
from tests.patience import PATIENCE

KEYS = [f"key-{number}" for number in range(6)]
SIDES = st.integers(0, 1)
STEPS = st.one_of(
    st.tuples(st.just("write"), SIDES, st.sampled_from(KEYS)),
    st.tuples(st.just("write"), SIDES, st.sampled_from(KEYS)),
    st.tuples(st.just("delete"), SIDES, st.sampled_from(KEYS)),
    st.tuples(st.sampled_from(("start", "kill", "catch up")), SIDES, st.just("")),
)


@pytest.fixture(scope="module")
def nodes():
    with Node.running(vbuckets=4) as one, Node.running(vbuckets=16) as other:
        yield one, other


NUMBERS = itertools.count()


class TwoWays:
    """Two buckets, and a replication from each to the other that may be running.

    Attributes:
        urls: the buckets.
        states: the state file of the replication from each bucket.
        running: the task of the replication from each bucket, or None.
        written: the values that clients have written.
    """

    def __init__(self, urls, directory):
        self.urls = urls
        self.states = [str(Path(directory) / name) for name in ("from-0", "from-1")]
        self.running: list[asyncio.Task[object] | None] = [None, None]
        self.written: set[bytes] = set()

    def make_replication(self, side, until):
        options = XdcrOptions(until=until, state=self.states[side])
        return BucketReplication(self.urls[side], self.urls[1 - side], options)

    async def take(self, planned, buckets):
        step, side, key = planned
        if step == "write":
            value = b'{"n": %d}' % len(self.written)
            self.written.add(value)
            await buckets[side].upsert(key, value)
        elif step == "delete":
            with suppress(KeyNotFound):
                await buckets[side].remove(key)
        elif step == "kill":
            await self.kill(side)
        elif step == "start" and self.running[side] is None:
            self.running[side] = asyncio.create_task(self.make_replication(side, "never").run())
        elif step == "catch up":
            await self.kill(side)
            await self.make_replication(side, "now").run()

    async def kill(self, side):
        task, self.running[side] = self.running[side], None
        if task is not None:
            assert not task.done()
            task.cancel()
            await asyncio.wait([task])

    async def settle(self):
        """Replicate in both directions until no change is written."""
        for side in (0, 1):
            await self.kill(side)
        for _ in range(3):
            done = [await self.make_replication(side, "now").run() for side in (0, 1)]
            assert not any(each.refused for each in done)
            if not any(each.written for each in done):
                return
        raise AssertionError("the buckets write to each other without end")


@pytest.mark.parametrize("resolution", ["seqno", "lww"])
@settings(max_examples=scaled(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=40))
def test_two_ways_settle_after_any_steps(nodes, resolution, steps):
    name = f"bucket-{next(NUMBERS)}"
    for node in nodes:
        create_bucket(node, name, conflictResolutionType=resolution)
    urls = [node.url(name) for node in nodes]

    async def run(directory):
        ways = TwoWays(urls, directory)
        async with asyncio.timeout(PATIENCE), connect(urls[0]) as one, connect(urls[1]) as other:
            for step in steps:
                await ways.take(step, (one, other))
            await ways.settle()
            versions = [await asyncio.to_thread(read_versions, url) for url in urls]
            assert versions[0] == versions[1]
            assert {each[1] for each in versions[0].values() if each[0] == "mutation"} <= ways.written
            before = [await bucket.high_seqnos() for bucket in (one, other)]
            await ways.settle()
            assert [await bucket.high_seqnos() for bucket in (one, other)] == before

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(directory))
