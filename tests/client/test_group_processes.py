"""Members of a group in processes of their own, which are killed and paused by the system."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager

import pytest

import penstock
from penstock.client.groups.group_positions import GroupPositions
from penstock.node import Node
from tests.patience import PATIENCE
from tests.waiting import wait_until

pytestmark = pytest.mark.process

VBUCKETS = 8

MEMBER = """
import asyncio, sys
import penstock

async def main(url, path):
    commit = penstock.CommitPolicy(changes=1)
    with open(path, "ab", buffering=0) as results:
        async with penstock.connect(url) as bucket:
            async with penstock.Consumer(bucket, group="g", lease_seconds=6, commit=commit) as consumer:
                async for change in consumer.changes():
                    results.write(change.key + b"\\n")

asyncio.run(main(*sys.argv[1:]))
"""


class Process:
    """A process with one member, which appends the key of each change to a file."""

    def __init__(self, url, path):
        self.path = path
        self.process = subprocess.Popen([sys.executable, "-c", MEMBER, url, str(path)])

    @property
    def keys(self):
        return Counter(self.path.read_bytes().split()) if self.path.exists() else Counter()

    def send(self, number):
        self.process.send_signal(number)


@contextmanager
def two_members(url, directory):
    members = [Process(url, directory / str(number)) for number in range(2)]
    try:
        yield members
    finally:
        for member in members:
            member.process.kill()
            member.process.wait(PATIENCE)


def make_keys(first, end):
    return [b"k%05d" % number for number in range(first, end)]


async def write(bucket, first, end):
    await bucket.upsert_many([(key, b"1") for key in make_keys(first, end)])


async def wait_for_parts(bucket, members, first, end):
    """Wait until the members together have these keys, and both have some of them."""
    expected = set(make_keys(first, end))
    await wait_until(lambda: expected <= set().union(*(each.keys for each in members)))
    return all(expected & each.keys.keys() for each in members)


async def share_work(bucket, members, first):
    """Write until both members process changes; return the next unused number."""
    while not await wait_for_parts(bucket, members, first, await write_some(bucket, first)):
        first += 40
    return first + 40


async def write_some(bucket, first):
    await write(bucket, first, first + 40)
    return first + 40


def run(main, tmp_path):
    async def connected(url):
        async with asyncio.timeout(PATIENCE), penstock.connect(url) as bucket:
            with two_members(url, tmp_path) as members:
                await main(bucket, members)

    with Node.running(["beer"], vbuckets=VBUCKETS) as node:
        asyncio.run(connected(node.url("beer")))


def test_share_of_a_killed_member_is_taken_over(tmp_path):
    async def main(bucket, members):
        first = await share_work(bucket, members, 0)
        members[0].send(signal.SIGKILL)
        await write(bucket, first, first + 200)
        await wait_until(lambda: set(make_keys(0, first + 200)) <= (members[0].keys + members[1].keys).keys())

    run(main, tmp_path)


def test_paused_member_delivers_and_commits_nothing_of_its_former_share(tmp_path):
    async def main(bucket, members):
        first = await share_work(bucket, members, 0)
        members[0].send(signal.SIGSTOP)
        before, end = members[0].keys, first + 200
        await write(bucket, first, end)
        await wait_until(lambda: set(make_keys(first, end)) <= members[1].keys.keys())
        taken_over = await GroupPositions(bucket, "g").read()
        members[0].send(signal.SIGCONT)
        end = await share_work(bucket, members, end)
        # A change that the paused member already had may arrive; it cannot be known from outside.
        again = members[0].keys - before
        assert len(set(make_keys(first, first + 200)) & again.keys()) <= 1
        found = await GroupPositions(bucket, "g").read()
        assert found is not None
        assert taken_over is not None
        assert all(found.by_vbucket[vb].seqno >= each.seqno for vb, each in taken_over.by_vbucket.items())

    run(main, tmp_path)
