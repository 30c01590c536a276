"""Runs a schedule, and checks the result."""

from __future__ import annotations

import logging
import os
import resource
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from tests.simulation.cluster_story import ClusterStory
from tests.simulation.schedule import Schedule
from tests.simulation.virtual_loop import Stalled, VirtualLoop
from tests.simulation.world import Report, World
from tests.simulation.xdcr_story import XdcrStory

STORIES: dict[str, Callable[[Schedule, VirtualLoop], World]] = {
    "cluster": ClusterStory,
    "xdcr": XdcrStory,
}


class SimulationFailed(AssertionError):
    """A rule does not hold. The message has the schedule of the seed and the command that repeats it."""


class _ErrorLog(logging.Handler):
    """Keeps the errors that the product logs, which are defects."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter().format(record))


@contextmanager
def _logged_errors() -> Iterator[list[str]]:
    log, logger = _ErrorLog(), logging.getLogger("penstock")
    logger.addHandler(log)
    try:
        yield log.lines
    finally:
        logger.removeHandler(log)


@contextmanager
def _simulated_machine() -> Iterator[None]:
    """Give names and statistics of this process the same values in each run: nodes and orchestrators send them."""
    usage = resource.struct_rusage((0,) * 16)
    with (
        patch.object(os, "getpid", lambda: 1),
        patch.object(socket, "gethostname", lambda: "simulation"),
        patch.object(resource, "getrusage", lambda _: usage),
    ):
        yield


def find_shortest_failure(schedule: Schedule) -> str:
    """Return the report of the shortest beginning of a schedule that fails; empty: all of it passes."""
    for faults in range(len(schedule.actions) + 1):
        try:
            run_schedule(schedule.shorten(faults))
        except SimulationFailed as error:
            return str(error)
    return ""


def run_seed(seed: int, prepare: Callable[[Any], object] = lambda world: None) -> Report:
    """Run the simulation of a seed, as `run_schedule` does."""
    return run_schedule(Schedule.make(seed), prepare)


def run_schedule(schedule: Schedule, prepare: Callable[[Any], object] = lambda world: None) -> Report:
    """Run a world.

    Args:
        schedule: the schedule.
        prepare: changes the world before the story begins.

    Returns:
        The trace and some numbers.

    Raises:
        SimulationFailed: a rule does not hold.
    """
    with _simulated_machine():
        return _run_schedule(schedule, prepare)


def _run_schedule(schedule: Schedule, prepare: Callable[[Any], object]) -> Report:
    loop = VirtualLoop()
    world = STORIES[schedule.story](schedule, loop)
    prepare(world)
    report: Report | None = None
    with _logged_errors() as lines:
        try:
            report = loop.run_until_complete(loop.spawn(world.clients[0], world.run()))
        except Stalled as error:
            world.problems.append(f"stalled {error}")
        except Exception:  # noqa: BLE001 any error is a finding, and needs its schedule
            world.problems.append(traceback.format_exc())
        finally:
            problems = [*world.problems, *lines, *map(str, loop.failures)]
            loop.bury()
            loop.close()
    if problems or report is None:
        text = "\n".join(dict.fromkeys(problems))
        command = f"python -m tests.simulation {schedule.seed} --faults {len(schedule.actions)}"
        raise SimulationFailed(f"{text}\n\n{schedule}\n\nrepeat it: {command}")
    return report
