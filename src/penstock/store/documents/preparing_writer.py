"""Prepares synchronous writes: any command that changes a document writes a prepare instead of the change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.store.documents.document_writer import DocumentWriter, WriteTarget
from penstock.store.documents.item import Stored
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.vbucket_changes import Newest
from penstock.store.history.vbucket_prepares import VbucketPrepares
from penstock.store.log.logged_frames import Frame
from penstock.wire.codec.constants import DurabilityLevel


class _PreparedChanges:
    """The changes of a vbucket for a writer. A change that the writer commits becomes a prepare."""

    __slots__ = ("_changes", "_level", "_prepares", "clock", "find", "id", "index", "now")

    def __init__(self, changes: WriteTarget, prepares: VbucketPrepares, level: DurabilityLevel) -> None:
        self._changes = changes
        self._prepares = prepares
        self._level = level
        self.id = changes.id
        self.index = changes.index
        self.clock = changes.clock
        self.now = changes.now
        self.find = changes.find

    @property
    def high_seqno(self) -> int:
        """The seqno of the newest change."""
        return self._changes.high_seqno

    def commit(self, old: Newest | None, key: bytes, seqno: int, frame: Frame) -> None:
        """Write a prepare of the change."""
        self._prepares.prepare(key, frame, self._level)


class PreparingWriter(DocumentWriter):
    """Writes prepares of documents and tombstones.

    Attributes:
        key: the key of the newest prepare, None if nothing was written.
    """

    __slots__ = ("_level", "_prepares", "key")

    def __init__(self, writer: DocumentWriter, prepares: VbucketPrepares, level: DurabilityLevel) -> None:
        self.time_limits = writer.time_limits
        self.key: bytes | None = None
        self._prepares = prepares
        self._level = level

    def write_document(self, changes: WriteTarget, old: Newest | None, key: bytes, *args: Any, **kwargs: Any) -> Stored:
        """Write a prepare of a document. The arguments are those of DocumentWriter.

        Returns:
            The cas of the document, and the seqno of the prepare.
        """
        self.key = key
        return super().write_document(self._divert(changes), old, key, *args, **kwargs)

    def write_tombstone(
        self, changes: WriteTarget, old: Newest | None, key: bytes, *args: Any, **kwargs: Any
    ) -> Stored:
        """Write a prepare of a tombstone. The arguments are those of DocumentWriter.

        Returns:
            The cas of the tombstone, and the seqno of the prepare.
        """
        self.key = key
        return super().write_tombstone(self._divert(changes), old, key, *args, **kwargs)

    def _divert(self, changes: WriteTarget) -> WriteTarget:
        return _PreparedChanges(changes, self._prepares, self._level)


@contextmanager
def prepare_changes(vbucket: Vbucket, level: DurabilityLevel) -> Iterator[PreparingWriter]:
    """Let the commands inside the context prepare their changes of documents.

    Args:
        vbucket: the vbucket, which must be active.
        level: the durability level.

    Yields:
        The writer, which knows the key of the prepare.
    """
    writer = vbucket.writer
    vbucket.writer = preparing = PreparingWriter(writer, vbucket.history.prepares, level)
    try:
        yield preparing
    finally:
        vbucket.writer = writer
