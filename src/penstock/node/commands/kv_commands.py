"""Commands on documents.

GET, SET, ADD and REPLACE receive frames, and their replies are built from the layouts. Decoding a message would take a
quarter of the time in which the node serves one of them (benchmarks/kv.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct

from penstock.errors import InvalidArguments, KeyNotFound, TooBig
from penstock.node.answers import Answer
from penstock.node.session.client_values import (
    detect_client_datatype,
    read_plain_value,
    to_client_value,
    to_client_value_with_xattrs,
)
from penstock.node.session.command_table import READ, WRITE, CommandTable, Trait
from penstock.node.session.large_values import LARGE_VALUE_BYTES, reply_in_worker, run_in_worker
from penstock.node.session.replies import encode_reply, encode_reply_in_parts
from penstock.node.session.session import Handler, Session
from penstock.store.documents.derived_values import extend_value
from penstock.store.documents.document_locks import limit_lock_seconds
from penstock.store.documents.item import Item, Stored
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import MAX_VALUE
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
from penstock.wire.values.large_bytes import touch_pages
from penstock.wire.values.snappy import MAX_INFLATED, read_inflated_length

COMMANDS = CommandTable()

_RESPONSE = int(Magic.RESPONSE)
_NOT_JSON = ~int(Datatype.JSON)
_SNAPPY = int(Datatype.SNAPPY)
_XATTR = int(Datatype.XATTR)
_SET_EXTRAS = Set.layouts[2].extras
_FLAGS = GetReply.layouts[1].extras
_GET_HEAD = Struct(HEADER.format + GetReply.layouts[1].extras.format[1:])
_GET_EXTRAS = _GET_HEAD.size - HEADER_BYTES
_TOKEN = StoreReply.layouts[2].extras
_TOKEN_HEAD = Struct(HEADER.format + _TOKEN.format[1:])
_TOKEN_EXTRAS = _TOKEN.size
_GET, _GETK = int(Opcode.GET), int(Opcode.GETK)
_WITH_KEY = frozenset((_GETK, int(Opcode.GETKQ)))
_PREPENDS = frozenset((Opcode.PREPEND, Opcode.PREPENDQ))
_DECREMENTS = frozenset((Opcode.DECREMENT, Opcode.DECREMENTQ))

_NEVER_CREATE = 2**32 - 1
"""As the expiry of a counter: a missing document is not created."""

# Shared by the handlers


def find_active_vbucket(session: Session, number: int) -> Vbucket:
    """Return a vbucket that clients may use.

    Raises:
        NotMyVbucket: the vbucket is not active on this node, or the newest map does not name the node as its owner.
        NoBucket: no bucket is selected.
    """
    vbuckets = session.vbuckets
    if number < len(vbuckets) and (vbucket := vbuckets[number]).history.is_served:
        return vbucket
    return session.require_bucket().store.find(number)  # raises


def check_value_size(value: Buffer) -> None:
    """Raise TooBig for a value above the limit."""
    if len(value) > MAX_VALUE:
        raise TooBig(f"value of {len(value)} bytes, limit {MAX_VALUE}")


def reply_to_change(session: Session, vbucket: Vbucket, stored: Stored, opcode: int, opaque: int) -> bytes:
    """Return the reply to a change, and note the vbucket for the streams that wait for it.

    The reply has a mutation token if the client has agreed on tokens. Quiet commands have no reply.
    """
    session.changed.add(vbucket.id)
    if opcode in QUIET_OPCODES:
        return b""
    cas, seqno = stored
    if session.sends_tokens:
        return _TOKEN_HEAD.pack(
            _RESPONSE, opcode, 0, _TOKEN_EXTRAS, 0, 0, _TOKEN_EXTRAS, opaque, cas, vbucket.history.vbuuid, seqno
        )
    return HEADER.pack(_RESPONSE, opcode, 0, 0, 0, 0, 0, opaque, cas)


# Reading


@COMMANDS.serve_frames(Get, needs=READ)
def get_document(session: Session, frame: Frame) -> Answer:
    """Return a document. Steps of `make_document_reply` are repeated here for speed (benchmarks/kv.py)."""
    _, opcode, vbid, _, opaque, _, _, key, _, _ = frame
    vbuckets = session.vbuckets
    stored_key = session.read_key(key)
    if vbid >= len(vbuckets) or not (vbucket := vbuckets[vbid]).history.is_served:
        vbucket = find_active_vbucket(session, vbid)  # raises
    item = vbucket.get(stored_key)
    counters = session.counters
    counters.cmd_get += 1
    if item is None:
        counters.get_misses += 1
        if opcode in QUIET_OPCODES:
            return b""
        if opcode == _GETK:
            # memcached and the 2.x and 3.x servers return the key, so that pipelined misses can be matched.
            return encode_reply(frame, Status.KEY_ENOENT, key=key)
        raise KeyNotFound
    cas, flags, datatype, value, _, _, _ = item
    key_length = len(key) if opcode != _GET and opcode in _WITH_KEY else 0
    if type(value) is not bytes:
        return _make_large_reply(session, frame, item, key if key_length else b"", to_client_value)
    if datatype:
        datatype, value = to_client_value(session.datatypes, datatype, value)
    if key_length:
        value = key + value
    body = _GET_EXTRAS + len(value)
    return _GET_HEAD.pack(_RESPONSE, opcode, key_length, _GET_EXTRAS, datatype, 0, body, opaque, cas, flags) + value


@COMMANDS.serve(needs=READ | WRITE)
def get_and_touch(session: Session, request: GetAndTouch) -> Answer:
    """Return a document and change its expiry."""
    key = session.change_key(request.key)
    vbucket = find_active_vbucket(session, request.vbucket)
    item = vbucket.touch(key, request.expiry)
    session.changed.add(vbucket.id)
    session.counters.cmd_get += 1
    return _reply_to_miss(session, request) if item is None else make_document_reply(session, request, item)


@COMMANDS.serve(needs=WRITE)
def touch_document(session: Session, request: Touch) -> bytes:
    """Change the expiry of a document."""
    vbucket, key = find_active_vbucket(session, request.vbucket), session.write_key(request.key)
    item = vbucket.touch(key, request.expiry)
    session.changed.add(vbucket.id)
    if item is None:
        raise KeyNotFound
    return encode_reply(request, cas=item.cas)


@COMMANDS.serve(needs=READ, traits=Trait.RETRIED_LOCK)
def get_locked(session: Session, request: GetLocked) -> Answer:
    """Lock a document and return it with the lock's cas."""
    key = session.read_key(request.key)
    vbucket = find_active_vbucket(session, request.vbucket)
    item = vbucket.lock(key, limit_lock_seconds(request.lock_time or 0))
    session.changed.add(vbucket.id)  # the log records the lock's cas, so that later ones are higher
    session.counters.cmd_get += 1
    return _reply_to_miss(session, request) if item is None else make_document_reply(session, request, item)


