"""Opening the buckets of a node, in memory or each in a directory of its own, closing and deleting them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from penstock.errors import Error
from penstock.node.buckets import definition_files
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.node.buckets.compactor import Compactor
from penstock.node.buckets.definition_files import Definition
from penstock.node.buckets.flusher import Flusher
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.upkeep import Upkeep
from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import Settings

__all__ = ["Storage", "close_bucket", "file_bytes", "find_buckets", "new_vbuuid", "open_bucket", "remove_bucket"]

logger = logging.getLogger("penstock.node")

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """How a node keeps its buckets.

    data_dir: the directory in which each has one of its own, by its name; None: in memory. settings: of each.
    pager_seconds: from one round of the expiry pager to the next. persistence_timeout: seconds that a request waits
    for the disk. flush: whether buckets that do not say it may be flushed.
    """

    data_dir: Path | None
    settings: Settings
    pager_seconds: float
    persistence_timeout: float
    flush: bool


def new_vbuuid() -> int:
    """Return 48 random bits, never 0: that means "no history" on the wire."""
    return secrets.randbits(48) or 1


def file_bytes(path: Path) -> int:
    """Return the bytes of all files of a bucket, in its directory; 0 if somebody has removed that."""
    total = 0
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(path):
            with contextlib.suppress(FileNotFoundError):  # a compaction removes them at any time
                total += entry.stat().st_size
    return total


async def find_buckets(storage: Storage) -> dict[str, BucketSpec | Error]:
    """Return the buckets that are kept, by name, or why there is none to be had. Raises StoreRefused."""
    if storage.data_dir is None:
        return {}
    return await _on_thread("find", partial(definition_files.find, storage.data_dir))


async def open_bucket(spec: BucketSpec, storage: Storage) -> ServedBucket:
    """Open a bucket, or make it where it is not there. Raises StoreRefused or StoreDamaged."""
    served = await (_open_on_disk if storage.data_dir and spec.persistent else _open_in_memory)(spec, storage)
    store = served.store
    served.may_be_flushed = storage.flush if spec.flush_enabled is None else spec.flush_enabled
    served.upkeep = Upkeep(store, pager_seconds=storage.pager_seconds, look=served.look)
    if store.log.durable:
        served.flusher = Flusher(store, patience=storage.persistence_timeout)
        served.listeners.add(served.flusher.waits)
    served.compactor = Compactor(store, served.flusher)
    store.log.room.compact = served.free_memory
    if served.flusher is not None:
        served.flusher.after = served.compactor.look
    if store.recovered:
        logger.info("bucket %s: %s", spec.name, store.recovered)
    return served


async def _open_in_memory(spec: BucketSpec, storage: Storage) -> ServedBucket:
    store = BucketStore(
        spec.name,
        vbuckets=spec.vbuckets,
        clock=time.time_ns,
        new_vbuuid=new_vbuuid,
        settings=spec.settings(storage.settings),
    )
    if storage.data_dir is None:
        return ServedBucket(store, spec)
    define = partial(Definition, storage.data_dir / spec.name, spec)
    definition = await _on_thread(f"define-{spec.name}", define, Definition.close)
    store.rollout.set_manifest(definition.manifest)
    return ServedBucket(store, spec, definition)


async def _open_on_disk(spec: BucketSpec, storage: Storage) -> ServedBucket:
    assert storage.data_dir is not None
    path, settings = storage.data_dir / spec.name, spec.settings(storage.settings)

    def recover() -> BucketStore:
        store = BucketStore.open(
            *(path, spec.name),
            vbuckets=spec.vbuckets,
            clock=time.time_ns,
            new_vbuuid=new_vbuuid,
            settings=settings,
        )
        if not store.record.properties:
            store.record.set_properties(spec.properties())
        return store

    return ServedBucket(await _on_thread(f"open-{spec.name}", recover, BucketStore.close), spec)


async def _on_thread(
    name: str, work: Callable[[], _Result], undo: Callable[[_Result], None] = lambda _: None
) -> _Result:
    """Do something that blocks on a thread of its own. undo: what becomes of the result if nobody waits for it."""
    thread = ThreadPoolExecutor(1, thread_name_prefix=f"penstock-{name}")
    working = asyncio.get_running_loop().run_in_executor(thread, work)
    thread.shutdown(wait=False)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        # There is no way to interrupt it, and what it opens has to be let go of.
        with contextlib.suppress(Error):
            undo(await working)
        raise


async def close_bucket(served: ServedBucket) -> None:
    """Bring what is left to disk and let go of the bucket. What cannot be written is logged, and lost."""
    served.upkeep.close()
    if served.compactor is not None:
        await served.compactor.close()
    if served.flusher is not None:
        await served.flusher.close()
    if served.definition is not None:
        served.definition.close()


async def remove_bucket(name: str, storage: Storage) -> None:
    """Delete the files of a bucket that is closed. Raises StoreRefused if they stay."""
    if storage.data_dir is not None:
        await _on_thread(f"remove-{name}", partial(definition_files.remove, storage.data_dir / name))
