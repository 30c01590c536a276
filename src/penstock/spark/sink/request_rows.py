"""Rows of a table as requests of key-value commands, made in columns. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.documents.json_text import encode_json
from penstock.client.documents.meta_requests import prepare_meta_writes, select_documents
from penstock.client.documents.row_columns import (
    Numbers,
    PreparedRows,
    RowColumns,
    encode_attribute,
    find_collections,
)
from penstock.client.documents.write_requests import Fault, WriteRows
from penstock.spark.sink.sink_options import Operation, SinkOptions, SubdocumentPath
from penstock.wire.codec.constants import FrameInfoId
from penstock.wire.codec.flags import DocFlag, PathFlag
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Set
from penstock.wire.messages.subdoc import MAX_PATHS, MultiMutation, pack_mutation_specs

_STORES = {
    Operation.UPSERT: (Opcode.SET, DocFlag.MKDOC),
    Operation.CHANGE: (Opcode.SET, DocFlag.MKDOC),
    Operation.INSERT: (Opcode.ADD, DocFlag.ADD),
    Operation.REPLACE: (Opcode.REPLACE, DocFlag(0)),
}
_PRESERVE_EXPIRY = bytes([FrameInfoId.PRESERVE_TTL << 4])


def prepare_writes(options: SinkOptions, table: pa.Table) -> PreparedRows:
    """Return the requests of the rows of a table.

    Args:
        options: the options of the write.
        table: rows with columns that `check_columns` accepts.
    """
    operation, scope, collection = options.operation, options.scope, options.collection
    if operation is Operation.WITH_META:
        return prepare_meta_writes(table, options.conflict_resolution, scope=scope, collection=collection)
    kept = _select_rows(options, table)
    source = RowColumns(table.take(pa.array(kept)) if len(kept) < table.num_rows else table)
    if operation is Operation.SUBDOC:
        rows = _make_subdoc_requests(options, source)
    elif operation is Operation.DELETE:
        rows = _make_removals(source)
    else:
        rows = _make_store_requests(operation, source)
    names, collections = find_collections(source, scope, collection)
    return PreparedRows(replace(rows, faults=source.faults), kept, names, collections)


def _select_rows(options: SinkOptions, table: pa.Table) -> Numbers:
    """Return the positions of the rows that make a request."""
    if options.operation is Operation.CHANGE:
        return select_documents(table)
    if options.operation is Operation.SUBDOC:
        given = [table[each.column].is_valid() for each in options.subdocument]
        return np.flatnonzero(np.logical_or.reduce([np.asarray(each) for each in given]))
    return np.arange(table.num_rows)


def _make_removals(source: RowColumns) -> WriteRows:
    cas = source.read_numbers("cas", 64)
    return WriteRows(
        message_type=Set,
        opcode=Opcode.DELETE,
        keys=source.read_keys(),
        cas=cas,
        repeatable=cas == 0,
        extras_bytes=0,
    )


def _make_store_requests(operation: Operation, source: RowColumns) -> WriteRows:
    """Return the requests of upsert, insert, replace and change: whole documents.

    Documents with extended attributes need SUBDOC_MULTI_MUTATION.
    """
    opcode, doc_flags = _STORES[operation]
    stores, cas = np.ones(len(source), bool), source.read_numbers("cas", 64)
    if operation is Operation.CHANGE:
        stores, cas = ~source.find_removals(), np.zeros(len(source), np.uint64)
    fields = {"flags": source.read_numbers("flags", 32), "expiry": source.read_expiries()}
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


def _pack_document(source: RowColumns, place: int, pairs: list[tuple[str, Any]] | None, value: bytes) -> bytes:
    pairs = pairs or []
    if len(pairs) >= MAX_PATHS:
        text = f"{len(pairs)} extended attributes, expected {MAX_PATHS - 1} at most"
        source.faults.setdefault(place, Fault(Status.SUBDOC_INVALID_COMBO, text))
        return b""
    attributes = [
        (Opcode.SUBDOC_DICT_UPSERT, PathFlag.XATTR, name.encode(), encode_attribute(each)) for name, each in pairs
    ]
    return pack_mutation_specs([*attributes, (Opcode.SET, 0, b"", value)])


def _make_subdoc_requests(options: SinkOptions, source: RowColumns) -> WriteRows:
    """Return the requests of several paths of each document. A null leaves its path unchanged."""
    parts = [_pack_path(each, source.get_column(each.column)) for each in options.subdocument]
    cas = source.read_numbers("cas", 64)
    has_expiry = "expiry" in source.table.column_names
    fields: Mapping[str, Any] = {"expiry": source.read_expiries()} if has_expiry else {}
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