@COMMANDS.serve(needs=READ, traits=Trait.RETRIED_LOCK)
def unlock_document(session: Session, request: Unlock) -> bytes:
    """Unlock a document by the lock's cas."""
    find_active_vbucket(session, request.vbucket).unlock(session.read_key(request.key), request.cas)
    return encode_reply(request)


def _reply_to_miss(session: Session, request: GetAndTouch | GetLocked) -> bytes:
    session.counters.get_misses += 1
    if request.is_quiet:
        return b""
    raise KeyNotFound


def make_document_reply(
    session: Session, request: Message, item: Item, key: bytes = b"", *, whole: bool = False
) -> Answer:
    """Return the reply with a document.

    Args:
        session: the session of the client.
        request: the request.
        item: the document.
        key: key of the reply.
        whole: with the extended attributes, if the client has agreed on them.

    Raises:
        Parked: a thread must inflate the value or read it from disk.
    """
    cas, flags, datatype, value, _, _, _ = item
    if datatype or type(value) is not bytes:
        understood = session.datatypes
        read = to_client_value_with_xattrs if whole and understood & _XATTR else to_client_value
        if type(value) is not bytes:
            return _make_large_reply(session, request, item, key, read)
        datatype, value = read(understood, datatype, value)
    body = _GET_EXTRAS + len(key) + len(value)
    opcode, opaque = request.received_as, request.opaque
    return _GET_HEAD.pack(_RESPONSE, opcode, len(key), _GET_EXTRAS, datatype, 0, body, opaque, cas, flags) + key + value


def _make_large_reply(
    session: Session, request: Frame | Message, item: Item, key: bytes, read: Callable[..., tuple[int, Buffer]]
) -> Answer:
    understood = session.datatypes

    def make() -> Answer:
        datatype, value = read(understood, item.datatype, item.value)
        touch_pages(value)
        return encode_reply_in_parts(
            request, Status.SUCCESS, (value,), extras=_FLAGS.pack(item.flags), key=key, cas=item.cas, datatype=datatype
        )

    if item.datatype & _SNAPPY:
        reply_in_worker(session, read_inflated_length(item.value), make)
    if session.require_bucket().store.log.durable:
        reply_in_worker(session, len(item.value), make)
    return make()


# Storing


