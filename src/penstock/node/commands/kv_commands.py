"""The commands on documents.

GET, SET, ADD and REPLACE take frames as they are and build their replies by hand from the layouts: to decode a message
takes a quarter of the time in which the node serves one of them (benchmarks/kv.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct

from penstock.errors import InvalidArguments, KeyNotFound, TooBig
from penstock.node.answers import Answer
from penstock.node.session.command_table import READ, WRITE, CommandTable
from penstock.node.session.large_values import LARGE, reply_apart, work_apart
from penstock.node.session.replies import opcode_of, reply, reply_parts
from penstock.node.session.session import Handler, Session
from penstock.node.session.shown_values import client_datatype, plain_value, shown, with_attributes
from penstock.store.documents.derived_values import extended
from penstock.store.documents.document_locks import lock_seconds
from penstock.store.documents.vbucket import Item, Stored, Vbucket
from penstock.wire.codec.constants import MAX_VALUE, VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import HEADER, HEADER_BYTES, Buffer, Frame
from penstock.wire.codec.layout import Message
from penstock.wire.codec.opcodes import QUIET_OPCODES, Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import (
    Add,
    Append,
    Count,
    Delete,
    Get,
    GetAndTouch,
    GetLocked,
    GetReply,
    Set,
    StoreReply,
    Touch,
    Unlock,
)
from penstock.wire.values.json_value import detect_json
from penstock.wire.values.large_bytes import touch
from penstock.wire.values.snappy import MAX_INFLATED, inflated_length

__all__ = ["COMMANDS", "VIEWED", "changed", "check_value", "document_reply", "serving"]

COMMANDS = CommandTable()

_RESPONSE = int(Magic.RESPONSE)
_NOT_JSON = ~int(Datatype.JSON)
_ACTIVE = VbucketState.ACTIVE
_SET_EXTRAS = Set.layouts[2].extras
_FLAGS = GetReply.layouts[1].extras
_GET_HEAD = Struct(HEADER.format + GetReply.layouts[1].extras.format[1:])
_GET_EXTRAS = _GET_HEAD.size - HEADER_BYTES
_TOKEN = StoreReply.layouts[2].extras
_TOKEN_HEAD = Struct(HEADER.format + _TOKEN.format[1:])
_TOKEN_EXTRAS = _TOKEN.size
_GETK = int(Opcode.GETK)
_WITH_KEY = frozenset((_GETK, int(Opcode.GETKQ)))
_PREPENDS = frozenset((Opcode.PREPEND, Opcode.PREPENDQ))
_DECREMENTS = frozenset((Opcode.DECREMENT, Opcode.DECREMENTQ))

VIEWED = frozenset(
    (
        *(Opcode.SET, Opcode.SETQ, Opcode.ADD, Opcode.ADDQ, Opcode.REPLACE, Opcode.REPLACEQ),
        *(Opcode.SET_WITH_META, Opcode.SETQ_WITH_META, Opcode.ADD_WITH_META, Opcode.ADDQ_WITH_META),
    )
)
"""Commands that take a large value as a view: it is copied once, into the log."""

_MAKE_NONE = 2**32 - 1
"""As the expiry of a counter: where there is no document there is not to be one."""

# What the handlers have in common


def serving(session: Session, number: int) -> Vbucket:
    """Return a vbucket that this node serves. Raises NotMyVbucket, NoBucket."""
    return session.selected().store.find(number)


def check_value(value: Buffer) -> None:
    if len(value) > MAX_VALUE:
        raise TooBig(f"value of {len(value)} bytes, limit {MAX_VALUE}")


def changed(session: Session, vbucket: Vbucket, stored: Stored, opcode: int, opaque: int) -> bytes:
    """Note a change for the streams that wait for one, and return its reply: with a token, where that was agreed on."""
    session.changed.add(vbucket.id)
    if opcode in QUIET_OPCODES:
        return b""
    cas, seqno = stored
    if session.tokens:
        return _TOKEN_HEAD.pack(
            _RESPONSE, opcode, 0, _TOKEN_EXTRAS, 0, 0, _TOKEN_EXTRAS, opaque, cas, vbucket.history.vbuuid, seqno
        )
    return HEADER.pack(_RESPONSE, opcode, 0, 0, 0, 0, 0, opaque, cas)


# Reading


@COMMANDS.serve_frames(Get, needs=READ)
def get(session: Session, frame: Frame) -> Answer:
    _, opcode, vbid, _, opaque, _, _, key, _, _ = frame
    vbuckets = session.vbuckets
    stored_key = session.read_key(key)
    if vbid >= len(vbuckets) or (vbucket := vbuckets[vbid]).history.state is not _ACTIVE:
        vbucket = serving(session, vbid)  # raises
    item = vbucket.get(stored_key)
    counters = session.counters
    counters.cmd_get += 1
    if item is None:
        counters.get_misses += 1
        if opcode in QUIET_OPCODES:
            return b""
        if opcode == _GETK:
            # memcached and the 2.x and 3.x servers return the key, so that pipelined misses can be matched.
            return reply(frame, Status.KEY_ENOENT, key=key)
        raise KeyNotFound
    cas, flags, datatype, value, _, _, _ = item
    key_length = len(key) if opcode in _WITH_KEY else 0
    if type(value) is not bytes:
        return document_reply(session, frame, item, key if key_length else b"")
    if datatype:
        datatype, value = shown(session.datatypes, datatype, value)
    if key_length:
        value = key + value
    body = _GET_EXTRAS + len(value)
    return _GET_HEAD.pack(_RESPONSE, opcode, key_length, _GET_EXTRAS, datatype, 0, body, opaque, cas, flags) + value


@COMMANDS.serve(needs=READ | WRITE)
def get_and_touch(session: Session, request: GetAndTouch) -> Answer:
    key = session.change_key(request.key)
    item = _touch(session, serving(session, request.vbucket), key, request.expiry)
    return _found(session, request, item)


@COMMANDS.serve(needs=WRITE)
def touch_document(session: Session, request: Touch) -> bytes:
    vbucket, key = serving(session, request.vbucket), session.write_key(request.key)
    item = _touch(session, vbucket, key, request.expiry)
    if item is None:
        raise KeyNotFound
    return reply(request, cas=item.cas)


def _touch(session: Session, vbucket: Vbucket, key: bytes, expiry: int) -> Item | None:
    item = vbucket.touch(key, expiry)
    session.changed.add(vbucket.id)
    return item


@COMMANDS.serve(needs=READ | WRITE)
def get_locked(session: Session, request: GetLocked) -> Answer:
    key = session.change_key(request.key)
    vbucket = serving(session, request.vbucket)
    item = vbucket.lock(key, lock_seconds(request.lock_time or 0))
    session.changed.add(vbucket.id)  # the log has a note of the cas
    return _found(session, request, item)


@COMMANDS.serve(needs=WRITE)
def unlock(session: Session, request: Unlock) -> bytes:
    serving(session, request.vbucket).unlock(session.write_key(request.key), request.cas)
    return reply(request)


def _found(session: Session, request: GetAndTouch | GetLocked, item: Item | None) -> Answer:
    session.counters.cmd_get += 1
    if item is not None:
        return document_reply(session, request, item)
    session.counters.get_misses += 1
    if request.is_quiet:
        return b""
    raise KeyNotFound


def document_reply(
    session: Session, request: Frame | Message, item: Item, key: bytes = b"", *, whole: bool = False
) -> Answer:
    """Return the reply with a document. Raises Parked where a thread is to inflate it, or to read it from disk.

    key: of the reply. whole: with its extended attributes, where the connection has agreed on them.
    """
    understood = session.datatypes
    read = with_attributes if whole and understood & Datatype.XATTR else shown
    if type(item.value) is not bytes:
        return _large_document_reply(session, request, item, key, read)
    datatype, value = read(understood, item.datatype, item.value)
    body = _GET_EXTRAS + len(key) + len(value)
    head = _GET_HEAD.pack(
        *(_RESPONSE, opcode_of(request), len(key), _GET_EXTRAS, datatype, 0, body, request.opaque, item.cas, item.flags)
    )
    return b"".join((head, key, value))


def _large_document_reply(
    session: Session, request: Frame | Message, item: Item, key: bytes, read: Callable[..., tuple[int, Buffer]]
) -> Answer:
    understood = session.datatypes

    def make() -> Answer:
        datatype, value = read(understood, item.datatype, item.value)
        touch(value)
        return reply_parts(
            request, Status.SUCCESS, (value,), extras=_FLAGS.pack(item.flags), key=key, cas=item.cas, datatype=datatype
        )

    if item.datatype & Datatype.SNAPPY:
        reply_apart(session, inflated_length(item.value), make)
    if session.selected().store.log.durable:
        reply_apart(session, len(item.value), make)
    return make()


# Storing


def _storing(plain: Callable[..., Stored]) -> Handler:
    """Make the handler of a SET, ADD or REPLACE."""
    keeping_expiry = partial(plain, preserve_expiry=True)

    def store_document(session: Session, frame: Frame) -> bytes:
        _, opcode, vbid, datatype, opaque, cas, extras, key, value, _ = frame
        vbuckets = session.vbuckets
        key = session.write_key(key)
        if vbid >= len(vbuckets) or (vbucket := vbuckets[vbid]).history.state is not _ACTIVE:
            vbucket = serving(session, vbid)  # raises
        if len(value) > LARGE or datatype & _NOT_JSON:
            datatype = _stored_datatype(session, datatype, value)
        else:
            datatype = detect_json(value)
        flags, expiry = _SET_EXTRAS.unpack(extras)
        store = keeping_expiry if session.infos.preserve_ttl else plain
        stored = store(vbucket, key, value, flags=flags, expiry=expiry, datatype=datatype, cas=cas)
        session.counters.cmd_set += 1
        return changed(session, vbucket, stored, opcode, opaque)

    return store_document


def _stored_datatype(session: Session, datatype: int, value: bytes) -> int:
    """Return the datatype to store a large or compressed value with. Raises Parked where a thread is to find it out."""
    check_value(value)
    nbytes = inflated_length(value) if datatype & Datatype.SNAPPY else len(value)
    if nbytes <= LARGE:
        return client_datatype(datatype, value)
    return work_apart(session, None, nbytes, partial(client_datatype, datatype, value))


def _add(vbucket: Vbucket, key: bytes, value: bytes, *, cas: int, preserve_expiry: bool = False, **said: int) -> Stored:
    assert cas == 0, "the layout of ADD has no cas"
    if preserve_expiry:
        raise InvalidArguments("ADD: there is no time to live that it could preserve")
    return vbucket.add(key, value, **said)


COMMANDS.serve_frames(Set, needs=WRITE, opcodes=(Opcode.SET, Opcode.SETQ))(_storing(Vbucket.set))
COMMANDS.serve_frames(Set, needs=WRITE, opcodes=(Opcode.REPLACE, Opcode.REPLACEQ))(_storing(Vbucket.replace))
COMMANDS.serve_frames(Add, needs=WRITE)(_storing(_add))


@COMMANDS.serve(needs=WRITE)
def extend(session: Session, request: Append) -> bytes:
    vbucket, key = serving(session, request.vbucket), session.write_key(request.key)
    piece = plain_value(request.datatype, request.value)
    in_front = request.received_as in _PREPENDS
    made = _extended_apart(session, vbucket.get(key), piece, in_front)
    stored = vbucket.extend(key, piece, cas=request.cas, in_front=in_front, made=made)
    session.counters.cmd_set += 1
    return changed(session, vbucket, stored, request.received_as, request.opaque)


def _extended_apart(session: Session, item: Item | None, piece: bytes, in_front: bool) -> tuple[Buffer, int] | None:
    """Return what a thread makes of a large document, None for one that is not large. Raises Parked before that."""
    if item is None or (nbytes := len(item.value) + len(piece)) <= LARGE:
        return None
    if nbytes > MAX_INFLATED:
        return None  # the store refuses it
    version = (item.cas, item.seqno)
    work = partial(extended, item.value, item.datatype, piece, in_front=in_front)
    return work_apart(session, version, nbytes, work)


@COMMANDS.serve(needs=READ | WRITE)
def count(session: Session, request: Count) -> bytes:
    vbucket, key = serving(session, request.vbucket), session.change_key(request.key)
    delta = -request.delta if request.received_as in _DECREMENTS else request.delta
    expiry = None if request.expiry == _MAKE_NONE else request.expiry
    cas, seqno, number = vbucket.count(key, delta, initial=request.initial, expiry=expiry)
    session.counters.cmd_set += 1
    session.changed.add(vbucket.id)
    if request.is_quiet:
        return b""
    token = _TOKEN.pack(vbucket.history.vbuuid, seqno) if session.tokens else b""
    return reply(request, extras=token, value=number.to_bytes(8, "big"), cas=cas)


@COMMANDS.serve(needs=WRITE)
def delete(session: Session, request: Delete) -> bytes:
    vbucket, key = serving(session, request.vbucket), session.write_key(request.key)
    stored = vbucket.delete(key, cas=request.cas)
    session.counters.cmd_delete += 1
    if not session.features:
        # memcached's reply has no cas, and libmemcached's check of servers fails those that send one.
        stored = Stored(0, stored.seqno)
    return changed(session, vbucket, stored, request.received_as, request.opaque)
