"""Deletes the documents that were changed longest ago, to free memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.errors import KeyNotFound, Locked, SyncWriteInProgress
from penstock.store.history.event_frames import SYSTEM_PREFIX
from penstock.store.history.tombstone import TOMBSTONE_BYTES
from penstock.store.history.vbucket_changes import REFUSED
from penstock.store.log.frame_fields import mask_mutations, read_keys
from penstock.wire.codec.constants import VbucketState

if TYPE_CHECKING:
    from penstock.store.documents.vbucket import Vbucket
    from penstock.store.log.change_log import Log

_AT_ONCE = 1024  # deletions in some milliseconds
_ROWS_AT_ONCE = 8192  # looked at in about one


class _Document(NamedTuple):
    vbucket: Vbucket
    key: bytes
    seqno: int
    nbytes: int


class DocumentDeleter:
    """One round of deletions: from the oldest segment of a log on, until enough bytes of frames are dead.

    Each deletion is a change like a client's, with a tombstone that streams send.

    Attributes:
        is_done: enough was deleted, or no document is left.
    """

    def __init__(self, log: Log, vbuckets: Sequence[Vbucket], wanted: int) -> None:
        self.is_done = False
        self._log = log
        self._vbuckets = vbuckets
        self._wanted = wanted
        self._documents = self._iterate_oldest()

    def delete_some(self) -> list[int]:
        """Delete documents for a few milliseconds.

        Returns:
            The vbucket of each deleted document.
        """
        deleted = []
        looked_at = 0
        for found in self._documents:
            looked_at += len(found)
            for document in found:
                if self._delete(document):
                    deleted.append(document.vbucket.id)
                    self._wanted -= document.nbytes - TOMBSTONE_BYTES - len(document.key)
                if self._wanted <= 0:
                    self.is_done = True
                    return deleted
            if len(deleted) >= _AT_ONCE or looked_at >= _ROWS_AT_ONCE:
                return deleted
        self.is_done = True
        return deleted

    def _delete(self, document: _Document) -> bool:
        vbucket, key, seqno, _ = document
        with suppress(KeyNotFound, Locked, SyncWriteInProgress, *REFUSED):
            if vbucket.history.state is VbucketState.ACTIVE and vbucket.versions.find_newest_seqno(key) == seqno:
                vbucket.delete(key)
                return True
        return False

    def _iterate_oldest(self) -> Iterator[list[_Document]]:
        """Yield documents in small batches, oldest segments first. Clients may change them in between."""
        self._log.room.seal_active()
        for segment in tuple(self._log.segments.sealed):
            numbers = segment.vbuckets
            live = np.flatnonzero(segment.fates == 0)
            for first in range(0, len(live), _AT_ONCE):
                rows = live[first : first + _AT_ONCE]
                rows = rows[mask_mutations(segment.buffer, segment.offsets[rows])]
                found = zip(
                    numbers[rows].tolist(),
                    read_keys(segment.buffer, segment.offsets[rows]),
                    segment.seqnos[rows].tolist(),
                    segment.lengths[rows].tolist(),
                    strict=True,
                )
                yield [
                    _Document(self._vbuckets[number], key, seqno, nbytes)
                    for number, key, seqno, nbytes in found
                    if not key.startswith(SYSTEM_PREFIX)
                ]
