"""Objects that the garbage collector visits in the process of a node."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from penstock.node.server.garbage import spare_present_objects
from tests.patience import PATIENCE


class _Link:
    """Object that can be part of a cycle and have weak references."""

    def __init__(self) -> None:
        self.other: _Link | None = None


def _make_cycle() -> weakref.ref[_Link]:
    one, two = _Link(), _Link()
    one.other, two.other = two, one
    return weakref.ref(one)


@pytest.fixture
def spared_objects() -> Iterator[None]:
    garbage = _make_cycle()
    has_frozen = gc.get_freeze_count() > 0  # the objects of the collected tests, see tests/conftest.py, stay frozen
    spare_present_objects()
    try:
        assert garbage() is None
        yield
    finally:
        if not has_frozen:
            gc.unfreeze()


@pytest.mark.usefixtures("spared_objects")
def test_present_objects_are_not_visited() -> None:
    assert gc.get_freeze_count() > len(gc.get_objects())


@pytest.mark.long
@pytest.mark.usefixtures("spared_objects")
def test_later_garbage_is_collected() -> None:
    garbage = _make_cycle()
    gc.collect()
    assert garbage() is None


@pytest.mark.process
def test_only_a_node_of_its_own_process_changes_the_collector() -> None:
    program = """
import gc, penstock
with penstock.Node.running(buckets=["beer"]):
    print(gc.get_freeze_count())
"""
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=PATIENCE)
    assert ran.stdout == "0\n"


@pytest.mark.process
def test_garbage_of_a_served_node_is_collected() -> None:
    """A bucket and its vbuckets refer to each other, so only the collector frees a deleted bucket."""
    program = """
import gc, os, sys
from penstock.cli.base.app import app
from penstock.cli.node.serve import serve
from penstock.store.bucket_store import BucketStore

class Output:
    def write(self, line):
        os.write(1, b"%d" % sum(isinstance(one, BucketStore) for one in gc.get_objects()))
        os._exit(0)

sys.stdout = Output()
app(["serve", "--port", "0", "--vbuckets", "1", "--json"])
"""
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=PATIENCE)
    assert ran.stdout == "1"
