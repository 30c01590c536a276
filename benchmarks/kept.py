"""Buckets on disk in each store, filled with the same changes: Penstock's store, and the row stores.

Keys have 20 bytes, values are random letters, with a fixed seed. Of ten changes, seven have new keys and three have
existing keys. The vbuckets take turns.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from benchmarks.row_engines import list_installed_engines
from benchmarks.rowstores import ROW_BUCKETS
from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.wire.codec.constants import MAX_SEQNO

OURS = "Penstock"
BUCKETS: dict[str, type[BucketStore]] = {OURS: BucketStore, **ROW_BUCKETS}

COMMIT_COUNT = BucketSettings().commit_count
NEW = 0.7
"""The share of changes with new keys."""

CHUNK_BYTES = 2 * 1024 * 1024

_LIBC = ctypes.CDLL(None, use_errno=True)
_SPAWN = multiprocessing.get_context("spawn")

Result = TypeVar("Result")

_VALUES = 4096
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


class Change(NamedTuple):
    vbucket: int
    key: bytes
    value: bytes


class Changes:
    """An endless series of changes. Equal arguments give the same series."""

    def __init__(self, *, vbuckets: int, value_bytes: int, new: float = NEW, seed: int = 1) -> None:
        """Start the series.

        Args:
            vbuckets: the number of vbuckets, a power of two.
            value_bytes: the size of each value.
            new: the share of changes with new keys, from 0 to 1.
            seed: the seed of random numbers.
        """
        self._random = Random(seed)
        letters = bytes(self._random.choices(_LETTERS, k=1 << 20))
        begins = [self._random.randrange(len(letters) - value_bytes) for _ in range(_VALUES)]
        self._values = [letters[begin : begin + value_bytes] for begin in begins]
        self._mask = vbuckets - 1
        self._new = new
        self._keys = self._made = 0

    def take(self, count: int) -> Iterator[Change]:
        random = self._random.random
        for made in range(self._made, self._made + count):
            number = self._keys
            if number and random() >= self._new:
                number = int(random() * number)
            else:
                self._keys += 1
            yield Change(number * 7919 & self._mask, b"key:%016d" % number, self._values[made % _VALUES])
        self._made += count


def open_bucket(kind: str, directory: Path, vbuckets: int) -> BucketStore:
    """Return the bucket in a directory; create it if it does not exist."""
    return BUCKETS[kind].open(directory, "default", vbuckets=vbuckets, clock=time.time_ns, new_vbuuid=generate_vbuuid)


def generate_vbuuid() -> int:
    return int.from_bytes(os.urandom(6)) or 1


class Spent(NamedTuple):
    """The times of some work.

    Attributes:
        wall: seconds on the clock.
        cpu: CPU seconds of this process.
    """

    wall: float
    cpu: float


def fill_bucket(bucket: BucketStore, changes: Changes, count: int) -> Spent:
    """Return the times of storing changes, with a commit for every thousand.

    Compaction, for which a node has a thread, runs between the commits.
    """
    vbuckets = bucket.vbuckets
    wall = cpu = 0.0
    for first in range(0, count, COMMIT_COUNT):
        batch = list(changes.take(min(COMMIT_COUNT, count - first)))
        began, began_cpu = time.perf_counter(), time.process_time()
        for vbucket, key, value in batch:
            vbuckets[vbucket].set(key, value)
        bucket.log.commits.run()
        while (compaction := bucket.compactor.next_piece()) is not None:
            compaction.run()
            compaction.finish()
        wall += time.perf_counter() - began
        cpu += time.process_time() - began_cpu
    return Spent(wall, cpu)


class Volume(NamedTuple):
    frames: int
    nbytes: int


def read_all_changes(bucket: BucketStore) -> Volume:
    """Return the volume of a backfill of all vbuckets."""
    frames = nbytes = 0
    for vbucket in bucket.vbuckets:
        snapshot = vbucket.history.open_snapshot(0, MAX_SEQNO)
        while (chunk := snapshot.read(7, CHUNK_BYTES)).frame_count:
            frames += chunk.frame_count
            nbytes += len(chunk.data)
    return Volume(frames, nbytes)


def count_disk_bytes(directory: Path) -> int:
    """Return the bytes that the files in a directory occupy on disk."""
    return sum(file.stat().st_blocks * 512 for file in directory.rglob("*") if file.is_file())


# Common options of the benchmarks of durable buckets


def add_store_options(parser: argparse.ArgumentParser, *, against: list[str] | None = None) -> None:
    """Add the options --directory and --against.

    Args:
        parser: the parser.
        against: the default row stores to compare with; None: all that are installed.
    """
    add_directory_option(parser)
    known = list_installed_engines()
    parser.add_argument(
        "--against", nargs="*", default=known if against is None else against, choices=known, help="row stores"
    )


def add_directory_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--directory", type=Path, default=Path("build"), help="directory for the files, on the disk to measure"
    )


def list_kinds(chosen: argparse.Namespace) -> list[str]:
    return [OURS, *chosen.against]


@contextmanager
def make_scratch_directory(chosen: argparse.Namespace) -> Iterator[Path]:
    """Yield a new directory, which is deleted at the end of the block."""
    chosen.directory.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="durable-", dir=chosen.directory))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def format_ratios(rates: dict[str, float], kind: str) -> str:
    """Return the ratios of Penstock's rate to those of the row stores as text; empty if `kind` is a row store."""
    others = [other for other in rates if other != OURS]
    if kind != OURS or not others:
        return ""
    return "; " + ", ".join(f"{rates[OURS] / rates[other]:.2f}x {other}" for other in others)


def rotate_names(names: Sequence[str], by: int) -> list[str]:
    """Return the names in an order that starts `by` names later, so that each round has a different first name."""
    by %= len(names)
    return [*names[by:], *names[:by]]


def run_in_process(work: Callable[..., Result], *arguments: object) -> Result:
    """Return the result of a function that runs in a new process. The process ends without closing anything."""
    receiver, sender = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_send_result, args=(sender, work, arguments))
    process.start()
    sender.close()
    try:
        result: Result = receiver.recv()
    except EOFError:
        raise RuntimeError(f"{work.__name__} failed") from None
    finally:
        process.join()
    return result


def _send_result(sender: Connection, work: Callable[..., object], arguments: tuple[object, ...]) -> None:
    sender.send(work(*arguments))
    os._exit(0)


def evict_files(directory: Path) -> float:
    """Evict the files in a directory from the page cache.

    Pages that a process has mapped and read stay in the cache.

    Returns:
        The share of pages that are still in the cache, from 0 to 1.
    """
    files = [file for file in directory.rglob("*") if file.is_file() and file.stat().st_size]
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    pages = np.concatenate([_read_cached_pages(file) for file in files])
    return float(np.mean(pages & 1))


def _read_cached_pages(file: Path) -> npt.NDArray[np.uint8]:
    """Return whether each page of a file is in the page cache, without loading it; uint8, shape (pages,)."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        start = np.frombuffer(mapped, np.uint8)
        pages = np.zeros(-(-len(mapped) // mmap.PAGESIZE), np.uint8)
        if _LIBC.mincore(ctypes.c_void_p(start.ctypes.data), ctypes.c_size_t(len(mapped)), pages.ctypes):
            raise OSError(ctypes.get_errno(), "mincore")
        del start
    return pages
