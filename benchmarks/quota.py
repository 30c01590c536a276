"""Memory of a node: under overwrites, at its quota, and with many times its quota on disk.

The node has a separate process, as users start it. The system reports its memory: its own anonymous pages, and pages of
mapped files, which the system reclaims when other processes need them. The memory of an empty node is subtracted.

A refused request is repeated until the node accepts it. The figures show the number of refusals, and that nothing was
lost.
"""

from __future__ import annotations

import argparse
import random
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.process import PASSWORD, USER, Process, run_penstock
from benchmarks.report import Report, make_parser
from penstock.wire.codec.frame import HEADER, HEADER_BYTES
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Delete, Get, Set, Stat
from penstock.wire.messages.sasl import SaslAuth

_BATCH = 200
_VBUCKETS = 1024
_MEGABYTE = 1 << 20
_PATIENCE = 120.0
_REFUSED = (Status.ETMPFAIL, Status.ENOMEM)
_LOGIN = SaslAuth(key=b"PLAIN", value=f"\0{USER}\0{PASSWORD}".encode()).encode()


class Memory(NamedTuple):
    """The memory of a process in bytes.

    Attributes:
        own: anonymous pages.
        mapped: pages of mapped files.
    """

    own: int
    mapped: int

    @classmethod
    def read(cls, process: Process) -> Memory:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        own, mapped = (re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE) for name in ("RssAnon", "RssFile"))
        assert own is not None
        assert mapped is not None
        return cls(int(own[1]) * 1024, int(mapped[1]) * 1024)


