"""The change-stream commands of DCP: decodes requests and calls the producer."""

from __future__ import annotations

from penstock.errors import InvalidArguments, NotSupported, RemoteProtocolError
from penstock.node.answers import Answer, CloseConnection
from penstock.node.dialects.dcp_controls import apply_control
from penstock.node.dialects.dcp_producer import DcpProducer
from penstock.node.session.command_table import STREAM, CommandTable
from penstock.node.session.replies import encode_reply
from penstock.node.session.session import Handler, Session
from penstock.wire.codec.constants import Dialect, DurabilityLevel, Feature, SystemEventKind, VbucketState
from penstock.wire.codec.flags import Datatype, StreamFlag
from penstock.wire.codec.frame import Frame, name_opcode
from penstock.wire.codec.layout import Message, decode_frame, find_layout
from penstock.wire.codec.opcodes import DCP_OPCODES, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import (
    AddStream,
    BufferAck,
    CloseStream,
    Control,
    DcpGetFailoverLog,
    Deletion,
    DeletionV2,
    Mutation,
    Prepare,
    SeqnoAcknowledged,
    SetVbucketState,
    StreamReq,
    SystemEvent,
    pack_rollback,
)
from penstock.wire.messages.kv import pack_failover_log


def _require_raw_datatype(handler: Handler) -> Handler:
    """Return a handler that refuses any datatype but raw, as kv_engine does for all DCP requests but OPEN with JSON."""

    def check(session: Session, frame: Frame) -> Answer:
        if frame.datatype:
            raise InvalidArguments(f"{name_opcode(frame.opcode)} of datatype 0x{frame.datatype:02x}, expected 0 (raw)")
        return handler(session, frame)

    return check


COMMANDS_BEFORE_OPEN = CommandTable(_require_raw_datatype)
"""Commands of a connection without a dialect. They do not set its dialect."""

COMMANDS = CommandTable(_require_raw_datatype)

_STREAM_FLAGS = sum(map(int, StreamFlag))
_WITH_CACHE_TRANSFER = StreamFlag.CACHE_TRANSFER | StreamFlag.TAKEOVER | StreamFlag.ACTIVE_VB_ONLY


def check_stream_flags(flags: int) -> None:
    """Check the flags of STREAM_REQ and ADD_STREAM.

    Raises:
        InvalidArguments: a flag is unknown, or contradicts a cache transfer.
    """
    if unknown := flags & ~_STREAM_FLAGS:
        raise InvalidArguments(f"flags 0x{flags:x}, of which 0x{unknown:x} are unknown")
    if flags & StreamFlag.CACHE_TRANSFER and (others := flags & ~int(_WITH_CACHE_TRANSFER)):
        raise InvalidArguments(f"CACHE_TRANSFER with flags 0x{others:x}, expected TAKEOVER and ACTIVE_VB_ONLY at most")


def _require_producer(session: Session) -> DcpProducer:
    require_ordered_replies(session)
    if not isinstance(session.endpoint, DcpProducer):
        raise InvalidArguments("no DCP OPEN on this connection yet")
    return session.endpoint


def require_ordered_replies(session: Session) -> None:
    """Refuse a connection with unordered replies: streams need ordered ones.

    Raises:
        NotSupported: the connection has agreed on unordered execution.
    """
    if Feature.UNORDERED_EXECUTION in session.features:
        raise NotSupported("change streams on a connection that has agreed on unordered execution")


@COMMANDS.serve(needs=STREAM)
def set_control(session: Session, request: Control) -> bytes:
    """Return the reply to CONTROL, which applies a setting of the connection."""
    apply_control(_require_producer(session), request.key, request.value)
    return encode_reply(request)


@COMMANDS.serve(needs=STREAM)
def open_stream(session: Session, request: StreamReq) -> bytes:
    """Return the reply to a stream request: the failover log, or the seqno to roll back to."""
    producer = _require_producer(session)
    check_stream_flags(request.flags)
    vbucket, point = producer.accept_request(request)
    if point is not None:
        return encode_reply(request, Status.ROLLBACK, value=pack_rollback(point))
    return encode_reply(request, value=pack_failover_log(vbucket.history.failover_log))


@COMMANDS_BEFORE_OPEN.serve(needs=STREAM)
def get_failover_log(session: Session, request: DcpGetFailoverLog) -> bytes:
    """Return a vbucket's failover log. OPEN is not needed, as in releases 4.0 to 5.5."""
    require_ordered_replies(session)
    vbucket = session.require_bucket().store.find_existing(request.vbucket)
    return encode_reply(request, value=pack_failover_log(vbucket.history.failover_log))


