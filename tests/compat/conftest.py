import pytest

from penstock.node import Node


@pytest.fixture
def open_node():
    """A node that asks nobody to log in: programs of memcached's time do not know how, and use vbucket 0 only."""
    with Node.running(["default"], vbuckets=16) as node:
        yield node
