"""Opens, closes and deletes the buckets of a node, in memory or each in a directory of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from penstock.errors import Error
from penstock.node.buckets import definition_files
from penstock.node.buckets.bucket_maintenance import BucketMaintenance
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.node.buckets.compactor import Compactor
from penstock.node.buckets.definition_files import BucketDefinition
from penstock.node.buckets.flusher import Flusher
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.transport.machine import Machine
from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings

logger = logging.getLogger("penstock.node")

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketStorage:
    """How a node stores its buckets.

    Attributes:
        machine: the machine that the node runs on.
        data_dir: the directory that contains a directory for each bucket; None: all buckets are in memory.
        settings: default settings of each bucket.
        pager_seconds: time between two runs of the expiry pager.
        persistence_timeout: seconds that a request waits for the disk.
        flush_enabled: whether buckets without a setting of their own may be flushed.
    """

    machine: Machine
    data_dir: Path | None
    settings: BucketSettings
    pager_seconds: float
    persistence_timeout: float
    flush_enabled: bool


def count_file_bytes(path: Path) -> int:
    """Return the bytes of all files in a bucket's directory; 0 if the directory does not exist."""
    total = 0
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(path):
            with contextlib.suppress(FileNotFoundError):  # compaction removes files at any time
                total += entry.stat().st_size
    return total


async def find_buckets(storage: BucketStorage) -> dict[str, BucketSpec | Error]:
    """Return the buckets on disk by name, or the errors that prevent opening them.

    Raises:
        StoreRefused: the data directory cannot be read.
    """
    if storage.data_dir is None:
        return {}
    return await _run_on_thread("find", partial(definition_files.find_bucket_specs, storage.data_dir))


async def open_bucket(spec: BucketSpec, storage: BucketStorage) -> ServedBucket:
    """Open a bucket; create it if it does not exist.

    Returns:
        The bucket with its background work.

    Raises:
        StoreRefused: the directory cannot be used.
        StoreDamaged: the files are damaged.
    """
    served = await (_open_on_disk if storage.data_dir and spec.is_persistent else _open_in_memory)(spec, storage)
    store = served.store
    if not store.manifests.current.uid:
        store.rollout.set_manifest(spec.make_first_manifest())
    served.can_be_flushed = storage.flush_enabled if spec.flush_enabled is None else spec.flush_enabled
    served.maintenance = BucketMaintenance(
        store, pager_seconds=storage.pager_seconds, on_change=served.notify_and_compact
    )
    if store.log.durable:
        served.flusher = Flusher(store, timeout=storage.persistence_timeout, time=storage.machine.time)
        served.listeners[served.flusher.waits] = None
    served.compactor = Compactor(store, served.flusher)
    store.log.room.compact = served.free_memory
    if served.flusher is not None:
        served.flusher.on_commit = served.finish_commit
    served.sync_writes.resume_all()
    if store.recovery_summary:
        logger.info("bucket %s: %s", spec.name, store.recovery_summary)
    return served


async def _open_in_memory(spec: BucketSpec, storage: BucketStorage) -> ServedBucket:
    store = BucketStore(
        spec.name,
        vbuckets=spec.vbuckets,
        clock=storage.machine.time_ns,
        new_vbuuid=storage.machine.make_vbuuid,
        settings=spec.make_settings(storage.settings),
    )
    if storage.data_dir is None:
        return ServedBucket(store, spec, machine=storage.machine)
    define = partial(BucketDefinition, storage.data_dir / spec.name, spec)
    definition = await _run_on_thread(f"define-{spec.name}", define, BucketDefinition.close)
    store.rollout.set_manifest(definition.manifest)
    return ServedBucket(store, spec, definition, machine=storage.machine)


async def _open_on_disk(spec: BucketSpec, storage: BucketStorage) -> ServedBucket:
    assert storage.data_dir is not None
    path, settings = storage.data_dir / spec.name, spec.make_settings(storage.settings)

    def recover() -> BucketStore:
        store = BucketStore.open(
            *(path, spec.name),
            vbuckets=spec.vbuckets,
            clock=storage.machine.time_ns,
            new_vbuuid=storage.machine.make_vbuuid,
            settings=settings,
            directory=storage.machine.directory,
        )
        if not store.record.properties:
            store.record.set_properties(spec.list_properties())
        return store

    store = await _run_on_thread(f"open-{spec.name}", recover, BucketStore.close)
    return ServedBucket(store, spec, machine=storage.machine)


async def _run_on_thread(
    name: str, work: Callable[[], _Result], undo: Callable[[_Result], None] = lambda _: None
) -> _Result:
    """Run blocking work on a thread of its own.

    Args:
        name: of the thread.
        work: returns the result.
        undo: takes the result if the caller was cancelled meanwhile.

    Returns:
        The result of `work`.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix=f"penstock-{name}")
    working = asyncio.get_running_loop().run_in_executor(thread, work)
    thread.shutdown(wait=False)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        # A thread cannot be interrupted, and the files that it opens must be closed.
        with contextlib.suppress(Error):
            undo(await working)
        raise


async def close_bucket(served: ServedBucket) -> None:
    """Write the remaining changes to disk and close the bucket. Changes that cannot be written are logged and lost."""
    served.maintenance.close()
    served.sync_writes.close()
    if served.compactor is not None:
        await served.compactor.close()
    if served.flusher is not None:
        await served.flusher.close()
    if served.definition is not None:
        served.definition.close()


async def remove_bucket(name: str, storage: BucketStorage) -> None:
    """Delete the files of a closed bucket.

    Raises:
        StoreRefused: the directory cannot be removed.
    """
    if storage.data_dir is not None:
        await _run_on_thread(f"remove-{name}", partial(definition_files.remove_bucket_files, storage.data_dir / name))
