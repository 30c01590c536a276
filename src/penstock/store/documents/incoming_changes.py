"""Changes that were made elsewhere: those of the vbucket that this one is a copy of, and commands with meta data."""

from __future__ import annotations

from penstock.errors import KeyExists, KeyNotFound, OutOfRange
from penstock.store.documents.conflict import Meta, wins
from penstock.store.documents.document_expiry import DocumentExpiry
from penstock.store.documents.document_locks import DocumentLocks
from penstock.store.documents.document_writer import DocumentWriter
from penstock.store.documents.item import Stored, is_document, meta_of
from penstock.store.history.event_frames import SYSTEM_PREFIX, read_event
from penstock.store.history.tombstone import tombstone_head
from penstock.store.history.vbucket_changes import CAS
from penstock.store.history.vbucket_collections import VbucketCollections
from penstock.store.history.vbucket_history import History
from penstock.store.log.long_frame import LONG_FROM, Frame, LongFrame
from penstock.wire.codec.frame import HEADER_BYTES, Buffer
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import MUTATION_HEAD

__all__ = ["LAST_SEQNO", "IncomingChanges"]

LAST_SEQNO = 2**63 - 1
"""The highest seqno that a vbucket can hold: the columns are signed."""

_REQUEST = int(Magic.REQUEST)
_MUTATION = int(Opcode.DCP_MUTATION)
_MUTATION_BYTES = MUTATION_HEAD.size  # of a frame without key and value
_MUTATION_EXTRAS = MUTATION_HEAD.size - HEADER_BYTES
_NANOSECONDS = 10**9
_new_stored = tuple.__new__


class IncomingChanges:
    """Writes changes that were made elsewhere into a vbucket.

    Attributes:
        conflict_resolution: as in Settings.
    """

    __slots__ = ("_changes", "_collections", "_expiry", "_history", "_locks", "_writer", "conflict_resolution")

    def __init__(
        self,
        history: History,
        collections: VbucketCollections,
        locks: DocumentLocks,
        writer: DocumentWriter,
        expiry: DocumentExpiry,
    ) -> None:
        self._history = history
        self._changes = history.changes
        self._collections = collections
        self._locks = locks
        self._writer = writer
        self._expiry = expiry
        self.conflict_resolution = "seqno"

    def store_with_meta(
        self,
        event: Event,
        key: bytes,
        value: Buffer,
        meta: Meta,
        *,
        cas: int = 0,
        add: bool = False,
        resolve: bool = True,
        new_cas: bool = False,
    ) -> Stored:
        """Store a version of a document that was made elsewhere, with its meta data, if it wins against the one here.

        event: a mutation, deletion or expiration; the last two leave a tombstone whether or not there was a document.
        cas: as of Vbucket.set. add: only where there is no document. resolve: False: it wins in any case. new_cas: it
        gets a cas of this vbucket instead of its own. A document that has expired is none, but its version still
        counts. A time limit of the bucket or collection limits the expiry, as in kv_engine KVBucket::setWithMeta.
        Raises KeyExists if it does not win, is to be added to a document, or that has another cas; KeyNotFound if a cas
        is given and there is no document; OutOfRange for a rev_seqno above LAST_SEQNO.
        """
        deleted = event is not Event.MUTATION
        newest = self._changes.find(key, _MUTATION_BYTES + len(key) + len(value), deleted)
        is_there = is_document(newest) and not self._expiry.is_over(newest)
        if newest is not None:
            if (add and is_there) or (resolve and not wins(meta, meta_of(newest), self.conflict_resolution)):
                raise KeyExists(vbucket=self._changes.id)
            if is_there:
                self._locks.check(key, cas, newest[2][CAS])
        if cas and not is_there:
            raise KeyNotFound(vbucket=self._changes.id)
        return self.apply(
            event,
            key,
            value,
            cas=self._changes.clock.tick() if new_cas else meta.cas,
            rev_seqno=meta.rev_seqno,
            flags=meta.flags,
            expiry=0 if deleted else self._writer.limited_expiry(key, meta.expiry),
            datatype=meta.datatype,
            delete_time=meta.expiry if deleted else 0,
        )

    def apply(
        self,
        event: Event,
        key: bytes,
        value: Buffer = b"",
        *,
        cas: int,
        rev_seqno: int,
        seqno: int | None = None,
        snapshot_end: int | None = None,
        flags: int = 0,
        expiry: int = 0,
        lock_time: int = 0,
        nru: int = 0,
        datatype: int = 0,
        delete_time: int = 0,
    ) -> Stored:
        """Store a change that happened elsewhere, with the cas and rev_seqno that it got there.

        event: a mutation, deletion or expiration; the last two leave a tombstone whether or not there was a document.
        expiry, delete_time: epoch seconds; a tombstone that comes without a time gets the present one.
        seqno: its place in the history that this vbucket is a copy of, above high_seqno; None: the next one of this
        vbucket's own. snapshot_end: of the snapshot that it is a part of; until a change has reached it, whole_seqno
        stays where it was. None: the change is a snapshot by itself.
        With the key of a system event it is that event. Raises OutOfRange for a seqno that is not above high_seqno, or
        a number above LAST_SEQNO; RemoteProtocolError for a system event that is none.
        """
        changes, history = self._changes, self._history
        if changes.behind:
            changes.catch_up(changes.id)
        seqno = self._check_place(seqno, rev_seqno)
        told = None
        if key.startswith(SYSTEM_PREFIX):
            told = read_event(key, bytes(value), flags if event is Event.MUTATION else None)
        key_length, value_length = len(key), len(value)
        if event is Event.MUTATION:
            body = _MUTATION_EXTRAS + key_length + value_length
            head = MUTATION_HEAD.pack(
                _REQUEST, _MUTATION, key_length, _MUTATION_EXTRAS, datatype, changes.id, body, 0, cas,
                seqno, rev_seqno, flags, expiry, lock_time, 0, nru,
            )  # fmt: skip
        else:
            head = tombstone_head(
                event,
                vbucket=changes.id,
                key_length=key_length,
                value_length=value_length,
                datatype=datatype,
                cas=cas,
                seqno=seqno,
                rev_seqno=rev_seqno,
                delete_time=delete_time or changes.now() // _NANOSECONDS,
            )
        frame: Frame = b"".join((head, key, value)) if value_length < LONG_FROM else LongFrame(head + key, value)
        history.begin_change(seqno, snapshot_end)
        if told is None:
            changes.commit(changes.find(key, len(frame), event is not Event.MUTATION), key, seqno, frame)
        else:
            self._collections.apply_event(told, seqno, frame)
        if self._locks.held:
            self._locks.forget(key)
        changes.clock.see(cas)
        history.end_change(snapshot_end)
        return _new_stored(Stored, (cas, seqno))

    def _check_place(self, seqno: int | None, rev_seqno: int) -> int:
        """Return the seqno of a change that is to be written, None: the next one. Raises OutOfRange."""
        number, high = self._changes.id, self._changes.high_seqno
        if seqno is None:
            seqno = high + 1
        if not high < seqno <= LAST_SEQNO:
            raise OutOfRange(f"vbucket {number}: seqno {seqno} after {high}", vbucket=number)
        if rev_seqno > LAST_SEQNO:  # the next change of the key counts on from it
            raise OutOfRange(f"vbucket {number}: rev_seqno {rev_seqno}, limit {LAST_SEQNO}", vbucket=number)
        return seqno
