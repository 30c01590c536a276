"""The story of two buckets that replicate to each other with the product's XDCR, while clients write to both."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import penstock
from penstock.client.xdcr.bucket_replication import BucketReplication
from penstock.client.xdcr.xdcr_options import XdcrOptions
from penstock.errors import Error
from penstock.wire.messages.dcp import Mutation
from penstock.wire.values.collection_key import DEFAULT_PREFIX
from tests.simulation.cluster import BUCKET, PORT
from tests.simulation.schedule import Schedule
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.world import World
from tests.store.failing import read_newest_changes

_KEYS = 6
_SHARED = ("^k[0-3]", frozenset(b"\0k%d" % number for number in range(4)))
"""A filter of keys, and the keys that it chooses."""

_SETTLED_SECONDS = 3.0
"""Virtual seconds without a change after which the traffic has settled. Checkpoints are more frequent."""

_LOST = (OSError, Error, TimeoutError)


class XdcrStory(World):
    """Two nodes with buckets of different vbucket counts, and a replication from each to the other.

    Attributes:
        is_filtered: whether both replications leave some keys out.
        resolution: the conflict resolution of both buckets.
    """

    def __init__(self, schedule: Schedule, loop: VirtualLoop) -> None:
        super().__init__(schedule, loop, schedule.vbuckets, ("writer0", "writer1", "xdcr0", "xdcr1"))
        random = Random(f"{schedule.seed} xdcr")
        self.is_filtered = random.random() < 0.3
        self.resolution = random.choice(("seqno", "lww"))
        self.cluster.settings = replace(self.cluster.settings, conflict_resolution=self.resolution)
        self.cluster.replicas = 0
        self.cluster.shares_bucket = False
        self._directory = Path(tempfile.mkdtemp())
        self._attempts: list[asyncio.Task[object] | None] = [None, None]
        self._replications: list[BucketReplication] = []
        self._delays = [0.0, 0.0]
        self._seqnos: list[list[int]] = []
        self._written: set[bytes] = set()

    def begin(self) -> list[asyncio.Task[Any]]:
        """Begin to replicate both ways, and to write to both buckets."""
        for side in (0, 1):
            self.loop.spawn(self.clients[2 + side], self._replicate(side))
        return [self.loop.spawn(self.clients[side], self._write(side)) for side in (0, 1)]

    async def is_at_rest(self) -> bool:
        """Return whether both buckets have the same documents, and nothing has been written for some time."""
        if any(node.node is None for node in self.cluster.nodes):
            return False
        before, self._seqnos = self._seqnos, self._read_seqnos()
        if before != self._seqnos or any(self._find_differences()):
            return False
        await asyncio.sleep(_SETTLED_SECONDS)
        return all(node.node is not None for node in self.cluster.nodes) and self._read_seqnos() == self._seqnos

    def check(self) -> None:
        """Check that both buckets have the same documents, and only values that clients have written."""
        self.problems += self._find_differences()
        for side in (0, 1):
            foreign = {value for _, value, *_ in self._read_documents(side).values()} - self._written
            self.problems += [f"n{side} has values that no client has written: {foreign}"] if foreign else []
        shutil.rmtree(self._directory)

    def describe_state(self) -> str:
        """Return documents, seqnos and numbers of both sides."""
        documents = [self._read_documents(side) for side in (0, 1)]
        numbers = [str(each.progress) for each in self._replications]
        return f"{self.resolution}, filtered: {self.is_filtered}, {documents}, {self._read_seqnos()}, {numbers}"

    def count(self) -> dict[str, int]:
        """Return the numbers of all replications."""
        names = ("received", "written", "older", "missing", "filtered", "restarts")
        counts = {name: sum(getattr(each.progress, name) for each in self._replications) for name in names}
        return {"replications": len(self._replications), **counts}

    async def kill_replication(self, side: int, seconds: float) -> None:
        """Kill the replication from a side, and start it again with its state file after some time."""
        self._delays[side] = seconds
        attempt = self._attempts[side]
        if attempt is not None:
            attempt.cancel()

    # Work

    def _make_url(self, side: int) -> str:
        options = "connectTimeout=3&operationTimeout=3&retrySeconds=3"
        return f"couchbase://{self.cluster.nodes[side].host}:{PORT}/{BUCKET}?{options}"

    async def _replicate(self, side: int) -> None:
        options = XdcrOptions(
            state=str(self._directory / f"from{side}"), filter_key=_SHARED[0] if self.is_filtered else None
        )
        while True:
            replication = BucketReplication(self._make_url(side), self._make_url(1 - side), options)
            self._replications.append(replication)
            attempt = self._attempts[side] = asyncio.ensure_future(replication.run())
            await asyncio.wait([attempt])
            if not attempt.cancelled() and not isinstance(attempt.exception(), _LOST):
                self.problems.append(f"the replication from n{side} has ended: {attempt.exception()!r}")
                return
            await asyncio.sleep(0.1 + self._delays[side])
            self._delays[side] = 0.0

    async def _write(self, side: int) -> None:
        random = self.clients[side].random
        for number in range(self.schedule.writes):
            await asyncio.sleep(random.expovariate(self.schedule.writes / self.schedule.seconds))
            key = f"k{random.randrange(_KEYS)}"
            with suppress(*_LOST):
                async with penstock.connect(self._make_url(side)) as bucket:
                    if random.random() < 0.25:
                        await bucket.remove(key)
                    else:
                        value = b"%d-%d" % (side, number)
                        self._written.add(value)
                        await bucket.upsert(key, value)

    # Rules

    def _read_seqnos(self) -> list[list[int]]:
        return [[each.changes.high_seqno for each in node.vbuckets] for node in self.cluster.nodes]

    def _read_documents(self, side: int) -> dict[bytes, tuple[Any, ...]]:
        changes = [change for vbucket in self.cluster.nodes[side].vbuckets for change in read_newest_changes(vbucket)]
        return {
            change.key: (change.cas, bytes(change.value), change.rev_seqno, change.flags, change.expiry)
            for change in changes
            if isinstance(change, Mutation) and change.key.startswith(DEFAULT_PREFIX)
        }

    def _find_differences(self) -> list[str]:
        """Return a sentence for each document that is not the same on both sides, of those that are replicated."""
        one, other = self._read_documents(0), self._read_documents(1)
        keys = sorted(key for key in one.keys() | other.keys() if not self.is_filtered or key in _SHARED[1])
        return [
            f"{key!r} is {one.get(key)} on n0, {other.get(key)} on n1" for key in keys if one.get(key) != other.get(key)
        ]
