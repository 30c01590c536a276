"""The longest pause of a node's event loop while the node rewrites its log under load.

The bucket is filled. Then one connection changes existing keys as fast as possible, with 500 requests outstanding. A
second connection requests a compaction of the whole bucket. A timer in the node measures its longest delay, without the
time for which its thread waited for a processor. The load alone also delays the loop. So there are rows for the load
without a compaction, and for the same load on a bucket in memory.
"""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import median
from threading import Event
from typing import NamedTuple

from benchmarks.kept import (
    OURS,
    Changes,
    add_directory_option,
    fill_bucket,
    make_scratch_directory,
    open_bucket,
    run_in_process,
)
from benchmarks.kv import SET_REPLY, exchange_pieces
from benchmarks.report import Report, make_parser
from benchmarks.served import Disk, NodeProcess, Pause, run_node
from penstock.wire.codec.frame import HEADER, HEADER_BYTES
from penstock.wire.messages.kv import Set
from penstock.wire.messages.observe import CompactDb

PIECES = 200
_PATIENCE = 600.0


class Loaded(NamedTuple):
    """One piece of work under load.

    Attributes:
        seconds: the duration of the work.
        rate: changes stored per second meanwhile.
        pause: the longest pause of the event loop.
    """

    seconds: float
    rate: float
    pause: Pause


def fill_store(directory: Path, vbuckets: int, changes: int) -> None:
    bucket = open_bucket(OURS, directory, vbuckets)
    fill_bucket(bucket, Changes(vbuckets=vbuckets, value_bytes=100), changes)
    bucket.close()


def make_pieces(vbuckets: int, half: int) -> list[bytes]:
    """Return requests that change existing keys, `half` of them in each piece."""
    changes = Changes(vbuckets=vbuckets, value_bytes=100)
    requests = [
        Set(key=key, value=value, vbucket=vbucket).encode() for vbucket, key, value in changes.take(PIECES * half)
    ]
    return [b"".join(requests[start : start + half]) for start in range(0, len(requests), half)]


def run_load(port: int, requests: list[bytes], half: int, enough: Event) -> float:
    """Return the number of changes stored per second, until `enough` is set."""
    stored, began = 0, time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.settimeout(_PATIENCE)
        while not enough.is_set():
            exchange_pieces(peer, requests, half * SET_REPLY)
            stored += len(requests) * half
    return stored / (time.perf_counter() - began)


def run_under_load(node: NodeProcess, requests: list[bytes], half: int, meanwhile: Callable[[], object]) -> Loaded:
    enough = Event()
    with ThreadPoolExecutor(1) as pool:
        loading: Future[float] = pool.submit(run_load, node.port, requests, half, enough)
        node.longest_pause()
        began = time.perf_counter()
        meanwhile()
        seconds, pause = time.perf_counter() - began, node.longest_pause()
        enough.set()
        rate = loading.result()
    return Loaded(seconds, rate, pause)


def compact_bucket(port: int) -> None:
    """Compact the whole bucket."""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.settimeout(_PATIENCE)
        peer.sendall(CompactDb().encode())
        answer = HEADER.unpack(peer.makefile("rb").read(HEADER_BYTES))
        if answer[5]:
            raise RuntimeError(f"status 0x{answer[5]:02x} of a compaction, expected success")


def add_pause_row(report: Report, about: str, loaded: list[Loaded]) -> None:
    pauses = sorted(each.pause for each in loaded)
    longest, middle = pauses[-1], pauses[len(pauses) // 2]
    report.add_row(
        about,
        f"longest pause {longest.own * 1e3:.1f} ms, {longest.cpu * 1e3:.1f} ms CPU time of the loop's thread, "
        f"{longest.seconds * 1e3:.1f} ms on the clock (median of {len(pauses)} rounds {middle.own * 1e3:.1f} ms); "
        f"{median(each.rate for each in loaded) / 1e3:.0f} k/s stored meanwhile, "
        f"for {median(each.seconds for each in loaded):.1f} s",
    )


def measure_case(report: Report, chosen: argparse.Namespace, disk: Disk | None) -> None:
    half = chosen.pipelined // 2
    requests = make_pieces(chosen.vbuckets, half)
    where = "in memory" if disk is None else "on disk"
    with run_node(vbuckets=chosen.vbuckets, disk=disk, profile=chosen.profile) as node:
        node.settle()
        alone = [run_under_load(node, requests, half, lambda: time.sleep(chosen.seconds)) for _ in range(chosen.rounds)]
        add_pause_row(report, f"{where}, under load", alone)
        if disk is not None:
            compacted = [
                run_under_load(node, requests, half, lambda: compact_bucket(node.port)) for _ in range(chosen.rounds)
            ]
            add_pause_row(report, f"{where}, under load, everything being rewritten", compacted)


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=3_000_000, help="number of changes that fill the bucket")
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--pipelined", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of load without a compaction")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="print where the node spends its time")
    add_directory_option(parser)
    chosen = parser.parse_args()
    report = Report(f"Pauses of a node's event loop, {chosen.pipelined} SETs under way", chosen)
    measure_case(report, chosen, None)
    with make_scratch_directory(chosen) as directory:
        run_in_process(fill_store, directory / "default", chosen.vbuckets, chosen.changes)
        measure_case(report, chosen, Disk(OURS, directory))
    report.finish()


if __name__ == "__main__":
    main()
