"""Document events: ordered changes as operations that Debezium's consumers know. Pure functions over Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.spark.lake.changelog.ordered_changes import OrderedChanges
from penstock.spark.lake.tables.schemas import MERGE_SCHEMA
from penstock.wire.columns.schema import Event

BATCH_ROWS = 8192
"""Rows that become objects at once."""


class EventOperation(StrEnum):
    """Debezium's letter of an operation."""

    CREATE = "c"
    UPDATE = "u"
    DELETE = "d"
    READ = "r"


class Correction(StrEnum):
    """The reason of an event that is no new change: a version counts again, or counts no longer."""

    RESTORED = "restored"
    LOST = "lost"


class DocumentVersion(NamedTuple):
    """One row of MERGE_SCHEMA as an object; u64 fields are signed."""

    vbucket: int
    vbuuid: int | None
    seqno: int | None
    rev_seqno: int | None
    cas: int | None
    event: str
    key: bytes
    value: bytes | None
    collection_id: int
    scope: str | None
    collection: str | None
    datatype: int | None
    flags: int | None
    expiry: int | None
    xattrs: list[tuple[str, bytes]] | None
    history: int

    @property
    def identity(self) -> tuple[int, int, bytes]:
        """The document that the version belongs to."""
        return self.vbucket, self.collection_id, self.key

    @property
    def is_stored(self) -> bool:
        """Whether the document exists after this change."""
        return self.event == Event.MUTATION


class DocumentEvent(NamedTuple):
    """One event of a document.

    Attributes:
        operation: what happened to the document.
        version: the version that the event is about. A deleted document has no version after the event.
        before: the version before the event, None if it is unknown or there was no document.
        correction: None for a new change.
        is_snapshot: whether the event belongs to a snapshot.
    """

    operation: EventOperation
    version: DocumentVersion
    before: DocumentVersion | None = None
    correction: Correction | None = None
    is_snapshot: bool = False


def list_versions(rows: pa.Table) -> Iterator[DocumentVersion]:
    """Yield the rows as objects; columns that the table lacks are None."""
    names = [name if name in rows.column_names else None for name in MERGE_SCHEMA.names]
    for batch in rows.to_batches(max_chunksize=BATCH_ROWS):
        columns: list[Any] = [repeat(None) if name is None else batch[name].to_pylist() for name in names]
        yield from map(DocumentVersion._make, zip(*columns, strict=False))


def list_events(found: OrderedChanges, *, with_before: bool = False) -> Iterator[DocumentEvent]:
    """Yield the events of ordered changes: first the corrections, then the changes.

    Args:
        found: the changes. For `with_before` they must have the known versions.
        with_before: whether the events have the version before them. A snapshot's events have none.
    """
    known = {each.identity: each for each in list_versions(found.known)} if with_before else None
    for event in _list_corrections(found):
        if known is not None:
            event = event._replace(before=_take_stored(known, event.version))
            if event.correction is Correction.RESTORED:
                known[event.version.identity] = event.version
        yield event
    for version in list_versions(found.changes):
        before = None
        if known is not None:
            before = _take_stored(known, version)
            known[version.identity] = version
        if found.is_snapshot:
            operation = EventOperation.READ if version.is_stored else EventOperation.DELETE
            yield DocumentEvent(operation, version, is_snapshot=True)
        elif not version.is_stored:
            yield DocumentEvent(EventOperation.DELETE, version, before)
        else:
            is_new = version.rev_seqno == 1 if known is None else before is None
            yield DocumentEvent(EventOperation.CREATE if is_new else EventOperation.UPDATE, version, before)


def _take_stored(
    known: dict[tuple[int, int, bytes], DocumentVersion], version: DocumentVersion
) -> DocumentVersion | None:
    """Return the known version of a document if the document exists, and forget the version."""
    before = known.pop(version.identity, None)
    return before if before is not None and before.is_stored else None


def _list_corrections(found: OrderedChanges) -> Iterator[DocumentEvent]:
    """Yield an event for each document whose existence or version has changed without a new change."""
    lost = {each.identity: each for each in list_versions(found.lost)}
    for version in list_versions(found.restored):
        replaced = lost.pop(version.identity, None)
        was_stored = replaced is not None and replaced.is_stored
        if version.is_stored:
            operation = EventOperation.UPDATE if was_stored else EventOperation.CREATE
            yield DocumentEvent(operation, version, correction=Correction.RESTORED)
        elif was_stored:
            yield DocumentEvent(EventOperation.DELETE, version, correction=Correction.RESTORED)
    # In a snapshot a lost deletion counts too: an earlier version of the document may have been sent.
    for version in lost.values():
        if version.is_stored or found.is_snapshot:
            yield DocumentEvent(
                EventOperation.DELETE, version, correction=Correction.LOST, is_snapshot=found.is_snapshot
            )
