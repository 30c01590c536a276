"""Directories in which nothing of what is there is touched: what is written goes nowhere, or into drafts beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.checked_json import make_json_draft_name
from penstock.store.disk.inventory import INVENTORY
from penstock.store.disk.log_file import parse_log_number
from penstock.store.disk.sealed_segment import parse_segment_ids

__all__ = ["DiscardingDirectory", "OverlayDirectory"]

_DRAFT = ".repaired"
_INVENTORIES = INVENTORY, make_json_draft_name(INVENTORY)


class DiscardingDirectory(Directory):
    """What is written goes nowhere, and nobody is kept out: for a look at what a bucket would be."""

    def lock(self) -> bool:
        return True

    def create(self, name: str) -> int:
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)

    def reopen(self, name: str, size: int) -> int:
        return self.create(name)

    def watch(self, descriptor: int, name: str) -> Callable[[], bool]:
        return lambda: True

    def sync(self, descriptor: int) -> None:
        pass

    def rename(self, old: str, new: str) -> None:
        pass

    def remove(self, name: str) -> None:
        pass

    def sync_names(self) -> None:
        pass


class OverlayDirectory(Directory):
    """What is written goes into drafts, which are seen in the place of the files that they are to replace.

    Attributes:
        written: names of files that have a draft.
        removed: names of files that are hidden.
        renamed: files that are seen under another name, by that name.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.written: set[str] = set()
        self.removed: set[str] = set()
        self.renamed: dict[str, str] = {}

    @staticmethod
    def make_draft_name(name: str) -> str:
        return f"{name}{_DRAFT}"

    @staticmethod
    def is_draft(name: str) -> bool:
        """Tell whether a file is one that a repair has not come to the end of."""
        base = name.removesuffix(_DRAFT)
        if base == name:
            return False
        return parse_log_number(base) is not None or parse_segment_ids(base) is not None or base in _INVENTORIES

    def _find_seen_name(self, name: str) -> str:
        return self.make_draft_name(name) if name in self.written else self.renamed.get(name, name)

    def show_as(self, name: str, new: str) -> None:
        """Let a file be seen under another name, in the place of the file that has it."""
        self.renamed[new] = name

    def unlock(self) -> None:
        """Whoever has the lock keeps it."""

    def list_names(self) -> list[str]:
        there = {*super().list_names()} - {*self.renamed.values()}
        return sorted((there | self.written | self.renamed.keys()) - self.removed)

    def read(self, name: str) -> bytes:
        return super().read(self._find_seen_name(name))

    def map(self, name: str) -> memoryview:
        return super().map(self._find_seen_name(name))

    def create(self, name: str) -> int:
        descriptor = super().create(self.make_draft_name(name))
        self.written.add(name)
        self.removed.discard(name)
        return descriptor

    def reopen(self, name: str, size: int) -> int:
        if name in self.written:
            return super().reopen(self.make_draft_name(name), size)
        content = super().map(name)
        descriptor = self.create(name)
        self.write_all(descriptor, content[:size], 0)
        return descriptor

    def watch(self, descriptor: int, name: str) -> Callable[[], bool]:
        return super().watch(descriptor, self._find_seen_name(name))

    def rename(self, old: str, new: str) -> None:
        """Rename a file that was written here."""
        super().rename(self.make_draft_name(old), self.make_draft_name(new))
        self.written.remove(old)
        self.written.add(new)
        self.removed.discard(new)

    def remove(self, name: str) -> None:
        self.removed.add(name)

    def remove_drafts(self) -> None:
        """Remove all drafts."""
        for name in self.written:
            super().remove(self.make_draft_name(name))
        self.written.clear()
