"""Small files that threads and processes replace at the same moment."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from penstock.cli.node.tls import _write_file
from penstock.client.positions.synced_file import replace_file
from penstock.spark.storage.stored_documents import (
    StoredDocument,
    create_document,
    replace_document,
)
from penstock.spark.storage.stored_documents import replace_file as move_file
from tests.patience import PATIENCE

WRITERS = 8


@pytest.mark.parametrize(
    "replace", [replace_document, lambda path, text: replace_file(path, text.encode())], ids=["lake", "positions"]
)
def test_threads_replace_a_file_at_once(tmp_path, replace):
    barrier, path = Barrier(WRITERS), tmp_path / "state.json"

    def write(writer):
        text = json.dumps([writer] * 2_000)
        for _ in range(25):
            barrier.wait(PATIENCE)
            try:
                replace(path, text)
            except OSError:
                barrier.abort()  # the others need not wait
                raise
            found = json.loads(path.read_text())
            assert len(found) == 2_000
            assert len(set(found)) == 1

    with ThreadPoolExecutor(WRITERS) as pool:
        for task in [pool.submit(write, writer) for writer in range(WRITERS)]:
            task.result(PATIENCE)
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_one_of_several_threads_creates_a_file(tmp_path):
    barrier, path = Barrier(WRITERS), tmp_path / "metadata"

    def create(writer):
        barrier.wait(PATIENCE)
        return create_document(path, str(writer))

    with ThreadPoolExecutor(WRITERS) as pool:
        created = list(pool.map(create, range(WRITERS)))
    assert sorted(created) == [False] * (WRITERS - 1) + [True]
    assert path.read_text() == str(created.index(True))
    assert [each.name for each in tmp_path.iterdir()] == ["metadata"]


def move_beside(path: Path) -> None:
    path.parent.mkdir(parents=True)
    (path.parent / "whole").write_text("text")
    move_file(path.parent / "whole", path)


def write_key(path: Path) -> None:
    path.parent.mkdir(parents=True)
    _write_file(path, b"text", 0o600)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: create_document(path, "text"),
        lambda path: StoredDocument(path).replace("text", is_synced=True),
        move_beside,
        write_key,
    ],
    ids=["create", "replace", "move", "certificate"],
)
def test_name_of_a_file_is_on_disk_too(tmp_path, monkeypatch, write):
    """A power failure could otherwise bring the old file back, although its content was synced."""
    path, synced, sync = tmp_path / "new" / "directory" / "state.json", [], os.fsync

    def record(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), path.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    write(path)
    assert synced[-1] == (str(path.parent), True)
    if write.__name__ == "<lambda>":  # these create the directories
        assert {(str(tmp_path), False), (str(tmp_path / "new"), False)} <= set(synced)
