"""A node for tests that stop or restart it, and a cluster of one node."""

import pytest

from penstock.pytest import PenstockCluster
from tests.client.peer import RestartableNode


@pytest.fixture
def running():
    running = RestartableNode()
    yield running
    running.stop()


@pytest.fixture
def cluster(tmp_path):
    """A cluster of one node, with a bucket `beer` of 4 vbuckets."""
    with PenstockCluster.running(1, tmp_path, 4) as running:
        running.create_bucket("beer")
        yield running
