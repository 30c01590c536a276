"""Fixture of tests that write files: a directory in memory, which spares the disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.failing import directory_in_memory


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """Yield a directory in memory, because tests open thousands of buckets in it."""
    with directory_in_memory() as path:
        yield path
