"""Spark: the data source `format("dcp")`, lakes, indexes, and the pipelines that maintain them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.argument_types import check_arguments
from penstock.errors import Error, LakeRefused, OperationTimeout, Unreachable, UsageError, WriteLost
from penstock.lazy_names import make_lazy_names

if TYPE_CHECKING:
    from penstock.client.documents.bulk import BulkWriter
    from penstock.spark.dependents.dependent import Dependent, catch_up
    from penstock.spark.dependents.kinds.fulltext import FullText
    from penstock.spark.dependents.kinds.invalidation import Invalidation
    from penstock.spark.dependents.kinds.kafka_sink import KafkaSink
    from penstock.spark.dependents.kinds.secondary_index import SecondaryIndex
    from penstock.spark.dependents.kinds.xdcr_target import XdcrTarget, replicate
    from penstock.spark.dependents.registry import DependentKind, Operand, Question, register_kind
    from penstock.spark.lake.changelog.boundaries import Boundary
    from penstock.spark.lake.changelog.changelog_writer import append_changes
    from penstock.spark.lake.current.current_table import merge_current
    from penstock.spark.lake.current.merge_policy import MergePolicy
    from penstock.spark.lake.maintenance.lake_compaction import compact
    from penstock.spark.lake.reading.lake import Lake
    from penstock.spark.lake.reading.lake_positions import LakePosition
    from penstock.spark.lake.reading.lake_readers import read_changelog, read_current
    from penstock.spark.lake.reading.lake_views import boundaries_of
    from penstock.spark.pipeline.definition.definition import PipelineDefinition
    from penstock.spark.pipeline.maintenance.collection_snapshot import resnapshot_collections
    from penstock.spark.pipeline.maintenance.retyping import retype_tables
    from penstock.spark.pipeline.maintenance.vacuuming import vacuum
    from penstock.spark.pipeline.run.pipeline import Pipeline
    from penstock.spark.pipeline.state.lake_status import LakeStatus
    from penstock.spark.pipeline.state.run_progress import SourceProgress
    from penstock.spark.runtime.data_source import register
    from penstock.spark.runtime.java import java_environment
    from penstock.spark.runtime.spark_session import cluster_session, local_session
    from penstock.spark.shipping import ship
    from penstock.spark.tables import json_columns

ORDER = ("values", "tables", "storage", "source", "lake", "sink", "dependents", "runtime", "pipeline")

__all__ = [
    "Boundary",
    "BulkWriter",
    "Dependent",
    "DependentKind",
    "Error",
    "FullText",
    "Invalidation",
    "KafkaSink",
    "Lake",
    "LakePosition",
    "LakeRefused",
    "LakeStatus",
    "MergePolicy",
    "Operand",
    "OperationTimeout",
    "Pipeline",
    "PipelineDefinition",
    "Question",
    "SecondaryIndex",
    "SourceProgress",
    "Unreachable",
    "UsageError",
    "WriteLost",
    "XdcrTarget",
    "append_changes",
    "boundaries_of",
    "catch_up",
    "cluster_session",
    "compact",
    "java_environment",
    "json_columns",
    "latest_offsets",
    "local_session",
    "merge_current",
    "read_changelog",
    "read_current",
    "register",
    "register_kind",
    "replicate",
    "resnapshot_collections",
    "retype_tables",
    "ship",
    "vacuum",
]

_HOMES = {
    "Boundary": "penstock.spark.lake.changelog.boundaries",
    "BulkWriter": "penstock.client.documents.bulk",
    "Dependent": "penstock.spark.dependents.dependent",
    "DependentKind": "penstock.spark.dependents.registry",
    "FullText": "penstock.spark.dependents.kinds.fulltext",
    "Invalidation": "penstock.spark.dependents.kinds.invalidation",
    "KafkaSink": "penstock.spark.dependents.kinds.kafka_sink",
    "Lake": "penstock.spark.lake.reading.lake",
    "LakePosition": "penstock.spark.lake.reading.lake_positions",
    "LakeStatus": "penstock.spark.pipeline.state.lake_status",
    "MergePolicy": "penstock.spark.lake.current.merge_policy",
    "Operand": "penstock.spark.dependents.registry",
    "Pipeline": "penstock.spark.pipeline.run.pipeline",
    "PipelineDefinition": "penstock.spark.pipeline.definition.definition",
    "Question": "penstock.spark.dependents.registry",
    "SecondaryIndex": "penstock.spark.dependents.kinds.secondary_index",
    "SourceProgress": "penstock.spark.pipeline.state.run_progress",
    "XdcrTarget": "penstock.spark.dependents.kinds.xdcr_target",
    "append_changes": "penstock.spark.lake.changelog.changelog_writer",
    "boundaries_of": "penstock.spark.lake.reading.lake_views",
    "catch_up": "penstock.spark.dependents.dependent",
    "cluster_session": "penstock.spark.runtime.spark_session",
    "compact": "penstock.spark.lake.maintenance.lake_compaction",
    "java_environment": "penstock.spark.runtime.java",
    "json_columns": "penstock.spark.tables.json_columns",
    "local_session": "penstock.spark.runtime.spark_session",
    "merge_current": "penstock.spark.lake.current.current_table",
    "read_changelog": "penstock.spark.lake.reading.lake_readers",
    "read_current": "penstock.spark.lake.reading.lake_readers",
    "register": "penstock.spark.runtime.data_source",
    "register_kind": "penstock.spark.dependents.registry",
    "replicate": "penstock.spark.dependents.kinds.xdcr_target",
    "resnapshot_collections": "penstock.spark.pipeline.maintenance.collection_snapshot",
    "retype_tables": "penstock.spark.pipeline.maintenance.retyping",
    "ship": "penstock.spark.shipping",
    "vacuum": "penstock.spark.pipeline.maintenance.vacuuming",
}
"""The module of each name. A name is loaded on first use, since a task of a micro-batch needs few modules.
"""

__getattr__, __dir__ = make_lazy_names(globals(), _HOMES)


@check_arguments
def latest_offsets(url: str | None = None, **options: object) -> str:
    """Return the current end of a bucket as JSON, for the options endingOffsets and startingOffsets.

    A batch read that ends here and a stream that starts here return all changes together, each once. Raises UsageError
    for invalid options, and the errors of `connect`.

    Args:
        url: the bucket's connection string; None if the options have it.
        options: options of `format("dcp")` for the bucket, the login and the vbuckets.

    Returns:
        The offsets of all vbuckets.
    """
    from penstock.spark.source.readers import latest_offsets

    given = {**({} if url is None else {"url": url}), **options}
    return latest_offsets({name: str(value) for name, value in given.items()})
