"""A node in a separate process, filled with changes, for the benchmarks that load it."""

from __future__ import annotations

import asyncio
import cProfile
import multiprocessing
import os
import pstats
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from benchmarks.kept import BUCKETS
from penstock.node import Node
from penstock.node.buckets import bucket_storage
from penstock.node.server.garbage import spare_present_objects
from penstock.store.bucket_store import BucketStore
from penstock.store.documents.vbucket import Vbucket

START_SECONDS = 600.0
_STOP_SECONDS = 120.0
_IDLE_SECONDS = 10.0
_PROBE_SECONDS = 0.001
_CHECKED_EVERY = 4096  # changes


class Disk(NamedTuple):
    """The place of a bucket on disk.

    Attributes:
        kind: the store, one of kept.BUCKETS. The node is the same with each of them.
        directory: the data directory.
    """

    kind: str
    directory: Path


class Pause(NamedTuple):
    """The longest pauses of an event loop. Each value is the longest by its own measure.

    Attributes:
        own: seconds, without the time for which its thread waited for a processor, if the system reports that time.
        seconds: seconds on the clock.
        cpu: CPU seconds of its thread.
    """

    own: float = 0.0
    seconds: float = 0.0
    cpu: float = 0.0


class NodeProcess(NamedTuple):
    """A running node.

    Attributes:
        port: where the node listens for key-value requests.
        http_port: where the node listens for management requests.
        frame_bytes: bytes of all changes that the node was filled with.
        pipe: to the node's process.
        pid: the node's process.
    """

    port: int
    http_port: int
    frame_bytes: int
    pipe: Pipe
    pid: int

    def read_cpu_seconds(self) -> float:
        """Return the CPU seconds that the node has used so far."""
        seconds: float = self._send_question("cpu")
        return seconds

    def longest_pause(self) -> Pause:
        """Return the longest pause of the node's event loop since the last call.

        The first call starts a timer in the node, which fires a thousand times a second.
        """
        return Pause(*self._send_question("pause"))

    def roll_back(self) -> None:
        """Roll every vbucket back to half of its seqnos, one in each iteration of the event loop, as a bridge does."""
        self._send_question("rollback")

    def lose_tail(self, changes: int) -> None:
        """Let every vbucket lose its newest changes and begin a branch, as after a crash before a commit.

        Args:
            changes: how many changes each vbucket loses, and then writes again with other keys.
        """
        self._send_question(("lose", changes))

    def count_sent_items(self) -> int:
        """Return how many changes the node has sent over the connections that are open."""
        items: int = self._send_question("sent")
        return items

    def settle(self) -> None:
        """Wait until the node is idle and its compaction has ended, but at most _IDLE_SECONDS."""
        deadline = time.monotonic() + _IDLE_SECONDS
        used = self.read_cpu_seconds()
        while time.monotonic() < deadline:
            time.sleep(0.1)
            before, used = used, self.read_cpu_seconds()
            if used - before < 0.005:
                return

    def _send_question(self, question: object) -> Any:
        self.pipe.send(question)
        return self.pipe.recv()


