"""The commands of a DCP connection that this node consumes: requests of the orchestrator, and messages of the producer.

Both come over one connection: ns_server opens a producer and a consumer, and passes every frame from one to the other.
A message of the producer is answered only if it fails, or asks for an answer. Source: recorded conversations with
Couchbase 3.1.6; `docs/differences.md` lists the differences.
"""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.errors import InvalidArguments, RemoteProtocolError, StatusError
from penstock.node.answers import Answer, CancelWait, CloseConnection, FinishedWork, Parked, Resume
from penstock.node.buckets.received_manifest import adopt_manifest
from penstock.node.dialects.dcp_commands import check_stream_flags
from penstock.node.replication.dcp_consumer import DcpConsumer
from penstock.node.replication.passive_stream import PassiveStream
from penstock.node.replication.received_cache import check_cached_documents
from penstock.node.replication.received_parts import check_value, read_key, read_seqno, remove_nmeta
from penstock.node.session.command_table import REPLICATE, CommandTable
from penstock.node.session.replies import encode_reply
from penstock.node.session.session import Handler, Session
from penstock.store.history.event_frames import pack_events
from penstock.store.history.vbucket_changes import REFUSED
from penstock.wire.codec.constants import DurabilityLevel, SystemEventKind, VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import HEADER_BYTES, Frame, name_opcode
from penstock.wire.codec.layout import find_forms, find_layout
from penstock.wire.codec.opcodes import DCP_OPCODES, Opcode
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import (
    Abort,
    AddStream,
    CacheTransfer,
    CacheTransferEnd,
    CloseStream,
    Commit,
    DcpNoop,
    Deletion,
    DeletionV2,
    Expiration,
    Mutation,
    OldExpiration,
    Prepare,
    SeqnoAdvanced,
    SetVbucketState,
    SnapshotMarker,
    SnapshotMarkerV2,
    StreamEnd,
    SystemEvent,
)
from penstock.wire.messages.dcp_values import LEAST_CACHED_BYTES, unpack_cached_documents
from penstock.wire.messages.system_event import unpack_system_event
from penstock.wire.protocol.stream_state import StreamEvent

_RETRY_SECONDS = 0.25
_PREPARE_BYTES = 2
"""Bytes that flow control counts for a prepare beside its bytes on the wire. Source: kv_engine, MB-46634."""
_XATTR = int(Datatype.XATTR)

_Removal = Deletion | DeletionV2 | Expiration | OldExpiration
_Change = Mutation | _Removal | SystemEvent | SeqnoAdvanced | Prepare | Commit | CacheTransfer | CacheTransferEnd


def _count_bytes(handler: Handler) -> Handler:
    """Return a handler that counts each message for flow control, and retries it while the bucket accepts no changes.

    The message stays unacknowledged until then, so that a full bucket stops the producer.
    """

    def count(session: Session, frame: Frame) -> Answer:
        consumer = get_consumer(session)
        if consumer.is_under_way(frame):
            return consumer.count_bytes(_count_frame(frame))
        try:
            reply = handler(session, frame)
        except REFUSED as error:
            consumer.log_refusal(error)
            raise Parked(partial(_wait_before_retry, session)) from None
        except (StatusError, RemoteProtocolError):
            consumer.received_bytes += _count_frame(frame)
            raise
        assert isinstance(reply, bytes), "a message of a stream has a short reply"
        return reply + consumer.count_bytes(_count_frame(frame))

    return count


def _count_frame(frame: Frame) -> int:
    more = _PREPARE_BYTES if frame.opcode == Opcode.DCP_PREPARE else 0
    return more + HEADER_BYTES + len(frame.framing) + len(frame.extras) + len(frame.key) + len(frame.value)


def _wait_before_retry(session: Session, resume: Resume) -> CancelWait:
    """Serve a parked message again after some time."""
    done: asyncio.Future[None] = session.node.loop.create_future()
    done.set_result(None)
    return session.node.loop.call_later(_RETRY_SECONDS, resume, FinishedWork(None, 0, done)).cancel


COMMANDS = CommandTable()
"""Requests of the orchestrator."""

MESSAGES = CommandTable(_count_bytes)
"""Messages of the producer that flow control counts."""


def get_consumer(session: Session) -> DcpConsumer:
    """Return the consumer of a connection. Its table has no other commands."""
    assert isinstance(session.endpoint, DcpConsumer)
    return session.endpoint


