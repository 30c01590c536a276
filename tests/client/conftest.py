"""A node for tests that stop or restart it."""

import pytest

from tests.client.peer import RestartableNode


@pytest.fixture
def running():
    running = RestartableNode()
    yield running
    running.stop()
