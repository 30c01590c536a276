"""Compaction of a bucket: the next piece of its log that is worth a rewrite, or the whole log at once."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import TemporaryFailure
from penstock.store.bucket.bucket_eraser import BucketEraser
from penstock.store.documents.vbucket import Vbucket
from penstock.store.log.change_log import Log
from penstock.store.log.compaction import Compaction
from penstock.store.log.rewrite import PurgeRequest

_KEYS_AT_ONCE = 16 * 1024  # a few milliseconds of work


class BucketCompactor:
    """Chooses the part of a bucket's log that is rewritten next."""

    def __init__(self, log: Log, vbuckets: Sequence[Vbucket], eraser: BucketEraser) -> None:
        self._log = log
        self._vbuckets = vbuckets
        self._eraser = eraser

    def next_piece(self, everything: bool = False, purge: PurgeRequest | None = None) -> Compaction | None:
        """Return the next piece of rewriting that is worth doing.

        Call its `run` on any thread, then its `finish` on this thread.

        Args:
            everything: rewrite also segments with little to gain, each segment once, until this returns None. First
                seal the active segment and commit; otherwise the newest changes are left out.
            purge: tombstones to drop before their time.

        Returns:
            The piece. None if no rewrite is worth it, a piece is running, or ended collections are still being erased.

        Raises:
            TemporaryFailure: there is no memory to begin a piece.
        """
        purged = self._log.compactions.purged
        for vbucket, key, seqno, _ in purged[-_KEYS_AT_ONCE:]:
            self._vbuckets[vbucket].changes.forget_key(key, seqno)
        del purged[-_KEYS_AT_ONCE:]
        if any(vbucket.collections.eraser.is_due for vbucket in self._vbuckets):
            return None  # the event that ended a collection must stay until all documents of the collection are erased
        return self._log.compactions.next_piece(everything, purge)

    def rewrite_all(self) -> None:
        """Rewrite the whole log before returning.

        Raises:
            TemporaryFailure: the disk does not accept the new segments, or there is no memory for a piece.
        """
        log = self._log
        self._eraser.erase_all()
        log.room.seal_active()
        log.commits.run()
        while (piece := self.next_piece(everything=True)) is not None:
            piece.run()
            piece.finish()
            if piece.problem:
                raise TemporaryFailure(piece.problem)
            log.commits.run()
        log.room.check_fault()
