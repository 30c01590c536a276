"""Writes documents and tombstones as changes of a vbucket's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.store.documents.item import Stored, make_tombstone_value
from penstock.store.documents.time_to_live import TimeLimits
from penstock.store.history.hybrid_clock import HybridClock, resolve_expiry
from penstock.store.history.tombstone import TOMBSTONE_BYTES, make_tombstone_head
from penstock.store.history.vbucket_changes import REV_SEQNO, Newest
from penstock.store.log.logged_frames import LONG_FROM, Frame, LongFrame
from penstock.store.log.row_index import RowIndex
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import HEADER_BYTES, Buffer
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import MUTATION_HEAD

_REQUEST = int(Magic.REQUEST)
_MUTATION = int(Opcode.DCP_MUTATION)
_MUTATION_EXTRAS = MUTATION_HEAD.size - HEADER_BYTES
_NANOSECONDS = 10**9

# Without the constructor's handling of keywords this costs a third; it runs for every command.
_new_stored = tuple.__new__


class WriteTarget(Protocol):
    """The part of a vbucket's changes that a writer uses; `store.documents.preparing_writer` has its own.

    Attributes:
        id: the vbucket's number.
        index: the rows of the changes.
        clock: gives each change its cas.
    """

    id: int
    index: RowIndex
    clock: HybridClock

    @property
    def high_seqno(self) -> int:
        """The seqno of the newest change."""

    @property
    def now(self) -> Callable[[], int]:
        """Returns nanoseconds since the epoch."""

    def find(self, key: bytes, nbytes: int, frees: bool = False) -> Newest | None:
        """Return the newest change of a key, as VbucketChanges.find does."""

    def commit(self, old: Newest | None, key: bytes, seqno: int, frame: Frame) -> None:
        """Append the frame of a change, as VbucketChanges.commit does."""


class DocumentWriter:
    """Writes changes of active vbuckets. Each gets the vbucket's next seqno and cas, and the key's next rev_seqno.

    All vbuckets of a bucket share the writer. A writer per vbucket would seldom be in the processor's cache: with 1024
    vbuckets that costs about 5 % of a change.

    Attributes:
        time_limits: the longest time to live of stored documents; None: no limit.
    """

    __slots__ = ("time_limits",)

    def __init__(self) -> None:
        self.time_limits: TimeLimits | None = None

    def limit_expiry(self, changes: WriteTarget, key: bytes, expiry: int) -> int:
        """Return when a document that is stored now expires, in epoch seconds."""
        if self.time_limits is None:
            return expiry
        return self.time_limits.apply(key, expiry, changes.now() // _NANOSECONDS)

    def write_document(
        self,
        changes: WriteTarget,
        old: Newest | None,
        key: bytes,
        value: Buffer,
        *,
        flags: int,
        expiry: int,
        datatype: int,
        cas: int = 0,
        front: bytes = b"",
    ) -> Stored:
        """Write a document.

        Args:
            changes: the changes of the vbucket.
            old: the key's newest change.
            key: the document's key.
            value: the document's value.
            flags: the document's flags.
            expiry: 0 for never, up to 30 days in seconds from now, above as epoch seconds.
            datatype: the Datatype bits.
            cas: the clock's newest value, 0: its next one.
            front: the beginning of the value, such as extended attributes.

        Returns:
            The document's cas and seqno.
        """
        seqno, cas = changes.high_seqno + 1, cas or changes.clock.tick()
        rev_seqno = (changes.index.purged_rev_seqno if old is None else old[2][REV_SEQNO]) + 1
        if expiry:
            expiry = resolve_expiry(expiry, changes.now())
        if self.time_limits is not None:
            expiry = self.limit_expiry(changes, key, expiry)
        key_length = len(key)
        value_length = len(value)
        body = _MUTATION_EXTRAS + key_length + len(front) + value_length
        head = MUTATION_HEAD.pack(
            _REQUEST, _MUTATION, key_length, _MUTATION_EXTRAS, datatype, changes.id, body, 0, cas,
            seqno, rev_seqno, flags, expiry, 0, 0, 0,
        )  # fmt: skip
        if value_length < LONG_FROM:
            changes.commit(old, key, seqno, b"".join((head, key, front, value)))
        else:
            changes.commit(old, key, seqno, LongFrame(head + key + front, value))
        return _new_stored(Stored, (cas, seqno))

    def write_tombstone(
        self,
        changes: WriteTarget,
        old: Newest | None,
        key: bytes,
        event: Event,
        value: bytes | None = None,
        *,
        datatype: int = int(Datatype.XATTR),
        cas: int = 0,
        nbytes: int = 0,
    ) -> Stored:
        """Write a tombstone.

        Args:
            changes: the changes of the vbucket.
            old: the key's newest change.
            key: the document's key.
            event: deletion or expiration.
            value: the tombstone's value; None: the system attributes of the document.
            datatype: the Datatype bits of the value.
            cas: as of `write_document`.
            nbytes: bytes that are written next, so that there is room for both.

        Returns:
            The tombstone's cas and seqno.
        """
        if value is None:
            value = b"" if old is None else make_tombstone_value(old)
            if value:
                old = changes.find(key, TOMBSTONE_BYTES + len(key) + len(value) + nbytes, frees=True)
        seqno, cas = changes.high_seqno + 1, cas or changes.clock.tick()
        head = make_tombstone_head(
            event,
            vbucket=changes.id,
            key_length=len(key),
            value_length=len(value),
            datatype=datatype if value else 0,
            cas=cas,
            seqno=seqno,
            rev_seqno=(changes.index.purged_rev_seqno if old is None else old[2][REV_SEQNO]) + 1,
            delete_time=changes.now() // _NANOSECONDS,
        )
        changes.commit(old, key, seqno, b"".join((head, key, value)))
        return _new_stored(Stored, (cas, seqno))
