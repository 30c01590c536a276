"""Rules for every test: a bound on its time, Ctrl-C, and Hypothesis without timing of its own."""

import atexit
import gc
import os
import platform
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.quick_java import quicken_java

# Our own plugin. An installation of this package loads it under the same name, so it is there once.
pytest_plugins = ["penstock.pytest"]

# The machines that run this are shared: a slow example is no sign of a fault in the code.
settings.register_profile("quick", deadline=None, max_examples=10)
settings.register_profile("default", deadline=None, max_examples=25)
settings.register_profile("full", deadline=None, max_examples=100)
settings.register_profile("soak", deadline=None, max_examples=5_000)
# The same examples in each run, so that a change of the code is the only cause of another result. `make test` and
# `make soak` look for new ones.
settings.register_profile("steady", deadline=None, max_examples=25, derandomize=True, database=None)
# The same examples in each run, so that a mutant that survives does so again; the smallest one is of no interest.
settings.register_profile(
    "mutation",
    deadline=None,
    max_examples=100,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),  # the same tests run several times in a process
)
settings.load_profile("default")

# A shell lets commands that it starts in the background ignore Ctrl-C, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)

quicken_java()

COMPAT = Path(__file__).parent / "compat"
SOAK_SECONDS = 4 * 3600.0
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}
"""Audit events of a process that starts another."""
MAY_START = {"process", "spark", "soak"}

started: list[str] = []
"""Processes that were started since the present test began."""


def note_start(event: str, arguments: tuple[object, ...]) -> None:
    if event in STARTS:
        started.append(f"{event} {arguments[:2]}")


sys.addaudithook(note_start)
platform.platform()  # starts `uname` the first time, and nodes ask for it


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Fail a test that starts a process without a mark for it."""
    started.clear()
    yield
    if started and not any(item.get_closest_marker(marker) for marker in MAY_START):
        pytest.fail(f"starts a process, and is not marked `process`: {started}")


class FailureNames:
    """Names each test that fails at once, where pytest prints a letter alone."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None and reporter.verbosity <= 0:
            reporter.write_line(f"\n{report.outcome.upper()} {report.nodeid} ({report.when})", red=True)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailureNames(config))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Hide the collected tests from the garbage collector: a walk over all of them takes more than a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        atexit.register(gc.unfreeze)  # else extension modules report these objects as leaks


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    long = ["soak", "hypothesis"] if settings.get_current_profile_name() == "soak" else ["soak"]
    compat = f"{COMPAT}{os.sep}"
    for item in items:
        if str(item.path).startswith(compat):  # cheaper than is_relative_to, for thousands of items
            item.add_marker("process")
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
        if any(item.get_closest_marker(marker) for marker in long):
            item.add_marker(pytest.mark.timeout(SOAK_SECONDS))
    items.sort(key=turn)


def turn(item: pytest.Item) -> int:
    """Put long tests first, so that none begins when the others are done, and those of one Spark session together.

    pytest-xdist gives the first process the first tests. The others take from their end once they have no more.
    """
    if "spark" in getattr(item, "fixturenames", ()):
        return 0
    return 1 if item.get_closest_marker("spark") else 2 if item.get_closest_marker("process") else 3
