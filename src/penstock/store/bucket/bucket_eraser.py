"""Erasing what dropped collections have left in the vbuckets of a bucket."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.store.bucket.rollout import Rollout
from penstock.store.documents.vbucket import Vbucket
from penstock.store.slices import run_slices

__all__ = ["BucketEraser"]

_ROWS_AT_ONCE = 8 * 1024  # a few milliseconds of work
_ROWS_PER_CALL = 256  # that take as long as to begin and end with a vbucket


class BucketEraser:
    """Goes through the vbuckets of a bucket, and erases what ended collections have left."""

    def __init__(self, vbuckets: Sequence[Vbucket], rollout: Rollout) -> None:
        self._vbuckets = vbuckets
        self._rollout = rollout

    def erase_some(self) -> bool:
        """Go on with what is left of dropped collections, a few milliseconds' worth; False: nothing is left."""
        if self._rollout.catch_up_some():
            return True  # nothing may be erased that an event, which is yet to be written, is about
        rows = 0
        for vbucket in self._vbuckets:
            eraser = vbucket.collections.eraser
            while rows < _ROWS_AT_ONCE and (taken := eraser.erase_some(_ROWS_AT_ONCE - rows)):
                rows += taken + _ROWS_PER_CALL
        return rows >= _ROWS_AT_ONCE

    def erase_all(self) -> None:
        run_slices(self.erase_some)
