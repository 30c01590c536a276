"""Runs of a pipeline's file up to the end of its bucket: by Spark, or by micro-batches without it.

As a program, `python -m tests.drift.pipelines FILE` merges the pending changes of all tables, and kills itself between
the commits of the second and the third table.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from pyspark.sql import SparkSession

from penstock.spark import Lake
from penstock.spark.lake.changelog import changelog_writer
from penstock.spark.lake.current import current_table
from penstock.spark.lake.current.current_table import PreparedMerge
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.definition.definition import read_definition
from penstock.spark.pipeline.run.dependent_tasks import create_tasks
from penstock.spark.pipeline.run.pipeline_run import run_pipeline
from tests.drift.drifting_bucket import VBUCKETS
from tests.patience import PATIENCE
from tests.spark.buckets import MicroBatches
from tests.spark.lakes import QUERY, ROOT, checkpoint


class DriftPipeline(Protocol):
    """A pipeline that a program runs again and again."""

    def run(self) -> None:
        """Run up to the end of the bucket."""

    def run_killed(self) -> None:
        """Run, and kill the run in the middle of its work."""


def open_lake(file: Path) -> LakeDirectory:
    """Return the lake of a pipeline's file with one source."""
    definition = read_definition(str(file))
    return Lake(definition.locate_lake(definition.sources[0]))


class BatchPipeline:
    """Micro-batches as Spark plans them, and the merges of a run.

    Args:
        file: the pipeline's file.
        url: the bucket.
    """

    def __init__(self, file: Path, url: str) -> None:
        self._file = file
        self._batches = MicroBatches(url)
        self._written = 0

    def _write_changelog(self) -> None:
        lake = open_lake(self._file)
        for rows in self._batches.all():
            checkpoint(lake.checkpoint, batches=self._written + 1)
            files = changelog_writer.write_files(rows.to_batches(), lake.changelog_table.write_root, VBUCKETS)
            changelog_writer.commit_batch(lake, QUERY, self._written, files, vbuckets=VBUCKETS)
            self._written += 1

    def run(self) -> None:
        """Run up to the end of the bucket."""
        self._write_changelog()
        merge_tables_of(self._file)

    def run_killed(self) -> None:
        """Run, and kill the run between the commits of two tables."""
        self._write_changelog()
        command = [sys.executable, "-m", "tests.drift.pipelines", str(self._file)]
        done = subprocess.run(command, cwd=ROOT, timeout=PATIENCE, check=False)
        assert done.returncode == -signal.SIGKILL


def merge_tables_of(file: Path) -> None:
    """Merge the pending changes of all tables of a pipeline's file."""
    definition = read_definition(str(file))
    for task in create_tasks(definition, definition.sources[0], open_lake(file)):
        if task.is_behind:
            task.run()


class SparkPipeline:
    """Runs of `penstock pipeline run`.

    Args:
        file: the pipeline's file.
        spark: the session.
    """

    def __init__(self, file: Path, spark: SparkSession) -> None:
        self._file = file
        self._spark = spark

    def run(self) -> None:
        """Run up to the end of the bucket."""
        run_pipeline(read_definition(str(self._file)), available_now=True, spark=self._spark)

    def run_killed(self) -> None:
        """Start a run in another process, and kill it once the changelog has a new version."""
        lake = open_lake(self._file)
        before = lake.changelog_table.open()
        version = -1 if before is None else before.version()
        command = [sys.executable, "-m", "penstock", "pipeline", "run", str(self._file)]
        with subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + PATIENCE
            while process.poll() is None and not lake.changelog_table.has_grown(version):
                assert time.monotonic() < deadline
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.02)
            os.killpg(process.pid, signal.SIGKILL)


def _kill_between_commits(file: Path) -> None:
    commits = 0

    class FatalMerge(PreparedMerge):
        """A merge that kills the process instead of the third commit."""

        def commit(self) -> None:
            nonlocal commits
            if commits == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            commits += 1
            super().commit()

    current_table.PreparedMerge = FatalMerge  # type: ignore[misc]
    merge_tables_of(file)


if __name__ == "__main__":
    _kill_between_commits(Path(sys.argv[1]))
