"""A lake for its readers: documents, changes and positions of a pipeline's tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.documents.mutation_tokens import MutationToken
from penstock.spark.lake.reading import lake_positions, lake_readers, lake_views, spark_frames
from penstock.spark.lake.reading.lake_positions import LakePosition
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.source.offsets import Offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Lake"]


class Lake(LakeDirectory):
    """The tables of a bucket in a directory, to be read as Arrow tables or Spark frames.

    Args:
        path: a directory of this machine, as a pipeline's `lake` names it.

    Raises:
        UsageError: the path cannot be a local directory.
    """

    def current(self, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> pa.Table:
        """Return the documents as of the changelog's newest version, in `columns` of CURRENT_COLUMNS, in no order.

        What the current table has not taken in yet is merged into what is read. where: an Arrow expression over these
        columns. Raises UsageError if the lake has no changelog.
        """
        return lake_readers.current(self, columns, where)

    def changelog(self, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> pa.Table:
        """Return the changelog's rows, in `columns` of CHANGE_SCHEMA, in no order; otherwise as `current`."""
        return lake_readers.changelog(self, columns, where)

    def current_frame(self, spark: SparkSession) -> DataFrame:
        """Return what `current` does as a Spark frame, of the tables as they are now.

        Its files are on disk for some minutes after a merge has replaced them; an action later than that fails, and
        the frame is made anew.
        """
        return spark_frames.current_frame(self, spark)

    def changelog_frame(self, spark: SparkSession) -> DataFrame:
        """Return the changelog as a Spark frame, of the table as it is now."""
        return spark_frames.changelog_frame(self, spark)

    def position(self, batch: int | None = None) -> LakePosition | None:
        """Return where the changelog ends, or ended with an older batch; None before its first batch.

        Raises UsageError for a batch that there is not, or that the checkpoint has forgotten.
        """
        return lake_positions.position(self, batch)

    def wait_for(self, tokens: Iterable[MutationToken], timeout: float = 60.0) -> None:
        """Return once both tables, as `current` and `changelog` read them, hold the writes that tokens stand for.

        tokens: of `Bucket.tokens`. timeout: seconds. Raises OperationTimeout after that, WriteLost at once for a write
        that was rolled back, UsageError for tokens of another bucket.
        """
        lake_positions.wait_for(self, tokens, timeout)

    def as_of(self, at: LakePosition | Offset | datetime) -> pa.Table:
        """Return the documents of a consistent state of the past, in CURRENT_COLUMNS and no order.

        Of each vbucket that is its newest boundary not behind the position, or that the changelog had at the time; see
        penstock.spark.lake.reading.lake_views.
        """
        return lake_views.as_of(self, at)

    def as_of_frame(self, spark: SparkSession, at: LakePosition | Offset | datetime) -> DataFrame:
        """Return what `as_of` does as a Spark frame."""
        return lake_views.as_of_frame(self, spark, at)

    def json_view(self, schema: pa.Schema | str | None = None) -> pa.Table:
        """Return the documents, as `current` does, with typed columns of their JSON and what did not fit in `_rest`.

        schema: of Arrow or as Spark's DDL; None: inferred. See penstock.spark.lake.reading.lake_views.
        """
        return lake_views.json_view(self, schema)

    def json_frame(self, spark: SparkSession, schema: pa.Schema | str | None = None) -> DataFrame:
        """Return what `json_view` does as a Spark frame."""
        return lake_views.json_frame(self, spark, schema)