@COMMANDS.serve(needs=REPLICATE)
def add_stream(session: Session, request: AddStream) -> bytes:
    """Request a stream of the vbucket from the producer. The reply follows the producer's answer."""
    check_stream_flags(request.flags)
    return get_consumer(session).add_stream(request)


@COMMANDS.serve(needs=REPLICATE)
def close_stream(session: Session, request: CloseStream) -> bytes:
    """Close the stream of the vbucket. Later messages of the stream are refused."""
    _refuse_stream_id(session)
    get_consumer(session).close_stream(request.vbucket)
    return encode_reply(request)


@COMMANDS.serve(needs=REPLICATE)
def answer_noop(session: Session, request: DcpNoop) -> bytes:
    """Answer the producer's check whether the connection is alive."""
    get_consumer(session).feed.record_message()
    return encode_reply(request)


@MESSAGES.serve(needs=REPLICATE)
def start_snapshot(session: Session, message: SnapshotMarker | SnapshotMarkerV2) -> bytes:
    """Open a snapshot."""
    _find_stream(session, message).start_snapshot(message)
    return b""


@MESSAGES.serve(needs=REPLICATE)
def store_mutation(session: Session, message: Mutation) -> bytes:
    """Store a mutation."""
    return _store_document(session, message, Event.MUTATION, nmeta=message.nmeta, **_read_attributes(message))


@MESSAGES.serve(needs=REPLICATE)
def store_removal(session: Session, message: _Removal) -> bytes:
    """Store a deletion or an expiration."""
    event = Event.EXPIRATION if message.received_as == Opcode.DCP_EXPIRATION else Event.DELETION
    if isinstance(message, Deletion):
        return _store_document(session, message, event, nmeta=message.nmeta)
    return _store_document(session, message, event, delete_time=message.delete_time)


@MESSAGES.serve(needs=REPLICATE)
def store_prepare(session: Session, message: Prepare) -> bytes:
    """Store the prepare of a synchronous write."""
    _require_sync_writes(session, message.received_as)
    if message.durability not in set(DurabilityLevel) or message.deleted not in (0, 1):
        raise InvalidArguments(f"prepare of level {message.durability}, deleted {message.deleted}")
    event = Event.DELETION if message.deleted else Event.MUTATION
    return _store_document(session, message, event, level=message.durability, **_read_attributes(message))


@MESSAGES.serve(needs=REPLICATE)
def decide_prepare(session: Session, message: Commit | Abort) -> bytes:
    """Store the commit or the abort of a synchronous write."""
    _require_sync_writes(session, message.received_as)
    stream = _find_stream(session, message)
    is_complete = stream.decide_prepare(
        read_key(session, message.key),
        message.prepared_seqno,
        seqno=read_seqno(message.by_seqno),
        commits=message.received_as == Opcode.DCP_COMMIT,
    )
    return stream.acknowledge(is_complete=is_complete)


@MESSAGES.serve(needs=REPLICATE)
def store_system_event(session: Session, message: SystemEvent) -> bytes:
    """Store the event of a scope or collection. The bucket adopts a newer manifest."""
    stream = _find_stream(session, message)
    subject = unpack_system_event(message.event, message.version, message.key, message.value)
    (event,) = pack_events([(SystemEventKind(message.event), subject)])
    is_complete = stream.store_change(
        Event.DELETION if event.is_end else Event.MUTATION,
        event.key,
        event.value,
        seqno=read_seqno(message.by_seqno),
        cas=message.cas,
        rev_seqno=1,
        flags=int(event.kind),
    )
    adopt_manifest(get_consumer(session).bucket, stream.vbucket)
    return stream.acknowledge(is_complete=is_complete)


@MESSAGES.serve(needs=REPLICATE)
def advance_seqno(session: Session, message: SeqnoAdvanced) -> bytes:
    """Record that the producer has no further change up to a seqno."""
    stream = _find_stream(session, message)
    return stream.acknowledge(is_complete=stream.advance_seqno(read_seqno(message.by_seqno)))


@MESSAGES.serve(needs=REPLICATE)
def receive_cached_documents(session: Session, message: CacheTransfer) -> bytes:
    """Check that the vbucket has the documents that are in the producer's memory."""
    stream = _find_stream(session, message)
    if len(message.value) < LEAST_CACHED_BYTES:
        raise InvalidArguments(f"CACHE_TRANSFER of {len(message.value)} bytes, expected {LEAST_CACHED_BYTES} or more")
    stream.advance_cache(StreamEvent.CACHED)
    try:
        check_cached_documents(stream.vbucket, unpack_cached_documents(message.value))
    except RemoteProtocolError as error:
        raise CloseConnection(str(error)) from None
    return b""


