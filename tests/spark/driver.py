"""A pipeline that kills itself: `python -m tests.spark.driver FILE POINT`, in a process group of its own.

POINT is where, in the third batch that the process plans or the third fold that it makes:
`written`, the changelog's files are written and not committed; `committed`, they are, and Spark has not logged the
batch's end; `folding`, the current table's files are written and not committed; `driver`, as `written`, but nothing
except the driver's Python is killed, so that Spark's Java is left to itself in the middle of a commit. `never`.
Each line on standard output tells how many rows the changelog has gained.
"""

import os
import signal
import sys
from collections.abc import Sequence

import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.spark import Lake
from penstock.spark.lake.current.current_table import MergeProgress, PreparedMerge, prepare
from penstock.spark.pipeline.definition.definition import read_definition
from penstock.spark.pipeline.run.pipeline_run import run
from penstock.spark.pipeline.state.run_progress import SourceProgress
from penstock.spark.runtime.changelog_sink import ChangelogSink, ChangelogWriter

POINT, DRIVER, BATCH = "PENSTOCK_TEST_POINT", "PENSTOCK_TEST_DRIVER", "PENSTOCK_TEST_BATCH"


def kill_all() -> None:
    """Kill driver, Java and this process at once."""
    os.killpg(int(os.environ[DRIVER]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class KillingWriter(ChangelogWriter):
    """Runs in a process of Spark's that has the environment of the driver."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        point = os.environ[POINT] if batchId >= int(os.environ[BATCH]) else "never"
        if point == "written":
            kill_all()
        if point == "driver":
            os.kill(int(os.environ[DRIVER]), signal.SIGKILL)
        super().commit(list(messages), batchId)
        if point == "committed":
            kill_all()


class KillingSink(ChangelogSink):
    def streamWriter(self, schema: StructType, overwrite: bool) -> ChangelogWriter:
        writer = super().streamWriter(schema, overwrite)
        return KillingWriter(writer.lake, writer.checkpoint, writer.query, writer.vbuckets)


class Folds:
    """Takes the place of `catch_up`."""

    def __init__(self, point: str) -> None:
        self.left = 3 if point == "folding" else -1

    def __call__(self, lake: Lake) -> MergeProgress:
        step = prepare(lake)
        if not isinstance(step, PreparedMerge):
            return step
        self.left -= 1
        if not self.left:
            kill_all()
        step.commit()
        return step.progress


def tell(progress: SourceProgress) -> None:
    sys.stdout.write(f"{progress.rows}\n")
    sys.stdout.flush()


def main(file: str, point: str) -> None:
    definition = read_definition(file)
    offsets = Lake(definition.lake).checkpoint / "offsets"
    known = [int(entry.name) for entry in offsets.iterdir() if entry.name.isdigit()] if offsets.exists() else []
    os.environ |= {POINT: point, DRIVER: str(os.getpid()), BATCH: str(max(known, default=-1) + 3)}
    patch = pytest.MonkeyPatch()
    patch.setattr("penstock.spark.runtime.spark_session.ChangelogSink", KillingSink)
    patch.setattr("penstock.spark.lake.current.current_table.merge_current", Folds(point))
    run(definition, report=tell)


if __name__ == "__main__":
    main(*sys.argv[1:])
