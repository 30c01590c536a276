"""The checks of a lake against a pipeline's declaration: a run raises their errors, and a plan shows them.

The checks need no Spark, and write nothing. `check_bucket` needs the bucket's answer, the others do not.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.client.connect.address import RecreatedBucket
from penstock.errors import Error, LakeRefused, UsageError
from penstock.spark.lake.reading.lake_positions import read_planned_end
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_lock import describe_held_lake
from penstock.spark.pipeline.definition.definition import PipelineDefinition, SourceDefinition
from penstock.spark.pipeline.state.run_state import check_content
from penstock.spark.pipeline.state.source_lakes import SourceLake
from penstock.spark.pipeline.transform.transform_rows import check_transform

__all__ = ["check_bucket", "check_lake", "check_transforms", "find_refusal"]

LakeCheck = Callable[[PipelineDefinition, SourceDefinition, LakeDirectory], None]


def _check_owner(definition: PipelineDefinition, source: SourceDefinition, lake: LakeDirectory) -> None:
    lake.check_owner()


def _check_content(definition: PipelineDefinition, source: SourceDefinition, lake: LakeDirectory) -> None:
    check_content(lake, source.list_content_options())


def _check_transform(definition: PipelineDefinition, source: SourceDefinition, lake: LakeDirectory) -> None:
    _check_source_transform(source)


def check_transforms(definition: PipelineDefinition, file: str) -> None:
    """Import the transforms of a pipeline, and call them without rows.

    Args:
        definition: the pipeline.
        file: its file, for errors.

    Raises:
        UsageError: a transform cannot be used.
    """
    for source in definition.sources:
        try:
            _check_source_transform(source)
        except UsageError as error:
            raise UsageError(f"{file}: [source.{source.name}] {error}") from None


def _check_source_transform(source: SourceDefinition) -> None:
    transform = source.find_transform()
    if transform is not None:
        check_transform(transform)


def _check_dependents(definition: PipelineDefinition, source: SourceDefinition, lake: LakeDirectory) -> None:
    """Raise the error of a dependent whose files belong to another declaration, or are damaged."""
    for each in definition.list_dependents(source):
        each.open(lake).position()


_CHECKS: tuple[LakeCheck, ...] = (_check_owner, _check_content, _check_transform, _check_dependents)
"""In the order in which a run makes them."""


def check_lake(definition: PipelineDefinition, source: SourceDefinition, lake: LakeDirectory) -> None:
    """Check that a run of this declaration can continue the tables of a lake.

    Raises LakeRefused and UsageError for tables of another declaration or query, and Error for a damaged file.

    Args:
        definition: the pipeline.
        source: the source of the lake.
        lake: the lake.
    """
    for check in _CHECKS:
        check(definition, source, lake)


def check_bucket(source: SourceDefinition, lake: LakeDirectory, uuid: str) -> None:
    """Check that a source's bucket is the one that the tables of its lake were made from.

    Args:
        source: the source.
        lake: the lake. Tables of an older release have no uuid, and accept every bucket.
        uuid: the uuid of the bucket; empty if the server does not report it.

    Raises:
        LakeRefused: it is another bucket, and the source does not accept that.
    """
    end, address = read_planned_end(lake), source.parse_options().address
    before = "" if end is None else end.bucket_uuid
    if before and uuid and before != uuid and address.options.recreated_bucket is RecreatedBucket.FAIL:
        raise LakeRefused(
            f"{lake.path} was written from the bucket with the uuid {before}, and {address} has the uuid {uuid}, so it"
            " is another bucket, or was deleted and created again: choose another directory, start again with penstock"
            ' pipeline reset, or replace the content of the tables with recreated_bucket = "rollback"'
        )


def find_refusal(definition: PipelineDefinition, place: SourceLake, *, uuid: str, is_running: bool) -> Error | None:
    """Return the error with which a run would end before it reads the bucket.

    Args:
        definition: the pipeline.
        place: the source and its lake.
        uuid: the uuid of the bucket; empty if it is unknown.
        is_running: whether a run holds the lake.

    Returns:
        The error; None if the run would start, or leave the source alone.
    """
    source, lake = place.source, definition.open_lake(place.path)
    if place.refusal is not None or source.paused:
        return place.refusal
    try:
        check_lake(definition, source, lake)
        check_bucket(source, lake, uuid)
    except Error as refusal:
        return refusal
    return LakeRefused(describe_held_lake(lake.path)) if is_running else None
