"""Loading the keys of a bucket that was opened, and freeing those that are no longer needed."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.store.documents.vbucket import Vbucket

__all__ = ["KeyLoader"]

_ROWS_AT_ONCE = 16 * 1024  # a few milliseconds of work


class KeyLoader:
    """Goes through the vbuckets of a bucket, and loads or frees their keys bit by bit."""

    def __init__(self, vbuckets: Sequence[Vbucket]) -> None:
        self._vbuckets = vbuckets
        self._left = iter(vbuckets)

    def load_some(self) -> bool:
        """Go on with keys that are left to be loaded or freed, a few milliseconds' worth; False: that was all.

        A command on a vbucket whose keys are not there yet waits for them.
        """
        rows = 0
        while rows < _ROWS_AT_ONCE:
            vbucket = next(self._left, None)
            if vbucket is None:
                self._left = iter(self._vbuckets)
                return False
            while rows < _ROWS_AT_ONCE and (taken := vbucket.changes.keys.load_some()):
                rows += taken
            if rows >= _ROWS_AT_ONCE:
                self._left = iter([vbucket, *self._left])
        return True
