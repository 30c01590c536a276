"""Rows of a table as requests: what is sent for each, decided in columns. No I/O."""

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
from penstock.spark.sink.json_text import is_nested, json_of
from penstock.spark.sink.sink_options import Operation, SinkOptions, SubPath
from penstock.wire.codec.constants import FrameInfoId
from penstock.wire.codec.flags import Datatype, DocFlag, PathFlag, WithMetaFlag
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.collection_names import DEFAULT_NAME
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.messages.kv import GetMeta, Set, SetWithMeta
from penstock.wire.messages.subdoc import MAX_PATHS, MultiMutation, pack_mutation_specs

__all__ = ["REPLACES", "Prepared", "asking", "prepare"]

REPLACES = "replaces"
"""A column that is not for users: the cas of the one version that a row is to take the place of; 0: a tombstone."""

Numbers = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]

_DOCUMENT_EVENTS = pa.array([Event.MUTATION, Event.DELETION, Event.EXPIRATION], pa.string())
_STORES = {
    Operation.UPSERT: (Opcode.SET, DocFlag.MKDOC),
    Operation.CHANGE: (Opcode.SET, DocFlag.MKDOC),
    Operation.INSERT: (Opcode.ADD, DocFlag.ADD),
    Operation.REPLACE: (Opcode.REPLACE, DocFlag(0)),
}
_KEEP_EXPIRY = bytes([FrameInfoId.PRESERVE_TTL << 4])
_JSON, _XATTR = np.uint64(Datatype.JSON), np.uint64(Datatype.XATTR)
_WITH_EXPIRATION = 4
"""Bytes of the options behind the extras of a DEL_WITH_META."""


class TargetCollection(NamedTuple):
    scope: str
    name: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """Requests of some rows, but for the collections of their keys. kept: the rows of the table that there are requests
    for; the others have nothing to say of documents. collections: of each request, its number in `names`."""

    rows: WriteRows
    kept: Numbers
    names: list[TargetCollection]
    collections: Numbers

    def with_prefixes(self, found: Sequence[bytes | Fault]) -> WriteRows:
        """Return the requests with what their keys begin with. found: by number of the collection, or why not."""
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


def asking(options: SinkOptions, table: pa.Table) -> Prepared:
    """Return requests for the meta data of what the bucket has under the keys of a table."""
    source = _Columns(table)
    rows = WriteRows(form=GetMeta, opcode=Opcode.GET_META, keys=source.keys())
    names, collections = _collections(options, source)
    return Prepared(replace(rows, faults=source.faults), np.arange(len(source)), names, collections)


def prepare(options: SinkOptions, table: pa.Table) -> Prepared:
    """Return what is to be sent for the rows of a table with the columns that `check_columns` lets pass."""
    source = _Columns(table)
    kept = np.arange(table.num_rows)
    operation = options.operation
    if operation in (Operation.CHANGE, Operation.WITH_META) and "event" in table.column_names:
        kept = np.flatnonzero(np.asarray(pc.is_in(table["event"], value_set=_DOCUMENT_EVENTS)))
    elif operation is Operation.SUBDOC:
        given = [table[each.column].is_valid() for each in options.subdocument]
        kept = np.flatnonzero(np.logical_or.reduce([np.asarray(each) for each in given]))
    if len(kept) < table.num_rows:
        source = _Columns(table.take(pa.array(kept)))
    if operation is Operation.WITH_META:
        rows = _with_meta(options, source)
    elif operation is Operation.SUBDOC:
        rows = _subdoc(options, source)
    elif operation is Operation.DELETE:
        cas = source.numbers("cas", 64)
        rows = WriteRows(form=Set, opcode=Opcode.DELETE, keys=source.keys(), cas=cas, again=cas == 0, extras_bytes=0)
    else:
        rows = _stored(operation, source)
    names, collections = _collections(options, source)
    return Prepared(replace(rows, faults=source.faults), kept, names, collections)


