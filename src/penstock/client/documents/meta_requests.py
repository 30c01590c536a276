"""Requests for documents and deletions with given metadata, made in columns. No I/O.

XDCR and the sinks of Spark write these requests. The bucket resolves conflicts with its own versions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.documents.row_columns import (
    Numbers,
    PreparedRows,
    RowColumns,
    encode_attribute,
    find_collections,
)
from penstock.client.documents.write_requests import Fault, WriteRows
from penstock.errors import LocalProtocolError
from penstock.wire.codec.flags import Datatype, WithMetaFlag
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.messages.kv import GetMeta, SetWithMeta

REPLACED_CAS = "replaces"
"""An internal column: the cas of the only version that the row may replace; 0 for a tombstone."""

_DOCUMENT_EVENTS = pa.array([Event.MUTATION, Event.DELETION, Event.EXPIRATION], pa.string())
_XATTR = np.uint64(Datatype.XATTR)
_OPTIONS_BYTES = 4
"""Bytes of the options after the extras of SET_WITH_META and DEL_WITH_META."""


def select_documents(table: pa.Table) -> Numbers:
    """Return the positions of rows that change a document. Without a column event these are all rows."""
    if "event" not in table.column_names:
        return np.arange(table.num_rows)
    return np.flatnonzero(np.asarray(pc.is_in(table["event"], value_set=_DOCUMENT_EVENTS)))


def prepare_meta_writes(
    table: pa.Table,
    conflict_resolution: str,
    *,
    scope: str | None = None,
    collection: str | None = None,
    is_forced: bool = False,
) -> PreparedRows:
    """Return the requests of changes with their metadata.

    Args:
        table: rows with the columns of CHANGE_SCHEMA that the requests need.
        conflict_resolution: conflict resolution of the bucket, seqno or lww.
        scope: the scope of all rows; None: the column scope.
        collection: the collection of all rows; None: the column collection.
        is_forced: whether the rows replace newer versions too.
    """
    kept = select_documents(table)
    source = RowColumns(table.take(pa.array(kept)) if len(kept) < table.num_rows else table)
    rows = make_meta_requests(source, conflict_resolution, is_forced=is_forced)
    names, collections = find_collections(source, scope, collection)
    return PreparedRows(replace(rows, faults=source.faults), kept, names, collections)


def prepare_cas_reads(table: pa.Table, *, scope: str | None = None, collection: str | None = None) -> PreparedRows:
    """Return requests for the metadata of the documents under the keys of a table.

    Args:
        table: rows with a column key.
        scope: the scope of all rows; None: the column scope.
        collection: the collection of all rows; None: the column collection.
    """
    source = RowColumns(table)
    rows = WriteRows(message_type=GetMeta, opcode=Opcode.GET_META, keys=source.read_keys())
    names, collections = find_collections(source, scope, collection)
    return PreparedRows(replace(rows, faults=source.faults), np.arange(len(source)), names, collections)


def make_meta_requests(source: RowColumns, conflict_resolution: str, *, is_forced: bool = False) -> WriteRows:
    """Return requests for documents and deletions with given metadata. If they are forced, there are no conflicts.

    With a column REPLACED_CAS they replace exactly that version, without conflict resolution; 0 stands for a tombstone.
    """
    removes = source.find_removals()
    values, datatype = _pack_values(source, removes)
    times = source.read_numbers("expiry", 32)
    forced = WithMetaFlag.FORCE_ACCEPT if conflict_resolution == "lww" else 0
    skipped = WithMetaFlag.SKIP_CONFLICT_RESOLUTION if is_forced else 0
    meta_options = np.full(len(source), int(forced | skipped), np.uint64)
    replaces, storing = source.read_numbers(REPLACED_CAS, 64), np.full(len(source), int(Opcode.SET_WITH_META))
    if REPLACED_CAS in source.table.column_names:
        meta_options |= np.uint64(WithMetaFlag.SKIP_CONFLICT_RESOLUTION)
        storing[replaces == 0] = Opcode.ADD_WITH_META
    if removes.any():
        times = np.where(removes, source.read_numbers("delete_time", 32), times)
        expired = np.asarray(pc.equal(source.get_column("event"), str(Event.EXPIRATION)))
        meta_options |= expired * np.uint64(WithMetaFlag.IS_EXPIRATION)
    fields: dict[str, Any] = {
        "flags": source.read_numbers("flags", 32),
        "expiry": times,
        "rev_seqno": source.read_numbers("rev_seqno", 64),
        "new_cas": source.read_numbers("cas", 64),
    }
    if meta_options.any():
        fields["options"] = meta_options
    extras_bytes = 24 if not meta_options.any() else np.where(meta_options != 0, 24 + _OPTIONS_BYTES, 24)
    return WriteRows(
        message_type=SetWithMeta,
        opcode=np.where(removes, Opcode.DEL_WITH_META, storing),
        keys=source.read_keys(),
        values=values,
        fields=fields,
        extras_bytes=extras_bytes,
        cas=replaces,
        datatype=datatype,
    )


def _pack_values(source: RowColumns, removes: npt.NDArray[np.bool_]) -> tuple[pa.Array, Numbers]:
    """Return the values with extended attributes packed in front, and their datatypes."""
    values, datatype = source.read_values(~removes), np.where(removes, np.uint64(0), source.read_datatypes())
    attributes = source.read_attributes()
    if any(attributes):
        has_some = np.fromiter(map(bool, attributes), bool, len(attributes))
        datatype |= has_some * _XATTR
        packed = [
            _pack_value(source, place, pairs, value) if pairs else value
            for place, (pairs, value) in enumerate(zip(attributes, values.to_pylist(), strict=True))
        ]
        values = pa.array(packed, pa.binary())
    return values, datatype


def _pack_value(source: RowColumns, place: int, pairs: list[tuple[str, Any]], value: bytes) -> bytes:
    try:
        return pack_xattrs({name: encode_attribute(each) for name, each in pairs}, value)
    except LocalProtocolError as error:
        source.faults.setdefault(place, Fault(Status.XATTR_EINVAL, str(error)))
        return b""
