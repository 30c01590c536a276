"""A pipeline on full disks: `python -m tests.spark.full_disk DIRECTORY`, in a mount namespace of its own.

Each part of a lake has a file system in memory, which becomes full and gets room again. The process ends with an
AssertionError if a run on a full disk damages a table, is not explained, or cannot be continued.
"""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.cli.entry import run_command
from penstock.errors import DiskFull
from penstock.node import Node
from penstock.spark import Lake
from penstock.spark.dependents.kinds.secondary_index import SecondaryIndex
from penstock.spark.pipeline.definition.definition import read_definition
from penstock.spark.pipeline.maintenance.document_selection import DocumentSelection
from penstock.spark.pipeline.maintenance.erasure import erase_documents
from penstock.spark.pipeline.run.pipeline_run import run_pipeline
from penstock.spark.pipeline.state.run_progress import SourceProgress
from penstock.spark.runtime.spark_session import local_session
from tests.quick_java import quicken_java
from tests.spark.buckets import Documents, check_changelog, current_of
from tests.spark.lakes import orphans

ROOM = 64 << 20
PIPELINE = """
lake = "lake"
[source.default]
url = "{url}"
max_partitions = 2
[[index]]
name = "by_text"
path = "text"
type = "string"
"""


class Disk:
    """A small file system."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(path)], check=True)

    def fill(self) -> None:
        """Leave no room; a new file system keeps one block, because 0 stands for no limit."""
        found = os.statvfs(self.path)
        self._resize(max(1, found.f_blocks - found.f_bfree) * found.f_frsize)

    def clear(self) -> None:
        """Make room."""
        self._resize(ROOM)

    def _resize(self, size: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.path)], check=True)


class FullDisks:
    """A lake on small file systems, and a bucket with changes for it."""

    def __init__(self, root: Path, documents: Documents, spark: SparkSession) -> None:
        self.lake = Lake(root / "lake")
        self.disks = {"lake": Disk(root / "lake")}
        self.disks |= {name: Disk(root / "lake" / name) for name in ("changelog", "current", "_checkpoint", "indexes")}
        self.documents = documents
        self._file = root / "pipeline.toml"
        self._file.write_text(PIPELINE.format(url=documents.url))
        self._spark = spark
        self._round = 0

    def change(self) -> None:
        """Change all documents of the bucket, and add some."""
        self._round += 1
        text = os.urandom(1000).hex()
        self.documents.store({f"key-{number}": f'{{"text": "{self._round} {text}"}}'.encode() for number in range(300)})
        self.documents.store({f"{self._round}-{number}": b'{"text": "new"}' for number in range(50)})

    def run(self) -> SourceProgress:
        """Run the pipeline up to the present end of the bucket."""
        definition = read_definition(str(self._file))
        (progress,) = run_pipeline(definition, available_now=True, spark=self._spark)
        return progress

    def check_equal(self) -> None:
        """Run the pipeline with room on all disks, and assert that the tables equal the bucket."""
        assert {each.error for each in self.run().dependents} == {None}
        held = self.documents.contents()
        assert current_of(self.lake) == held
        assert SecondaryIndex(self.lake, "by_text", "text", "string").scan().num_rows == len(held)
        check_changelog(self.lake)

    def list_orphans(self) -> list[str]:
        """Return the files of the changelog that no commit names."""
        return [path for path in orphans(self.lake) if path.startswith(str(self.lake.changelog_table.path))]

    def check_refused(self, name: str) -> None:
        """Run the pipeline while a disk is full, and assert that it names the reason and keeps every table readable."""
        self.change()
        tables = self.lake.changelog_table.open() is not None
        before = current_of(self.lake) if tables else {}
        self.disks[name].fill()
        with pytest.raises(DiskFull, match=rf"^a disk is full while {self.lake.path} is written \(No space left on"):
            self.run()
        if tables:
            # The changelog is the first table. Once it has the changes, readers merge them into the older documents.
            assert current_of(self.lake) == (self.documents.contents() if name == "current" else before)
            assert self.list_orphans() == []
        assert [*self.lake.path.glob("*.draft")] == []
        self.disks[name].clear()
        self.check_equal()

    def check_command(self) -> None:
        """Assert that the command ends with one sentence and exit code 1."""
        self.change()
        self.disks["lake"].fill()
        shown = io.StringIO()
        with redirect_stderr(shown):
            code = run_command(["pipeline", "run", str(self._file), "--available-now", "--quiet"])
        assert code == 1
        assert shown.getvalue().count("a disk is full while ") == 1, shown.getvalue()
        assert "Traceback" not in shown.getvalue()
        self.disks["lake"].clear()
        self.check_equal()

    def check_state_file(self) -> None:
        """Assert that a run ends, with its reason, if its state can no longer be written."""
        self.change()

        def fill(progress: SourceProgress) -> None:
            if progress.rows:
                self.disks["lake"].fill()

        with pytest.raises(DiskFull, match=r"^a disk is full while "):
            run_pipeline(read_definition(str(self._file)), spark=self._spark, report=fill)
        self.disks["lake"].clear()
        self.check_equal()

    def check_index(self) -> None:
        """Assert that an index without room does not stop the current table, and catches up later."""
        self.change()
        self.disks["indexes"].fill()
        *tables, index = self.run().dependents
        assert {each.error for each in tables} == {None}
        assert "No space left on device" in str(index.error)
        assert current_of(self.lake) == self.documents.contents()
        self.disks["indexes"].clear()
        self.check_equal()

    def check_erasure(self, name: str) -> None:
        """Assert that an erasure without room names the reason, and is completed later."""
        selection = DocumentSelection((b"key-7",))
        self.disks[name].fill()
        with pytest.raises(DiskFull, match=rf"^a disk is full while {self.lake.path}"):
            erase_documents(self.lake, selection)
        self.disks[name].clear()
        assert erase_documents(self.lake, selection).is_done
        assert current_of(self.lake).keys() == self.documents.contents().keys() - {b"key-7"}
        self.change()
        self.check_equal()


def main(directory: str) -> None:
    quicken_java()
    spark = local_session(2)
    with Node.running(["default"], vbuckets=16) as node, Documents.of(node.url("default")) as documents:
        disks = FullDisks(Path(directory), documents, spark)
        disks.check_refused("_checkpoint")  # a new lake
        for name in ("changelog", "current", "_checkpoint"):
            disks.check_refused(name)
        disks.check_state_file()
        disks.check_index()
        disks.check_command()
        for name in ("lake", "changelog", "current", "indexes"):
            disks.check_erasure(name)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