@MESSAGES.serve(needs=REPLICATE)
def end_cache_transfer(session: Session, message: CacheTransferEnd) -> bytes:
    """Record the end of the documents that are in the producer's memory."""
    _find_stream(session, message).advance_cache(StreamEvent.CACHE_END)
    return b""


@MESSAGES.serve(needs=REPLICATE)
def set_vbucket_state(session: Session, message: SetVbucketState) -> bytes:
    """Set the state of the vbucket, in a takeover."""
    stream = _find_stream(session, message)
    if message.state not in set(VbucketState):
        raise InvalidArguments(f"vbucket state {message.state}, expected 1 to {max(VbucketState)}")
    stream.set_vbucket_state(VbucketState(message.state))
    return encode_reply(message)


@MESSAGES.serve(needs=REPLICATE)
def end_stream(session: Session, message: StreamEnd) -> bytes:
    """Forget a stream that the producer has ended. The end of an earlier stream of the vbucket has no effect."""
    consumer = get_consumer(session)
    if not consumer.has_newer_stream(message.vbucket, message.opaque):
        consumer.end_stream(_find_stream(session, message), message.reason)
    return b""


def refuse_request(session: Session, frame: Frame) -> bytes:
    """Refuse a change-stream request that has no handler here.

    Raises:
        InvalidArguments: the request belongs to another dialect, or is a second OPEN.
        RemoteProtocolError: the request is malformed.
        CloseConnection: the message is sent to producers only, or needs a setting that this consumer has not requested.
    """
    if frame.opcode not in DCP_OPCODES:
        raise InvalidArguments(f"{name_opcode(frame.opcode)} on a connection that speaks DCP")
    if frame.opcode == Opcode.DCP_OPEN:
        raise InvalidArguments("a second DCP OPEN")
    if find_forms(frame) is not None:
        find_layout(frame).check(frame)
    raise CloseConnection(f"{name_opcode(frame.opcode)} sent to a consumer, which has not requested it")


# Parts of messages


def _store_document(
    session: Session, message: Mutation | _Removal | Prepare, event: Event, *, nmeta: int = 0, **fields: int
) -> bytes:
    """Store a change of a document, or prepare it. A tombstone keeps extended attributes only.

    Args:
        session: the session of the connection.
        message: the message.
        event: a mutation, deletion or expiration.
        nmeta: bytes of extended metadata behind the value.
        fields: further arguments of `PassiveStream.store_change`.

    Returns:
        The messages that are due.
    """
    stream = _find_stream(session, message)
    datatype, value = message.datatype, remove_nmeta(message.value, nmeta)
    if event is not Event.MUTATION and not datatype & _XATTR:
        datatype, value = 0, b""
    check_value(session, datatype, value)
    is_complete = stream.store_change(
        event,
        read_key(session, message.key),
        value,
        seqno=read_seqno(message.by_seqno),
        cas=message.cas,
        rev_seqno=message.rev_seqno,
        datatype=datatype,
        **fields,
    )
    return stream.acknowledge(is_complete=is_complete)


def _read_attributes(message: Mutation | Prepare) -> dict[str, int]:
    """Return the attributes of a document that a tombstone does not have."""
    return {
        "flags": message.flags,
        "expiry": message.expiry,
        "lock_time": message.lock_time,
        "nru": message.nru,
    }


def _find_stream(
    session: Session,
    message: _Change | SnapshotMarker | SnapshotMarkerV2 | SetVbucketState | StreamEnd,
) -> PassiveStream:
    """Return the stream of a message. Raises InvalidArguments for a stream id, which no stream of a consumer has."""
    _refuse_stream_id(session)
    return get_consumer(session).find_stream(message.vbucket, message.opaque)


def _require_sync_writes(session: Session, opcode: int) -> None:
    if not get_consumer(session).negotiation.has_sync_writes:
        raise CloseConnection(f"{name_opcode(opcode)} sent to a consumer without synchronous writes")


def _refuse_stream_id(session: Session) -> None:
    if session.infos.stream_id is not None:
        raise InvalidArguments(f"stream id {session.infos.stream_id}, which this consumer has not requested")
