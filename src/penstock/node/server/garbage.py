"""The garbage collector in a process that is a node and nothing else."""

from __future__ import annotations

import gc


def spare_present_objects() -> None:
    """Exempt all objects that exist now from garbage collection.

    A collection of the oldest generation visits every object, and holds the event loop for 30 to 100 ms. Most of these
    objects belong to modules, which stay as long as the process. Objects that come later are collected as before.
    Call it before buckets are opened: the parts of a bucket refer to each other, so only the collector frees a deleted
    bucket.

    A node inside a user's program leaves the collector alone: only the program knows which objects stay.
    """
    gc.collect()  # frozen garbage would never be freed
    gc.freeze()
