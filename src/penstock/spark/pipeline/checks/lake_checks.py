"""The checks of a lake against a pipeline's declaration. They need no Spark, and write nothing."""

from __future__ import annotations

from penstock.client.connect.address import RecreatedBucket
from penstock.errors import LakeRefused
from penstock.spark.lake.reading.lake_positions import read_planned_end
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_lock import describe_held_lake
from penstock.spark.pipeline.definition.definition import PipelineDefinition, SourceDefinition
from penstock.spark.pipeline.state.kept_tables import list_kept
from penstock.spark.pipeline.state.lake_status import find_run_state
from penstock.spark.pipeline.state.run_state import check_content, read_run_state
from penstock.spark.pipeline.state.source_lakes import SourceLake


def check_lake(definition: PipelineDefinition, source: SourceDefinition, lake: LakeDirectory) -> None:
    """Check that a run of this declaration can continue the tables of a lake.

    Raises LakeRefused and UsageError for tables or dependents of another declaration, or tables of another query.
    Raises Error for a damaged file.

    Args:
        definition: the pipeline.
        source: the source of the lake.
        lake: the lake.
    """
    lake.check_owner()
    check_content(lake, source.list_content_options())
    for each in list_kept(definition, source, lake):
        each.open(lake).position()


def check_lock(place: SourceLake) -> None:
    """Check that no run writes a lake.

    Raises:
        LakeRefused: a run holds its lock. A run that was killed keeps it for a moment, which the next run awaits.
    """
    lake = LakeDirectory(place.path)
    if find_run_state(lake, read_run_state(lake)) == "running":
        raise LakeRefused(describe_held_lake(lake.path))


def check_bucket(source: SourceDefinition, lake: LakeDirectory, uuid: str) -> None:
    """Check that a source's bucket is the one that the tables of its lake were made from.

    Args:
        source: the source.
        lake: the lake. Tables of an older release have no uuid, and accept every bucket.
        uuid: the uuid of the bucket; empty if the server does not report it.

    Raises:
        LakeRefused: it is another bucket, and the source does not accept that.
    """
    end, address = read_planned_end(lake), source.parse_options().place
    before = "" if end is None else end.bucket_uuid
    if before and uuid and before != uuid and address.options.recreated_bucket is RecreatedBucket.FAIL:
        raise LakeRefused(
            f"{lake.path} was written from the bucket with the uuid {before}, and {address} has the uuid {uuid}, so it"
            " is another bucket, or was deleted and created again: choose another directory, start again with penstock"
            ' pipeline reset, or replace the content of the tables with recreated_bucket = "rollback"'
        )
