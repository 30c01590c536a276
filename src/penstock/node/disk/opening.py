"""Opening the buckets of a node, in memory or each in a directory of its own, and closing them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from penstock.errors import Error
from penstock.node.disk.compactor import Compactor
from penstock.node.disk.flusher import PERSISTENCE_TIMEOUT, Flusher
from penstock.node.disk.upkeep import PAGER_SECONDS, Upkeep
from penstock.node.served import ServedBucket
from penstock.store.bucket import Bucket
from penstock.store.settings import Settings

__all__ = ["Storage", "close_bucket", "file_bytes", "new_vbuuid", "open_bucket"]

logger = logging.getLogger("penstock.node")


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """How a node keeps its buckets.

    data_dir: the directory in which each has one of its own, by its name; None: in memory. settings: of each.
    pager_seconds: from one round of the expiry pager to the next. persistence_timeout: seconds that a request waits
    for the disk.
    """

    data_dir: Path | None = None
    settings: Settings = field(default_factory=Settings)
    pager_seconds: float = PAGER_SECONDS
    persistence_timeout: float = PERSISTENCE_TIMEOUT


def new_vbuuid() -> int:
    """Return 48 random bits, never 0: that means "no history" on the wire."""
    return secrets.randbits(48) or 1


def file_bytes(path: Path) -> int:
    """Return the bytes of all files of a bucket, in its directory."""
    total = 0
    for entry in os.scandir(path):
        with contextlib.suppress(FileNotFoundError):  # a compaction removes them at any time
            total += entry.stat().st_size
    return total


async def open_bucket(name: str, vbuckets: int, storage: Storage) -> ServedBucket:
    """Open a bucket, or make it where it is not there. Raises StoreRefused or StoreDamaged."""
    store = await _open_store(name, vbuckets, storage)
    served = ServedBucket(store)
    served.upkeep = Upkeep(store, pager_seconds=storage.pager_seconds, look=served.look)
    if store.durable:
        served.flusher = flusher = Flusher(store, patience=storage.persistence_timeout)
        served.compactor = Compactor(store, flusher)
        flusher.after = served.compactor.look
        served.listeners.add(flusher)
    if store.recovered:
        logger.info("bucket %s: %s", name, store.recovered)
    return served


async def _open_store(name: str, vbuckets: int, storage: Storage) -> Bucket:
    if storage.data_dir is None:
        return Bucket(name, vbuckets=vbuckets, clock=time.time_ns, new_vbuuid=new_vbuuid, settings=storage.settings)
    recover = partial(
        Bucket.open,
        *(storage.data_dir / name, name),
        vbuckets=vbuckets,
        clock=time.time_ns,
        new_vbuuid=new_vbuuid,
        settings=storage.settings,
    )
    thread = ThreadPoolExecutor(1, thread_name_prefix=f"penstock-open-{name}")
    opening = asyncio.get_running_loop().run_in_executor(thread, recover)
    thread.shutdown(wait=False)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        # There is no way to interrupt it, and what it opens has to be let go of.
        with contextlib.suppress(Error):
            (await opening).close()
        raise


async def close_bucket(served: ServedBucket) -> None:
    """Bring what is left to disk and let go of the bucket. What cannot be written is logged, and lost."""
    served.upkeep.close()
    if served.compactor is not None:
        await served.compactor.close()
    if served.flusher is not None:
        await served.flusher.close()
