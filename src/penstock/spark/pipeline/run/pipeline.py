"""The class Pipeline: the commands `penstock pipeline` for Python programs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.argument_types import check_arguments
from penstock.spark.lake.reading.lake import Lake
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.definition.definition import PipelineDefinition, define_bucket_pipeline, read_definition
from penstock.spark.pipeline.run.run_plan import PlannedSource, plan_run
from penstock.spark.pipeline.state import stopping
from penstock.spark.pipeline.state.lake_status import LakeStatus
from penstock.spark.pipeline.state.run_progress import ReportProgress, SourceProgress
from penstock.spark.pipeline.state.source_lakes import find_source_lakes
from penstock.spark.pipeline.state.source_status import read_pipeline_status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@check_arguments
class Pipeline:
    """Buckets whose changes are written to the tables of lakes, with their dependents.

    Attributes:
        definition: the sources, tables and dependents.
    """

    def __init__(self, definition: PipelineDefinition) -> None:
        self.definition = definition

    @classmethod
    def from_file(cls, path: str | Path) -> Pipeline:
        """Return the pipeline that a TOML file declares. Raises UsageError, which names file, table and key."""
        return cls(read_definition(str(path)))

    @classmethod
    def of_bucket(cls, lake: str, url: str, **source: Any) -> Pipeline:
        """Return the pipeline of one bucket into one lake. Raises UsageError for unknown or invalid arguments.

        Args:
            lake: the lake's directory.
            url: the bucket's connection string.
            source: other keys of a table [source.NAME] in a pipeline's file.

        Returns:
            The pipeline.
        """
        return cls(define_bucket_pipeline(lake, url=url, **source))

    @property
    def lakes(self) -> dict[str | None, Lake]:
        """The lakes by the names of their sources."""
        tables = self.definition.tables
        return {
            each.source.name: Lake(each.path, tables.format, tables.catalog)
            for each in find_source_lakes(self.definition).declared
        }

    def plan(self) -> list[PlannedSource]:
        """Return the plan of a run for each source, by the checks that the run makes. Writes nothing.

        It connects to buckets and other systems, but runs no program that the pipeline names, such as a transform.
        """
        return [*plan_run(self.definition).sources]

    def run(
        self,
        *,
        available_now: bool = False,
        spark: SparkSession | None = None,
        master: str | None = None,
        report: ReportProgress | None = None,
        finish: threading.Event | None = None,
    ) -> tuple[SourceProgress, ...]:
        """Follow the sources until the run is interrupted, or stopped from another process.

        Raises UsageError if a setting, bucket or lake cannot be used, and LakeRefused if another pipeline wrote or
        holds the lake. Unreachable means that a node stays away, Error that a query failed.

        Args:
            available_now: end once all tables have the changes that the buckets have now.
            spark: the session to run in; None to start one, and stop it at the end.
            master: the cluster of a session that is started, as for spark-submit; None for this machine.
            report: called about once a second for each source. An exception that it raises ends the run.
            finish: once set, the run ends as soon as all tables have caught up.

        Returns:
            The last progress of each source.
        """
        from penstock.spark.pipeline.run.pipeline_run import run_pipeline  # only a run needs Spark

        return run_pipeline(
            self.definition, available_now=available_now, spark=spark, master=master, report=report, finish=finish
        )

    def status(self) -> list[LakeStatus]:
        """Return the state of each lake and its newest run, from the files of the lakes alone.

        Lakes of sources that the file no longer declares come last.
        """
        return read_pipeline_status(self.definition)

    def stop(self, timeout: float = 120.0) -> bool:
        """Ask the run of this pipeline to end, and wait until it has ended.

        Args:
            timeout: seconds to wait.

        Returns:
            True if the run has ended.
        """
        removed = [LakeDirectory(each.path) for each in find_source_lakes(self.definition).removed]
        return stopping.stop_runs([*self.lakes.values(), *removed], timeout)
