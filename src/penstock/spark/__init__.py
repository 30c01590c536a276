"""Spark: the data source `format("dcp")`, lakes, indexes, and the pipelines that keep them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.lake.reading.lake import Lake

ORDER = ("values", "source", "lake", "sink", "dependents", "runtime", "pipeline")

__all__ = ["Lake", "latest_offsets", "register"]

_HOMES = {
    "Lake": "penstock.spark.lake.reading.lake",
}
"""The module of each name. Names are loaded on first use: a task of a micro-batch needs few of these modules."""


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock.spark' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def register(spark: SparkSession) -> None:
    """Make `format("dcp")` known to a session; again is harmless."""
    from penstock.spark.runtime.data_source import DcpDataSource

    spark.dataSource.register(DcpDataSource)


def latest_offsets(url: str | None = None, **options: object) -> str:
    """Return where a bucket's changes end now, as JSON for the options endingOffsets and startingOffsets.

    options: those of `format("dcp")` that say which bucket, who logs in and which vbuckets. A batch read that ends
    here, and a stream that starts here once that has ended, have all changes, each once. Raises UsageError for what
    cannot be, and as `connect` does.
    """
    from penstock.spark.source.readers import latest_offsets

    given = {**({} if url is None else {"url": url}), **options}
    return latest_offsets({name: str(value) for name, value in given.items()})