class BatchClient:
    """One connection that sends requests in batches, and repeats refused requests.

    Attributes:
        process: the node.
        refused: status (ETMPFAIL or ENOMEM) -> number of replies.
        longest: seconds of the longest batch, including its repetitions.
        peak: the largest memory of the node after a batch, in bytes.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.refused = dict.fromkeys(_REFUSED, 0)
        self.longest = 0.0
        self.peak = 0
        self._socket = socket.create_connection(("127.0.0.1", process.port), _PATIENCE)
        self._file = self._socket.makefile("rb", 1 << 20)
        self.send_batch([_LOGIN])

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def send_batch(self, requests: Sequence[bytes]) -> list[tuple[int, bytes]]:
        """Return status and body of the replies to requests."""
        self._socket.sendall(b"".join(requests))
        answers = []
        for _ in requests:
            head = HEADER.unpack(self._file.read(HEADER_BYTES))
            answers.append((head[5], self._file.read(head[6])))
        return answers

    def send_all(self, requests: Iterator[bytes], *, tries: int = 10_000) -> int:
        """Return the number of accepted requests: all, or fewer if one is still refused after `tries` tries."""
        taken = 0
        while batch := [request for _, request in zip(range(_BATCH), requests, strict=False)]:
            began = time.perf_counter()
            for _ in range(tries):
                statuses = [status for status, _ in self.send_batch(batch)]
                left = [request for request, status in zip(batch, statuses, strict=True) if status in _REFUSED]
                taken += len(batch) - len(left)
                for status in _REFUSED:
                    self.refused[status] += statuses.count(status)
                batch = left
                if not batch:
                    break
            self.longest = max(self.longest, time.perf_counter() - began)
            self.peak = max(self.peak, Memory.read(self.process).own)
            if batch:
                return taken
        return taken

    def read_stats(self) -> dict[str, int]:
        self._socket.sendall(Stat(key=b"memory").encode())
        found: dict[str, int] = {}
        while True:
            head = HEADER.unpack(self._file.read(HEADER_BYTES))
            body = self._file.read(head[6])
            if not head[2]:
                return found
            found[body[: head[2]].decode()] = int(body[head[2] :])


@contextmanager
def run_client(*given: object) -> Iterator[BatchClient]:
    with run_penstock("--vbuckets", _VBUCKETS, *given) as process:
        client = BatchClient(process)
        try:
            yield client
        finally:
            client.close()


def make_sets(numbers: Iterator[int] | range, value: bytes) -> Iterator[bytes]:
    return (Set(key=b"key-%09d" % n, value=value, vbucket=n % _VBUCKETS).encode() for n in numbers)


def measure_overwrites(report: Report, name: str, chosen: argparse.Namespace, choose: Callable[[], int]) -> None:
    """Fill a bucket in memory, and then change random documents."""
    value = random.Random(1).randbytes(chosen.value_bytes)
    with run_client() as client:
        empty = Memory.read(client.process).own
        client.send_all(make_sets(range(chosen.keys), value))
        began = time.perf_counter()
        count = chosen.turns * chosen.keys
        client.send_all(make_sets((choose() for _ in range(count)), value))
        seconds = time.perf_counter() - began
        stats = client.read_stats()
        live = stats["ep_log_live_bytes"] + stats["ep_index_bytes"]
        own = Memory.read(client.process).own - empty
        report.add_row(
            f"in memory, {name}",
            f"{live / 1e6:.0f} MB of keys, rows and live frames; memory {own / live:.2f} of that at the end, "
            f"{(client.peak - empty) / live:.2f} at most; mem_used {stats['mem_used'] / live:.2f}; "
            f"{count / seconds / 1e3:.0f} k/s, longest batch of {_BATCH} {client.longest * 1e3:.0f} ms",
        )


def measure_quota(report: Report, chosen: argparse.Namespace) -> None:
    """Fill a bucket in memory until it refuses changes, delete all documents, and fill it again."""
    value = random.Random(1).randbytes(chosen.value_bytes)
    with run_client("--memory", chosen.quota) as client:
        empty = Memory.read(client.process).own
        first = client.send_all(make_sets(range(10**9), value), tries=50)
        deletions = (Delete(key=b"key-%09d" % n, vbucket=n % _VBUCKETS).encode() for n in range(first))
        deleted = client.send_all(deletions)
        again = client.send_all(make_sets(range(10**9), value), tries=50)
        report.add_row(
            f"at a quota of {chosen.quota / 1e6:.0f} MB",
            f"{first} documents, {deleted} deletions, {again} documents again; ETMPFAIL "
            f"{client.refused[Status.ETMPFAIL]}, ENOMEM {client.refused[Status.ENOMEM]} times; "
            f"memory at most {(client.peak - empty) / 1e6:.0f} MB",
        )


def measure_beyond_quota(report: Report, chosen: argparse.Namespace) -> None:
    """Fill a bucket on disk with many times its quota, change a part of it, and read it."""
    value = random.Random(1).randbytes(chosen.large_bytes)
    count = chosen.times * chosen.quota // chosen.large_bytes
    chance = random.Random(2)
    with (
        tempfile.TemporaryDirectory(dir=chosen.directory) as directory,
        run_client("--memory", chosen.quota, "--data-dir", directory) as client,
    ):
        empty = Memory.read(client.process).own
        began = time.perf_counter()
        client.send_all(make_sets(range(count), value))
        client.send_all(make_sets((chance.randrange(count) for _ in range(count // 4)), value))
        written = count * 5 // 4 / (time.perf_counter() - began)
        longest = client.longest
        began = time.perf_counter()
        wrong = 0
        for first in range(0, count, _BATCH):
            numbers = range(first, min(first + _BATCH, count))
            gets = [Get(key=b"key-%09d" % n, vbucket=n % _VBUCKETS).encode() for n in numbers]
            wrong += sum(status != Status.SUCCESS or body[4:] != value for status, body in client.send_batch(gets))
        read = count / (time.perf_counter() - began)
        memory, stats = Memory.read(client.process), client.read_stats()
        report.add_row(
            f"on disk, {chosen.times} times a quota of {chosen.quota / 1e6:.0f} MB, {chosen.large_bytes} B each",
            f"{stats['ep_log_live_bytes'] / 1e6:.0f} MB live, {stats['ep_log_dead_bytes'] / 1e6:.0f} MB dead; "
            f"{written * chosen.large_bytes / 1e6:.0f} MB/s written, longest batch {longest * 1e3:.0f} ms, ETMPFAIL "
            f"{client.refused[Status.ETMPFAIL]}, ENOMEM {client.refused[Status.ENOMEM]} times; "
            f"{read * chosen.large_bytes / 1e6:.0f} MB/s read, {wrong} of {count} wrong; mem_used "
            f"{stats['mem_used'] / 1e6:.0f} MB, own pages {(memory.own - empty) / 1e6:.0f} MB, at most "
            f"{(client.peak - empty) / 1e6:.0f} MB, pages of files {memory.mapped / 1e6:.0f} MB",
        )


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--value-bytes", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quota", type=int, default=100_000_000)
    parser.add_argument("--large-bytes", type=int, default=4096)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument(
        "--directory", type=Path, default=None, help="directory for the files; default: that of temporary files"
    )
    chosen = parser.parse_args()
    report = Report("Memory of a node under overwrites and at its quota", chosen)
    chance = random.Random(3)
    measure_overwrites(report, "any document", chosen, lambda: chance.randrange(chosen.keys))
    measure_overwrites(
        report,
        "nine of ten times one of 1000",
        chosen,
        lambda: chance.randrange(1000 if chance.random() < 0.9 else chosen.keys),
    )
    measure_quota(report, chosen)
    measure_beyond_quota(report, chosen)
    report.finish()


if __name__ == "__main__":
    main()
