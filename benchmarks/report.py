"""The common parts of the benchmarks: timing that other load disturbs little, and a report that prints and records.

A benchmark states a question, measures cases in turn and prints rows:

    report = Report("Cost of decoding", make_parser("nothing to choose").parse_args())
    for name, times in time_in_turns({"one way": f, "another": g}, rounds=25).items():
        report.add_row(name, f"{times.median / count * 1e9:.0f} ns/message")
    report.finish()

With --record the rows are also appended to RESULTS.md.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parent / "RESULTS.md"

Case = Callable[[], object]


class Times(NamedTuple):
    """CPU seconds of one call.

    Attributes:
        median: of all rounds.
        best: of all rounds.
    """

    median: float
    best: float


def time_in_turns(
    cases: Mapping[str, Case], rounds: int, *, calls: int = 1, prepare: Case | None = None
) -> dict[str, Times]:
    """Return the times of each case. The cases run in turn, so that a disturbance affects all of them alike.

    Garbage collection is off. Times are CPU times of all threads of this process, because other processes affect them
    less than the clock.

    Args:
        cases: name -> function.
        rounds: number of turns of each case.
        calls: number of timed calls in each turn.
        prepare: called before each call; its time is not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for case in cases.values():
        case()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, case in cases.items():
                for _ in range(calls):
                    if prepare is not None:
                        prepare()
                    start = time.process_time()
                    case()
                    seconds[name].append(time.process_time() - start)
    finally:
        gc.enable()
    return {name: Times(statistics.median(taken), min(taken)) for name, taken in seconds.items()}


def make_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the option --record; a benchmark adds its own options."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--record", action="store_true", help="append the figures to RESULTS.md")
    return parser


def describe_machine() -> str:
    """Return processor, number of usable cores, Python and date as text, because the figures depend on them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{_processor()}, {cores} cores, {platform.system()}, {python}, {datetime.now(UTC):%Y-%m-%d}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def format_command() -> str:
    """Return the command line that repeats this benchmark."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--record"]
    return " ".join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *arguments])


class Report:
    """Rows of figures under a question. Each row is printed at once."""

    def __init__(self, question: str, chosen: argparse.Namespace) -> None:
        self._question = question
        self._record: bool = chosen.record
        self._rows: list[tuple[str, str]] = []
        print(f"{question}\n{describe_machine()}\n$ {format_command()}")

    def add_row(self, name: str, figures: str) -> None:
        """Add a row and print it."""
        self._rows.append((name, figures))
        print(f"  {name:<52} {figures}", flush=True)

    def finish(self) -> None:
        """Append the rows to RESULTS.md if the command line has --record."""
        if not self._record:
            return
        table = ["| case | figures |", "| --- | --- |", *(f"| {name} | {figures} |" for name, figures in self._rows)]
        lines = ["", f"## {self._question}", "", f"{describe_machine()}", "", f"    {format_command()}", "", *table, ""]
        with RESULTS.open("a", encoding="utf-8") as results:
            results.write("\n".join(lines))
