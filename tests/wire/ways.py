"""The ways in which the wire layer finds frames and decodes changes: with the extension module, and without it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.wire.codec import native
from penstock.wire.columns import frame_offsets

HOPS = ("native", "arrays", "loop")
"""Frames are found with the extension module, with arrays, and one by one, however few bytes there are."""
PATHS = ("native", "python")
"""Changes are decoded with the extension module, and without it."""
EVERY = "every"
"""A test with this parameter goes through all ways itself: to draw an example takes longer than to check it."""


def has_way(way: str) -> bool:
    """Return whether this build of the package has a way."""
    return way != "native" or native.extension is not None


@contextmanager
def use_hops(way: str) -> Iterator[None]:
    """Find frames in one way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_offsets, "FEW_BYTES", sys.maxsize if way == "loop" else -1)
        if way == "arrays":
            patch.setattr(native, "extension", None)
        yield


@contextmanager
def use_path(way: str) -> Iterator[None]:
    """Decode changes in one way."""
    with pytest.MonkeyPatch.context() as patch:
        if way == "python":
            patch.setattr(native, "extension", None)
        yield
