"""What tests of files have: a directory that is no trouble to any disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.failing import directory_in_memory


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory: thousands of buckets are opened in it."""
    with directory_in_memory() as path:
        yield path
