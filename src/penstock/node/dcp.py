"""The change-stream commands, from frame to producer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from penstock.errors import InvalidArguments, NotSupported
from penstock.node.controls import control
from penstock.node.producer import Producer
from penstock.node.replies import Goodbye, reply
from penstock.wire.constants import Datatype, Opcode, OpenFlag, Status, StreamFlag
from penstock.wire.dcp import BufferAck, Open, StreamReq, pack_rollback
from penstock.wire.frame import Frame, opcode_name
from penstock.wire.kv import pack_failover_log
from penstock.wire.layout import decode, forms_of, layout_of

if TYPE_CHECKING:
    from penstock.node.connection import NodeConnection

__all__ = ["HANDLERS", "NOT_SERVED", "refuse", "take_response"]

MAX_NAME = 200

# Flags of the protocol that this node knows, and those of them that it cannot honour. Any other bit is wrong, bits
# that older releases had (notifiers, NO_VALUE of a stream) included. Plain numbers, since `~` of an IntFlag has named
# bits only.
_OPEN_LATER = int(OpenFlag.NO_VALUE | OpenFlag.INCLUDE_DELETE_TIMES) | 0x040 | 0x100 | 0x200
_OPEN_KNOWN = int(OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS) | _OPEN_LATER
_STREAM_LATER = int(StreamFlag.TAKEOVER) | 0x100
_STREAM_KNOWN = _STREAM_LATER | int(
    StreamFlag.DISK_ONLY
    | StreamFlag.TO_LATEST
    | StreamFlag.ACTIVE_VB_ONLY
    | StreamFlag.STRICT_VBUUID
    | StreamFlag.FROM_LATEST
    | StreamFlag.IGNORE_PURGED_TOMBSTONES
)


def _check_flags(flags: int, known: int, later: int) -> None:
    if flags & ~known:
        raise InvalidArguments(f"flags 0x{flags:x}, of which 0x{flags & ~known:x} are unknown")
    if flags & later:
        raise NotSupported(f"flags 0x{flags & later:x} are not offered here")


def _opened(connection: NodeConnection) -> Producer:
    if connection.producer is None:
        raise InvalidArguments("no DCP OPEN on this connection yet")
    return connection.producer


def _open(connection: NodeConnection, frame: Frame) -> bytes:
    request = decode(frame)
    assert isinstance(request, Open)
    if connection.producer is not None:
        raise InvalidArguments("a second DCP OPEN")
    if len(request.key) > MAX_NAME or request.value:
        raise InvalidArguments(f"name of {len(request.key)} bytes (limit {MAX_NAME}), value of {len(request.value)}")
    _check_flags(request.flags, _OPEN_KNOWN, _OPEN_LATER)
    if not request.flags & OpenFlag.PRODUCER:
        raise NotSupported("this node is no consumer")
    bucket = connection.selected()
    older = bucket.producers.get(request.key)
    if older is not None:
        older.connection.abort("another connection has taken its name")
    connection.producer = Producer(connection, bucket, request.key, OpenFlag(request.flags))
    bucket.producers[request.key] = connection.producer
    connection.datatypes |= int(Datatype.JSON)
    return reply(frame)


def _control(connection: NodeConnection, frame: Frame) -> bytes:
    control(_opened(connection), frame.key, frame.value)
    return reply(frame)


def _stream_req(connection: NodeConnection, frame: Frame) -> bytes:
    producer = _opened(connection)
    request = decode(frame)
    assert isinstance(request, StreamReq)
    if request.value:
        raise InvalidArguments("a stream's filter needs collections, which were not agreed on")
    _check_flags(request.flags, _STREAM_KNOWN, _STREAM_LATER)
    point = producer.open_stream(request)
    if point is not None:
        return reply(frame, Status.ROLLBACK, value=pack_rollback(point))
    return reply(frame, value=pack_failover_log(producer.bucket.store.existing(request.vbucket).failover_log))


def _failover_log(connection: NodeConnection, frame: Frame) -> bytes:
    vbucket = _opened(connection).bucket.store.existing(frame.specific)
    return reply(frame, value=pack_failover_log(vbucket.failover_log))


def _close_stream(connection: NodeConnection, frame: Frame) -> bytes:
    _opened(connection).close_stream(frame.specific)
    return reply(frame)


def _buffer_ack(connection: NodeConnection, frame: Frame) -> bytes:
    producer = _opened(connection)
    request = decode(frame)
    assert isinstance(request, BufferAck)
    producer.acknowledge(request.nbytes)
    return b""


HANDLERS: dict[Opcode, Callable[[NodeConnection, Frame], bytes]] = {
    Opcode.DCP_OPEN: _open,
    Opcode.DCP_CONTROL: _control,
    Opcode.DCP_STREAM_REQ: _stream_req,
    Opcode.DCP_GET_FAILOVER_LOG: _failover_log,
    Opcode.DCP_CLOSE_STREAM: _close_stream,
    Opcode.DCP_BUFFER_ACK: _buffer_ack,
}

NOT_SERVED = frozenset(range(0x50, 0x68)) - HANDLERS.keys()
"""Requests that a producer sends and never takes, and those of parts of the protocol that are not offered."""

_SEQNO_ACKNOWLEDGED = 0x61


def refuse(connection: NodeConnection, frame: Frame) -> NoReturn:
    """Refuse one of NOT_SERVED: with a status where it is malformed or early, otherwise the connection ends."""
    _opened(connection)
    if forms_of(frame) is not None:
        layout_of(frame).check(frame)
    if frame.opcode == _SEQNO_ACKNOWLEDGED:
        raise InvalidArguments("synchronous replication was not agreed on")
    raise Goodbye(f"{opcode_name(frame.opcode)} sent to a producer")


_DATA = frozenset(
    (
        Opcode.DCP_SNAPSHOT_MARKER,
        Opcode.DCP_MUTATION,
        Opcode.DCP_DELETION,
        Opcode.DCP_EXPIRATION,
        Opcode.DCP_STREAM_END,
    )
)
# The consumer has closed the stream meanwhile, or has another of the same vbucket. 0x0a, 0x0b: the newer codes for it.
_LATE = frozenset((Status.SUCCESS, Status.NOT_MY_VBUCKET, Status.KEY_ENOENT, Status.KEY_EEXISTS, 0x0A, 0x0B))


def take_response(connection: NodeConnection, frame: Frame) -> bytes:
    """Take what a consumer says about something that was sent to it. Raises Goodbye where that ends the connection."""
    producer = connection.producer
    if producer is not None and frame.opcode == Opcode.DCP_NOOP:
        producer.answered_noop(frame.opaque)
    elif producer is None or frame.opcode not in _DATA or frame.specific not in _LATE:
        raise Goodbye(f"response to {opcode_name(frame.opcode)} with status 0x{frame.specific:02x}")
    return b""
