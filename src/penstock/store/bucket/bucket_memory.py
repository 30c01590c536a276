"""Frees memory of a bucket: by compaction first, then by deletion of old documents if the settings allow it."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.store.bucket.bucket_compactor import BucketCompactor
from penstock.store.documents.document_deleter import DocumentDeleter
from penstock.store.documents.vbucket import Vbucket
from penstock.store.log.change_log import Log
from penstock.store.slices import run_slices
from penstock.wire.codec.constants import VbucketState


class BucketMemory:
    """Frees memory of a bucket that is near its quota.

    Args:
        log: the log of the bucket.
        vbuckets: all vbuckets of the bucket.
        compactor: compacts the log.
        changed: receives the numbers of vbuckets in which documents were deleted.

    Attributes:
        auto_deleted: how many documents were deleted because memory was short.
    """

    def __init__(self, log: Log, vbuckets: Sequence[Vbucket], compactor: BucketCompactor, changed: set[int]) -> None:
        self._log = log
        self._vbuckets = vbuckets
        self._compactor = compactor
        self._changed = changed
        self._deleter: DocumentDeleter | None = None
        self.auto_deleted = 0
        log.room.can_delete = self.can_delete

    def can_delete(self) -> bool:
        """Return whether documents may be deleted to free memory, and there are any."""
        return self._log.compactions.settings.auto_delete and any(
            vbucket.changes.items for vbucket in self._vbuckets if vbucket.history.state is VbucketState.ACTIVE
        )

    def delete_some(self) -> bool:
        """Delete old documents for a few milliseconds, if memory is short.

        Compaction later drops the dead frames. Only active vbuckets delete; their replicas receive the deletions.

        Returns:
            False if enough was deleted, or no document may be deleted.
        """
        if self._deleter is None:
            quota = self._log.quota
            if not (quota.is_pressed and self.can_delete()):
                return False
            wanted = quota.measure() - self._log.segments.dead_bytes - quota.low_water
            if wanted <= 0:
                return False
            self._deleter = DocumentDeleter(self._log, self._vbuckets, wanted)
        deleted = self._deleter.delete_some()
        self.auto_deleted += len(deleted)
        self._changed.update(deleted)
        if self._deleter.is_done:
            self._deleter = None
        return self._deleter is not None

    def compact_now(self) -> None:
        """Rewrite the next piece before returning; if memory is short, free as much as possible.

        The log of a bucket in memory calls this. A caller that compacts on a thread sets another `log.room.compact`.
        If the system has no memory for a piece, nothing is freed: the log calls again while it fills.

        Raises:
            TemporaryFailure: there is no memory to begin a piece.
        """
        if self._deleter is not None:
            return  # called by a deletion of delete_some, which needs room for its tombstone
        while (piece := self._compactor.next_piece()) is not None:
            piece.run()
            piece.finish()
            self._log.quota.measure_again()
            if piece.error is not None or not self._log.quota.is_pressed:
                return
        run_slices(self.delete_some)
