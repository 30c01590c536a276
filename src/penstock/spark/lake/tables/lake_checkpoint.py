"""The positions of a lake in an object store, and the local checkpoint that Spark needs while a query runs.

Spark cannot write a checkpoint into an object store without Hadoop's connectors, and does not need to. The lake has
the part of a checkpoint that counts, under the names that Spark gives it:

- `metadata`, the query's id, created once;
- `offsets/N`, the end of batch N, created once, before the changelog's commit of batch N;
- `commits/N`, created after it.

A run makes a new checkpoint in a local directory from these objects, and removes it at its end. If the run is killed,
the directory is waste: another machine makes its own. A batch that Spark has planned without `offsets/N` in the lake is
planned again; the changelog has none of its rows. A batch with `offsets/N` runs again with the same end, and is dropped
if the changelog has it. So a batch has one end for ever, whichever runs write it.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from penstock.errors import LakeRefused
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.storage.stored_documents import create_document

KEPT_BATCHES = 100
"""Batches whose ends stay in the lake, as in a checkpoint of Spark's."""
COMMIT_TEXT = 'v1\n{"nextBatchWatermarkMs":0}'
"""The content of a batch's entry in Spark's commit log, for a query without watermarks."""


def restore_checkpoint(lake: LakeDirectory, directory: Path, written: int | None) -> None:
    """Make the checkpoint from which Spark continues a lake.

    Args:
        lake: the lake.
        directory: an empty local directory.
        written: the newest batch of the changelog; None before the first.
    """
    create_document(lake.checkpoint / "metadata", json.dumps({"id": str(uuid.uuid4())}))
    (directory / "metadata").write_text((lake.checkpoint / "metadata").read_text())
    for log in ("offsets", "commits"):
        (directory / log).mkdir()
    newest = -1 if written is None else written
    if newest >= 0:
        publish_commit(lake, newest)  # the run before may have ended between the changelog's commit and this object
        (directory / "commits" / str(newest)).write_text(COMMIT_TEXT)
    for batch in range(max(0, newest - 1), newest + 2):  # Spark also reads the end before the newest
        try:
            text = (lake.checkpoint / "offsets" / str(batch)).read_text()
        except FileNotFoundError:
            continue
        (directory / "offsets" / str(batch)).write_text(text)


def publish_end(lake: LakeDirectory, directory: Path, batch: int) -> None:
    """Store the end of a batch in the lake, before the changelog's commit of this batch.

    Args:
        lake: the lake.
        directory: Spark's local checkpoint.
        batch: the number of the batch.

    Raises:
        LakeRefused: another run has stored another end of this batch.
    """
    text = (directory / "offsets" / str(batch)).read_text()
    place = lake.checkpoint / "offsets" / str(batch)
    # The first lines have the time of the plan, which differs if a batch is planned again.
    if not create_document(place, text) and place.read_text().splitlines()[-1] != text.splitlines()[-1]:
        raise LakeRefused(f"another run writes {lake.path} and has planned another batch {batch}; stop one of them")


def publish_commit(lake: LakeDirectory, batch: int) -> None:
    """Store in the lake that the changelog has a batch, and forget the ends of old batches."""
    create_document(lake.checkpoint / "commits" / str(batch), COMMIT_TEXT)
    for log in ("offsets", "commits"):
        (lake.checkpoint / log / str(batch - KEPT_BATCHES)).unlink(missing_ok=True)
