"""A pipeline that kills itself: `python -m tests.spark.driver FILE POINT`, in a process group of its own.

The process counts from its start and kills itself in its third batch or third merge. POINT is one of:

- `written`: the changelog's files are written, but not committed.
- `committed`: they are committed, but Spark has not logged the end of the batch.
- `merging`: the files of current and of the typed tables are written, but not committed.
- `merged`: those of current and of the parent are committed, and those of the child table are not.
- `driver`: as `written`, but only the driver's Python is killed, and Spark's Java continues in the middle of a commit.
- `sent`: the files are committed, and the Kafka sink has sent them, but Spark has not logged the end of the batch.
- a point of `tests.compat.kafka_driver`: a moment of the Kafka sink, in any batch.
- `never`: the process does not kill itself.

The state of the Kafka sink is in a file beside FILE, see `tests.compat.kafka_driver`.
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.spark import Lake
from penstock.spark.dependents.kinds.kafka_sink import DIRECTORY
from penstock.spark.dependents.position_file import PositionFile
from penstock.spark.lake.current.current_table import PreparedMerge
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.definition.definition import read_definition
from penstock.spark.pipeline.run.pipeline_run import run_pipeline
from penstock.spark.runtime.changelog_sink import ChangelogSink, ChangelogWriter, FileListWriter
from penstock.spark.storage.object_path import LakePath
from tests.compat.kafka_driver import watch_sinks

STATE_SUFFIX = ".kafka"
POINT, DRIVER, BATCH = "PENSTOCK_TEST_POINT", "PENSTOCK_TEST_DRIVER", "PENSTOCK_TEST_BATCH"


def kill_all() -> None:
    """Kill the driver, Java and this process at once."""
    os.killpg(int(os.environ[DRIVER]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def wait_until_sent(lake: LakeDirectory) -> None:
    """Wait until the Kafka sink has sent the newest version of the changelog."""
    changelog = lake.changelog_table.open()
    assert changelog is not None
    directory = lake.path / DIRECTORY
    while not any(_read_version(path) >= changelog.version() for path in directory.glob("*.json")):
        threading.Event().wait(0.005)


def _read_version(path: LakePath) -> int:
    found = PositionFile(path, "").read()
    return -1 if found is None else found[1]


class KillingCommit(ChangelogWriter):
    """Kills processes around its commit; it runs in a process of Spark that has the driver's environment."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        point = os.environ[POINT] if batchId >= int(os.environ[BATCH]) else "never"
        if point == "written":
            kill_all()
        if point == "driver":
            os.kill(int(os.environ[DRIVER]), signal.SIGKILL)
        super().commit(list(messages), batchId)
        if point == "sent":
            wait_until_sent(self.lake)
        if point in ("committed", "sent"):
            kill_all()


class KillingListWriter(KillingCommit, FileListWriter):
    """A writer of a pipeline without a filter."""


class KillingSink(ChangelogSink):
    def streamWriter(self, schema: StructType, overwrite: bool) -> ChangelogWriter:
        writer = super().streamWriter(schema, overwrite)
        chosen = KillingListWriter if isinstance(writer, FileListWriter) else KillingCommit
        return chosen(writer.lake, writer.checkpoint, writer.query_id, writer.vbuckets, writer.lock)


class KillingMerge:
    """Kills the process before a commit of a merge: the third of current, or the second of a child table."""

    def __init__(self, point: str) -> None:
        self.name = {"merging": "current", "merged": "numbers_parts"}.get(point)
        self.remaining = 2 if point == "merged" else 3
        self.commit = PreparedMerge.commit

    def __call__(self, merge: PreparedMerge) -> None:
        self.remaining -= merge.target.name == self.name
        if not self.remaining:
            kill_all()
        self.commit(merge)


def main(file: str, point: str) -> None:
    definition = read_definition(file)
    offsets = Lake(definition.lake).checkpoint / "offsets"
    known = [int(entry.name) for entry in offsets.iterdir() if entry.name.isdigit()] if offsets.exists() else []
    os.environ |= {POINT: point, DRIVER: str(os.getpid()), BATCH: str(max(known, default=-1) + 3)}
    watch_sinks(point, Path(file).with_suffix(STATE_SUFFIX), kill_all)
    patch = pytest.MonkeyPatch()
    patch.setattr("penstock.spark.runtime.changelog_sink.ChangelogSink", KillingSink)
    killing = KillingMerge(point)

    def commit(merge: PreparedMerge) -> None:
        killing(merge)

    patch.setattr(PreparedMerge, "commit", commit)
    run_pipeline(definition)


if __name__ == "__main__":
    main(*sys.argv[1:])