def _make_store_handler(plain: Callable[..., Stored]) -> Handler:
    """Return the handler of a SET, ADD or REPLACE.

    Args:
        plain: stores a document in a vbucket.
    """
    keeping_expiry = partial(plain, preserve_expiry=True)

    def store_document(session: Session, frame: Frame) -> bytes:
        _, opcode, vbid, datatype, opaque, cas, extras, key, value, _ = frame
        vbuckets = session.vbuckets
        key = session.write_key(key)
        if vbid >= len(vbuckets) or not (vbucket := vbuckets[vbid]).history.is_served:
            vbucket = find_active_vbucket(session, vbid)  # raises
        if len(value) > LARGE_VALUE_BYTES or datatype & _NOT_JSON:
            datatype = _find_datatype(session, datatype, value)
        else:
            datatype = detect_json(value)
        flags, expiry = _SET_EXTRAS.unpack(extras)
        store = keeping_expiry if session.infos.preserve_ttl else plain
        stored = store(vbucket, key, value, flags=flags, expiry=expiry, datatype=datatype, cas=cas)
        session.counters.cmd_set += 1
        return reply_to_change(session, vbucket, stored, opcode, opaque)

    return store_document


def _find_datatype(session: Session, datatype: int, value: bytes) -> int:
    """Return the datatype to store a large or compressed value with. Raises Parked if a thread must find it."""
    check_value_size(value)
    nbytes = read_inflated_length(value) if datatype & _SNAPPY else len(value)
    if nbytes <= LARGE_VALUE_BYTES:
        return detect_client_datatype(datatype, value)
    return run_in_worker(session, None, nbytes, partial(detect_client_datatype, datatype, value))


def _add_document(
    vbucket: Vbucket, key: bytes, value: bytes, *, cas: int, preserve_expiry: bool = False, **fields: int
) -> Stored:
    assert cas == 0, "the layout of ADD has no cas"
    if preserve_expiry:
        raise InvalidArguments("ADD: a new document has no expiry to preserve")
    return vbucket.add(key, value, **fields)


_serve_storing = partial(COMMANDS.serve_frames, needs=WRITE, traits=Trait.JSON | Trait.VIEWED | Trait.DURABLE)
_serve_storing(Set, opcodes=(Opcode.SET, Opcode.SETQ))(_make_store_handler(Vbucket.set))
_serve_storing(Set, opcodes=(Opcode.REPLACE, Opcode.REPLACEQ))(_make_store_handler(Vbucket.replace))
_serve_storing(Add)(_make_store_handler(_add_document))


@COMMANDS.serve(needs=WRITE, traits=Trait.DURABLE)
def extend_document(session: Session, request: Append) -> bytes:
    """Append or prepend a value to a document."""
    vbucket, key = find_active_vbucket(session, request.vbucket), session.write_key(request.key)
    piece = read_plain_value(request.datatype, request.value)
    in_front = request.received_as in _PREPENDS
    made = _extend_apart(session, vbucket.get(key), piece, in_front)
    stored = vbucket.extend(key, piece, cas=request.cas, in_front=in_front, made=made)
    session.counters.cmd_set += 1
    return reply_to_change(session, vbucket, stored, request.received_as, request.opaque)


def _extend_apart(session: Session, item: Item | None, piece: bytes, in_front: bool) -> tuple[Buffer, int] | None:
    """Return a large document as extended by a thread; None for a small document. Raises Parked before that."""
    if item is None or (nbytes := len(item.value) + len(piece)) <= LARGE_VALUE_BYTES:
        return None
    if nbytes > MAX_INFLATED:
        return None  # the store refuses it
    version = (item.cas, item.seqno)
    work = partial(extend_value, item.value, item.datatype, piece, in_front=in_front)
    return run_in_worker(session, version, nbytes, work)


@COMMANDS.serve(needs=READ | WRITE, traits=Trait.DURABLE)
def change_counter(session: Session, request: Count) -> bytes:
    """Increment or decrement a counter, and return its new value."""
    vbucket, key = find_active_vbucket(session, request.vbucket), session.change_key(request.key)
    delta = -request.delta if request.received_as in _DECREMENTS else request.delta
    expiry = None if request.expiry == _NEVER_CREATE else request.expiry
    cas, seqno, number = vbucket.count(key, delta, initial=request.initial, expiry=expiry)
    session.counters.cmd_set += 1
    session.changed.add(vbucket.id)
    if request.is_quiet:
        return b""
    token = _TOKEN.pack(vbucket.history.vbuuid, seqno) if session.sends_tokens else b""
    return encode_reply(request, extras=token, value=number.to_bytes(8, "big"), cas=cas)


@COMMANDS.serve(needs=WRITE, traits=Trait.DURABLE)
def delete_document(session: Session, request: Delete) -> bytes:
    """Delete a document."""
    vbucket, key = find_active_vbucket(session, request.vbucket), session.write_key(request.key)
    stored = vbucket.delete(key, cas=request.cas)
    session.counters.cmd_delete += 1
    if not session.features:
        # memcached's reply has no cas, and libmemcached's check of servers fails those that send one.
        stored = Stored(0, stored.seqno)
    return reply_to_change(session, vbucket, stored, request.received_as, request.opaque)
