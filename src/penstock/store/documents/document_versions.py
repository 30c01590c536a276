"""Reads the newest version of a key, a document or a tombstone, without its value."""

from __future__ import annotations

from contextlib import suppress

from penstock.store.documents.conflict import Meta
from penstock.store.documents.document_expiry import DocumentExpiry
from penstock.store.documents.document_locks import DocumentLocks
from penstock.store.documents.item import Item, is_document, read_meta, read_tombstone
from penstock.store.history.vbucket_changes import REFUSED, Newest
from penstock.store.history.vbucket_history import VbucketHistory


class DocumentVersions:
    """The newest version of each key of a vbucket, tombstones included."""

    __slots__ = ("_changes", "_expiry", "_history", "_locks")

    def __init__(self, history: VbucketHistory, expiry: DocumentExpiry, locks: DocumentLocks) -> None:
        self._history = history
        self._changes = history.changes
        self._expiry = expiry
        self._locks = locks

    def has_document(self, key: bytes) -> bool:
        """Return whether there is a document with this key."""
        newest = self._look_up(key)
        return is_document(newest) and not self._expiry.is_expired(newest)

    def find_tombstone(self, key: bytes) -> Item | None:
        """Return the tombstone of a deleted document, None for other keys. expiry: when it was deleted. flags: 0."""
        newest = self._look_up(key)
        return None if newest is None or is_document(newest) else read_tombstone(newest)

    def find_meta(self, key: bytes) -> Meta | None:
        """Return the metadata of a document or a tombstone; None if there never was one. cas: as of Vbucket.get."""
        newest = self._look_up(key)
        if self._expiry.is_expired(newest):
            with suppress(*REFUSED):
                self._expiry.expire(key)
                newest = self._look_up(key)
        if newest is None:
            return None
        meta = read_meta(newest)
        return meta._replace(cas=self._locks.get_shown_cas(key, meta.cas)) if self._locks.held else meta

    def find_newest_seqno(self, key: bytes) -> int | None:
        """Return the seqno of a key's newest change, a deletion included; None if there is none."""
        newest = self._look_up(key)
        return None if newest is None else newest[0].seqnos_at[newest[1]]

    def _look_up(self, key: bytes) -> Newest | None:
        if self._changes.is_behind:
            self._history.try_catch_up()
        return self._changes.look_up(key)
