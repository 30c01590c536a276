"""The commands on documents. They run for every request, so they build their replies by hand from the layouts."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING

from penstock.errors import InvalidArguments, KeyNotFound, TooBig
from penstock.node.replies import Handler, reply
from penstock.store.vbucket import Item, Stored, Vbucket
from penstock.wire.constants import MAX_KEY, MAX_VALUE, Magic, Opcode, VbucketState
from penstock.wire.frame import HEADER, HEADER_BYTES, Frame
from penstock.wire.kv import GetReply, Set, StoreReply, Touch

if TYPE_CHECKING:
    from penstock.node.connection import NodeConnection

__all__ = ["HANDLERS"]

_RESPONSE = int(Magic.RESPONSE)
_ACTIVE = VbucketState.ACTIVE
_SET_EXTRAS = Set.layouts[2].extras
_TOUCH_EXTRAS = Touch.layouts[1].extras
_GET_HEAD = Struct(HEADER.format + GetReply.layouts[1].extras.format[1:])
_GET_EXTRAS = _GET_HEAD.size - HEADER_BYTES
_TOKEN_HEAD = Struct(HEADER.format + StoreReply.layouts[2].extras.format[1:])
_TOKEN_EXTRAS = _TOKEN_HEAD.size - HEADER_BYTES


def _vbucket(connection: NodeConnection, vbid: int, key: bytes) -> Vbucket:
    """Return the vbucket that serves a key. Raises StatusError where the key is too long or the vbucket not here."""
    if len(key) > MAX_KEY:
        raise InvalidArguments(f"key of {len(key)} bytes, limit {MAX_KEY}")
    return connection.selected().store.find(vbid)


def _getting(*, with_key: bool = False, quiet: bool, touching: bool = False) -> Handler:
    """Make the handler of a GET. quiet: a miss is not answered. touching: the document gets another expiry."""

    def get(connection: NodeConnection, frame: Frame) -> bytes:
        _, opcode, vbid, _, opaque, _, _, key, _, _ = frame
        vbuckets = connection.vbuckets
        if len(key) > MAX_KEY or vbid >= len(vbuckets) or (vbucket := vbuckets[vbid]).state is not _ACTIVE:
            vbucket = _vbucket(connection, vbid, key)  # raises
        item = _touched(connection, vbucket, frame) if touching else vbucket.get(key)
        counters = connection.counters
        counters.cmd_get += 1
        if item is None:
            counters.get_misses += 1
            if quiet:
                return b""
            raise KeyNotFound
        cas, flags, datatype, value, _, _, _ = item
        if with_key:
            value = key + value
        key_length = len(key) if with_key else 0
        if datatype:
            datatype &= connection.datatypes
        body = _GET_EXTRAS + len(value)
        return _GET_HEAD.pack(_RESPONSE, opcode, key_length, _GET_EXTRAS, datatype, 0, body, opaque, cas, flags) + value

    return get


def _touched(connection: NodeConnection, vbucket: Vbucket, frame: Frame) -> Item | None:
    (expiry,) = _TOUCH_EXTRAS.unpack(frame.extras)
    item = vbucket.touch(frame.key, expiry)
    connection.changed.add(vbucket.id)
    return item


def _touch(connection: NodeConnection, frame: Frame) -> bytes:
    item = _touched(connection, _vbucket(connection, frame.specific, frame.key), frame)
    if item is None:
        raise KeyNotFound
    return reply(frame, cas=item.cas)


def _changed(connection: NodeConnection, vbucket: Vbucket, stored: Stored, frame: Frame, quiet: bool) -> bytes:
    """Note a change for the streams that wait for one, and return its reply."""
    connection.changed.add(vbucket.id)
    if quiet:
        return b""
    cas, seqno = stored
    if connection.tokens:
        return _TOKEN_HEAD.pack(
            _RESPONSE, frame[1], 0, _TOKEN_EXTRAS, 0, 0, _TOKEN_EXTRAS, frame[4], cas, vbucket.vbuuid, seqno
        )
    return HEADER.pack(_RESPONSE, frame[1], 0, 0, 0, 0, 0, frame[4], cas)


def _storing(store: Callable[..., Stored], *, quiet: bool) -> Handler:
    """Make the handler of a SET, ADD or REPLACE. quiet: success is not answered."""

    def handle(connection: NodeConnection, frame: Frame) -> bytes:
        _, _, vbid, datatype, _, cas, extras, key, value, _ = frame
        vbuckets = connection.vbuckets
        if len(key) > MAX_KEY or vbid >= len(vbuckets) or (vbucket := vbuckets[vbid]).state is not _ACTIVE:
            vbucket = _vbucket(connection, vbid, key)  # raises
        if len(value) > MAX_VALUE:
            raise TooBig(f"value of {len(value)} bytes, limit {MAX_VALUE}")
        flags, expiry = _SET_EXTRAS.unpack(extras)
        stored = store(vbucket, key, value, flags=flags, expiry=expiry, datatype=datatype, cas=cas)
        connection.counters.cmd_set += 1
        return _changed(connection, vbucket, stored, frame, quiet)

    return handle


def _add(vbucket: Vbucket, key: bytes, value: bytes, *, flags: int, expiry: int, datatype: int, cas: int) -> Stored:
    assert cas == 0, "the layout of ADD has no cas"
    return vbucket.add(key, value, flags=flags, expiry=expiry, datatype=datatype)


def _deleting(*, quiet: bool) -> Handler:
    def delete(connection: NodeConnection, frame: Frame) -> bytes:
        vbucket = _vbucket(connection, frame.specific, frame.key)
        stored = vbucket.delete(frame.key, cas=frame.cas)
        connection.counters.cmd_delete += 1
        return _changed(connection, vbucket, stored, frame, quiet)

    return delete


HANDLERS: dict[Opcode, Handler] = {
    Opcode.GET: _getting(quiet=False),
    Opcode.GETQ: _getting(quiet=True),
    Opcode.GETK: _getting(with_key=True, quiet=False),
    Opcode.GETKQ: _getting(with_key=True, quiet=True),
    Opcode.GAT: _getting(quiet=False, touching=True),
    Opcode.GATQ: _getting(quiet=True, touching=True),
    Opcode.TOUCH: _touch,
    Opcode.SET: _storing(Vbucket.set, quiet=False),
    Opcode.SETQ: _storing(Vbucket.set, quiet=True),
    Opcode.ADD: _storing(_add, quiet=False),
    Opcode.ADDQ: _storing(_add, quiet=True),
    Opcode.REPLACE: _storing(Vbucket.replace, quiet=False),
    Opcode.REPLACEQ: _storing(Vbucket.replace, quiet=True),
    Opcode.DELETE: _deleting(quiet=False),
    Opcode.DELETEQ: _deleting(quiet=True),
}
