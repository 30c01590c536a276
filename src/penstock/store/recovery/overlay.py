"""Directories that leave the existing files as they are. Writes are discarded, or go into drafts beside the files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.checked_json import make_json_draft_name
from penstock.store.disk.inventory import INVENTORY
from penstock.store.disk.log_file import parse_log_number
from penstock.store.disk.sealed_segment import parse_segment_ids

_DRAFT = ".repaired"
_INVENTORIES = INVENTORY, make_json_draft_name(INVENTORY)


class DiscardingDirectory(Directory):
    """A directory that discards all writes and takes no lock. Trial recoveries use it."""

    def lock(self) -> bool:
        """Return True without a lock."""
        return True

    def create(self, name: str) -> int:
        """Return a descriptor that discards all writes."""
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)

    def reopen(self, name: str, size: int) -> int:
        """Return a descriptor that discards all writes."""
        return self.create(name)

    def watch(self, descriptor: int, name: str) -> Callable[[], bool]:
        """Return a function that always returns True."""
        return lambda: True

    def sync(self, descriptor: int) -> None:
        """Do nothing."""

    def rename(self, old: str, new: str) -> None:
        """Do nothing."""

    def remove(self, name: str) -> None:
        """Do nothing."""

    def sync_names(self) -> None:
        """Do nothing."""


class OverlayDirectory(Directory):
    """A directory whose writes go into drafts. Readers see the drafts in place of the files that they will replace.

    Attributes:
        written: names of files that have a draft.
        removed: names of files that are hidden.
        renamed: shown name -> name of the file, for files that are shown under another name.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.written: set[str] = set()
        self.removed: set[str] = set()
        self.renamed: dict[str, str] = {}

    @staticmethod
    def make_draft_name(name: str) -> str:
        """Return the name of the draft of a file."""
        return f"{name}{_DRAFT}"

    @staticmethod
    def is_draft(name: str) -> bool:
        """Return whether a file is the draft of a repair."""
        base = name.removesuffix(_DRAFT)
        if base == name:
            return False
        return parse_log_number(base) is not None or parse_segment_ids(base) is not None or base in _INVENTORIES

    def _find_seen_name(self, name: str) -> str:
        return self.make_draft_name(name) if name in self.written else self.renamed.get(name, name)

    def show_as(self, name: str, new: str) -> None:
        """Show a file under another name, in place of the file with that name."""
        self.renamed[new] = name

    def unlock(self) -> None:
        """Do nothing: the process that repairs the bucket holds the lock on another Directory, and keeps it."""

    def list_names(self) -> list[str]:
        """Return the names of the files that readers see, in order."""
        there = {*super().list_names()} - {*self.renamed.values()}
        return sorted((there | self.written | self.renamed.keys()) - self.removed)

    def read(self, name: str) -> bytes:
        """Return the bytes of a file, or of its draft if there is one."""
        return super().read(self._find_seen_name(name))

    def map(self, name: str) -> memoryview:
        """Return the mapped bytes of a file, or of its draft if there is one."""
        return super().map(self._find_seen_name(name))

    def create(self, name: str) -> int:
        """Return the descriptor of a new, empty draft of a file."""
        descriptor = super().create(self.make_draft_name(name))
        self.written.add(name)
        self.removed.discard(name)
        return descriptor

    def reopen(self, name: str, size: int) -> int:
        """Return the descriptor of a file's draft, cut to `size` bytes. A new draft is a copy of the file."""
        if name in self.written:
            return super().reopen(self.make_draft_name(name), size)
        content = super().map(name)
        descriptor = self.create(name)
        self.write_all(descriptor, content[:size], 0)
        return descriptor

    def watch(self, descriptor: int, name: str) -> Callable[[], bool]:
        """Return a function that returns whether an open file or draft still has its name."""
        return super().watch(descriptor, self._find_seen_name(name))

    def rename(self, old: str, new: str) -> None:
        """Rename the draft of a file. A file without a draft cannot be renamed."""
        super().rename(self.make_draft_name(old), self.make_draft_name(new))
        self.written.remove(old)
        self.written.add(new)
        self.removed.discard(new)

    def remove(self, name: str) -> None:
        """Hide a file."""
        self.removed.add(name)

    def remove_drafts(self) -> None:
        """Delete all drafts."""
        for name in self.written:
            super().remove(self.make_draft_name(name))
        self.written.clear()
