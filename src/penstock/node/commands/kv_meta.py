"""The commands on documents with their meta data, with which others keep a bucket like one that is written to as well.

Source: kv_engine ep_engine.cc, getMeta, setWithMeta, deleteWithMeta, and what they check first.
"""

from __future__ import annotations

from functools import partial

from penstock.errors import InvalidArguments, KeyNotFound
from penstock.node.commands.kv_commands import changed, check_value, serving
from penstock.node.session.command_table import META_WRITE, READ, CommandTable
from penstock.node.session.large_values import LARGE, work_apart
from penstock.node.session.replies import reply
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
from penstock.wire.values.large_bytes import plain_bytes
from penstock.wire.values.snappy import inflate, inflated_length, most_inflated

__all__ = ["COMMANDS"]

COMMANDS = CommandTable()

_META = MetaReply.layouts[4].extras
_META_AND_DATATYPE = MetaReply.layouts[5].extras
_NEWEST_VERSION = 2
_NO_CAS = (0, 2**64 - 1)

_WithMeta = SetWithMeta | OldSetWithNmeta | DelWithMeta | OldDelWithNmeta
_HAVE_NMETA = SetWithNmeta | DelWithNmeta | OldSetWithNmeta | OldDelWithNmeta
_ADDS = frozenset((Opcode.ADD_WITH_META, Opcode.ADDQ_WITH_META))

_SKIPS = WithMetaFlag.FORCE_WITH_META | WithMetaFlag.SKIP_CONFLICT_RESOLUTION
_ALLOWED = {
    Event.MUTATION: sum(int(flag) for flag in WithMetaFlag if flag is not WithMetaFlag.IS_EXPIRATION),
    Event.DELETION: sum(map(int, WithMetaFlag)),
}
"""The options of a command; an expiration removes a document."""


@COMMANDS.serve(needs=READ)
def get_meta(session: Session, request: GetMeta) -> bytes:
    version = request.version or 0
    if version > _NEWEST_VERSION:
        raise InvalidArguments(f"version {version}, expected 1 or {_NEWEST_VERSION}")
    meta = serving(session, request.vbucket).versions.meta(session.read_key(request.key))
    if meta is None:
        if request.is_quiet:
            return b""
        raise KeyNotFound
    found = (meta.deleted, meta.flags, meta.expiry, meta.rev_seqno)
    extras = _META.pack(*found) if version < _NEWEST_VERSION else _META_AND_DATATYPE.pack(*found, meta.datatype)
    return reply(request, extras=extras, cas=meta.cas)


@COMMANDS.serve(needs=META_WRITE)
def set_with_meta(session: Session, request: SetWithMeta | OldSetWithNmeta) -> bytes:
    return _store(session, request, Event.MUTATION, request.expiry)


@COMMANDS.serve(needs=META_WRITE)
def delete_with_meta(session: Session, request: DelWithMeta | OldDelWithNmeta) -> bytes:
    return _store(session, request, Event.DELETION, request.delete_time)


def _store(session: Session, request: _WithMeta, event: Event, time: int) -> bytes:
    """Store or delete a document. time: its expiry, or when it was deleted."""
    deletes = event is Event.DELETION
    vbucket, key = serving(session, request.vbucket), session.meta_key(request.key)
    options = 0 if isinstance(request, OldSetWithNmeta | OldDelWithNmeta) else request.options or 0
    _check_options(options, vbucket.incoming.conflict_resolution, event)
    value, datatype = _value(session, request, deletes)
    new_cas = bool(options & WithMetaFlag.REGENERATE_CAS)
    if request.new_cas in _NO_CAS and not new_cas:
        raise InvalidArguments(f"cas {request.new_cas}, which no document can have")
    stored = vbucket.incoming.store_with_meta(
        Event.EXPIRATION if options & WithMetaFlag.IS_EXPIRATION else event,
        key,
        value,
        Meta(request.new_cas, request.rev_seqno, request.flags, time, datatype, deletes),
        cas=request.cas,
        add=request.received_as in _ADDS,
        resolve=not options & _SKIPS,
        new_cas=new_cas,
    )
    if deletes:
        session.counters.cmd_delete += 1
    else:
        session.counters.cmd_set += 1
    return changed(session, vbucket, stored, request.received_as, request.opaque)


def _check_options(options: int, resolution: str, event: Event) -> None:
    """Raise InvalidArguments for options that contradict each other, or how the bucket resolves conflicts."""
    if unknown := options & ~_ALLOWED[event]:
        raise InvalidArguments(f"options 0x{options:x}, of which 0x{unknown:x} mean nothing here")
    if options & WithMetaFlag.REGENERATE_CAS and not options & _SKIPS:
        raise InvalidArguments(f"options 0x{options:x}: a new cas, and conflicts resolved by the old one")
    forced = options & WithMetaFlag.FORCE_ACCEPT
    if resolution == "lww" and not forced and not options & WithMetaFlag.REGENERATE_CAS:
        raise InvalidArguments(f"options 0x{options:x}: a bucket in which the last write wins wants FORCE_ACCEPT")
    if resolution != "lww" and forced:
        raise InvalidArguments(f"options 0x{options:x}: FORCE_ACCEPT is for buckets in which the last write wins")


def _value(session: Session, request: _WithMeta, deletes: bool) -> tuple[Buffer, int]:
    """Return the value, without the extended meta data behind it, and its datatype, with JSON as it is detected.

    Raises StatusError or RemoteProtocolError for a value that cannot be: a tombstone has nothing but extended
    attributes. Raises Parked where a thread is to look at a large one.
    """
    nmeta = request.nmeta if isinstance(request, _HAVE_NMETA) else 0
    if nmeta > len(request.value):
        raise InvalidArguments(f"{nmeta} bytes of extended meta data in a value of {len(request.value)}")
    value = request.value[: len(request.value) - nmeta]
    check_value(value)
    nbytes = inflated_length(value) if request.datatype & Datatype.SNAPPY else len(value)
    find = partial(_datatype, request.datatype, value, deletes)
    return value, find() if nbytes <= LARGE else work_apart(session, None, nbytes, find)


def _datatype(datatype: int, value: Buffer, deletes: bool) -> int:
    body = inflate(value, most_inflated(datatype)) if datatype & Datatype.SNAPPY else plain_bytes(value)
    if datatype & Datatype.XATTR:
        body = unpack_xattrs(body).body
    if deletes and body:
        raise InvalidArguments(f"a deletion with {len(body)} bytes that are no extended attributes")
    return datatype & ~Datatype.JSON | detect_json(body)