@COMMANDS.serve(needs=STREAM)
def close_stream(session: Session, request: CloseStream) -> bytes:
    """Return the reply to CLOSE_STREAM."""
    _require_producer(session).close_stream(request.vbucket, session.infos.stream_id)
    return encode_reply(request)


@COMMANDS.serve(needs=STREAM)
def acknowledge_bytes(session: Session, request: BufferAck) -> bytes:
    """Return the reply to BUFFER_ACK, which frees some of the flow-control window."""
    _require_producer(session).acknowledge(request.nbytes)
    return b""


@COMMANDS.serve(needs=STREAM)
def acknowledge_prepares(session: Session, request: SeqnoAcknowledged) -> bytes:
    """Record that the consumer has stored all prepares of a vbucket up to a seqno. Only errors are answered.

    Returns:
        Nothing.

    Raises:
        InvalidArguments: the connection has not agreed on synchronous writes, or the consumer has no name.
        CloseConnection: the seqno was not sent yet.
        NotMyVbucket: the vbucket was deleted.
    """
    producer = _require_producer(session)
    if not producer.sends_prepares or not producer.consumer_name:
        raise InvalidArguments("SEQNO_ACKNOWLEDGED needs enable_sync_writes and consumer_name")
    vbucket, stream = producer.bucket.store.find_existing(request.vbucket), producer.streams.get(request.vbucket)
    if stream is None:
        return b""
    if request.prepared_seqno > stream.cursor.seqno:
        raise CloseConnection(
            f"vbucket {vbucket.id}: seqno {request.prepared_seqno} acknowledged, sent up to {stream.cursor.seqno}"
        )
    producer.bucket.sync_writes.acknowledge(vbucket, producer.consumer_name, request.prepared_seqno, stream)
    return b""


def refuse_request(session: Session, frame: Frame) -> bytes:
    """Refuse a change-stream request that has no handler.

    Raises:
        InvalidArguments: the request belongs to another dialect, or comes before OPEN, or has an invalid value.
        RemoteProtocolError: the request is malformed.
        CloseConnection: only producers send the message.
    """
    if frame.opcode not in DCP_OPCODES:
        raise InvalidArguments(f"{name_opcode(frame.opcode)} on a connection that speaks {Dialect.DCP}")
    if frame.opcode == Opcode.DCP_FLUSH:
        raise NotSupported("DCP_FLUSH, which no release since 5.0 has sent")
    if frame.opcode in _UNKNOWN:
        name = name_opcode(frame.opcode)
        raise RemoteProtocolError(f"{name} is not served here", status=Status.UNKNOWN_COMMAND, fatal=False)
    if frame.opcode != Opcode.DCP_OPEN:
        producer = _require_producer(session)
        check_message_to_producer(decode_frame(frame), collections=producer.collections)
    find_layout(frame).check(frame)
    raise CloseConnection(f"{name_opcode(frame.opcode)} sent to a producer")


def check_message_to_producer(message: Message, *, collections: bool) -> None:
    """Check a message that only producers send. kv_engine answers an invalid one, and closes after a valid one.

    Args:
        message: the message.
        collections: whether the connection has agreed on collections. Then deletions have the form with a time.

    Raises:
        InvalidArguments: the message is invalid.
    """
    match message:
        case Mutation() | Prepare() if not message.by_seqno:
            raise InvalidArguments("seqno 0, expected at least 1")
        case Prepare() if not message.cas:
            raise InvalidArguments("a prepare with cas 0")
        case Prepare() if message.durability not in set(DurabilityLevel):
            raise InvalidArguments(f"durability level {message.durability}, expected 1 to {max(DurabilityLevel)}")
        case Deletion() | DeletionV2() if isinstance(message, DeletionV2) != collections:
            raise InvalidArguments(f"a deletion in the form {'without' if collections else 'with'} a time")
        case Deletion() | DeletionV2() if message.datatype & Datatype.JSON and not message.datatype & Datatype.XATTR:
            raise InvalidArguments(f"a deletion of datatype 0x{message.datatype:02x}: a body without attributes")
        case AddStream():
            check_stream_flags(message.flags)
        case SystemEvent() if message.event not in set(SystemEventKind) or message.version > _LAST_EVENT_VERSION:
            raise InvalidArguments(f"system event {message.event} of version {message.version}")
        case SetVbucketState() if message.state not in set(VbucketState):
            raise InvalidArguments(f"vbucket state {message.state}, expected 1 to {max(VbucketState)}")


_UNKNOWN = (Opcode.DCP_SEQNO_ADVANCED, Opcode.DCP_OSO_SNAPSHOT)
"""Messages that kv_engine sends but does not know as requests."""

_LAST_EVENT_VERSION = 2
