"""A node in a process of its own, for the benchmarks that load one."""

from __future__ import annotations

import asyncio
import cProfile
import multiprocessing
import pstats
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from typing import NamedTuple

from penstock.node import Node

START_SECONDS = 600.0


class Served(NamedTuple):
    """port: where the node listens. frame_bytes: of all changes that it was filled with. cpu: asks for its CPU time."""

    port: int
    frame_bytes: int
    pipe: Pipe

    def cpu(self) -> float:
        """Return the CPU seconds that the node has used so far."""
        self.pipe.send("cpu")
        seconds: float = self.pipe.recv()
        return seconds


@contextmanager
def served(*, vbuckets: int, changes: int = 0, value_bytes: int = 0, profile: bool = False) -> Iterator[Served]:
    """Run a node with one bucket, `default`, filled with changes of different keys, vbuckets in turn."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(theirs, vbuckets, changes, value_bytes, profile), daemon=True)
    process.start()
    try:
        if not ours.poll(START_SECONDS):
            raise TimeoutError("the node did not start")
        port, frame_bytes = ours.recv()
        yield Served(port, frame_bytes, ours)
    finally:
        ours.send("stop")
        process.join(30)
        process.kill()


def _run(pipe: Pipe, vbuckets: int, changes: int, value_bytes: int, profile: bool) -> None:
    asyncio.run(_serve(pipe, vbuckets, changes, value_bytes, profile))


async def _serve(pipe: Pipe, vbuckets: int, changes: int, value_bytes: int, profile: bool) -> None:
    loop = asyncio.get_running_loop()
    node = await Node.start(port=0, vbuckets=vbuckets)
    store = node.buckets["default"].store
    value = b"v" * value_bytes
    for number in range(changes):
        store.vbuckets[number % vbuckets].set(b"key-%09d" % number, value)
    stopped = asyncio.Event()
    loop.add_reader(pipe.fileno(), lambda: pipe.send(time.process_time()) if pipe.recv() == "cpu" else stopped.set())
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    pipe.send((node.kv_port, store.stats().live_bytes))
    await stopped.wait()
    if profile:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    await node.stop()
