"""Loads the keys of a bucket after its opening, and frees the keys that are no longer needed."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.store.documents.vbucket import Vbucket

_ROWS_AT_ONCE = 16 * 1024  # a few milliseconds of work


class KeyLoader:
    """Loads and frees the keys of all vbuckets of a bucket, in slices of a few milliseconds."""

    def __init__(self, vbuckets: Sequence[Vbucket]) -> None:
        self._vbuckets = vbuckets
        self._left = iter(vbuckets)

    def load_some(self) -> bool:
        """Load or free keys for a few milliseconds.

        A command on a vbucket whose keys are not loaded yet loads them first.

        Returns:
            False if no keys are left to be loaded or freed.
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
