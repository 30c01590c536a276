"""Looking at the newest version of a key, be it a document or a tombstone, without reading its value."""

from __future__ import annotations

from contextlib import suppress

from penstock.store.documents.conflict import Meta
from penstock.store.documents.document_expiry import DocumentExpiry
from penstock.store.documents.document_locks import DocumentLocks
from penstock.store.documents.item import Item, is_document, meta_of, tombstone_of
from penstock.store.history.vbucket_changes import REFUSED, Newest
from penstock.store.history.vbucket_history import History

__all__ = ["DocumentVersions"]


class DocumentVersions:
    """The newest version of each key of a vbucket, tombstones included."""

    __slots__ = ("_changes", "_expiry", "_history", "_locks")

    def __init__(self, history: History, expiry: DocumentExpiry, locks: DocumentLocks) -> None:
        self._history = history
        self._changes = history.changes
        self._expiry = expiry
        self._locks = locks

    def has_document(self, key: bytes) -> bool:
        """Tell whether there is a document of this key."""
        newest = self._look_up(key)
        return is_document(newest) and not self._expiry.is_over(newest)

    def tombstone(self, key: bytes) -> Item | None:
        """Return what is left of a deleted document, None for any other. expiry: when it was deleted. flags: 0."""
        newest = self._look_up(key)
        return None if newest is None or is_document(newest) else tombstone_of(newest)

    def meta(self, key: bytes) -> Meta | None:
        """Return the meta data of a document or a tombstone; None if there never was one. cas: as of Vbucket.get."""
        newest = self._look_up(key)
        if self._expiry.is_over(newest):
            with suppress(*REFUSED):
                self._expiry.expire(key)
                newest = self._look_up(key)
        if newest is None:
            return None
        meta = meta_of(newest)
        return meta._replace(cas=self._locks.shown_cas(key, meta.cas)) if self._locks.held else meta

    def newest_seqno(self, key: bytes) -> int | None:
        """Return the seqno of a key's newest change, its deletion included; None if there is none."""
        newest = self._look_up(key)
        return None if newest is None else newest[0].seqnos_at[newest[1]]

    def _look_up(self, key: bytes) -> Newest | None:
        if self._changes.behind:
            self._history.try_catch_up()
        return self._changes.look_up(key)
