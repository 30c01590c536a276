"""The commands on documents. They run for every request, so they build their replies by hand from the layouts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct

from penstock.errors import InvalidArguments, KeyNotFound, TooBig
from penstock.node.answers import Answer
from penstock.node.session.large_values import LARGE, reply_apart, work_apart
from penstock.node.session.replies import reply, reply_parts
from penstock.node.session.session import Handler, Session
from penstock.node.session.shown_values import client_datatype, plain_value, shown, with_attributes
from penstock.store.documents.derived_values import extended
from penstock.store.documents.document_locks import lock_seconds
from penstock.store.documents.vbucket import Item, Stored, Vbucket
from penstock.wire.codec.constants import MAX_VALUE, VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import HEADER, HEADER_BYTES, Buffer, Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Count, GetLocked, GetReply, Set, StoreReply, Touch
from penstock.wire.values.json_value import detect_json
from penstock.wire.values.large_bytes import touch
from penstock.wire.values.snappy import MAX_INFLATED, inflated_length

__all__ = ["HANDLERS", "VIEWED", "changed", "check_value", "document_in_pieces", "loud_and_quiet", "serving"]

_RESPONSE = int(Magic.RESPONSE)
_NOT_JSON = ~int(Datatype.JSON)
_ACTIVE = VbucketState.ACTIVE
_SET_EXTRAS = Set.layouts[2].extras
_TOUCH_EXTRAS = Touch.layouts[1].extras
_LOCK_EXTRAS = GetLocked.layouts[1].extras
_COUNT_EXTRAS = Count.layouts[3].extras
_FLAGS = GetReply.layouts[1].extras
_GET_HEAD = Struct(HEADER.format + GetReply.layouts[1].extras.format[1:])
_GET_EXTRAS = _GET_HEAD.size - HEADER_BYTES
_TOKEN = StoreReply.layouts[2].extras
_TOKEN_HEAD = Struct(HEADER.format + _TOKEN.format[1:])
_TOKEN_EXTRAS = _TOKEN.size

VIEWED = frozenset(
    (
        *(Opcode.SET, Opcode.SETQ, Opcode.ADD, Opcode.ADDQ, Opcode.REPLACE, Opcode.REPLACEQ),
        *(Opcode.SET_WITH_META, Opcode.SETQ_WITH_META, Opcode.ADD_WITH_META, Opcode.ADDQ_WITH_META),
    )
)
"""Commands that take a large value as a view: it is copied once, into the log."""

_MAKE_NONE = 2**32 - 1
"""As the expiry of a counter: where there is no document there is not to be one."""

Read = Callable[["Session", Vbucket, bytes, Frame], Item | None]
"""Returns the document that the store knows by a key, having done what the request wants done with it."""


# What the handlers have in common


def serving(session: Session, frame: Frame) -> Vbucket:
    """Return the vbucket that serves a request. Raises NotMyVbucket, NoBucket."""
    return session.selected().store.find(frame.specific)


def check_value(value: Buffer) -> None:
    if len(value) > MAX_VALUE:
        raise TooBig(f"value of {len(value)} bytes, limit {MAX_VALUE}")


def changed(  # noqa: PLR0917 - runs for every store, and an argument that is keyword-only costs 12 ns
    session: Session,
    vbucket: Vbucket,
    stored: Stored,
    frame: Frame,
    quiet: bool,
    value: bytes | None = None,
) -> bytes:
    """Note a change for the streams that wait for one, and return its reply: with a token, where that was agreed on.

    value: of the reply, for commands that have one.
    """
    session.changed.add(vbucket.id)
    if quiet:
        return b""
    cas, seqno = stored
    if value is not None:
        token = _TOKEN.pack(vbucket.vbuuid, seqno) if session.tokens else b""
        return reply(frame, extras=token, value=value, cas=cas)
    if session.tokens:
        return _TOKEN_HEAD.pack(
            _RESPONSE, frame[1], 0, _TOKEN_EXTRAS, 0, 0, _TOKEN_EXTRAS, frame[4], cas, vbucket.vbuuid, seqno
        )
    return HEADER.pack(_RESPONSE, frame[1], 0, 0, 0, 0, 0, frame[4], cas)


def loud_and_quiet(loud: Opcode, quiet: Opcode, make: Callable[..., Handler], *what: object) -> dict[Opcode, Handler]:
    """Return the handlers of a command and of its quiet form. make: makes them of `what`, and whether it is quiet."""
    return {loud: make(*what, quiet=False), quiet: make(*what, quiet=True)}


# Reading


def _getting(read: Read | None = None, with_key: bool = False, *, quiet: bool) -> Handler:
    """Make the handler of a GET. read: what returns the document, where that does more. quiet: a miss has no answer."""

    def get(session: Session, frame: Frame) -> Answer:
        _, opcode, vbid, _, opaque, _, _, key, _, _ = frame
        vbuckets = session.vbuckets
        stored_key = (session.read_key if read is None else session.change_key)(key)
        if vbid >= len(vbuckets) or (vbucket := vbuckets[vbid]).state is not _ACTIVE:
            vbucket = serving(session, frame)  # raises
        item = vbucket.get(stored_key) if read is None else read(session, vbucket, stored_key, frame)
        counters = session.counters
        counters.cmd_get += 1
        if item is None:
            counters.get_misses += 1
            if quiet:
                return b""
            if with_key:
                # memcached and the 2.x and 3.x servers return the key, so that pipelined misses can be matched.
                return reply(frame, Status.KEY_ENOENT, key=key)
            raise KeyNotFound
        cas, flags, datatype, value, _, _, _ = item
        if type(value) is not bytes:
            return document_in_pieces(session, frame, item, key if with_key else b"")
        if datatype:
            datatype, value = shown(session.datatypes, datatype, value)
        if with_key:
            value = key + value
        key_length = len(key) if with_key else 0
        body = _GET_EXTRAS + len(value)
        return _GET_HEAD.pack(_RESPONSE, opcode, key_length, _GET_EXTRAS, datatype, 0, body, opaque, cas, flags) + value

    return get


def document_in_pieces(session: Session, frame: Frame, item: Item, key: bytes = b"", *, whole: bool = False) -> Answer:
    """Return the reply with a large document. Raises Parked where a thread is to inflate it, or to read it from disk.

    whole: with its extended attributes, where the connection has agreed on them.
    """
    understood = session.datatypes
    keeps = whole and bool(understood & Datatype.XATTR)

    def make() -> Answer:
        datatype, value = (with_attributes if keeps else shown)(understood, item.datatype, item.value)
        touch(value)
        return reply_parts(
            frame, Status.SUCCESS, (value,), extras=_FLAGS.pack(item.flags), key=key, cas=item.cas, datatype=datatype
        )

    if item.datatype & Datatype.SNAPPY:
        reply_apart(session, inflated_length(item.value), make)
    if session.selected().store.durable:
        reply_apart(session, len(item.value), make)
    return make()


def _touched(session: Session, vbucket: Vbucket, key: bytes, frame: Frame) -> Item | None:
    (expiry,) = _TOUCH_EXTRAS.unpack(frame.extras)
    item = vbucket.touch(key, expiry)
    session.changed.add(vbucket.id)
    return item


def _touch(session: Session, frame: Frame) -> bytes:
    item = _touched(session, serving(session, frame), session.write_key(frame.key), frame)
    if item is None:
        raise KeyNotFound
    return reply(frame, cas=item.cas)


def _locked(session: Session, vbucket: Vbucket, key: bytes, frame: Frame) -> Item | None:
    (asked,) = _LOCK_EXTRAS.unpack(frame.extras) if frame.extras else (0,)
    item = vbucket.lock(key, lock_seconds(asked))
    session.changed.add(vbucket.id)  # the log has a note of the cas
    return item


def _unlock(session: Session, frame: Frame) -> bytes:
    serving(session, frame).unlock(session.write_key(frame.key), frame.cas)
    return reply(frame)


# Storing; quiet: success is not answered


def _storing(plain: Callable[..., Stored], *, quiet: bool) -> Handler:
    """Make the handler of a SET, ADD or REPLACE."""
    keeping_expiry = partial(plain, preserve_expiry=True)

    def handle(session: Session, frame: Frame) -> bytes:
        _, _, vbid, datatype, _, cas, extras, key, value, _ = frame
        vbuckets = session.vbuckets
        key = session.write_key(key)
        if vbid >= len(vbuckets) or (vbucket := vbuckets[vbid]).state is not _ACTIVE:
            vbucket = serving(session, frame)  # raises
        if len(value) > LARGE or datatype & _NOT_JSON:
            datatype = _stored_datatype(session, datatype, value)
        else:
            datatype = detect_json(value)
        flags, expiry = _SET_EXTRAS.unpack(extras)
        store = keeping_expiry if session.infos.preserve_ttl else plain
        stored = store(vbucket, key, value, flags=flags, expiry=expiry, datatype=datatype, cas=cas)
        session.counters.cmd_set += 1
        return changed(session, vbucket, stored, frame, quiet)

    return handle


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


def _extending(in_front: bool, *, quiet: bool) -> Handler:
    """Make the handler of an APPEND or PREPEND."""

    def extend(session: Session, frame: Frame) -> bytes:
        vbucket, key = serving(session, frame), session.write_key(frame.key)
        piece = plain_value(frame.datatype, frame.value)
        made = _extended_apart(session, vbucket.get(key), piece, in_front)
        stored = vbucket.extend(key, piece, cas=frame.cas, in_front=in_front, made=made)
        session.counters.cmd_set += 1
        return changed(session, vbucket, stored, frame, quiet)

    return extend


def _extended_apart(session: Session, item: Item | None, piece: bytes, in_front: bool) -> tuple[Buffer, int] | None:
    """Return what a thread makes of a large document, None for one that is not large. Raises Parked before that."""
    if item is None or (nbytes := len(item.value) + len(piece)) <= LARGE:
        return None
    if nbytes > MAX_INFLATED:
        return None  # the store refuses it
    version = (item.cas, item.seqno)
    work = partial(extended, item.value, item.datatype, piece, in_front=in_front)
    return work_apart(session, version, nbytes, work)


def _counting(sign: int, *, quiet: bool) -> Handler:
    """Make the handler of an INCREMENT or DECREMENT."""

    def count(session: Session, frame: Frame) -> bytes:
        vbucket, key = serving(session, frame), session.change_key(frame.key)
        delta, initial, expiry = _COUNT_EXTRAS.unpack(frame.extras)
        cas, seqno, number = vbucket.count(
            key, sign * delta, initial=initial, expiry=None if expiry == _MAKE_NONE else expiry
        )
        session.counters.cmd_set += 1
        return changed(session, vbucket, Stored(cas, seqno), frame, quiet, value=number.to_bytes(8, "big"))

    return count


def _deleting(*, quiet: bool) -> Handler:
    def delete(session: Session, frame: Frame) -> bytes:
        vbucket, key = serving(session, frame), session.write_key(frame.key)
        stored = vbucket.delete(key, cas=frame.cas)
        session.counters.cmd_delete += 1
        if not session.features:
            # memcached's reply has no cas, and libmemcached's check of servers fails those that send one.
            stored = Stored(0, stored.seqno)
        return changed(session, vbucket, stored, frame, quiet)

    return delete


HANDLERS: dict[Opcode, Handler] = {
    **loud_and_quiet(Opcode.GET, Opcode.GETQ, _getting),
    **loud_and_quiet(Opcode.GETK, Opcode.GETKQ, _getting, None, True),
    **loud_and_quiet(Opcode.GAT, Opcode.GATQ, _getting, _touched),
    Opcode.TOUCH: _touch,
    Opcode.GET_LOCKED: _getting(_locked, quiet=False),
    Opcode.UNLOCK: _unlock,
    **loud_and_quiet(Opcode.SET, Opcode.SETQ, _storing, Vbucket.set),
    **loud_and_quiet(Opcode.ADD, Opcode.ADDQ, _storing, _add),
    **loud_and_quiet(Opcode.REPLACE, Opcode.REPLACEQ, _storing, Vbucket.replace),
    **loud_and_quiet(Opcode.APPEND, Opcode.APPENDQ, _extending, False),
    **loud_and_quiet(Opcode.PREPEND, Opcode.PREPENDQ, _extending, True),
    **loud_and_quiet(Opcode.INCREMENT, Opcode.INCREMENTQ, _counting, 1),
    **loud_and_quiet(Opcode.DECREMENT, Opcode.DECREMENTQ, _counting, -1),
    **loud_and_quiet(Opcode.DELETE, Opcode.DELETEQ, _deleting),
}
