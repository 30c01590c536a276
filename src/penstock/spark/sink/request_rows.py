"""Rows of a table as requests of key-value commands, made in columns. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.documents.write_requests import Fault, WriteRows
from penstock.errors import LocalProtocolError
from penstock.spark.sink.json_text import encode_json, is_nested
from penstock.spark.sink.sink_options import Operation, SinkOptions, SubdocumentPath
from penstock.wire.codec.constants import FrameInfoId
from penstock.wire.codec.flags import Datatype, DocFlag, PathFlag, WithMetaFlag
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.collection_names import DEFAULT_NAME
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.messages.kv import GetMeta, Set, SetWithMeta
from penstock.wire.messages.subdoc import MAX_PATHS, MultiMutation, pack_mutation_specs

__all__ = ["REPLACED_CAS", "PreparedRows", "prepare_cas_reads", "prepare_writes"]

REPLACED_CAS = "replaces"
"""An internal column: the cas of the only version that the row may replace; 0 for a tombstone."""

Numbers = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]

_DOCUMENT_EVENTS = pa.array([Event.MUTATION, Event.DELETION, Event.EXPIRATION], pa.string())
_STORES = {
    Operation.UPSERT: (Opcode.SET, DocFlag.MKDOC),
    Operation.CHANGE: (Opcode.SET, DocFlag.MKDOC),
    Operation.INSERT: (Opcode.ADD, DocFlag.ADD),
    Operation.REPLACE: (Opcode.REPLACE, DocFlag(0)),
}
_PRESERVE_EXPIRY = bytes([FrameInfoId.PRESERVE_TTL << 4])
_JSON, _XATTR = np.uint64(Datatype.JSON), np.uint64(Datatype.XATTR)
_OPTIONS_BYTES = 4
"""Bytes of the options after the extras of SET_WITH_META and DEL_WITH_META."""


class TargetCollection(NamedTuple):
    """The names of a collection that rows are written to.

    Attributes:
        scope: the name of the scope.
        name: the name of the collection.
    """

    scope: str
    name: str


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """Requests of some rows, without the collections of their keys.

    Attributes:
        rows: the requests.
        sent_rows: for each request the position of its row in the table. The other rows have no change of a document.
        names: the collections.
        collections: for each request the position of its collection in `names`.
    """

    rows: WriteRows
    sent_rows: Numbers
    names: list[TargetCollection]
    collections: Numbers

    def add_prefixes(self, found: Sequence[bytes | Fault]) -> WriteRows:
        """Return the requests with the collections of their keys.

        Args:
            found: for each collection the prefix of its keys, or the reason why there is none.
        """
        if len(found) == 1 and isinstance(found[0], bytes):
            return replace(self.rows, prefixes=found[0])
        faults = {
            place: fault
            for number, fault in enumerate(found)
            if isinstance(fault, Fault)
            for place in np.flatnonzero(self.collections == number).tolist()
        }
        prefixes = pa.array([b"" if isinstance(each, Fault) else each for each in found], pa.binary())
        prefixes = prefixes.take(pa.array(self.collections)) if len(found) else b""
        return replace(self.rows, prefixes=prefixes, faults={**self.rows.faults, **faults})


def prepare_cas_reads(options: SinkOptions, table: pa.Table) -> PreparedRows:
    """Return requests for the metadata of the documents under the keys of a table.

    Args:
        options: the options of the write, for the collections.
        table: rows with a column key.
    """
    source = _RowColumns(table)
    rows = WriteRows(message_type=GetMeta, opcode=Opcode.GET_META, keys=source.read_keys())
    names, collections = _find_collections(options, source)
    return PreparedRows(replace(rows, faults=source.faults), np.arange(len(source)), names, collections)


def prepare_writes(options: SinkOptions, table: pa.Table) -> PreparedRows:
    """Return the requests of the rows of a table.

    Args:
        options: the options of the write.
        table: rows with columns that `check_columns` accepts.
    """
    source = _RowColumns(table)
    kept = np.arange(table.num_rows)
    operation = options.operation
    if operation in (Operation.CHANGE, Operation.WITH_META) and "event" in table.column_names:
        kept = np.flatnonzero(np.asarray(pc.is_in(table["event"], value_set=_DOCUMENT_EVENTS)))
    elif operation is Operation.SUBDOC:
        given = [table[each.column].is_valid() for each in options.subdocument]
        kept = np.flatnonzero(np.logical_or.reduce([np.asarray(each) for each in given]))
    if len(kept) < table.num_rows:
        source = _RowColumns(table.take(pa.array(kept)))
    if operation is Operation.WITH_META:
        rows = _make_with_meta_requests(options, source)
    elif operation is Operation.SUBDOC:
        rows = _make_subdoc_requests(options, source)
    elif operation is Operation.DELETE:
        cas = source.read_numbers("cas", 64)
        rows = WriteRows(
            message_type=Set,
            opcode=Opcode.DELETE,
            keys=source.read_keys(),
            cas=cas,
            repeatable=cas == 0,
            extras_bytes=0,
        )
    else:
        rows = _make_store_requests(operation, source)
    names, collections = _find_collections(options, source)
    return PreparedRows(replace(rows, faults=source.faults), kept, names, collections)


@dataclass(slots=True)
class _RowColumns:
    """The columns of a table, in the form that requests need.

    Attributes:
        table: the rows.
        faults: reasons why rows cannot be sent, by position.
    """

    table: pa.Table
    faults: dict[int, Fault] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def has_values(self, name: str) -> bool:
        """Return whether the column exists and has a value."""
        return name in self.table.column_names and self.table[name].null_count < len(self)

    def get_column(self, name: str) -> pa.Array:
        """Return a column as one array."""
        column = self.table[name]
        if column.num_chunks == 1:
            return column.chunk(0)
        return column.combine_chunks() if len(self) else pa.array([], column.type)

    def read_keys(self) -> pa.Array:
        """Return the keys as binary. A null is a fault."""
        return self._to_binary("key", self.get_column("key"))

    def read_values(self, stores: Bools | None = None) -> pa.Array:
        """Return the values as binary.

        Args:
            stores: which rows store a document; None for all. A null in such a row is a fault; other rows have empty
                values.
        """
        column = self.get_column("value")
        column = encode_json(column) if is_nested(column.type) else column
        if stores is None:
            return self._to_binary("value", column)
        if not stores.all():
            column = pc.if_else(pa.array(stores), column.cast(pa.binary()), b"")
        return self._to_binary("value", column)

    def _to_binary(self, name: str, column: pa.Array) -> pa.Array:
        if column.null_count:
            for place in np.flatnonzero(np.asarray(column.is_null())).tolist():
                self.faults.setdefault(place, Fault(Status.EINVAL, f"no {name}"))
        column = column.cast(pa.binary())
        column = column.fill_null(b"") if column.null_count else column
        return pa.concat_arrays([column]) if column.offset else column

    def read_numbers(self, name: str, bits: int) -> Numbers:
        """Return a column of whole numbers, 0 for a null or without the column.

        Args:
            name: the column. Timestamps become seconds since 1970.
            bits: the size of the number on the wire. A number that does not fit is a fault.
        """
        if not self.has_values(name):
            return np.zeros(len(self), np.uint64)
        column = self.get_column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("s"), safe=False)
        column = column.cast(pa.int64()) if column.type != pa.int64() else column
        found: Numbers = (column.fill_null(0) if column.null_count else column).to_numpy(zero_copy_only=False)
        if bits == 64:
            return found.view(np.uint64)
        bad = found >> bits != 0
        for place in np.flatnonzero(bad).tolist():
            text = f"{name} {found[place]}, expected 0 to {2**bits - 1}"
            self.faults.setdefault(place, Fault(Status.EINVAL, text))
        return np.where(bad, 0, found).view(np.uint64)

    def read_datatypes(self) -> Numbers:
        """Return the datatypes of the values as far as they are known: JSON or 0."""
        if is_nested(self.table["value"].type):
            return np.full(len(self), _JSON)
        return self.read_numbers("datatype", 8) & _JSON

    def find_removals(self) -> Bools:
        """Return which rows remove their document."""
        if not self.has_values("event"):
            return np.zeros(len(self), bool)
        return ~np.asarray(pc.equal(self.get_column("event"), str(Event.MUTATION)).fill_null(False))

    def read_attributes(self) -> list[list[tuple[str, Any]] | None]:
        """Return the extended attributes of each row; an empty list if no row has any."""
        if not self.has_values("xattrs"):
            return []
        column = self.get_column("xattrs")
        found: list[list[tuple[str, Any]] | None] = column.to_pylist() if len(column.keys) else []
        return found


def _make_store_requests(operation: Operation, source: _RowColumns) -> WriteRows:
    """Return the requests of upsert, insert, replace and change: whole documents.

    Documents with extended attributes need SUBDOC_MULTI_MUTATION.
    """
    opcode, doc_flags = _STORES[operation]
    stores, cas = np.ones(len(source), bool), source.read_numbers("cas", 64)
    if operation is Operation.CHANGE:
        stores, cas = ~source.find_removals(), np.zeros(len(source), np.uint64)
    fields = {"flags": source.read_numbers("flags", 32), "expiry": source.read_numbers("expiry", 32)}
    documents = source.read_values(stores)
    rows = WriteRows(
        message_type=Set,
        opcode=opcode if stores.all() else np.where(stores, opcode, Opcode.DELETE),
        keys=source.read_keys(),
        values=documents,
        fields=fields,
        extras_bytes=None if stores.all() else np.where(stores, 8, 0),
        cas=cas,
        datatype=np.where(stores, source.read_datatypes(), 0),
        repeatable=(cas == 0) & (operation is not Operation.INSERT),
    )
    attributes = source.read_attributes()
    if not attributes:
        return rows
    user_flags = {"user_flags": fields["flags"]} if fields["flags"].any() else {}
    extras: dict[str, Any] = {"expiry": fields["expiry"], **user_flags, "doc_flags": int(doc_flags)}
    values = [
        _pack_document(source, place, pairs, value) if stored else b""
        for place, (pairs, value, stored) in enumerate(
            zip(attributes, documents.to_pylist(), stores.tolist(), strict=True)
        )
    ]
    return replace(
        rows,
        message_type=MultiMutation,
        opcode=np.where(stores, Opcode.SUBDOC_MULTI_MUTATION, Opcode.DELETE),
        values=pa.array(values, pa.binary()),
        fields=extras,
        extras_bytes=np.where(stores, 5 + 4 * bool(user_flags), 0),
        datatype=0,
    )


def _pack_document(source: _RowColumns, place: int, pairs: list[tuple[str, Any]] | None, value: bytes) -> bytes:
    pairs = pairs or []
    if len(pairs) >= MAX_PATHS:
        text = f"{len(pairs)} extended attributes, expected {MAX_PATHS - 1} at most"
        source.faults.setdefault(place, Fault(Status.SUBDOC_INVALID_COMBO, text))
        return b""
    attributes = [
        (Opcode.SUBDOC_DICT_UPSERT, PathFlag.XATTR, name.encode(), _encode_attribute(each)) for name, each in pairs
    ]
    return pack_mutation_specs([*attributes, (Opcode.SET, 0, b"", value)])


def _encode_attribute(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def _make_with_meta_requests(options: SinkOptions, source: _RowColumns) -> WriteRows:
    """Return requests for documents and deletions with given metadata.

    With a column REPLACED_CAS they replace exactly that version, without conflict resolution; 0 stands for a tombstone.
    """
    removes = source.find_removals()
    values, datatype = _pack_values(source, removes)
    times = source.read_numbers("expiry", 32)
    forced = WithMetaFlag.FORCE_ACCEPT if options.conflict_resolution == "lww" else 0
    meta_options = np.full(len(source), int(forced), np.uint64)
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


def _pack_values(source: _RowColumns, removes: npt.NDArray[np.bool_]) -> tuple[pa.Array, Numbers]:
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


def _pack_value(source: _RowColumns, place: int, pairs: list[tuple[str, Any]], value: bytes) -> bytes:
    try:
        return pack_xattrs({name: _encode_attribute(each) for name, each in pairs}, value)
    except LocalProtocolError as error:
        source.faults.setdefault(place, Fault(Status.XATTR_EINVAL, str(error)))
        return b""


def _make_subdoc_requests(options: SinkOptions, source: _RowColumns) -> WriteRows:
    """Return the requests of several paths of each document. A null leaves its path unchanged."""
    parts = [_pack_path(each, source.get_column(each.column)) for each in options.subdocument]
    cas = source.read_numbers("cas", 64)
    has_expiry = "expiry" in source.table.column_names
    fields: Mapping[str, Any] = {"expiry": source.read_numbers("expiry", 32)} if has_expiry else {}
    return WriteRows(
        message_type=MultiMutation,
        opcode=Opcode.SUBDOC_MULTI_MUTATION,
        keys=source.read_keys(),
        values=pc.binary_join_element_wise(*parts, b""),
        fields={**fields, "doc_flags": int(DocFlag.MKDOC if options.create_documents else DocFlag(0))},
        framing=b"" if has_expiry else _PRESERVE_EXPIRY,
        cas=0 if options.create_documents and not cas.any() else cas,
        repeatable=cas == 0,
    )


def _pack_path(subdoc_path: SubdocumentPath, column: pa.Array) -> pa.Array:
    """Return the part of a SUBDOC_MULTI_MUTATION for one path, of each row; empty where the column is null."""
    values = encode_json(column)
    flags = PathFlag.MKDIR_P | (PathFlag.XATTR if subdoc_path.is_xattr else 0)
    path = subdoc_path.path.encode()
    head = pack_mutation_specs([(Opcode.SUBDOC_DICT_UPSERT, flags, path, b"")])[:4]
    lengths = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(">u4")
    bounds = pa.py_buffer(np.arange(len(values) + 1, dtype=np.int32) * 4)
    length = pa.Array.from_buffers(pa.binary(), len(values), [None, bounds, pa.py_buffer(lengths)])
    return pc.binary_join_element_wise(head, length, path, values, b"").fill_null(b"")


def _find_collections(options: SinkOptions, source: _RowColumns) -> tuple[list[TargetCollection], Numbers]:
    """Return the collections of the rows, and for each row the position of its collection."""
    if options.scope is not None or options.collection is not None or not source.has_values("collection"):
        scope, name = options.scope or DEFAULT_NAME, options.collection or DEFAULT_NAME
        return [TargetCollection(scope, name)], np.zeros(len(source), np.int64)
    names = source.get_column("collection").fill_null(DEFAULT_NAME)
    scopes = source.get_column("scope").fill_null(DEFAULT_NAME) if source.has_values("scope") else None
    if scopes is None:
        scopes = pa.repeat(pa.scalar(DEFAULT_NAME), len(source))
    encoded = pc.binary_join_element_wise(scopes, names, "\0").dictionary_encode()
    found = [TargetCollection(*each.split("\0")) for each in encoded.dictionary.to_pylist()]
    return found, encoded.indices.to_numpy()
