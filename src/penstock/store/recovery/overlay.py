"""Directories in which nothing of what is there is touched: what is written goes nowhere, or into drafts beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.checked_json import draft_of
from penstock.store.disk.inventory import INVENTORY
from penstock.store.disk.log_file import log_number
from penstock.store.disk.sealed_segment import segment_ids

__all__ = ["Overlay", "Untouched"]

_DRAFT = ".repaired"
_INVENTORIES = INVENTORY, draft_of(INVENTORY)


class Untouched(Directory):
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


class Overlay(Directory):
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
    def draft(name: str) -> str:
        return f"{name}{_DRAFT}"

    @staticmethod
    def is_draft(name: str) -> bool:
        """Tell whether a file is one that a repair has not come to the end of."""
        base = name.removesuffix(_DRAFT)
        if base == name:
            return False
        return log_number(base) is not None or segment_ids(base) is not None or base in _INVENTORIES

    def _seen(self, name: str) -> str:
        return self.draft(name) if name in self.written else self.renamed.get(name, name)

    def show(self, name: str, new: str) -> None:
        """Let a file be seen under another name, in the place of the file that has it."""
        self.renamed[new] = name

    def unlock(self) -> None:
        """Whoever has the lock keeps it."""

    def names(self) -> list[str]:
        there = {*super().names()} - {*self.renamed.values()}
        return sorted((there | self.written | self.renamed.keys()) - self.removed)

    def read(self, name: str) -> bytes:
        return super().read(self._seen(name))

    def map(self, name: str) -> memoryview:
        return super().map(self._seen(name))

    def create(self, name: str) -> int:
        descriptor = super().create(self.draft(name))
        self.written.add(name)
        self.removed.discard(name)
        return descriptor

    def reopen(self, name: str, size: int) -> int:
        if name in self.written:
            return super().reopen(self.draft(name), size)
        content = super().map(name)
        descriptor = self.create(name)
        self.write_all(descriptor, content[:size], 0)
        return descriptor

    def watch(self, descriptor: int, name: str) -> Callable[[], bool]:
        return super().watch(descriptor, self._seen(name))

    def rename(self, old: str, new: str) -> None:
        """Rename a file that was written here."""
        super().rename(self.draft(old), self.draft(new))
        self.written.remove(old)
        self.written.add(new)
        self.removed.discard(new)

    def remove(self, name: str) -> None:
        self.removed.add(name)

    def forget(self) -> None:
        """Remove all drafts."""
        for name in self.written:
            super().remove(self.draft(name))
        self.written.clear()
