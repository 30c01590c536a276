"""Commands on documents with their metadata. XDCR uses them to copy changes between two buckets that are both written.

Source: kv_engine ep_engine.cc, getMeta, setWithMeta, deleteWithMeta, and the checks at their beginning.
"""

from __future__ import annotations

from functools import partial

from penstock.errors import InvalidArguments, KeyNotFound
from penstock.node.commands.kv_commands import check_value_size, find_active_vbucket, reply_to_change
from penstock.node.session.command_table import META_WRITE, READ, CommandTable, Trait
from penstock.node.session.large_values import LARGE_VALUE_BYTES, run_in_worker
from penstock.node.session.replies import encode_reply
from penstock.node.session.session import Session
from penstock.store.documents.conflict import Meta
from penstock.wire.codec.flags import Datatype, WithMetaFlag
from penstock.wire.codec.frame import Buffer
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp_values import unpack_xattrs
from penstock.wire.messages.kv import (
    DelWithMeta,
    DelWithNmeta,
    GetMeta,
    MetaReply,
    OldDelWithNmeta,
    OldSetWithNmeta,
    SetWithMeta,
    SetWithNmeta,
)
from penstock.wire.values.json_value import detect_json
from penstock.wire.values.large_bytes import to_bytes
from penstock.wire.values.snappy import get_inflated_limit, inflate, read_inflated_length

COMMANDS = CommandTable()

_JSON, _SNAPPY, _XATTR = int(Datatype.JSON), int(Datatype.SNAPPY), int(Datatype.XATTR)
_META = MetaReply.layouts[4].extras
_META_AND_DATATYPE = MetaReply.layouts[5].extras
_NEWEST_VERSION = 2
_NO_CAS = (0, 2**64 - 1)

_WithMeta = SetWithMeta | OldSetWithNmeta | DelWithMeta | OldDelWithNmeta
_HAVE_NMETA = SetWithNmeta | DelWithNmeta | OldSetWithNmeta | OldDelWithNmeta
_ADDS = frozenset((Opcode.ADD_WITH_META, Opcode.ADDQ_WITH_META))

_SKIP_CONFLICTS = int(WithMetaFlag.FORCE_WITH_META | WithMetaFlag.SKIP_CONFLICT_RESOLUTION)
_REGENERATE_CAS, _FORCE_ACCEPT = int(WithMetaFlag.REGENERATE_CAS), int(WithMetaFlag.FORCE_ACCEPT)
_IS_EXPIRATION = int(WithMetaFlag.IS_EXPIRATION)
_ALLOWED = {
    Event.MUTATION: sum(int(flag) for flag in WithMetaFlag if flag is not WithMetaFlag.IS_EXPIRATION),
    Event.DELETION: sum(map(int, WithMetaFlag)),
}
"""Options that a store and a deletion may have; IS_EXPIRATION is for deletions only."""


@COMMANDS.serve(needs=READ)
def get_meta(session: Session, request: GetMeta) -> bytes:
    """Return the metadata of a document or a tombstone."""
    version = request.version or 0
    if version > _NEWEST_VERSION:
        raise InvalidArguments(f"version {version}, expected 1 or {_NEWEST_VERSION}")
    meta = find_active_vbucket(session, request.vbucket).versions.find_meta(session.read_key(request.key))
    if meta is None:
        if request.is_quiet:
            return b""
        raise KeyNotFound
    found = (meta.deleted, meta.flags, meta.expiry, meta.rev_seqno)
    extras = _META.pack(*found) if version < _NEWEST_VERSION else _META_AND_DATATYPE.pack(*found, meta.datatype)
    return encode_reply(request, extras=extras, cas=meta.cas)


@COMMANDS.serve(needs=META_WRITE, traits=Trait.VIEWED)
def set_with_meta(session: Session, request: SetWithMeta | OldSetWithNmeta) -> bytes:
    """Store a document with its metadata, unless the stored version wins the conflict."""
    return _store_with_meta(session, request, Event.MUTATION, request.expiry)


