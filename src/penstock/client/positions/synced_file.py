"""Small files that are replaced as a whole. A program that is killed at any moment leaves the old or the new content.

The file is written on the calling thread: a cancelled write on another thread would go on beside the next one.
"""

from __future__ import annotations

import threading
from pathlib import Path

from penstock.errors import Error
from penstock.store.disk.bucket_files import Directory


def read_file(path: Path) -> bytes | None:
    """Return the content of a file; None if there is none. Raises Error if it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Error(f"{path} cannot be read: {error.strerror or error}") from error


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file. Its content and its name are on disk before this returns. Raises Error if that fails."""
    directory = Directory(path.parent)
    # Each thread has a draft of its own: a rename never publishes an incomplete draft of another thread or process.
    draft = f".{path.name}.{threading.get_native_id()}.new"
    try:
        directory.write_file(draft, (0, memoryview(content)))
        directory.rename(draft, path.name)
        directory.sync_names()
    except OSError as error:
        raise Error(f"{path} cannot be written: {error.strerror or error}") from error


def remove_file(path: Path) -> None:
    """Remove a file, if it exists. Raises Error if that fails."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise Error(f"{path} cannot be removed: {error.strerror or error}") from error
