"""Durable SETs through a node: from the first request until SEQNO_PERSISTENCE reports that all changes are on disk.

The same node serves the same requests with each store: Penstock's log, or rows in SQLite, LMDB or RocksDB. Each node
has a separate process, commits every thousand changes or 5 ms, and syncs at each commit. The stores take turns, with
the same changes in each round. A turn begins when all nodes are idle. A client with one connection has 500 requests
outstanding. CPU time is that of the node, including its work after the last reply.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.kept import (
    Changes,
    add_store_options,
    format_ratios,
    generate_vbuuid,
    list_kinds,
    make_scratch_directory,
    rotate_names,
)
from benchmarks.kv import SET_REPLY, exchange_pieces
from benchmarks.report import Report, make_parser
from benchmarks.served import Disk, NodeProcess, run_node
from penstock.store.bucket_store import BucketStore
from penstock.wire.codec.frame import HEADER, HEADER_BYTES
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.kv import SeqnoPersistence, Set

SYNC_BYTES = 175_000  # of a thousand changes of 100 B
SYNCS = 200
COMMITS = 3000
CHANGES_OF_A_COMMIT = 20
_PATIENCE = 120.0


class Round(NamedTuple):
    """The encoded requests of one round.

    Attributes:
        pieces: SETs, the same number in each piece.
        waits: SEQNO_PERSISTENCE for the newest seqno of each changed vbucket.
    """

    pieces: list[bytes]
    waits: list[bytes]


class Rounds:
    """Makes the requests of consecutive rounds."""

    def __init__(self, *, vbuckets: int, value_bytes: int, pipelined: int) -> None:
        self._changes = Changes(vbuckets=vbuckets, value_bytes=value_bytes)
        self._half = pipelined // 2
        self._seqnos = Counter[int]()

    def make_round(self, count: int) -> Round:
        requests = []
        for vbucket, key, value in self._changes.take(count):
            requests.append(Set(key=key, value=value, vbucket=vbucket).encode())
            self._seqnos[vbucket] += 1
        pieces = [b"".join(requests[start : start + self._half]) for start in range(0, count, self._half)]
        return Round(pieces, [SeqnoPersistence(vbucket=v, seqno=seqno).encode() for v, seqno in self._seqnos.items()])


def store_round(port: int, requests: Round, half: int) -> float:
    """Return the seconds from the first request of a round until its changes are on disk."""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.settimeout(_PATIENCE)
        began = time.perf_counter()
        exchange_pieces(peer, requests.pieces, half * SET_REPLY)
        peer.sendall(b"".join(requests.waits))
        answers = peer.makefile("rb").read(len(requests.waits) * HEADER_BYTES)
        seconds = time.perf_counter() - began
    for _, opcode, _, _, _, status, body, _, _ in HEADER.iter_unpack(answers):
        if opcode != Opcode.SEQNO_PERSISTENCE or status or body:
            raise RuntimeError(f"reply 0x{opcode:02x} with status 0x{status:02x}, expected SEQNO_PERSISTENCE, success")
    return seconds


class Taken(NamedTuple):
    """Seconds of each round.

    Attributes:
        walls: on the clock.
        cpus: CPU seconds of the node.
    """

    walls: list[float]
    cpus: list[float]


def measure_case(report: Report, chosen: argparse.Namespace, vbuckets: int, value_bytes: int) -> None:
    half = chosen.pipelined // 2
    count = (chosen.changes if value_bytes < 512 else chosen.changes // 2) // half * half
    rounds = Rounds(vbuckets=vbuckets, value_bytes=value_bytes, pipelined=chosen.pipelined)
    with make_scratch_directory(chosen) as directory, ExitStack() as stack:
        nodes = {
            kind: stack.enter_context(
                run_node(vbuckets=vbuckets, disk=Disk(kind, directory / kind), profile=chosen.profile)
            )
            for kind in list_kinds(chosen)
        }
        taken = {kind: Taken([], []) for kind in nodes}
        for number in range(chosen.rounds + 1):
            requests = rounds.make_round(count)
            for kind in rotate_names(list(nodes), number):
                wall, cpu = _run_turn(nodes[kind], requests, half)
                if number:  # the first round starts with an empty bucket
                    taken[kind].walls.append(wall)
                    taken[kind].cpus.append(cpu)
    rates = {kind: count / median(each.walls) for kind, each in taken.items()}
    for kind, each in taken.items():
        report.add_row(
            f"{count} of {value_bytes} B, {vbuckets} vbuckets, {kind}",
            f"{rates[kind] / 1e3:.0f} k/s (best {count / min(each.walls) / 1e3:.0f}), "
            f"{median(each.cpus) / count * 1e6:.1f} us CPU a change{format_ratios(rates, kind)}",
        )


def _run_turn(node: NodeProcess, requests: Round, half: int) -> tuple[float, float]:
    before = node.read_cpu_seconds()
    wall = store_round(node.port, requests, half)
    node.settle()
    return wall, node.read_cpu_seconds() - before


def measure_sync(report: Report, directory: Path) -> None:
    """Measure the minimum cost of a commit on this disk."""
    data, seconds = os.urandom(SYNC_BYTES), []
    with (directory / "sync").open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            began = time.perf_counter()
            file.write(data)
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - began)
    seconds.sort()
    report.add_row(
        f"{SYNC_BYTES // 1000} KB appended to a file and synced",
        f"{median(seconds) * 1e3:.2f} ms median, {seconds[-SYNCS // 100] * 1e3:.2f} ms of one in a hundred",
    )


def measure_commits(report: Report, directory: Path) -> None:
    """Measure the CPU time of a commit of a few changes, without a node. It includes the write and the sync."""
    bucket = BucketStore.open(
        directory / "commits", "commits", vbuckets=4, clock=time.time_ns, new_vbuuid=generate_vbuuid
    )
    nanoseconds = []
    for number in range(COMMITS):
        for change in range(CHANGES_OF_A_COMMIT):
            bucket.vbuckets[change % 4].set(b"\0key-%09d-%09d" % (number, change), b"v" * 100)
        began = time.thread_time_ns()
        bucket.log.commits.run()
        nanoseconds.append(time.thread_time_ns() - began)
    bucket.close()
    nanoseconds.sort()
    report.add_row(
        f"a commit of {CHANGES_OF_A_COMMIT} changes of 100 B, Penstock, without a node",
        f"{median(nanoseconds) / 1e3:.1f} us of CPU median, {nanoseconds[COMMITS // 10] / 1e3:.1f} us the best tenth",
    )


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=100_000, help="changes per round of 100 B; half as many of 1 KB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pipelined", type=int, default=500)
    parser.add_argument("--vbuckets", type=int, nargs="*", default=[1, 1024])
    parser.add_argument("--value-bytes", type=int, nargs="*", default=[100, 1024])
    parser.add_argument("--profile", action="store_true", help="print where the nodes spend their time")
    add_store_options(parser)
    chosen = parser.parse_args()
    report = Report("Durable SETs through a node, against stores that keep rows", chosen)
    with make_scratch_directory(chosen) as directory:
        measure_sync(report, directory)
        measure_commits(report, directory)
    for value_bytes in chosen.value_bytes:
        for vbuckets in chosen.vbuckets:
            measure_case(report, chosen, vbuckets, value_bytes)
    report.finish()


if __name__ == "__main__":
    main()