@COMMANDS.serve(needs=META_WRITE, traits=Trait.RETRIED_LOCK)
def delete_with_meta(session: Session, request: DelWithMeta | OldDelWithNmeta) -> bytes:
    """Delete a document with metadata, unless the stored version wins the conflict."""
    return _store_with_meta(session, request, Event.DELETION, request.delete_time)


def _store_with_meta(session: Session, request: _WithMeta, event: Event, time: int) -> bytes:
    """Store or delete a document, and return the reply.

    Args:
        session: the session of the client.
        request: the request.
        event: mutation or deletion.
        time: the document's expiry, or the time of its deletion.
    """
    deletes = event is Event.DELETION
    vbucket, key = find_active_vbucket(session, request.vbucket), session.meta_key(request.key)
    options = 0 if isinstance(request, OldSetWithNmeta | OldDelWithNmeta) else request.options or 0
    _check_options(options, vbucket.incoming.conflict_resolution, event)
    value, datatype = _read_value(session, request, deletes)
    new_cas = bool(options & _REGENERATE_CAS)
    if request.new_cas in _NO_CAS and not new_cas:
        raise InvalidArguments(f"cas {request.new_cas} is not the cas of a document")
    stored = vbucket.incoming.store_with_meta(
        Event.EXPIRATION if options & _IS_EXPIRATION else event,
        key,
        value,
        Meta(request.new_cas, request.rev_seqno, request.flags, time, datatype, deletes),
        cas=request.cas,
        add=request.received_as in _ADDS,
        resolve=not options & _SKIP_CONFLICTS,
        new_cas=new_cas,
    )
    if deletes:
        session.counters.cmd_delete += 1
    else:
        session.counters.cmd_set += 1
    return reply_to_change(session, vbucket, stored, request.received_as, request.opaque)


def _check_options(options: int, resolution: str, event: Event) -> None:
    """Raise InvalidArguments for options that contradict each other, or the bucket's conflict resolution."""
    if unknown := options & ~_ALLOWED[event]:
        raise InvalidArguments(f"options 0x{options:x}, of which 0x{unknown:x} are unknown for this command")
    if options & _REGENERATE_CAS and not options & _SKIP_CONFLICTS:
        raise InvalidArguments(f"options 0x{options:x}: REGENERATE_CAS needs SKIP_CONFLICT_RESOLUTION")
    forced = options & _FORCE_ACCEPT
    if resolution == "lww" and not forced and not options & _REGENERATE_CAS:
        raise InvalidArguments(f"options 0x{options:x}: a bucket with conflict resolution lww needs FORCE_ACCEPT")
    if resolution != "lww" and forced:
        raise InvalidArguments(f"options 0x{options:x}: FORCE_ACCEPT is only for conflict resolution lww")


def _read_value(session: Session, request: _WithMeta, deletes: bool) -> tuple[Buffer, int]:
    """Return the value without the extended metadata behind it, and its datatype with the detected JSON bit.

    Raises StatusError or RemoteProtocolError for an invalid value: a tombstone has extended attributes only. Raises
    Parked
    if a thread must inspect a large value.
    """
    nmeta = request.nmeta if isinstance(request, _HAVE_NMETA) else 0
    if nmeta > len(request.value):
        raise InvalidArguments(f"{nmeta} bytes of extended meta data in a value of {len(request.value)}")
    value = request.value[: len(request.value) - nmeta]
    check_value_size(value)
    nbytes = read_inflated_length(value) if request.datatype & _SNAPPY else len(value)
    find = partial(_detect_datatype, request.datatype, value, deletes)
    return value, find() if nbytes <= LARGE_VALUE_BYTES else run_in_worker(session, None, nbytes, find)


def _detect_datatype(datatype: int, value: Buffer, deletes: bool) -> int:
    body = inflate(value, get_inflated_limit(datatype)) if datatype & _SNAPPY else to_bytes(value)
    if datatype & _XATTR:
        body = unpack_xattrs(body).body
    if deletes and body:
        raise InvalidArguments(f"a deletion with a body of {len(body)} bytes, expected extended attributes only")
    return datatype & ~_JSON | detect_json(body)
