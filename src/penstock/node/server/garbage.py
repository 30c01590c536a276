"""The garbage collector in a process that is a node and nothing else."""

from __future__ import annotations

import gc

__all__ = ["spare_present_objects"]


def spare_present_objects() -> None:
    """Exempt all objects that exist now from garbage collection.

    A collection of the oldest generation holds the event loop while it visits every object: 30 to 100 ms for modules,
    which stay as long as the process. Objects that come later are collected as before. Buckets must be among them:
    their parts refer to each other, so only the collector frees a bucket that was deleted.

    A node inside a program of the user leaves the collector alone: only the program knows which objects stay.
    """
    gc.collect()  # garbage would stay for ever
    gc.freeze()
