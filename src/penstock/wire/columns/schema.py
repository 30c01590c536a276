"""Schema of a change: one list of columns for wire, client, Spark and tables.

Arrow and Spark have no common unsigned types. A u64 is an int64 with the same bits (`signed64`, `unsigned64`), a u32 an
int64, u16 and u8 an int32. Columns that a dialect does not have are null.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.argument_types import check_arguments

CHANGE_SCHEMA = pa.schema(
    [
        ("vbucket", pa.int32()),
        ("vbuuid", pa.int64()),
        ("seqno", pa.int64()),
        ("rev_seqno", pa.int64()),
        ("cas", pa.int64()),
        ("event", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("collection_id", pa.int64()),
        ("scope", pa.string()),
        ("collection", pa.string()),
        ("datatype", pa.int32()),
        ("flags", pa.int64()),
        ("expiry", pa.int64()),
        ("lock_time", pa.int64()),
        ("delete_time", pa.int64()),
        ("xattrs", pa.map_(pa.string(), pa.binary())),
        ("snapshot_start", pa.int64()),
        ("snapshot_end", pa.int64()),
        ("snapshot_flags", pa.int64()),
        ("history", pa.int32()),
        ("requested_seqno", pa.int64()),
    ]
)
"""All columns are nullable; the table in docs/design.md describes them."""


class Event(StrEnum):
    """The kind of a change. Events of collections and scopes have no key; their value holds the details, as JSON.

    A collection that begins once more was emptied.
    """

    MUTATION = "mutation"
    DELETION = "deletion"
    EXPIRATION = "expiration"
    ROLLBACK = "rollback"
    FLUSH = "flush"
    BEGIN_COLLECTION = "begin_collection"
    END_COLLECTION = "end_collection"
    MODIFY_COLLECTION = "modify_collection"
    CREATE_SCOPE = "create_scope"
    DROP_SCOPE = "drop_scope"


class ChangeKind(StrEnum):
    """The kind of a change of a document.

    CREATED means that the rev_seqno is 1: the bucket knows no earlier version. A document that was deleted and stored
    again continues the rev_seqno of its tombstone, so it counts as UPDATED until the tombstone is purged. A document
    that was created and updated between two snapshots arrives once, as UPDATED.
    """

    CREATED = "created"
    UPDATED = "updated"
    DELETED = "deleted"
    EXPIRED = "expired"


def find_kind(event: str, rev_seqno: int | None) -> ChangeKind | None:
    """Return the kind of a change. None: it is no change of a document, or a mutation without a rev_seqno."""
    if event == Event.MUTATION:
        return None if rev_seqno is None else ChangeKind.CREATED if rev_seqno == 1 else ChangeKind.UPDATED
    return _REMOVALS.get(event)


_REMOVALS: dict[str, ChangeKind] = {Event.DELETION: ChangeKind.DELETED, Event.EXPIRATION: ChangeKind.EXPIRED}


@check_arguments
def find_kinds(batch: pa.RecordBatch | pa.Table) -> pa.Array | pa.ChunkedArray:
    """Return the kind of each change of a batch with the columns event and rev_seqno, as strings."""
    event, rev_seqno = batch.column("event"), batch.column("rev_seqno")
    conditions = [
        pc.and_(pc.equal(event, str(Event.MUTATION)), pc.is_valid(rev_seqno)),
        *(pc.equal(event, str(removal)) for removal in _REMOVALS),
    ]
    stored = pc.if_else(pc.equal(rev_seqno, 1), str(ChangeKind.CREATED), str(ChangeKind.UPDATED))
    chosen = pc.make_struct(*(pc.fill_null(each, False) for each in conditions))
    return pc.case_when(chosen, stored, *map(str, _REMOVALS.values()))


class Change(NamedTuple):
    """One row of CHANGE_SCHEMA as an object, in the same order; u64 fields are unsigned here."""

    vbucket: int
    vbuuid: int | None
    seqno: int | None
    rev_seqno: int | None = None
    cas: int | None = None
    event: str = Event.MUTATION
    key: bytes | None = None
    value: bytes | None = None
    collection_id: int | None = None
    scope: str | None = None
    collection: str | None = None
    datatype: int | None = None
    flags: int | None = None
    expiry: int | None = None
    lock_time: int | None = None
    delete_time: int | None = None
    xattrs: dict[str, bytes] | None = None
    snapshot_start: int | None = None
    snapshot_end: int | None = None
    snapshot_flags: int | None = None
    history: int = 0
    requested_seqno: int | None = None

    @property
    def kind(self) -> ChangeKind | None:
        """Whether the document was created, updated, deleted or expired; None for other events."""
        return find_kind(self.event, self.rev_seqno)


UNSIGNED64 = ("vbuuid", "seqno", "rev_seqno", "cas", "snapshot_start", "snapshot_end", "requested_seqno")
"""The columns whose int64 stands for a u64."""


def signed64(number: int) -> int:
    """Return the int64 with the bits of a u64."""
    return number - (1 << 64) if number >= 1 << 63 else number


def unsigned64(number: int) -> int:
    """Return the u64 with the bits of an int64."""
    return number & 0xFFFF_FFFF_FFFF_FFFF
