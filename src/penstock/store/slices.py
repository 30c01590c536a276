"""Long work in slices, so that a node serves requests between two slices."""

from __future__ import annotations

from collections.abc import Callable


def run_slices(run_slice: Callable[[], object]) -> None:
    """Run all slices of some work: call a function until it returns that no work is left."""
    while run_slice():
        pass
