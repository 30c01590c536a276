"""The envelope of events: JSON as Debezium's connectors write it without schemas. Pure functions."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from penstock.client.streams.time_search import FIRST_TIME
from penstock.spark.dependents.kafka.document_events import DocumentEvent, DocumentVersion, EventOperation
from penstock.version import __version__
from penstock.wire.columns.collection_names import DEFAULT_NAME
from penstock.wire.columns.schema import unsigned64
from penstock.wire.values.json_value import detect_json

CONNECTOR = "penstock"


class DocumentState(Struct, frozen=True):
    """A document in `before` or `after`."""

    key: str | UnsetType
    key_base64: str | UnsetType
    value: Raw | UnsetType | None
    value_base64: str | UnsetType
    flags: int | None
    expiry: int | None
    xattrs: dict[str, Raw] | UnsetType = UNSET


class EventSource(Struct, frozen=True):
    """The block `source`: where a change comes from. Debezium requires the first six fields, and `db`."""

    version: str
    connector: str
    name: str
    ts_ms: int
    snapshot: str
    db: str
    bucket: str
    scope: str | None
    collection: str | None
    collection_id: int | None
    vbucket: int
    vbuuid: str | None
    seqno: int | None
    history: int
    rev_seqno: int | None
    cas: str | None
    event: str
    correction: str | None = None


class Envelope(Struct, frozen=True):
    """The value of a record about a document."""

    before: DocumentState | None
    after: DocumentState | None
    source: EventSource
    op: str
    ts_ms: int
    transaction: None = None


class RollbackEnvelope(Struct, frozen=True):
    """The value of a record about a rollback or a flush; `vbuuid` is that of the new branch."""

    event: str
    vbucket: int
    seqno: int
    vbuuid: str | None
    history: int
    source: dict[str, Any]
    ts_ms: int


class EventEncoder:
    """Encodes events of one sink.

    Args:
        name: the sink's name.
        bucket: the bucket's name.
    """

    def __init__(self, name: str, bucket: str) -> None:
        self._name = name
        self._bucket = bucket
        self._encoder = msgspec.json.Encoder()

    def encode(self, event: DocumentEvent, now: int) -> bytes:
        """Return the envelope of a document's event.

        Args:
            event: the event.
            now: milliseconds since the epoch.
        """
        is_deleted = event.operation is EventOperation.DELETE
        return self._encoder.encode(
            Envelope(
                None if event.before is None else _encode_state(event.before),
                None if is_deleted else _encode_state(event.version),
                self._encode_source(event, now),
                event.operation,
                now,
            )
        )

    def _encode_source(self, event: DocumentEvent, now: int) -> EventSource:
        version = event.version
        cas = None if version.cas is None else unsigned64(version.cas)
        scope, collection = name_collection(version)
        return EventSource(
            version=__version__,
            connector=CONNECTOR,
            name=self._name,
            ts_ms=cas // 10**6 if cas is not None and cas >= FIRST_TIME else now,
            snapshot="true" if event.is_snapshot else "false",
            db=self._bucket,
            bucket=self._bucket,
            scope=scope,
            collection=collection,
            collection_id=version.collection_id,
            vbucket=version.vbucket,
            vbuuid=_as_text(version.vbuuid),
            seqno=_as_unsigned(version.seqno),
            history=version.history,
            rev_seqno=_as_unsigned(version.rev_seqno),
            cas=None if cas is None else str(cas),
            event=version.event,
            correction=event.correction,
        )

    def encode_rollback(self, row: dict[str, Any], now: int) -> bytes:
        """Return the envelope of a rollback or a flush, a row of the changelog."""
        seqno = _as_unsigned(row["seqno"]) or 0  # a flush without a seqno goes back to 0
        source = {"version": __version__, "connector": CONNECTOR, "name": self._name, "ts_ms": now}
        source |= {"db": self._bucket, "bucket": self._bucket}
        vbuuid = _as_text(row["vbuuid"])
        event = RollbackEnvelope(row["event"], row["vbucket"], seqno, vbuuid, row["history"], source, now)
        return self._encoder.encode(event)


def name_collection(version: DocumentVersion) -> tuple[str | None, str | None]:
    """Return scope and collection of a document; those of collection 0 are `_default`."""
    if version.collection is None and version.collection_id == 0:
        return DEFAULT_NAME, DEFAULT_NAME
    return version.scope, version.collection


def _encode_state(version: DocumentVersion) -> DocumentState:
    key, key_base64 = _encode_key(version.key)
    value, value_base64 = _encode_value(version.value)
    xattrs = {name: _encode_attribute(each) for name, each in version.xattrs} if version.xattrs else UNSET
    return DocumentState(key, key_base64, value, value_base64, version.flags, version.expiry, xattrs)


def _encode_key(key: bytes) -> tuple[str | UnsetType, str | UnsetType]:
    try:
        return key.decode(), UNSET
    except UnicodeDecodeError:
        return UNSET, _encode_base64(key)


def _encode_value(value: bytes | None) -> tuple[Raw | UnsetType | None, str | UnsetType]:
    """Return the value as JSON, or in base64 if it is no JSON."""
    if value is None:
        return None, UNSET
    return (Raw(value), UNSET) if detect_json(value) else (UNSET, _encode_base64(value))


def _encode_attribute(value: bytes) -> Raw:
    # Servers store only JSON in extended attributes.
    return Raw(value if detect_json(value) else msgspec.json.encode(_encode_base64(value)))


def _encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _as_unsigned(number: int | None) -> int | None:
    return None if number is None else unsigned64(number)


def _as_text(number: int | None) -> str | None:
    """Return a u64 that no number of JavaScript can hold."""
    return None if number is None else str(unsigned64(number))
