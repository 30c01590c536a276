from collections.abc import Iterator

import pytest

from tests.kills.killing import ForkServer


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer.start() as fork_server:
        yield fork_server