@contextmanager
def run_node(
    *,
    vbuckets: int,
    changes: int = 0,
    value_bytes: int = 0,
    varied: bool = False,
    make_values: Callable[[int, int], list[bytes]] | None = None,
    profile: bool = False,
    disk: Disk | None = None,
) -> Iterator[NodeProcess]:
    """Run a node with one bucket, `default`, filled with changes of different keys in all vbuckets.

    Args:
        vbuckets: number of vbuckets.
        changes: number of changes.
        value_bytes: size of each value.
        varied: whether each value has different random bytes, which cannot be compressed.
        make_values: returns the values of changes from one number up to another, in place of the above; a function of a
            module.
        profile: whether the node prints a profile at its end.
        disk: the place of the bucket; None: in memory.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    options = _NodeOptions(vbuckets, changes, value_bytes, varied, make_values, profile, disk)
    process = context.Process(target=_run_process, args=(theirs, options), daemon=True)
    process.start()
    try:
        theirs.close()  # so that the end of the process ends the wait
        if not ours.poll(START_SECONDS):
            raise TimeoutError("the node did not start")
        yield NodeProcess(*_receive_start(ours, process), ours, process.pid or 0)
    finally:
        with suppress(BrokenPipeError):
            ours.send("stop")
        process.join(_STOP_SECONDS)
        process.kill()


def _receive_start(pipe: Pipe, process: BaseProcess) -> tuple[int, int, int]:
    """Return the first three attributes of a NodeProcess. Raises RuntimeError if the process has ended."""
    try:
        port, http_port, frame_bytes = pipe.recv()
    except EOFError:
        process.join(_STOP_SECONDS)
        message = f"the node ended before it was ready, exit code {process.exitcode}: its error is above"
        raise RuntimeError(message) from None
    return port, http_port, frame_bytes


class _NodeOptions(NamedTuple):
    vbuckets: int
    changes: int
    value_bytes: int
    varied: bool
    make_values: Callable[[int, int], list[bytes]] | None
    profile: bool
    disk: Disk | None


def _run_process(pipe: Pipe, options: _NodeOptions) -> None:
    asyncio.run(_serve_until_stopped(pipe, options))


async def _fill_store(store: BucketStore, options: _NodeOptions) -> None:
    noise, value = random.Random(1), b"v" * options.value_bytes
    for number in range(options.changes):
        if options.varied:
            value = noise.randbytes(options.value_bytes)
        at = number % _CHECKED_EVERY
        if at == 0:
            await _let_compaction_follow(store)
            values = [] if options.make_values is None else options.make_values(number, number + _CHECKED_EVERY)
        store.vbuckets[number % options.vbuckets].set(b"\0key-%09d" % number, values[at] if values else value)


async def _let_compaction_follow(store: BucketStore) -> None:
    """Wait until compaction has caught up, because a store refuses changes while too many bytes wait for it."""
    async with asyncio.timeout(START_SECONDS):
        while store.log.segments.unclustered_bytes:  # noqa: ASYNC110 - the store has no event for it
            await asyncio.sleep(0.001)


async def _serve_until_stopped(pipe: Pipe, options: _NodeOptions) -> None:
    vbuckets, profile, disk = options.vbuckets, options.profile, options.disk
    loop = asyncio.get_running_loop()
    if disk is not None:
        patch.object(bucket_storage, "BucketStore", BUCKETS[disk.kind]).start()  # for all buckets that the node opens
    spare_present_objects()  # as `penstock serve` does
    node = await Node.start(port=0, vbuckets=vbuckets, data_dir=None if disk is None else disk.directory)
    store = node.buckets["default"].store
    await _fill_store(store, options)
    stopped = asyncio.Event()
    probe = _PauseProbe(loop)

    def answer_question() -> None:
        try:
            question = pipe.recv()
        except EOFError:  # the benchmark was killed
            question = "stop"
        match question:
            case "cpu":
                pipe.send(time.process_time())
            case "pause":
                pipe.send(probe.take_longest())
            case "rollback":
                _roll_back_vbuckets(loop, iter(store.vbuckets))
                pipe.send(None)
            case "lose", int(changes):
                _lose_tails(store, changes, b"v" * options.value_bytes)
                pipe.send(None)
            case "sent":
                pipe.send(sum(report.items_sent for report in node.streams("default")))
            case _:
                stopped.set()

    loop.add_reader(pipe.fileno(), answer_question)
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    pipe.send((node.kv_port, node.http_port, store.collect_stats().live_bytes))
    await stopped.wait()
    if profile:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    await node.stop()


def _roll_back_vbuckets(loop: asyncio.AbstractEventLoop, vbuckets: Iterator[Vbucket]) -> None:
    vbucket = next(vbuckets, None)
    if vbucket is not None:
        vbucket.rollback(vbucket.changes.high_seqno // 2)
        loop.call_soon(_roll_back_vbuckets, loop, vbuckets)


def _lose_tails(store: BucketStore, changes: int, value: bytes) -> None:
    """Roll the vbuckets back by some changes, begin branches, and write as many changes with other keys."""
    for vbucket in store.vbuckets:
        vbucket.rollback(vbucket.changes.high_seqno - changes)
        vbucket.history.begin_branch()
        for number in range(changes):
            vbucket.set(b"\0new-%09d" % (number * len(store.vbuckets) + vbucket.id), value)


class _PauseProbe:
    """A timer in the event loop that measures the longest delay of its callbacks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._longest = Pause()
        self._set_at: _Clocks | None = None
        self._schedule = _open_schedstat()

    def take_longest(self) -> Pause:
        if self._set_at is None:
            self._start_timer()
        longest, self._longest = self._longest, Pause()
        return longest

    def _start_timer(self) -> None:
        self._set_at = self._read_clocks()
        self._loop.call_later(_PROBE_SECONDS, self._on_timer)

    def _read_clocks(self) -> _Clocks:
        """Return the time that the event loop's thread has spent so far."""
        waited = 0
        if self._schedule is not None:
            waited = int(os.pread(self._schedule, 100, 0).split()[1])
        return _Clocks(self._loop.time(), time.thread_time(), waited / 1e9)

    def _on_timer(self) -> None:
        assert self._set_at is not None
        clock, cpu, waited = (now - before for now, before in zip(self._read_clocks(), self._set_at, strict=True))
        late = clock - _PROBE_SECONDS
        self._longest = Pause(*map(max, self._longest, (late - waited, late, cpu)))
        self._start_timer()


class _Clocks(NamedTuple):
    """Times of a thread in seconds.

    Attributes:
        clock: time on the loop's clock.
        cpu: CPU time.
        waited: time for which the thread waited for a processor.
    """

    clock: float
    cpu: float
    waited: float


def _open_schedstat() -> int | None:
    """Return the descriptor of this thread's scheduler statistics; None if the system has none."""
    try:
        return os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
