"""Runs seeds of the simulation: `python -m tests.simulation FIRST [LAST] [--jobs N]`."""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.schedule import Schedule
from tests.simulation.simulation import SimulationFailed, find_shortest_failure, run_schedule, run_seed

_CHUNK = 50


def _run_seeds(seeds: range) -> dict[int, str]:
    """Return the seeds that fail, with the reports of the shortest schedules that fail."""
    failures = {}
    for seed in seeds:
        try:
            run_seed(seed)
        except SimulationFailed as error:
            failures[seed] = find_shortest_failure(Schedule.make(seed)) or f"only in its first run: {error}"
    return failures


def _run_one(schedule: Schedule) -> int:
    """Print a schedule and its result, and return the exit status."""
    print(schedule)
    try:
        report = run_schedule(schedule)
    except SimulationFailed as error:
        print(error)
        return 1
    print(report._replace(trace=[]), f"{len(report.trace)} segments and faults")
    return 0


def main() -> int:
    """Run the seeds of the command line, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("first", type=int, help="the first seed; alone, its schedule is printed")
    parser.add_argument("last", type=int, nargs="?", help="the last seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--faults", type=int, help="with one seed: only so many of its faults")
    options = parser.parse_args()
    if options.last is None:
        schedule = Schedule.make(options.first)
        return _run_one(schedule if options.faults is None else schedule.shorten(options.faults))
    began, end = time.monotonic(), options.last + 1
    failed: list[int] = []
    chunks = [range(start, min(start + _CHUNK, end)) for start in range(options.first, end, _CHUNK)]
    with ProcessPoolExecutor(options.jobs) as pool:
        for failures in pool.map(_run_seeds, chunks):
            failed += failures
            for text in failures.values():
                print(text, end="\n\n", flush=True)
    rate = (end - options.first) / (time.monotonic() - began)
    print(f"{end - options.first} seeds, {rate:.1f} a second, failed: {', '.join(map(str, failed)) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
