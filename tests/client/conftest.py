"""A node for each test that restarts or stops it."""

import pytest

from tests.client.peer import Running


@pytest.fixture
def running():
    running = Running()
    yield running
    running.stop()
