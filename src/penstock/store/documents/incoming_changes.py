"""Changes that were made on other nodes: those of the vbucket that this one copies, and commands with metadata."""

from __future__ import annotations

from penstock.errors import KeyExists, KeyNotFound, OutOfRange
from penstock.store.documents.conflict import Meta, is_winner
from penstock.store.documents.document_expiry import DocumentExpiry
from penstock.store.documents.document_locks import DocumentLocks
from penstock.store.documents.document_writer import DocumentWriter
from penstock.store.documents.item import Stored, is_document, read_meta
from penstock.store.history.event_frames import SYSTEM_PREFIX, EventFrame, read_event
from penstock.store.history.tombstone import make_tombstone_head
from penstock.store.history.vbucket_changes import CAS
from penstock.store.history.vbucket_collections import VbucketCollections
from penstock.store.history.vbucket_history import VbucketHistory
from penstock.store.log.logged_frames import LONG_FROM, Frame, FrameRun, LongFrame
from penstock.wire.codec.constants import DurabilityLevel
from penstock.wire.codec.frame import HEADER_BYTES, Buffer
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import MUTATION_HEAD

LAST_SEQNO = 2**63 - 1
"""The highest seqno that a vbucket can hold: the columns are signed."""

_REQUEST = int(Magic.REQUEST)
_MUTATION = int(Opcode.DCP_MUTATION)
_MUTATION_BYTES = MUTATION_HEAD.size  # of a frame without key and value
_MUTATION_EXTRAS = MUTATION_HEAD.size - HEADER_BYTES
_NANOSECONDS = 10**9
_new_stored = tuple.__new__


