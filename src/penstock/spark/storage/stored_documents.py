"""Small files that are replaced as a whole or created once: positions, the state of a run, manifests."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import obstore

from penstock.errors import LakeRefused
from penstock.spark.storage.object_client import (
    ObjectChanged,
    open_store,
    put_if,
    read_object,
    translate_errors,
)
from penstock.spark.storage.object_path import LakePath, ObjectPath
from penstock.store.disk.bucket_files import Directory


def replace_document(path: LakePath, text: str, *, is_synced: bool = False) -> None:
    """Replace a file: readers see the old content or the new one.

    Args:
        path: the file.
        text: the new content.
        is_synced: True to survive a power failure.
    """
    if isinstance(path, ObjectPath):
        path.write_text(text)
        return
    with _write_draft(path, text, is_synced=is_synced) as draft:
        draft.replace(path)
    if is_synced:
        Directory(path.parent).sync_names()


def replace_file(source: LakePath, target: LakePath) -> None:
    """Move a file to another name of the same lake. Raises FileNotFoundError if there is none.

    The new name is on disk before this returns. An object is copied and deleted, so a crash may leave both names.

    Args:
        source: the file.
        target: the new name, in place of a file there.
    """
    if isinstance(source, ObjectPath) and isinstance(target, ObjectPath):
        translate_errors(source, lambda: obstore.copy(open_store(source.root), source.key, target.key))
        source.unlink()
    else:
        moved = Path(str(source)).replace(str(target))
        Directory(moved.parent).sync_names()


def remove_tree(path: LakePath) -> None:
    """Remove a file, or a directory with everything in it."""
    if isinstance(path, ObjectPath):
        path.remove_tree()
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def create_document(path: LakePath, text: str) -> bool:
    """Create a complete file that survives a crash.

    Args:
        path: the file.
        text: the content. In an object store a file with the same content counts as created by this call.

    Returns:
        False if the file exists already.
    """
    if isinstance(path, ObjectPath):
        try:
            put_if(path.root, path.key, text.encode(), None)
        except ObjectChanged:
            return False
        return True
    _make_directory(path.parent)
    # A hard link to a synced draft creates the name exactly once. A rename would replace an existing file.
    try:
        with _write_draft(path, text, is_synced=True) as draft:
            os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        Directory(path.parent).sync_names()  # also for a name that another writer has just created
    return True


def _make_directory(path: Path) -> None:
    """Create a directory and its parents, and wait until their names are on disk."""
    if not path.is_dir():
        _make_directory(path.parent)
        path.mkdir(exist_ok=True)
        Directory(path.parent).sync_names()


@contextmanager
def _write_draft(path: Path, text: str, *, is_synced: bool) -> Iterator[Path]:
    """Write a complete file beside another.

    Threads and processes never share a draft.

    Yields:
        The draft. The block gives it its name; a draft without one is removed.
    """
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.draft")
    try:
        with draft.open("w") as file:
            file.write(text)
            if is_synced:
                file.flush()
                os.fsync(file.fileno())  # before the rename, or a power failure could leave an empty file
        yield draft
    finally:
        draft.unlink(missing_ok=True)  # if it could not be written, for example on a full disk


class StoredDocument:
    """A file with a single writer at a time.

    In an object store each replacement names the version that this object read or wrote last. So a process that
    another process has replaced cannot overwrite a newer content. A local file has the lake's lock instead.

    Args:
        path: the file.
    """

    def __init__(self, path: LakePath) -> None:
        self.path = path
        self._version: str | None = None

    def read(self) -> str:
        """Return the content, and remember its version. Raises FileNotFoundError if there is none."""
        path = self.path
        if not isinstance(path, ObjectPath):
            return path.read_text()
        self._version = None
        content, self._version = translate_errors(path, lambda: read_object(open_store(path.root), path.key))
        return content.decode()

    def replace(self, text: str, *, is_synced: bool = False) -> None:
        """Replace the content.

        Args:
            text: the new content.
            is_synced: True to survive a power failure.

        Raises:
            LakeRefused: another process replaced the file since this object read or wrote it.
        """
        if not isinstance(self.path, ObjectPath):
            _make_directory(self.path.parent)
            replace_document(self.path, text, is_synced=is_synced)
            return
        try:
            self._version = put_if(self.path.root, self.path.key, text.encode(), self._version)
        except ObjectChanged:
            raise LakeRefused(f"another run has replaced {self.path}; only one run may write a lake") from None
