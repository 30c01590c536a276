"""A pipeline for Python programs: what the commands `penstock pipeline` do, as one class."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from penstock.spark.lake.reading.lake import Lake
from penstock.spark.pipeline.definition.definition import PipelineDefinition, of_one, read_definition
from penstock.spark.pipeline.run.run_plan import PlannedSource, plan
from penstock.spark.pipeline.state import stopping
from penstock.spark.pipeline.state.lake_status import LakeStatus, status_of
from penstock.spark.pipeline.state.run_progress import ReportProgress, SourceProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Pipeline"]


class Pipeline:
    """Buckets that are followed into the tables of lakes, with their dependents.

    Attributes:
        definition: the sources, tables and dependents.
    """

    def __init__(self, definition: PipelineDefinition) -> None:
        self.definition = definition

    @classmethod
    def from_file(cls, path: str) -> Pipeline:
        """Return the pipeline that a TOML file declares. Raises UsageError, which names file, table and key."""
        return cls(read_definition(path))

    @classmethod
    def of_bucket(cls, lake: str, url: str, **source: Any) -> Pipeline:
        """Return the pipeline of one bucket into one lake.

        Args:
            lake: the lake's directory.
            url: the bucket's connection string.
            source: other keys of a table [source.NAME] in a pipeline's file.

        Raises:
            UsageError: an argument is unknown or invalid.
        """
        return cls(of_one(lake, url=url, **source))

    @property
    def lakes(self) -> dict[str | None, Lake]:
        """The lakes by the names of their sources."""
        return {source.name: Lake(self.definition.lake_of(source)) for source in self.definition.sources}

    def plan(self) -> list[PlannedSource]:
        """Return what a run would do, for each source. Writes nothing and needs no Spark."""
        return plan(self.definition)

    def run(
        self,
        *,
        available_now: bool = False,
        spark: SparkSession | None = None,
        master: str | None = None,
        report: ReportProgress | None = None,
        finish: threading.Event | None = None,
    ) -> tuple[SourceProgress, ...]:
        """Follow the sources until interrupted, or stopped from another process; return the last progress of each.

        Args:
            available_now: end once all tables have what the buckets have now.
            spark: the session to run in; without it, one is started and stopped.
            master: the cluster of a session that is started, as spark-submit takes it; this machine without it.
            report: called about once a second for each source. An exception of it ends the run.
            finish: once set, the run ends as soon as all tables have caught up.

        Raises:
            UsageError: a setting, bucket or lake cannot be used.
            LakeRefused: another pipeline wrote or holds the lake.
            Unreachable: a node stays away.
            Error: a query failed.
        """
        from penstock.spark.pipeline.run.pipeline_run import run  # only a run needs Spark

        return run(
            self.definition, available_now=available_now, spark=spark, master=master, report=report, finish=finish
        )

    def status(self) -> list[LakeStatus]:
        """Return the state of each lake and its newest run, from the files of the lakes alone."""
        return [status_of(lake, source) for source, lake in self.lakes.items()]

    def stop(self, timeout: float = 120.0) -> bool:
        """Ask the run of this pipeline to end, wait for that, and return whether it did. timeout: seconds."""
        return stopping.stop([*self.lakes.values()], timeout)
