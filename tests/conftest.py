"""What every test has: a bound on its time, and Hypothesis without timing of its own."""

import pytest
from hypothesis import HealthCheck, Phase, settings

# The machines that run this are shared: an example that takes long says nothing about the code.
settings.register_profile("default", deadline=None)
settings.register_profile("soak", deadline=None, max_examples=5_000)
# The same examples in each run, so that a mutant that survives does so again; the smallest one is of no interest.
settings.register_profile(
    "mutation",
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),  # the same tests run several times in a process
)
settings.load_profile("default")

# Seconds, where the test does not state its own. A Spark session alone takes 10 to 20 to start.
TIMEOUTS = {"soak": 3600, "spark": 300}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timeout") is None:
            for marker, seconds in TIMEOUTS.items():
                if item.get_closest_marker(marker) is not None:
                    item.add_marker(pytest.mark.timeout(seconds))
                    break
