"""The commands on documents with their meta data, with which others keep a bucket like one that is written to as well.

Source: kv_engine ep_engine.cc, getMeta, setWithMeta, deleteWithMeta, and what they check first.
"""

from __future__ import annotations

from functools import partial

from penstock.errors import InvalidArguments, KeyNotFound
from penstock.node.commands.kv_commands import changed, check_value, loud_and_quiet, serving
from penstock.node.session.large_values import LARGE, work_apart
from penstock.node.session.replies import reply
from penstock.node.session.session import Handler, Session
from penstock.store.documents.conflict import Meta
from penstock.wire.codec.flags import Datatype, WithMetaFlag
from penstock.wire.codec.frame import Buffer, Frame
from penstock.wire.codec.layout import Layout, layouts_of
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp_values import unpack_xattrs
from penstock.wire.messages.kv import DelWithMeta, MetaReply, SetWithMeta
from penstock.wire.values.json_value import detect_json
from penstock.wire.values.large_bytes import plain_bytes
from penstock.wire.values.snappy import inflate, inflated_length, most_inflated

__all__ = ["HANDLERS"]

_META = MetaReply.layouts[4].extras
_META_AND_DATATYPE = MetaReply.layouts[5].extras
_NEWEST_VERSION = 2
_NO_CAS = (0, 2**64 - 1)

_SKIPS = WithMetaFlag.FORCE_WITH_META | WithMetaFlag.SKIP_CONFLICT_RESOLUTION
_ALLOWED = {
    Event.MUTATION: sum(int(flag) for flag in WithMetaFlag if flag is not WithMetaFlag.IS_EXPIRATION),
    Event.DELETION: sum(map(int, WithMetaFlag)),
}
"""The options of a command; an expiration removes a document."""


def _getting_meta(*, quiet: bool) -> Handler:
    """Make the handler of a GET_META. quiet: a miss has no answer."""

    def get_meta(session: Session, frame: Frame) -> bytes:
        version = frame.extras[0] if frame.extras else 0
        if version > _NEWEST_VERSION:
            raise InvalidArguments(f"version {version}, expected 1 or {_NEWEST_VERSION}")
        meta = serving(session, frame).meta(session.read_key(frame.key))
        if meta is None:
            if quiet:
                return b""
            raise KeyNotFound
        said = (meta.deleted, meta.flags, meta.expiry, meta.rev_seqno)
        extras = _META.pack(*said) if version < _NEWEST_VERSION else _META_AND_DATATYPE.pack(*said, meta.datatype)
        return reply(frame, extras=extras, cas=meta.cas)

    return get_meta


def _with_meta(event: Event, add: bool = False, *, quiet: bool) -> Handler:
    """Make the handler of a SET_WITH_META, ADD_WITH_META or DEL_WITH_META. quiet: success is not answered."""
    deletes = event is Event.DELETION
    forms = layouts_of((DelWithMeta if deletes else SetWithMeta).opcode, SetWithMeta.magic)

    def store(session: Session, frame: Frame) -> bytes:
        vbucket, key = serving(session, frame), session.meta_key(frame.key)
        said = _said(forms[len(frame.extras)], frame.extras)
        options = said.get("options", 0)
        _check_options(options, vbucket.conflict_resolution, event)
        value, datatype = _value(session, frame, said.get("nmeta", 0), deletes)
        new_cas = bool(options & WithMetaFlag.REGENERATE_CAS)
        if said["new_cas"] in _NO_CAS and not new_cas:
            raise InvalidArguments(f"cas {said['new_cas']}, which no document can have")
        time = said["delete_time" if deletes else "expiry"]
        stored = vbucket.store_with_meta(
            Event.EXPIRATION if options & WithMetaFlag.IS_EXPIRATION else event,
            key,
            value,
            Meta(said["new_cas"], said["rev_seqno"], said["flags"], time, datatype, deletes),
            cas=frame.cas,
            add=add,
            resolve=not options & _SKIPS,
            new_cas=new_cas,
        )
        if deletes:
            session.counters.cmd_delete += 1
        else:
            session.counters.cmd_set += 1
        return changed(session, vbucket, stored, frame, quiet)

    return store


def _said(form: Layout, extras: bytes) -> dict[str, int]:
    return dict(zip(form.names, form.extras.unpack(extras), strict=True))


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


def _value(session: Session, frame: Frame, nmeta: int, deletes: bool) -> tuple[Buffer, int]:
    """Return the value, without the extended meta data behind it, and its datatype, with JSON as it is detected.

    Raises StatusError or RemoteProtocolError for a value that cannot be: a tombstone has nothing but extended
    attributes. Raises Parked where a thread is to look at a large one.
    """
    if nmeta > len(frame.value):
        raise InvalidArguments(f"{nmeta} bytes of extended meta data in a value of {len(frame.value)}")
    value = frame.value[: len(frame.value) - nmeta]
    check_value(value)
    nbytes = inflated_length(value) if frame.datatype & Datatype.SNAPPY else len(value)
    find = partial(_datatype, frame.datatype, value, deletes)
    return value, find() if nbytes <= LARGE else work_apart(session, None, nbytes, find)


def _datatype(datatype: int, value: Buffer, deletes: bool) -> int:
    body = inflate(value, most_inflated(datatype)) if datatype & Datatype.SNAPPY else plain_bytes(value)
    if datatype & Datatype.XATTR:
        body = unpack_xattrs(body).body
    if deletes and body:
        raise InvalidArguments(f"a deletion with {len(body)} bytes that are no extended attributes")
    return datatype & ~Datatype.JSON | detect_json(body)


HANDLERS: dict[Opcode, Handler] = {
    **loud_and_quiet(Opcode.GET_META, Opcode.GETQ_META, _getting_meta),
    **loud_and_quiet(Opcode.SET_WITH_META, Opcode.SETQ_WITH_META, _with_meta, Event.MUTATION),
    **loud_and_quiet(Opcode.ADD_WITH_META, Opcode.ADDQ_WITH_META, _with_meta, Event.MUTATION, True),
    **loud_and_quiet(Opcode.DEL_WITH_META, Opcode.DELQ_WITH_META, _with_meta, Event.DELETION),
}
