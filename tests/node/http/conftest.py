import pytest

from penstock.node import Node
from tests.node.http.web_client import WebClient


@pytest.fixture
def node():
    with Node.running(["default", "beer"], vbuckets=16) as node:
        yield node


@pytest.fixture
def web(node):
    return WebClient(node)
