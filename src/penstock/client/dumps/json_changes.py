"""Changes in files of JSON lines."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from msgspec import Struct
from msgspec.json import Decoder, Encoder

from penstock.client.dumps.json_objects import BASE64, make_json_object
from penstock.digits import read_u64
from penstock.errors import UsageError
from penstock.wire.columns.run_decoder import list_changes, make_batch
from penstock.wire.columns.schema import CHANGE_SCHEMA, Change, Event

_BATCH_ROWS, _BATCH_BYTES = 4096, 8 << 20


class _JsonChange(Struct):
    """A change in JSON. `NAME_base64` has the bytes of NAME that are not UTF-8."""

    vbucket: int = 0
    vbuuid: str | None = None
    seqno: int | None = None
    rev_seqno: int | None = None
    cas: str | None = None
    event: Event = Event.MUTATION
    key: str | None = None
    key_base64: str | None = None
    value: str | None = None
    value_base64: str | None = None
    collection_id: int | None = None
    scope: str | None = None
    collection: str | None = None
    datatype: int | None = None
    flags: int | None = None
    expiry: int | None = None
    lock_time: int | None = None
    delete_time: int | None = None
    xattrs: dict[str, str] | None = None
    snapshot_start: int | None = None
    snapshot_end: int | None = None
    snapshot_flags: int | None = None
    history: int = 0
    requested_seqno: int | None = None


_ENCODER, _DECODER = Encoder(), Decoder(_JsonChange)
_PLAIN = tuple(
    name
    for name in CHANGE_SCHEMA.names
    if name in _JsonChange.__struct_fields__ and name not in ("vbuuid", "cas", "key", "value", "xattrs")
)
"""Columns whose JSON is their value."""


def write_json_rows(batch: pa.RecordBatch) -> bytes:
    """Return changes as lines of JSON."""
    objects = (make_json_object(change._asdict()) for change in list_changes(batch))
    return b"".join(b"%s\n" % _ENCODER.encode(each) for each in objects)


def read_json_lines(lines: Iterable[bytes], place: str) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Read changes.

    Args:
        lines: the lines of a file.
        place: the name of the file, for errors.

    Yields:
        A batch of CHANGE_SCHEMA, and the number of bytes that were read so far.

    Raises:
        UsageError: a line is no change.
    """
    changes: list[Change] = []
    nbytes = made = 0
    for number, line in enumerate(lines, 1):
        nbytes += len(line)
        if line.strip():
            changes.append(_read_change(line, f"{place} line {number}"))
        if len(changes) >= _BATCH_ROWS or nbytes - made >= _BATCH_BYTES:
            yield _make_checked_batch(changes, f"{place} before line {number + 1}"), nbytes
            changes, made = [], nbytes
    yield _make_checked_batch(changes, place), nbytes


def _make_checked_batch(changes: Sequence[Change], place: str) -> pa.RecordBatch:
    try:
        return make_batch(changes)
    except (pa.ArrowException, OverflowError, struct.error) as error:
        raise UsageError(f"{place}: {error}, expected numbers of a change") from None


def _read_change(line: bytes, place: str) -> Change:
    try:
        found = _DECODER.decode(line)
        return Change(
            **{name: getattr(found, name) for name in _PLAIN},
            vbuuid=None if found.vbuuid is None else read_u64(found.vbuuid),
            cas=None if found.cas is None else read_u64(found.cas),
            key=_read_bytes(found.key, found.key_base64),
            value=_read_bytes(found.value, found.value_base64),
            xattrs=None if found.xattrs is None else _read_attributes(found.xattrs),
        )
    except (ValueError, RecursionError) as error:  # the errors of msgspec and of base64 are ValueErrors
        raise UsageError(f"{place}: {error}, expected a change of `penstock dump`") from None


def _read_bytes(text: str | None, encoded: str | None) -> bytes | None:
    if encoded is not None:
        return base64.b64decode(encoded, validate=True)
    return None if text is None else text.encode()


def _read_attributes(attributes: Mapping[str, str]) -> dict[str, bytes]:
    return {
        name.removesuffix(BASE64): base64.b64decode(text, validate=True) if name.endswith(BASE64) else text.encode()
        for name, text in attributes.items()
    }
