"""Replication, moves and failovers between node processes, driven by this process as the commands do.

Replication is compared with a copy of the same bytes over a loopback socket, and with a consumer that reads them into
Arrow. A move is measured by the longest time between two acknowledged writes of a client. A failover is measured by
the time until the first accepted write.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import penstock
from benchmarks.report import Report, make_parser
from benchmarks.served import NodeProcess, run_node
from benchmarks.stream import run_consumer
from penstock.client.cluster.map_publisher import MapPublisher
from penstock.client.cluster.node_failover import fail_over
from penstock.client.cluster.vbucket_mover import VbucketMover
from penstock.client.connect.address import Address, parse_address
from penstock.client.replication.replicator import ReplicationOptions, Replicator

CHUNK = 1 << 20
PAUSE_SECONDS = 2.0


def make_url(node: NodeProcess) -> str:
    return f"couchbase://127.0.0.1:{node.port}/default"


def make_address(node: NodeProcess) -> Address:
    return parse_address(make_url(node))


async def replicate_once(source: Address, target: Address) -> float:
    """Return the seconds until the target has all changes."""
    async with Replicator(source, target, ReplicationOptions(until_caught_up=True)) as replicator:
        started = time.perf_counter()
        await replicator.run()
        return time.perf_counter() - started


def copy_over_loopback(nbytes: int) -> float:
    """Return the seconds in which one thread sends bytes to another over a socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    data = bytes(CHUNK)

    def send() -> None:
        left = nbytes
        while left:
            left -= sender.send(data[: min(left, CHUNK)])
        sender.close()

    started = time.perf_counter()
    thread = threading.Thread(target=send)
    thread.start()
    buffer = bytearray(CHUNK)
    while receiver.recv_into(buffer):
        pass
    thread.join()
    receiver.close()
    return time.perf_counter() - started


def measure_replication(report: Report, chosen: argparse.Namespace, value_bytes: int, changes: int) -> None:
    taken = dict[str, list[float]](replicated=[], copied=[], consumed=[])
    with run_node(vbuckets=chosen.vbuckets, changes=changes, value_bytes=value_bytes) as source:
        for _ in range(chosen.rounds):
            with run_node(vbuckets=chosen.vbuckets) as target:
                taken["replicated"].append(asyncio.run(replicate_once(make_address(source), make_address(target))))
            taken["copied"].append(copy_over_loopback(source.frame_bytes))
            taken["consumed"].append(run_consumer(make_url(source), "native").wall)
    seconds = {name: statistics.median(found) for name, found in taken.items()}
    report.add_row(
        f"replication of {changes} changes of {value_bytes} B, {chosen.vbuckets} vbuckets",
        f"{changes / seconds['replicated'] / 1e3:.0f} k changes/s, "
        f"{source.frame_bytes / seconds['replicated'] / 1e6:.0f} MB/s, "
        f"{seconds['replicated'] / seconds['copied']:.1f} times a copy over loopback, "
        f"{seconds['replicated'] / seconds['consumed']:.1f} times a consumer",
    )


class Writer:
    """A client that writes one document after the other, and the moments of its acknowledgements."""

    def __init__(self, url: str) -> None:
        self.moments: list[float] = []
        self._url = url

    async def run(self) -> None:
        async with penstock.connect(self._url) as bucket:
            number = 0
            while True:
                await bucket.upsert(f"written-{number % 1000}", b"v")
                self.moments.append(time.perf_counter())
                number += 1

    def find_longest_pause(self) -> float:
        return max(after - before for before, after in zip(self.moments, self.moments[1:], strict=False))


async def move_under_writer(source: NodeProcess, target: NodeProcess) -> tuple[float, float]:
    """Return the seconds of the move of vbucket 0, and the longest pause of a writer."""
    writer, address = Writer(make_url(source)), make_address(source)
    publisher = MapPublisher(address)
    writing = asyncio.create_task(writer.run())
    try:
        for node in (source, target):
            await publisher.load(make_address(node).hosts[0])
        started = time.perf_counter()
        await VbucketMover(publisher, address).move([0], address.hosts[0], make_address(target).hosts[0])
        seconds = time.perf_counter() - started
        # A pause that still lasts ends with the next write.
        await asyncio.wait([writing], timeout=PAUSE_SECONDS)
    finally:
        writing.cancel()
        await asyncio.wait([writing])
        await publisher.close()
    return seconds, writer.find_longest_pause()


def measure_moves(report: Report, chosen: argparse.Namespace) -> None:
    found = []
    for _ in range(chosen.rounds):
        with (
            run_node(vbuckets=1, changes=chosen.move_changes, value_bytes=100) as source,
            run_node(vbuckets=1) as target,
        ):
            found.append(asyncio.run(move_under_writer(source, target)))
    report.add_row(
        f"move of a vbucket with {chosen.move_changes} changes under a writer",
        f"{statistics.median(seconds for seconds, _ in found):.2f} s, longest pause of the writer "
        f"{max(pause for _, pause in found) * 1e3:.0f} ms",
    )


@contextmanager
def run_replicated(chosen: argparse.Namespace) -> Iterator[tuple[Address, NodeProcess]]:
    """Run a replica of a node that has ended. Yields the address of the ended node too."""
    with ExitStack() as stack:
        target = stack.enter_context(run_node(vbuckets=chosen.vbuckets))
        with run_node(vbuckets=chosen.vbuckets, changes=chosen.failover_changes, value_bytes=100) as source:
            lost = make_address(source)
            asyncio.run(replicate_once(lost, make_address(target)))
        yield lost, target


async def fail_over_and_write(lost: Address, target: NodeProcess) -> float:
    """Return the seconds until the first write is accepted."""
    publisher = MapPublisher(make_address(target))
    started = time.perf_counter()
    try:
        await publisher.load(make_address(target).hosts[0])
        await fail_over(publisher, lost.hosts[0], make_address(target), may_lose=True)
        async with penstock.connect(make_url(target)) as bucket:
            await bucket.upsert("first", b"v")
    finally:
        await publisher.close()
    return time.perf_counter() - started


def measure_failovers(report: Report, chosen: argparse.Namespace) -> None:
    found = []
    for _ in range(chosen.rounds):
        with run_replicated(chosen) as (lost, target):
            found.append(asyncio.run(fail_over_and_write(lost, target)))
    report.add_row(
        f"failover to a replica with {chosen.failover_changes} changes, {chosen.vbuckets} vbuckets",
        f"{statistics.median(found) * 1e3:.0f} ms to the first accepted write (longest {max(found) * 1e3:.0f} ms)",
    )


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=2_000_000, help="number of changes of 100 B; a fifth for 1 KB")
    parser.add_argument("--move-changes", type=int, default=100_000)
    parser.add_argument("--failover-changes", type=int, default=1_000_000)
    parser.add_argument("--vbuckets", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    report = Report("Replication, moves and failovers between node processes", chosen)
    for value_bytes in (100, 1024):
        measure_replication(report, chosen, value_bytes, chosen.changes if value_bytes < 512 else chosen.changes // 5)
    measure_moves(report, chosen)
    measure_failovers(report, chosen)
    report.finish()


if __name__ == "__main__":
    main()
