"""The options of `format("dcp")` for the size of a micro-batch. The command line reads them without importing Arrow."""

from __future__ import annotations

import os
from dataclasses import dataclass

from penstock.options import POSITIVE, SIZE, option

MAX_DEFAULT_PARTITIONS = 8
"""Default limit: a Python task costs about 34 ms even if it reads little."""


@dataclass(frozen=True, kw_only=True)
class MicroBatchOptions:
    """Limits of a micro-batch: its size, and the number of its tasks."""

    max_changes_per_trigger: int | None = option(
        POSITIVE,
        "maximum number of changes of a micro-batch, before filters of keys",
        default=None,
        shown="no limit",
        example="100000",
        flag="--max-changes",
    )
    max_bytes_per_trigger: int | None = option(
        SIZE,
        "maximum size of the changes of a micro-batch in bytes, approximately",
        default=None,
        shown="no limit",
        example="64m",
    )
    min_partitions: int = option(
        POSITIVE, "minimum number of tasks of a batch, if enough vbuckets have changes", default=1, example="4"
    )
    max_partitions: int = option(
        POSITIVE,
        "maximum number of tasks of a batch; but each node with changes has at least one",
        default=min(os.cpu_count() or 1, MAX_DEFAULT_PARTITIONS),
        shown=f"the driver's processors, up to {MAX_DEFAULT_PARTITIONS}",
        example="16",
        flag="--partitions",
    )
