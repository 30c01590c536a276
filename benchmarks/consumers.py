"""Penstock's consumer beside go-dcp and java-dcp-client: the same node, the same data, in turns.

Each consumer is a program of its own. Penstock's one makes record batches of all columns; the others count changes,
with their usual interface for programs. Rollback mitigation, checkpoints and metrics are off. CPU time counts from the
request of the streams to the last change, so the start of a JVM does not count. Peak memory is that of the whole
program. `tools/install_compat` installs the programs of others; a missing one is left out.

Latency is the time from the acknowledgement of a SET to the arrival of its change in the program, one change at a time.
Where the change comes before the acknowledgement, it is 0.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from benchmarks.process import PASSWORD, USER
from benchmarks.report import Report, make_parser
from benchmarks.served import NodeProcess, run_node
from penstock.wire.codec.frame import HEADER_BYTES
from penstock.wire.messages.kv import Set

_COMPAT = Path(__file__).parent.parent / "build" / "compat"
_PATIENCE = 300.0
_VBUCKETS = 64
_TICK = 0.001
"""Seconds between two writes of SETs to the socket."""


def list_programs() -> dict[str, list[str]]:
    """Return the command of each installed consumer."""
    programs = {"Penstock": [sys.executable, "-m", "benchmarks.counting_consumer"]}
    go, java = _COMPAT / "go" / "count", _COMPAT / "java" / "classes" / "Count.class"
    if go.exists():
        programs["go-dcp"] = [str(go)]
    if java.exists():
        path = os.pathsep.join([str(java.parent), str(_COMPAT / "java" / "jars" / "*")])
        programs["java-dcp-client"] = ["java", "-cp", path, "Count"]
    return programs


class Consumer:
    """A running consumer."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self._output: IO[str] = process.stdout

    @classmethod
    @contextmanager
    def running(cls, command: Sequence[str], node: NodeProcess, wanted: int, start: str) -> Iterator[Consumer]:
        """Start a consumer of the bucket `default`, and kill it at the end of the block."""
        place = [f"127.0.0.1:{node.port}", f"127.0.0.1:{node.http_port}", USER, PASSWORD, "default", str(wanted), start]
        with subprocess.Popen([*command, *place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            killer = threading.Timer(_PATIENCE, process.kill)
            killer.start()
            try:
                yield cls(process)
            finally:
                killer.cancel()
                process.kill()

    def expect(self, word: str) -> list[str]:
        """Return the words of the next line that begins with a word. Other lines are logs."""
        for line in self._output:
            if line.split()[:1] == [word]:
                return line.split()
        raise RuntimeError(f"the consumer ended without {word!r}, exit code {self._process.wait(_PATIENCE)}")

    def read_cpu_seconds(self) -> float:
        """Return the CPU seconds of all threads so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def read_peak(self) -> int:
        """Return the peak memory in MiB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) // 1024

    def read_arrivals(self) -> dict[str, int]:
        """Return the time of arrival of each key, in nanoseconds of the system's clock."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.close()
        found = (line.split() for line in self._output)
        return {words[0]: int(words[1]) for words in found if len(words) == 2 and words[1].isdecimal()}


class Counted(NamedTuple):
    """One read of the bucket: seconds on the clock, CPU seconds, and peak memory in MiB."""

    wall: float
    cpu: float
    peak: int


def count_changes(command: Sequence[str], node: NodeProcess, changes: int) -> Counted:
    with Consumer.running(command, node, changes, "beginning") as consumer:
        consumer.expect("starting")
        wall, cpu = time.perf_counter(), consumer.read_cpu_seconds()
        consumer.expect("done")
        return Counted(time.perf_counter() - wall, consumer.read_cpu_seconds() - cpu, consumer.read_peak())


def measure_throughput(report: Report, programs: dict[str, list[str]], changes: int, rounds: int) -> None:
    taken: dict[str, list[Counted]] = {name: [] for name in programs}
    with run_node(vbuckets=_VBUCKETS, changes=changes, value_bytes=100) as node:
        for _ in range(rounds):
            for name, command in programs.items():
                taken[name].append(count_changes(command, node, changes))
    ours = statistics.median(each.cpu for each in taken["Penstock"])
    for name, runs in taken.items():
        wall, cpu = statistics.median(each.wall for each in runs), statistics.median(each.cpu for each in runs)
        report.add_row(
            f"{name}, {changes} changes of 100 B",
            f"{changes / wall / 1e6:.3f} M changes/s, {node.frame_bytes / wall / 1e6:.0f} MB/s, "
            f"{cpu / changes * 1e9:.0f} ns CPU a change ({cpu / ours:.1f} times Penstock), "
            f"peak {max(each.peak for each in runs)} MiB",
        )


def write_paced(port: int, rate: int, count: int, prefix: str) -> dict[str, int]:
    """Send SETs at a steady rate; return the time at which each was acknowledged, by key."""
    keys = [f"{prefix}-{number}" for number in range(count)]
    frames = [
        Set(key=key.encode(), value=b"v" * 100, vbucket=number % _VBUCKETS, flags=0, expiry=0).encode()
        for number, key in enumerate(keys)
    ]
    acknowledged: dict[str, int] = {}

    def read_replies(connection: socket.socket) -> None:
        received = 0
        while len(acknowledged) < count:
            data = connection.recv(1 << 18)
            if not data:
                return
            received, now = received + len(data), time.time_ns()
            for key in keys[len(acknowledged) : received // HEADER_BYTES]:  # a reply to SET is a header alone
                acknowledged[key] = now

    with socket.create_connection(("127.0.0.1", port), _PATIENCE) as connection:
        reader = threading.Thread(target=read_replies, args=(connection,))
        reader.start()
        begun, sent = time.perf_counter(), 0
        while sent < count:
            due = min(count, int((time.perf_counter() - begun) * rate) + 1)
            connection.sendall(b"".join(frames[sent:due]))
            sent = due
            time.sleep(_TICK)
        reader.join(_PATIENCE)
    return acknowledged


def measure_latency(report: Report, programs: dict[str, list[str]], rate: int, seconds: float) -> None:
    count = int(rate * seconds)
    with run_node(vbuckets=_VBUCKETS) as node:
        for name, command in programs.items():
            with Consumer.running(command, node, count, "now") as consumer:
                consumer.expect("ready")
                acknowledged = write_paced(node.port, rate, count, f"{name}-{rate}")
                consumer.expect("done")
                arrivals = consumer.read_arrivals()
            delays = sorted(max(0, arrivals[key] - at) for key, at in acknowledged.items() if key in arrivals)
            if len(delays) < count:
                raise RuntimeError(f"{name}: {len(delays)} of {count} changes have arrived")
            middle, late = (delays[int(len(delays) * share)] / 1e6 for share in (0.5, 0.99))
            report.add_row(f"{name}, {rate} SETs a second for {seconds:g} s", f"p50 {middle:.2f} ms, p99 {late:.2f} ms")


def main() -> None:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--changes", type=int, default=10_000_000, help="changes of 100 B in 64 vbuckets")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", type=int, nargs="*", default=[1000, 20_000], help="SETs a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of writes at each rate")
    parser.add_argument("--programs", nargs="*", default=[], help="only these consumers")
    chosen = parser.parse_args()
    programs = {
        name: command for name, command in list_programs().items() if not chosen.programs or name in chosen.programs
    }
    load = os.getloadavg()[0]
    report = Report("Consumers of one node: Penstock, go-dcp and java-dcp-client", chosen)
    measure_throughput(report, programs, chosen.changes, chosen.rounds)
    for rate in chosen.rates:
        measure_latency(report, programs, rate, chosen.seconds)
    report.add_row("load of the machine before and after", f"{load:.1f} and {os.getloadavg()[0]:.1f}")
    report.finish()


if __name__ == "__main__":
    main()
