"""TAP_CONNECT, and the commands beside it, from frame to producer."""

from __future__ import annotations

from struct import Struct

from penstock.errors import InvalidArguments, KeyNotFound, RemoteProtocolError, TemporaryFailure
from penstock.node.answers import Answer, Goodbye
from penstock.node.session.replies import reply
from penstock.node.session.session import Handler, Session
from penstock.node.streams.change_producer import streamable
from penstock.node.streams.not_yet import NOT_YET
from penstock.node.streams.stream_filter import bare_filter
from penstock.node.tap import tap_receiver
from penstock.node.tap.tap_producer import TapProducer
from penstock.wire.codec.constants import MAX_KEY, Dialect
from penstock.wire.codec.flags import TapConnectFlag
from penstock.wire.codec.frame import Frame, opcode_name
from penstock.wire.codec.layout import Code, decode
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.tap import CheckpointPersistence, TapConnect, TapOptions, unpack_checkpoints, unpack_options

__all__ = ["COMMANDS", "FIRST", "HANDLERS", "refuse"]

MAX_CLIENTS = 4096
"""Consumers whose places a bucket keeps; a registered one more is refused, until another is deregistered."""

_ID, _IDS = Struct(">Q"), Struct(">QQ")


def _connect(session: Session, frame: Frame) -> bytes:
    """Begin to send. There is no answer but a refusal, which ends the connection."""
    request = decode(frame, Dialect.TAP)
    assert isinstance(request, TapConnect)
    bucket, older = streamable(session), session.producer
    bare_filter(session, bucket)  # raises
    if len(request.key) > MAX_KEY:
        raise InvalidArguments(f"name of {len(request.key)} bytes, limit {MAX_KEY}")
    options = _options(request, frame)
    known = bucket.tap.clients
    if options.flags & TapConnectFlag.REGISTERED_CLIENT and request.key not in known and len(known) >= MAX_CLIENTS:
        raise Goodbye(f"{len(known)} TAP clients are kept, limit {MAX_CLIENTS}", reply(frame, Status.ENOMEM))
    if older is not None:
        if older.dialect is not Dialect.TAP:
            raise InvalidArguments(f"this connection speaks {older.dialect.value}")
        older.stop()
    session.producer = TapProducer(session, bucket, request.key, options)
    return b""


def _options(request: TapConnect, frame: Frame) -> TapOptions:
    flags = request.flags or 0
    try:
        options = unpack_options(flags, request.value)
    except RemoteProtocolError as error:
        raise Goodbye(str(error), b"" if error.fatal else reply(frame, Status.NOT_SUPPORTED)) from error
    if flags & TapConnectFlag.TAKEOVER_VBUCKETS:
        status, capability = NOT_YET["TAKEOVER_VBUCKETS"]
        raise Goodbye(f"TAKEOVER_VBUCKETS needs {capability}, which this node does not have", reply(frame, status))
    return options


def _deregister(session: Session, frame: Frame) -> bytes:
    """Forget a registered client; if it is here, its connection ends."""
    bucket = session.selected()
    producer = bucket.producers.get((Dialect.TAP, frame.key))
    client = bucket.tap.clients.pop(frame.key, None)
    if producer is not None:
        producer.abort("deregistered")
        bucket.tap.clients.pop(frame.key, None)
    if client is not None and client.forget is not None:
        client.forget.cancel()
    return reply(frame)


def _change_filter(session: Session, frame: Frame) -> bytes:
    pairs = unpack_checkpoints(frame.value)
    producer = session.selected().producers.get((Dialect.TAP, frame.key))
    if not isinstance(producer, TapProducer):
        raise KeyNotFound(f"no TAP stream {frame.key!r}")
    producer.change_filter(pairs)
    return reply(frame)


def _reset_chain(session: Session, frame: Frame) -> bytes:
    for producer in tuple(session.selected().producers.values()):
        if isinstance(producer, TapProducer):
            producer.begin_anew()
    return reply(frame)


def _last_closed(session: Session, frame: Frame) -> bytes:
    bucket = session.selected()
    vbucket = bucket.store.existing(frame.specific)
    return reply(frame, value=_ID.pack(bucket.tap.checkpoints(vbucket).last_closed))


def _create_checkpoint(session: Session, frame: Frame) -> bytes:
    """Answered with the ids of the open checkpoint and of the last one on disk."""
    bucket = session.selected()
    vbucket = bucket.store.find(frame.specific)
    checkpoints = bucket.tap.checkpoints(vbucket)
    answer = _IDS.pack(checkpoints.create(), checkpoints.persisted)
    session.changed.add(vbucket.id)
    return reply(frame, value=answer)


def _persistence(session: Session, frame: Frame) -> bytes:
    request = decode(frame)
    assert isinstance(request, CheckpointPersistence)
    bucket = session.selected()
    vbucket = bucket.store.existing(frame.specific)

    def is_done() -> bool:
        return request.checkpoint_id <= bucket.tap.checkpoints(vbucket).persisted

    if bucket.flusher is not None:
        return bucket.flusher.waits.until(vbucket, is_done, reply(frame))
    if not is_done():
        last = bucket.tap.checkpoints(vbucket).last_closed
        raise TemporaryFailure(f"checkpoint {request.checkpoint_id} is not closed yet; the last closed one is {last}")
    return reply(frame)


def refuse(session: Session, frame: Frame) -> Answer:
    """Serve a request that is not as declared, or none that TAP has. Raises Goodbye, RemoteProtocolError."""
    handler = HANDLERS.get(Opcode(frame.opcode))
    if handler is None:
        raise Goodbye(f"{opcode_name(frame.opcode)} on a TAP connection")
    return handler(session, frame)


HANDLERS: dict[Opcode, Handler] = {Opcode.TAP_CONNECT: _connect, **tap_receiver.HANDLERS}

FIRST: frozenset[Code] = frozenset(HANDLERS)

COMMANDS: dict[Opcode, Handler] = {
    Opcode.LAST_CLOSED_CHECKPOINT: _last_closed,
    Opcode.DEREGISTER_TAP_CLIENT: _deregister,
    Opcode.RESET_REPLICATION_CHAIN: _reset_chain,
    Opcode.CREATE_CHECKPOINT: _create_checkpoint,
    Opcode.CHANGE_VB_FILTER: _change_filter,
    Opcode.CHECKPOINT_PERSISTENCE: _persistence,
}
