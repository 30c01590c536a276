"""The change-stream commands of DCP, from frame to producer."""

from __future__ import annotations

from penstock.errors import InvalidArguments, NotSupported
from penstock.node.answers import Answer, Goodbye
from penstock.node.session.command_table import STREAM, CommandTable
from penstock.node.session.replies import reply
from penstock.node.session.session import Handler, Session
from penstock.node.streams.change_producer import streamable
from penstock.node.streams.dcp_controls import control
from penstock.node.streams.dcp_producer import DcpProducer
from penstock.node.streams.not_yet import refuse as refuse_for_now
from penstock.wire.codec.constants import Dialect, Feature, VbucketState
from penstock.wire.codec.flags import Datatype, OpenFlag, StreamFlag
from penstock.wire.codec.frame import Frame, opcode_name
from penstock.wire.codec.layout import Code, forms_of, layout_of
from penstock.wire.codec.opcodes import DCP_OPCODES, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import (
    BufferAck,
    CloseStream,
    Control,
    DcpGetFailoverLog,
    Open,
    StreamReq,
    pack_rollback,
)
from penstock.wire.messages.kv import pack_failover_log

__all__ = ["BEFORE_OPEN", "COMMANDS", "FIRST", "refuse"]


def _raw(handler: Handler) -> Handler:
    """Make a handler that takes no datatype, as kv_engine's validators do for every request of DCP but OPEN's JSON."""

    def check(session: Session, frame: Frame) -> Answer:
        if frame.datatype:
            raise InvalidArguments(f"{opcode_name(frame.opcode)} of datatype 0x{frame.datatype:02x}, expected 0 (raw)")
        return handler(session, frame)

    return check


BEFORE_OPEN = CommandTable(_raw)
"""The commands that a connection of no dialect takes, and has none afterwards."""

COMMANDS = CommandTable(_raw)

FIRST: frozenset[Code] = frozenset((Opcode.DCP_OPEN,))
"""The requests that may be a connection's first."""

MAX_NAME = 200

# Flags that are offered, and those that wait for something, by their name in NOT_YET. Any other bit is wrong, bits that
# older releases had (notifiers, NO_VALUE of a stream) included. Plain numbers, since `~` of an IntFlag has named bits
# only.
_OPEN_OFFERED = int(
    OpenFlag.PRODUCER
    | OpenFlag.INCLUDE_XATTRS
    | OpenFlag.NO_VALUE
    | OpenFlag.INCLUDE_DELETE_TIMES
    | OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE
    | OpenFlag.INCLUDE_DELETED_USER_XATTRS
    | OpenFlag.SKIP_DELETES_IN_INITIAL_BACKFILL
)
_STREAM_OFFERED = int(
    StreamFlag.DISK_ONLY
    | StreamFlag.TO_LATEST
    | StreamFlag.ACTIVE_VB_ONLY
    | StreamFlag.STRICT_VBUUID
    | StreamFlag.FROM_LATEST
    | StreamFlag.IGNORE_PURGED_TOMBSTONES
)
_STREAM_LATER = (StreamFlag.TAKEOVER, StreamFlag.CACHE_TRANSFER)

_WITHOUT_VALUES = OpenFlag.NO_VALUE | OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE
# A flag, and what must be there with it.
_ONLY_WITH = (
    (OpenFlag.INCLUDE_DELETED_USER_XATTRS, OpenFlag.INCLUDE_XATTRS),
    (OpenFlag.SKIP_DELETES_IN_INITIAL_BACKFILL, OpenFlag.PRODUCER),
)


def _check_flags(flags: int, offered: int, later: tuple[StreamFlag, ...] = ()) -> None:
    """Raise InvalidArguments for an unknown flag, and the StatusError of one that waits for something."""
    if unknown := flags & ~offered & ~sum(later):
        raise InvalidArguments(f"flags 0x{flags:x}, of which 0x{unknown:x} are unknown")
    for flag in later:
        if flags & flag:
            refuse_for_now(str(flag.name))


