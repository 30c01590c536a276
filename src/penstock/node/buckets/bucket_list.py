"""The buckets of a node: opened at its start; created, changed, flushed and deleted while it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.errors import Error, InternalError, NotSupported, StoreDamaged, StoreRefused, TemporaryFailure, UsageError
from penstock.names import check_new_bucket
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.node.buckets.bucket_storage import BucketStorage, close_bucket, find_buckets, open_bucket, remove_bucket
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.cluster.own_map import NodePlace

logger = logging.getLogger("penstock.node")

MAX_BUCKETS = 100
"""Buckets of a running node. Each needs memory for its vbuckets, even when empty."""


class BucketList(dict[str, ServedBucket]):
    """The open buckets by name.

    One bucket at a time is opened or closed. Other tasks see the bucket before or after that, never in between.

    Args:
        storage: how buckets are stored.
        get_place: returns the addresses of the node.
        close_users: ends all streams and connections that use a bucket, before the bucket is deleted.

    Attributes:
        unopened: the buckets on disk that could not be opened, because of damage for example, with the reasons. They
            are not missing: requests for them are answered with the reason.
    """

    def __init__(
        self,
        storage: BucketStorage,
        get_place: Callable[[], NodePlace],
        close_users: Callable[[ServedBucket], None],
    ) -> None:
        """Make an empty list."""
        super().__init__()
        self._storage = storage
        self._get_place = get_place
        self._close_users = close_users
        self._lock = asyncio.Lock()
        self._closed = False
        self._stored_specs: dict[str, BucketSpec | Error] = {}
        self.unopened: dict[str, Error] = {}

    async def open_all(
        self, names: Sequence[str], vbuckets: int, *, default_names: Sequence[str], excluded: str | None = None
    ) -> None:
        """Open buckets by name, and the other buckets on disk.

        Args:
            names: buckets to open; those that do not exist are created.
            vbuckets: number of vbuckets of created buckets.
            default_names: the buckets to open if there are no names and no buckets on disk.
            excluded: a bucket on disk that stays closed.

        Raises:
            UsageError: as in `open`.
            StoreDamaged: as in `open`. A damaged bucket that is not among the names is skipped, so that the others can
                be served. Its error is raised only if no bucket could be opened.
        """
        self._stored_specs = await find_buckets(self._storage)
        others = [name for name in self._stored_specs if name not in names and name != excluded]
        for name in names or (() if others else default_names):
            await self.open_named(name, vbuckets)
        problem = None
        for name in others:
            problem = await self._try_to_open(name) or problem
        if problem is not None and not self:
            raise problem

    async def open_named(self, name: str, vbuckets: int) -> ServedBucket:
        """Open a bucket as it was stored; create it if it does not exist. Raises the same errors as `open`.

        Returns:
            The open bucket.
        """
        spec = self._stored_specs.get(name)
        if not isinstance(spec, BucketSpec):  # a damaged record is reported when the bucket is opened
            spec = BucketSpec(name=name, vbuckets=vbuckets)
            if self._storage.settings.keeps_history:
                spec = replace(spec, storage_backend="magma", history_default=True)
        return await self.open(spec if spec.is_plain_cache else replace(spec, vbuckets=vbuckets))

    async def _try_to_open(self, name: str) -> Error | None:
        """Open a bucket on disk. Log, keep and return an error that prevents it.

        Returns:
            The error that prevented it, or None.
        """
        spec = self._stored_specs[name]
        try:
            if isinstance(spec, Error):
                raise spec
            await self.open(spec)
        except (StoreRefused, StoreDamaged) as error:
            logger.error("a bucket was not opened: %s", error)
            self.unopened[name] = error
            return error
        return None

    async def open(self, spec: BucketSpec) -> ServedBucket:
        """Open a bucket; create it if it does not exist.

        Returns:
            The open bucket.

        Raises:
            UsageError: the node stops, or the bucket is open.
            StoreRefused: the directory cannot be used.
            StoreDamaged: the files are damaged.
        """
        async with self._lock:
            if self._closed:
                raise UsageError("the node is stopping")
            if spec.name in self or spec.name in self.unopened:
                raise UsageError(f"bucket {spec.name!r} exists already")
            served = await open_bucket(spec, self._storage)
            served.set_place(self._get_place())
            served.fence_vbuckets()
            self[spec.name] = served
            return served

    async def create(self, spec: BucketSpec) -> ServedBucket:
        """Create and open a bucket that does not exist.

        Returns:
            The open bucket.

        Raises:
            UsageError: as in `open`, or there are MAX_BUCKETS buckets.
        """
        if len(self) >= MAX_BUCKETS:
            raise UsageError(f"{len(self)} buckets exist: the limit is {MAX_BUCKETS}")
        return await self.open(spec)

    async def delete(self, name: str) -> None:
        """End all uses of a bucket, and delete the bucket with its files.

        Raises:
            UsageError: the bucket does not exist, or mirrors another node's bucket.
            StoreRefused: its directory cannot be removed.
        """
        async with self._lock:
            served = self.find(name)
            if served.bridge is not None:
                raise UsageError(f"bucket {name!r} mirrors another node's bucket and cannot be deleted")
            del self[name]
            served.is_deleted = True
            self._close_users(served)
            await close_bucket(served)
            await remove_bucket(name, self._storage)

    async def flush(self, name: str) -> None:
        """Delete all documents of a bucket. Returns when all vbuckets are empty and that is on disk.

        Raises:
            UsageError: the bucket does not exist.
            NotSupported: flush is disabled for the bucket.
            TemporaryFailure: the disk or the memory does not permit it now.
        """
        served = self.find(name)
        if not served.can_be_flushed:
            raise NotSupported(f"bucket {name!r}: flush is disabled")
        flushed: asyncio.Future[TemporaryFailure | None] = asyncio.get_running_loop().create_future()
        served.flush()
        give_up = served.maintenance.call_after_rollout(flushed.set_result)
        try:
            refusal = await flushed
        finally:
            give_up()
        if refusal is not None:
            raise refusal
        if served.flusher is not None:
            await served.flusher.flush()

    def change_spec(self, spec: BucketSpec) -> None:
        """Apply a new spec to the bucket of the same name.

        Raises:
            UsageError: the bucket does not exist, or its disk refuses the new spec.
        """
        served, storage = self.find(spec.name), self._storage
        try:
            served.change_spec(spec, spec.make_settings(storage.settings))
        except TemporaryFailure as error:
            raise UsageError(f"bucket {spec.name!r}: {error}") from error
        served.can_be_flushed = storage.flush_enabled if spec.flush_enabled is None else spec.flush_enabled

    async def close(self) -> None:
        """Write all changes to disk and close all buckets, after a bucket that is being opened or deleted."""
        async with self._lock:
            self._closed = True
            for served in self.values():
                await close_bucket(served)

    def find_open(self, name: str) -> ServedBucket | None:
        """Return the bucket of a name; None if it does not exist.

        Raises:
            InternalError: it exists, but could not be opened when the node started.
        """
        if name in self.unopened:
            raise InternalError(f"bucket {name!r} exists, but the node could not open it: {self.unopened[name]}")
        return self.get(name)

    def find(self, name: str) -> ServedBucket:
        """Return the bucket of a name.

        Raises:
            UsageError: the bucket does not exist.
            InternalError: as in `find_open`.
        """
        served = self.find_open(name)
        if served is None:
            raise UsageError(f"no bucket {name!r}; expected one of {', '.join(self)}")
        return served


def check_bucket_names(names: Sequence[str]) -> None:
    """Raise UsageError for an invalid name, and for a name that stands twice."""
    for name in names:
        check_new_bucket(name)
    if len(set(names)) < len(names):
        raise UsageError(f"a bucket is named twice: {', '.join(names)}")
