"""The status of all sources of a pipeline: of the file, and of those that were removed from it."""

from __future__ import annotations

from dataclasses import replace

from penstock.spark.lake.changelog.found_collections import read_collections
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.definition.definition import PipelineDefinition, SourceDefinition
from penstock.spark.pipeline.state.kept_tables import describe_left_out, list_kept
from penstock.spark.pipeline.state.lake_status import LakeStatus, read_status
from penstock.spark.pipeline.state.source_lakes import SourceLake, SourceLakes, find_source_lakes


def read_pipeline_status(definition: PipelineDefinition) -> list[LakeStatus]:
    """Return the status of each source of a file, and then of each removed source that has tables."""
    lakes = find_source_lakes(definition)
    return [read_source_status(definition, each) for each in lakes.declared] + read_removed_status(lakes)


def read_source_status(definition: PipelineDefinition, place: SourceLake) -> LakeStatus:
    """Return the status of a source of a file."""
    return read_declared_status(definition, place.source, LakeDirectory(place.path))


def read_declared_status(definition: PipelineDefinition, source: SourceDefinition, lake: LakeDirectory) -> LakeStatus:
    """Return the status of a lake, compared with the tables and dependents of a pipeline.

    Args:
        definition: the pipeline.
        source: the source.
        lake: its lake.
    """
    names = [each.name for each in list_kept(definition, source, lake)]
    declared, found = definition.list_dependents(source), read_collections(lake)
    left_out = describe_left_out(found, declared) if definition.infers_tables(source) else None
    return replace(read_status(lake, source.name, names), paused=source.paused, left_out=left_out)


def read_removed_status(lakes: SourceLakes) -> list[LakeStatus]:
    """Return the status of each source that has tables, and that the file no longer declares."""
    return [replace(read_status(LakeDirectory(each.path), each.source, ()), declared=False) for each in lakes.removed]
