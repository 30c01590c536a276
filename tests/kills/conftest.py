from collections.abc import Iterator

import pytest

from tests.kills.killing import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with Nursery.running() as nursery:
        yield nursery
