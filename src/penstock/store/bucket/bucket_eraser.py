"""Erases the documents of dropped collections in all vbuckets of a bucket."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.store.bucket.rollout import Rollout
from penstock.store.documents.vbucket import Vbucket
from penstock.store.slices import run_slices

_ROWS_AT_ONCE = 8 * 1024  # a few milliseconds of work
_ROWS_PER_CALL = 256  # rows that take as long as the start and end of a call


class BucketEraser:
    """Erases the documents of ended collections, one vbucket after the other.

    Args:
        vbuckets: all vbuckets of the bucket.
        rollout: writes the events that end collections.
    """

    def __init__(self, vbuckets: Sequence[Vbucket], rollout: Rollout) -> None:
        self._vbuckets = vbuckets
        self._rollout = rollout

    def erase_some(self) -> bool:
        """Erase documents of dropped collections for a few milliseconds.

        Returns:
            False if none are left.
        """
        if self._rollout.catch_up_some():
            return True  # a collection's documents are erased only after the event that ended the collection
        rows = 0
        for vbucket in self._vbuckets:
            eraser = vbucket.collections.eraser
            while rows < _ROWS_AT_ONCE and (taken := eraser.erase_some(_ROWS_AT_ONCE - rows)):
                rows += taken + _ROWS_PER_CALL
        return rows >= _ROWS_AT_ONCE

    def erase_all(self) -> None:
        """Erase all documents of dropped collections."""
        run_slices(self.erase_some)
