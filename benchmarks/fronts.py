"""The fronts of the client: blocking against asynchronous, the first batch of a process, and the start of the command.

Every figure is CPU time, user and system, of whole processes or of all threads of one. Each round measures all ways in
turn, and the report has the median of the rounds' ratios or differences. So other work on the machine affects both
sides.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

from benchmarks.report import Report, make_parser
from benchmarks.served import run_node
from benchmarks.stream import Consumed, run_consumer

FRONTS = ("native", "read_changes")
FIRST_BATCH = """
import sys
import penstock
assert next(penstock.read_changes(sys.argv[1], stop="now")).num_rows
"""
PROGRAMS = {
    "pyarrow": ["-c", "import pyarrow"],
    "first batch": ["-c", FIRST_BATCH],
    "python": ["-c", "pass"],
    "version": ["-m", "penstock", "--version"],
}


def measure_process(*arguments: str) -> float:
    """Return the CPU seconds of a Python process. Modules are loaded from bytecode, as after an installation."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare_fronts(url: str, changes: int, rounds: int) -> list[dict[str, Consumed]]:
    """Return for each round the read of each front, in processes that have read before."""
    pools = {name: ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) for name in FRONTS}
    taken = []
    for turn in range(-1, rounds):  # the first turn imports, and does not count
        names = FRONTS if turn % 2 else FRONTS[::-1]
        found = {name: pools[name].submit(run_consumer, url, name).result() for name in names}
        if any(each.rows != changes for each in found.values()):
            raise RuntimeError(f"read {found} of {changes} changes")
        taken += [found] if turn >= 0 else []
    for pool in pools.values():
        pool.shutdown()
    return taken


def main() -> None:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--changes", type=int, default=5_000_000, help="changes of 100 B in 64 vbuckets")
    parser.add_argument("--rounds", type=int, default=15, help="the size of reads differs from one round to the next")
    chosen = parser.parse_args()
    report = Report("The blocking front, the first batch of a process, and the start of the command", chosen)
    with run_node(vbuckets=64, changes=chosen.changes, value_bytes=100) as node:
        taken = compare_fronts(f"couchbase://127.0.0.1:{node.port}", chosen.changes, chosen.rounds)
    asynchronous, blocking = ([each[name] for each in taken] for name in FRONTS)
    pairs = [*zip(blocking, asynchronous, strict=True)]
    report.add_row(
        f"read_changes against Bucket.batches, {chosen.changes} changes",
        f"{statistics.median(b.cpu / a.cpu for b, a in pairs):.2f} of the CPU, "
        f"{statistics.median(b.wall / a.wall for b, a in pairs):.2f} of the time",
    )
    with run_node(vbuckets=64, changes=1000, value_bytes=100) as node:
        programs = {**PROGRAMS, "first batch": [*PROGRAMS["first batch"], f"couchbase://127.0.0.1:{node.port}"]}
        rounds = [
            {name: measure_process(*arguments) for name, arguments in programs.items()}
            for _ in range(-1, chosen.rounds)
        ][1:]
    own = statistics.median(each["first batch"] - each["pyarrow"] for each in rounds)
    median = {name: statistics.median(each[name] for each in rounds) for name in programs}
    report.add_row(
        "first batch of a process, without the import of pyarrow",
        f"{own:.2f} s of CPU; the process {median['first batch']:.2f} s, `import pyarrow` {median['pyarrow']:.2f} s",
    )
    report.add_row(
        "penstock --version", f"{median['version']:.3f} s of CPU; Python without a program {median['python']:.3f} s"
    )
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    report.add_row("processes that wanted a processor, last 1, 5 and 15 minutes", load)
    report.finish()


if __name__ == "__main__":
    main()