class IncomingChanges:
    """Writes changes of other nodes into a vbucket.

    Attributes:
        conflict_resolution: as in BucketSettings.
    """

    __slots__ = ("_changes", "_collections", "_expiry", "_history", "_locks", "_writer", "conflict_resolution")

    def __init__(
        self,
        history: VbucketHistory,
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
        """Store a version of another node with its metadata, if it wins against the version here.

        An expired document is absent, but its version still counts. A time limit of the bucket or collection limits the
        expiry, as in kv_engine KVBucket::setWithMeta.

        Args:
            event: a mutation, deletion or expiration. The last two leave a tombstone, also if there was no document.
            key: the document's key.
            value: the document's value.
            meta: the version's metadata.
            cas: the cas that the document here must have, 0 for any.
            add: store only if there is no document.
            resolve: False: the version wins in any case.
            new_cas: the version gets a cas of this vbucket instead of its own.

        Returns:
            The version's cas and seqno.

        Raises:
            KeyExists: the version does not win, `add` finds a document, or the document has another cas.
            KeyNotFound: a cas is given and there is no document.
            OutOfRange: the rev_seqno is above LAST_SEQNO.
        """
        self._locks.check_decided(key)
        deleted = event is not Event.MUTATION
        newest = self._changes.find(key, _MUTATION_BYTES + len(key) + len(value), deleted)
        is_there = is_document(newest) and not self._expiry.is_expired(newest)
        if newest is not None:
            if (add and is_there) or (resolve and not is_winner(meta, read_meta(newest), self.conflict_resolution)):
                raise KeyExists(vbucket=self._changes.id)
            if is_there:
                self._locks.check_cas(key, cas, newest[2][CAS])
        if cas and not is_there:
            raise KeyNotFound(vbucket=self._changes.id)
        return self.apply(
            event,
            key,
            value,
            cas=self._changes.clock.tick() if new_cas else meta.cas,
            rev_seqno=meta.rev_seqno,
            flags=meta.flags,
            expiry=0 if deleted else self._writer.limit_expiry(self._changes, key, meta.expiry),
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
        hides: bool = False,
        level: int = 0,
        **fields: int,
    ) -> Stored:
        """Store a change of another node, with its cas and rev_seqno.

        A change with the key of a system event is that event.

        Args:
            event: a mutation, deletion or expiration. The last two leave a tombstone, also if there was no document.
            key: the document's key.
            value: the document's value.
            cas: the change's cas.
            rev_seqno: the change's rev_seqno.
            seqno: its place in the history that this vbucket copies, above high_seqno; None: the next seqno of this
                vbucket.
            snapshot_end: the end of its snapshot. Until a change reaches it, whole_seqno does not move. None: the
                change is a snapshot by itself.
            hides: its snapshot left seqnos out, so no snapshot may end inside it.
            level: the durability level of a synchronous write, which is only prepared; 0: it is no such write.
            fields: further arguments of `_encode_change`: `flags`, `expiry`, `lock_time`, `nru`, `datatype`,
                `delete_time`.

        Returns:
            The change's cas and seqno.

        Raises:
            OutOfRange: the seqno is not above high_seqno, or a number is above LAST_SEQNO.
            RemoteProtocolError: the key is a system event's, and the value is not.
        """
        changes, history = self._changes, self._history
        if changes.is_behind:
            changes.catch_up(changes.id)
        changes.check_refusal()
        seqno = self._check_seqnos(seqno, rev_seqno)
        system_event = None
        if key.startswith(SYSTEM_PREFIX):
            flags = fields.get("flags", 0)
            system_event = read_event(key, bytes(value), flags if event is Event.MUTATION else None)
        frame = self._encode_change(event, key, value, seqno=seqno, cas=cas, rev_seqno=rev_seqno, **fields)
        history.begin_change(seqno, snapshot_end)
        if level:
            history.prepares.prepare(key, frame, DurabilityLevel(level), seqno)
        else:
            self._commit(event, key, seqno, frame, system_event)
        changes.clock.observe(cas)
        history.end_change(snapshot_end, hides=hides)
        return _new_stored(Stored, (cas, seqno))

    def _encode_change(
        self,
        event: Event,
        key: bytes,
        value: Buffer,
        *,
        seqno: int,
        cas: int,
        rev_seqno: int,
        flags: int = 0,
        expiry: int = 0,
        lock_time: int = 0,
        nru: int = 0,
        datatype: int = 0,
        delete_time: int = 0,
    ) -> Frame:
        """Return the frame of a change.

        Args:
            event: as of `apply`.
            key: as of `apply`.
            value: as of `apply`.
            seqno: the change's seqno.
            cas: as of `apply`.
            rev_seqno: as of `apply`.
            flags: the document's flags.
            expiry: epoch seconds, 0 for never.
            lock_time: as in the DCP mutation.
            nru: as in the DCP mutation.
            datatype: the Datatype bits.
            delete_time: epoch seconds; 0: now.
        """
        changes, key_length, value_length = self._changes, len(key), len(value)
        if event is Event.MUTATION:
            body = _MUTATION_EXTRAS + key_length + value_length
            head = MUTATION_HEAD.pack(
                _REQUEST, _MUTATION, key_length, _MUTATION_EXTRAS, datatype, changes.id, body, 0, cas,
                seqno, rev_seqno, flags, expiry, lock_time, 0, nru,
            )  # fmt: skip
        else:
            head = make_tombstone_head(
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
        return b"".join((head, key, value)) if value_length < LONG_FROM else LongFrame(head + key, value)

    def _commit(self, event: Event, key: bytes, seqno: int, frame: Frame, system_event: EventFrame | None) -> None:
        """Append the frame of a change, which ends a lock on its document, and decides a prepare."""
        if system_event is None:
            newest = self._changes.find(key, len(frame), event is not Event.MUTATION)
            self._changes.commit(newest, key, seqno, frame)
        else:
            self._collections.apply_event(system_event, seqno, frame)
        if self._locks.held:
            self._locks.forget(key)
            self._history.prepares.settle_by_change(key, seqno)

    def decide_prepare(
        self, key: bytes, prepared_seqno: int, *, seqno: int, snapshot_end: int, hides: bool, commits: bool
    ) -> None:
        """Store the commit or the abort of a prepare.

        Args:
            key: the document's key.
            prepared_seqno: the seqno of the prepare; 0 in an abort of a prepare that was left out.
            seqno: as of `apply`.
            snapshot_end: as of `apply`.
            hides: as of `apply`.
            commits: whether it is a commit.

        Raises:
            KeyNotFound: a commit without its prepare.
            OutOfRange: the seqno is not above high_seqno, or above LAST_SEQNO.
        """
        history, prepares = self._history, self._history.prepares
        self._changes.check_refusal()
        self._check_seqnos(seqno, 0)
        pending = prepares.pending.get(key)
        if commits and (pending is None or pending.seqno != prepared_seqno):
            raise KeyNotFound(f"no prepare at seqno {prepared_seqno}", vbucket=self._changes.id)
        history.begin_change(seqno, snapshot_end)
        if commits:
            prepares.commit(key, seqno)
        else:
            prepares.abort(key, seqno, prepared_seqno)
        history.end_change(snapshot_end, hides=hides)

    def apply_run(self, run: FrameRun, *, snapshot_end: int, hides: bool) -> None:
        """Store changes of one snapshot of another node, whose frames have the form of the log.

        The caller has made the checks of `apply`, and the vbucket has no prepares. If the log refuses a change, those
        before it are stored.

        Args:
            run: mutations and tombstones. Their seqnos are above high_seqno.
            snapshot_end: as of `apply`.
            hides: as of `apply`.

        Raises:
            TemporaryFailure: the log refuses a change; OutOfMemory likewise.
        """
        changes, history, locks = self._changes, self._history, self._locks
        if changes.is_behind:
            changes.catch_up(changes.id)
        changes.check_refusal()
        history.begin_change(int(run.seqnos[0]), snapshot_end)
        changes.commit_run(run)
        for key in run.keys if locks.held else ():
            locks.forget(key)
        history.end_change(snapshot_end, hides=hides)

    def _check_seqnos(self, seqno: int | None, rev_seqno: int) -> int:
        """Return the seqno of the next change, which may be given.

        Raises:
            OutOfRange: the seqno is not above high_seqno, or a number is above LAST_SEQNO.
        """
        number, high = self._changes.id, self._changes.high_seqno
        if seqno is None:
            seqno = high + 1
        if not high < seqno <= LAST_SEQNO:
            raise OutOfRange(f"vbucket {number}: seqno {seqno} after {high}", vbucket=number)
        if rev_seqno > LAST_SEQNO:  # the next change of the key counts on from it
            raise OutOfRange(f"vbucket {number}: rev_seqno {rev_seqno}, limit {LAST_SEQNO}", vbucket=number)
        return seqno