@dataclass(slots=True)
class _Columns:
    """The columns of a table, in the form in which requests need them. faults: what cannot be sent, by place."""

    table: pa.Table
    faults: dict[int, Fault] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def has(self, name: str) -> bool:
        return name in self.table.column_names and self.table[name].null_count < len(self)

    def one(self, name: str) -> pa.Array:
        column = self.table[name]
        if column.num_chunks == 1:
            return column.chunk(0)
        return column.combine_chunks() if len(self) else pa.array([], column.type)

    def keys(self) -> pa.Array:
        return self._bytes("key", self.one("key"))

    def values(self, stores: Bools | None = None) -> pa.Array:
        """Return the values; empty where nothing is stored, a fault where something is to be and is null."""
        column = self.one("value")
        column = json_of(column) if is_nested(column.type) else column
        if stores is None:
            return self._bytes("value", column)
        if not stores.all():
            column = pc.if_else(pa.array(stores), column.cast(pa.binary()), b"")
        return self._bytes("value", column)

    def _bytes(self, name: str, column: pa.Array) -> pa.Array:
        if column.null_count:
            for place in np.flatnonzero(np.asarray(column.is_null())).tolist():
                self.faults.setdefault(place, Fault(Status.EINVAL, f"no {name}"))
        column = column.cast(pa.binary())
        column = column.fill_null(b"") if column.null_count else column
        return pa.concat_arrays([column]) if column.offset else column

    def numbers(self, name: str, bits: int) -> Numbers:
        """Return a column of whole numbers, 0 where there is none; one that does not fit is a fault."""
        if not self.has(name):
            return np.zeros(len(self), np.uint64)
        column = self.one(name)
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

    def datatypes(self) -> Numbers:
        """Return what the values are, as far as it is known: JSON or not."""
        if is_nested(self.table["value"].type):
            return np.full(len(self), _JSON)
        return self.numbers("datatype", 8) & _JSON

    def removes(self) -> Bools:
        """Return which rows remove their document."""
        if not self.has("event"):
            return np.zeros(len(self), bool)
        return ~np.asarray(pc.equal(self.one("event"), str(Event.MUTATION)).fill_null(False))

    def attributes(self) -> list[list[tuple[str, Any]] | None]:
        """Return the extended attributes of each row, empty where no row has any."""
        if not self.has("xattrs"):
            return []
        column = self.one("xattrs")
        found: list[list[tuple[str, Any]] | None] = column.to_pylist() if len(column.keys) else []
        return found


def _stored(operation: Operation, source: _Columns) -> WriteRows:
    """upsert, insert, replace and change: whole documents; with attributes, by a MULTI_MUTATION of the document."""
    opcode, doc_flags = _STORES[operation]
    stores, cas = np.ones(len(source), bool), source.numbers("cas", 64)
    if operation is Operation.CHANGE:
        stores, cas = ~source.removes(), np.zeros(len(source), np.uint64)
    fields = {"flags": source.numbers("flags", 32), "expiry": source.numbers("expiry", 32)}
    documents = source.values(stores)
    rows = WriteRows(
        form=Set,
        opcode=opcode if stores.all() else np.where(stores, opcode, Opcode.DELETE),
        keys=source.keys(),
        values=documents,
        fields=fields,
        extras_bytes=None if stores.all() else np.where(stores, 8, 0),
        cas=cas,
        datatype=np.where(stores, source.datatypes(), 0),
        again=(cas == 0) & (operation is not Operation.INSERT),
    )
    attributes = source.attributes()
    if not attributes:
        return rows
    user_flags = {"user_flags": fields["flags"]} if fields["flags"].any() else {}
    extras: dict[str, Any] = {"expiry": fields["expiry"], **user_flags, "doc_flags": int(doc_flags)}
    values = [
        _whole(source, place, pairs, value) if stored else b""
        for place, (pairs, value, stored) in enumerate(
            zip(attributes, documents.to_pylist(), stores.tolist(), strict=True)
        )
    ]
    return replace(
        rows,
        form=MultiMutation,
        opcode=np.where(stores, Opcode.SUBDOC_MULTI_MUTATION, Opcode.DELETE),
        values=pa.array(values, pa.binary()),
        fields=extras,
        extras_bytes=np.where(stores, 5 + 4 * bool(user_flags), 0),
        datatype=0,
    )


def _whole(source: _Columns, place: int, pairs: list[tuple[str, Any]] | None, value: bytes) -> bytes:
    pairs = pairs or []
    if len(pairs) >= MAX_PATHS:
        text = f"{len(pairs)} extended attributes, expected {MAX_PATHS - 1} at most"
        source.faults.setdefault(place, Fault(Status.SUBDOC_INVALID_COMBO, text))
        return b""
    attributes = [(Opcode.SUBDOC_DICT_UPSERT, PathFlag.XATTR, name.encode(), _octets(each)) for name, each in pairs]
    return pack_mutation_specs([*attributes, (Opcode.SET, 0, b"", value)])


