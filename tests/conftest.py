"""What every test has: a bound on its time, Ctrl-C, and Hypothesis without timing of its own."""

import signal

import pytest
from hypothesis import HealthCheck, Phase, settings

# The machines that run this are shared: an example that takes long says nothing about the code.
settings.register_profile("default", deadline=None, max_examples=25)
settings.register_profile("full", deadline=None, max_examples=100)
settings.register_profile("soak", deadline=None, max_examples=5_000)
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

SOAK_SECONDS = 4 * 3600.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    long = ["soak", "hypothesis"] if settings.get_current_profile_name() == "soak" else ["soak"]
    for item in items:
        if any(item.get_closest_marker(marker) for marker in long):
            item.add_marker(pytest.mark.timeout(SOAK_SECONDS))