def _check_open(flags: int) -> None:
    if flags & _WITHOUT_VALUES == _WITHOUT_VALUES:
        raise InvalidArguments("NO_VALUE, and NO_VALUE_WITH_UNDERLYING_DATATYPE: expected one of them at most")
    for flag, needed in _ONLY_WITH:
        if flags & flag and not flags & needed:
            raise InvalidArguments(f"{flag.name} without {needed.name}")
    _check_flags(flags, _OPEN_OFFERED)
    if not flags & OpenFlag.PRODUCER:
        refuse_for_now("OPEN without PRODUCER")


def _opened(session: Session) -> DcpProducer:
    _check_order(session)
    if not isinstance(session.producer, DcpProducer):
        raise InvalidArguments("no DCP OPEN on this connection yet")
    return session.producer


def _check_order(session: Session) -> None:
    """Raise NotSupported for a connection whose replies come in any order: streams need one."""
    if Feature.UNORDERED_EXECUTION in session.features:
        raise NotSupported("change streams on a connection that has agreed on unordered execution")


@COMMANDS.serve(needs=STREAM)
def open_connection(session: Session, request: Open) -> bytes:
    _check_order(session)
    if session.producer is not None:
        raise InvalidArguments("a second DCP OPEN")
    if len(request.key) > MAX_NAME or request.value:
        raise InvalidArguments(f"name of {len(request.key)} bytes (limit {MAX_NAME}), value of {len(request.value)}")
    _check_open(request.flags)
    session.producer = DcpProducer(session, streamable(session), request.key, OpenFlag(request.flags))
    session.datatypes |= int(Datatype.JSON)
    return reply(request)


@COMMANDS.serve(needs=STREAM)
def set_control(session: Session, request: Control) -> bytes:
    control(_opened(session), request.key, request.value)
    return reply(request)


@COMMANDS.serve(needs=STREAM)
def open_stream(session: Session, request: StreamReq) -> bytes:
    producer = _opened(session)
    _check_flags(request.flags, _STREAM_OFFERED, _STREAM_LATER)
    vbucket, point = producer.open(request)
    if point is not None:
        return reply(request, Status.ROLLBACK, value=pack_rollback(point))
    return reply(request, value=pack_failover_log(vbucket.history.failover_log))


@BEFORE_OPEN.serve(needs=STREAM)
def get_failover_log(session: Session, request: DcpGetFailoverLog) -> bytes:
    """Return a vbucket's failover log. OPEN is not needed: releases 4.0 to 5.5 did not ask for it either."""
    _check_order(session)
    vbucket = session.selected().store.existing(request.vbucket)
    return reply(request, value=pack_failover_log(vbucket.history.failover_log))


@COMMANDS.serve(needs=STREAM)
def close_stream(session: Session, request: CloseStream) -> bytes:
    _opened(session).close_stream(request.vbucket, session.infos.stream_id)
    return reply(request)


@COMMANDS.serve(needs=STREAM)
def acknowledge_bytes(session: Session, request: BufferAck) -> bytes:
    _opened(session).acknowledge(request.nbytes)
    return b""


def refuse(session: Session, frame: Frame) -> bytes:
    """Refuse a change-stream request that no handler takes as it is.

    With a status where it is malformed, early or another dialect's; otherwise, since it is one that producers send and
    never take, the connection ends.
    """
    if frame.opcode not in DCP_OPCODES:
        raise InvalidArguments(f"{opcode_name(frame.opcode)} on a connection that speaks {Dialect.DCP}")
    if frame.opcode != Opcode.DCP_OPEN:
        _opened(session)
    if forms_of(frame) is not None:
        layout_of(frame).check(frame)
    if frame.opcode == Opcode.DCP_SET_VBUCKET_STATE and frame.extras[0] not in set(VbucketState):
        raise InvalidArguments(f"vbucket state {frame.extras[0]}, expected 1 to {max(VbucketState)}")
    if frame.opcode == Opcode.DCP_SEQNO_ACKNOWLEDGED:
        refuse_for_now("SEQNO_ACKNOWLEDGED")
    raise Goodbye(f"{opcode_name(frame.opcode)} sent to a producer")