def _octets(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def _with_meta(options: SinkOptions, source: _Columns) -> WriteRows:
    """Documents, and deletions, with the meta data that they have elsewhere.

    With a column REPLACES they take the place of exactly that version, whatever it is; where it says 0, of a tombstone.
    """
    removes = source.removes()
    values, datatype = _values_with_attributes(source, removes)
    times = source.numbers("expiry", 32)
    forced = WithMetaFlag.FORCE_ACCEPT if options.conflict_resolution == "lww" else 0
    said = np.full(len(source), int(forced), np.uint64)
    replaces, storing = source.numbers(REPLACES, 64), np.full(len(source), int(Opcode.SET_WITH_META))
    if REPLACES in source.table.column_names:
        said |= np.uint64(WithMetaFlag.SKIP_CONFLICT_RESOLUTION)
        storing[replaces == 0] = Opcode.ADD_WITH_META
    if removes.any():
        times = np.where(removes, source.numbers("delete_time", 32), times)
        expired = np.asarray(pc.equal(source.one("event"), str(Event.EXPIRATION)))
        said |= expired * np.uint64(WithMetaFlag.IS_EXPIRATION)
    fields: dict[str, Any] = {
        "flags": source.numbers("flags", 32),
        "expiry": times,
        "rev_seqno": source.numbers("rev_seqno", 64),
        "new_cas": source.numbers("cas", 64),
    }
    if said.any():
        fields["options"] = said
    extras_bytes = 24 if not said.any() else np.where(said != 0, 24 + _WITH_EXPIRATION, 24)
    return WriteRows(
        form=SetWithMeta,
        opcode=np.where(removes, Opcode.DEL_WITH_META, storing),
        keys=source.keys(),
        values=values,
        fields=fields,
        extras_bytes=extras_bytes,
        cas=replaces,
        datatype=datatype,
    )


def _values_with_attributes(source: _Columns, removes: npt.NDArray[np.bool_]) -> tuple[pa.Array, Numbers]:
    """Return the values, with extended attributes packed in front, and their datatypes."""
    values, datatype = source.values(~removes), np.where(removes, np.uint64(0), source.datatypes())
    attributes = source.attributes()
    if any(attributes):
        has_some = np.fromiter(map(bool, attributes), bool, len(attributes))
        datatype |= has_some * _XATTR
        packed = [
            _packed(source, place, pairs, value) if pairs else value
            for place, (pairs, value) in enumerate(zip(attributes, values.to_pylist(), strict=True))
        ]
        values = pa.array(packed, pa.binary())
    return values, datatype


def _packed(source: _Columns, place: int, pairs: list[tuple[str, Any]], value: bytes) -> bytes:
    try:
        return pack_xattrs({name: _octets(each) for name, each in pairs}, value)
    except LocalProtocolError as error:
        source.faults.setdefault(place, Fault(Status.XATTR_EINVAL, str(error)))
        return b""


def _subdoc(options: SinkOptions, source: _Columns) -> WriteRows:
    """Several paths of a document at once; a column that is null leaves its path as it is."""
    parts = [_path(each, source.one(each.column)) for each in options.subdocument]
    cas = source.numbers("cas", 64)
    has_expiry = "expiry" in source.table.column_names
    fields: Mapping[str, Any] = {"expiry": source.numbers("expiry", 32)} if has_expiry else {}
    return WriteRows(
        form=MultiMutation,
        opcode=Opcode.SUBDOC_MULTI_MUTATION,
        keys=source.keys(),
        values=pc.binary_join_element_wise(*parts, b""),
        fields={**fields, "doc_flags": int(DocFlag.MKDOC if options.create_documents else DocFlag(0))},
        framing=b"" if has_expiry else _KEEP_EXPIRY,
        cas=0 if options.create_documents and not cas.any() else cas,
        again=cas == 0,
    )


def _path(sub: SubPath, column: pa.Array) -> pa.Array:
    """Return what a MULTI_MUTATION says of one path, in each row; nothing where the column is null."""
    values = json_of(column)
    flags = PathFlag.MKDIR_P | (PathFlag.XATTR if sub.xattr else 0)
    path = sub.path.encode()
    head = pack_mutation_specs([(Opcode.SUBDOC_DICT_UPSERT, flags, path, b"")])[:4]
    lengths = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(">u4")
    bounds = pa.py_buffer(np.arange(len(values) + 1, dtype=np.int32) * 4)
    length = pa.Array.from_buffers(pa.binary(), len(values), [None, bounds, pa.py_buffer(lengths)])
    return pc.binary_join_element_wise(head, length, path, values, b"").fill_null(b"")


def _collections(options: SinkOptions, source: _Columns) -> tuple[list[TargetCollection], Numbers]:
    """Return the collections that rows go to, and which of them each row does."""
    if options.scope is not None or options.collection is not None or not source.has("collection"):
        scope, name = options.scope or DEFAULT_NAME, options.collection or DEFAULT_NAME
        return [TargetCollection(scope, name)], np.zeros(len(source), np.int64)
    names = source.one("collection").fill_null(DEFAULT_NAME)
    scopes = source.one("scope").fill_null(DEFAULT_NAME) if source.has("scope") else None
    if scopes is None:
        scopes = pa.repeat(pa.scalar(DEFAULT_NAME), len(source))
    encoded = pc.binary_join_element_wise(scopes, names, "\0").dictionary_encode()
    found = [TargetCollection(*each.split("\0")) for each in encoded.dictionary.to_pylist()]
    return found, encoded.indices.to_numpy()
