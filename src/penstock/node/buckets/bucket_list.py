"""The buckets that a node has: opened at its start, made, changed, emptied and deleted while it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from penstock.errors import Error, NotSupported, StoreDamaged, StoreRefused, TemporaryFailure, UsageError
from penstock.node.buckets.bucket_spec import BucketSpec, check_name
from penstock.node.buckets.bucket_storage import Storage, close_bucket, find_buckets, open_bucket, remove_bucket
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.cluster.topology import Topology

__all__ = ["MAX_BUCKETS", "BucketList", "check_names"]

logger = logging.getLogger("penstock.node")

MAX_BUCKETS = 100
"""That a running node makes. Each costs memory for its vbuckets, empty or not."""


class BucketList(dict[str, ServedBucket]):
    """The open buckets by name. One at a time is opened or closed; what others do meanwhile sees it done or not."""

    def __init__(
        self, storage: Storage, get_topology: Callable[[], Topology], end_users: Callable[[ServedBucket], None]
    ) -> None:
        """Make a list without buckets.

        Args:
            storage: where buckets are kept.
            get_topology: returns the nodes of the buckets.
            end_users: ends all that uses a bucket that is about to be deleted.
        """
        super().__init__()
        self._storage = storage
        self._get_topology = get_topology
        self._end_users = end_users
        self._turn = asyncio.Lock()
        self._closed = False
        self._kept: dict[str, BucketSpec | Error] = {}

    async def open_all(
        self, names: Sequence[str], vbuckets: int, *, usual: Sequence[str], without: str | None = None
    ) -> None:
        """Open buckets by name, and those that are kept but for one; usual: which, where there would be none.

        Raises UsageError and StoreDamaged as `open` does. A kept one that nobody has named is left out if it cannot be
        opened: the others are not to suffer.
        """
        self._kept = await find_buckets(self._storage)
        others = [name for name in self._kept if name not in names and name != without]
        for name in names or (() if others else usual):
            await self.open_named(name, vbuckets)
        problem = None
        for name in others:
            problem = await self._try_to_open(self._kept[name]) or problem
        if problem is not None and not self:
            raise problem

    async def open_named(self, name: str, vbuckets: int) -> ServedBucket:
        """Open a bucket as it was kept, made where it was not. Raises as `open` does."""
        spec = self._kept.get(name)
        if not isinstance(spec, BucketSpec):  # if there is something wrong with it, opening it says so
            spec = BucketSpec(name=name, vbuckets=vbuckets)
        return await self.open(spec if spec.plain_cache else replace(spec, vbuckets=vbuckets))

    async def _try_to_open(self, spec: BucketSpec | Error) -> Error | None:
        """Open a bucket that nobody has named. Returns what prevents it, None if nothing does."""
        try:
            if isinstance(spec, Error):
                raise spec
            await self.open(spec)
        except (StoreRefused, StoreDamaged) as error:
            logger.error("a bucket is left out: %s", error)
            return error
        return None

    async def open(self, spec: BucketSpec) -> ServedBucket:
        """Open a bucket, made where it is not there, and have it. Raises UsageError, StoreDamaged."""
        async with self._turn:
            topology = self._get_topology()
            if self._closed:
                raise UsageError("the node stops")
            if spec.name in self:
                raise UsageError(f"there is a bucket {spec.name!r} already")
            if not spec.plain_cache:
                topology.check(spec.vbuckets)
            served = await open_bucket(spec, self._storage)
            for number in _of_others(topology, served):
                served.store.vbuckets[number].remove()
            served.place(topology)
            self[spec.name] = served
            return served

    async def create(self, spec: BucketSpec) -> ServedBucket:
        """As `open`, for one that there is not yet. Raises UsageError also where there are too many."""
        if len(self) >= MAX_BUCKETS:
            raise UsageError(f"there are {len(self)} buckets: expected less than {MAX_BUCKETS}")
        return await self.open(spec)

    async def delete(self, name: str) -> None:
        """End all that uses a bucket, and delete what there is of it. Raises UsageError if it is not there or stays."""
        async with self._turn:
            served = self.find(name)
            if served.bridge is not None:
                raise UsageError(f"bucket {name!r} follows another node's: it is there as long as the node")
            del self[name]
            served.deleted = True
            self._end_users(served)
            await close_bucket(served)
            await remove_bucket(name, self._storage)

    async def flush(self, name: str) -> None:
        """Delete all documents of a bucket. Raises UsageError, NotSupported where it may not be, TemporaryFailure."""
        served = self.find(name)
        if not served.may_be_flushed:
            raise NotSupported(f"bucket {name!r} may not be flushed")
        flushed: asyncio.Future[TemporaryFailure | None] = asyncio.get_running_loop().create_future()
        served.flush()
        give_up = served.upkeep.when_spread(flushed.set_result)
        try:
            refusal = await flushed
        finally:
            give_up()
        if refusal is not None:
            raise refusal
        if served.flusher is not None:
            await served.flusher.flush()

    def change(self, spec: BucketSpec) -> None:
        """Let the bucket of this name be like that. Raises UsageError."""
        served, storage = self.find(spec.name), self._storage
        try:
            served.change_spec(spec, spec.settings(storage.settings))
        except TemporaryFailure as error:
            raise UsageError(f"bucket {spec.name!r}: {error}") from error
        served.may_be_flushed = storage.flush if spec.flush_enabled is None else spec.flush_enabled

    async def close(self) -> None:
        """Bring all to disk and let go of it. What is being opened or deleted is waited for."""
        async with self._turn:
            self._closed = True
            for served in self.values():
                await close_bucket(served)

    def find(self, name: str) -> ServedBucket:
        """Raises UsageError."""
        if name not in self:
            raise UsageError(f"no bucket {name!r}; there is {', '.join(self)}")
        return self[name]


def check_names(names: Sequence[str]) -> None:
    """Raise UsageError for names that buckets cannot have together."""
    for name in names:
        check_name(name)
    if len(set(names)) < len(names):
        raise UsageError(f"a bucket is named twice: {', '.join(names)}")


def _of_others(topology: Topology, served: ServedBucket) -> Iterator[int]:
    """Yield the vbuckets that other nodes have, as far as they are here. A plain cache is split by its clients."""
    if len(topology.places) == 1 or served.spec.plain_cache:
        return
    own = topology.owned(len(served.store.vbuckets))
    for vbucket in served.store.vbuckets:
        if vbucket.id not in own and vbucket.history.state is not None:
            yield vbucket.id
