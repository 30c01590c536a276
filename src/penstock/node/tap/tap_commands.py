"""TAP_CONNECT, and the commands beside it, from frame to producer."""

from __future__ import annotations

from struct import Struct

from penstock.errors import InvalidArguments, KeyNotFound, RemoteProtocolError, TemporaryFailure
from penstock.node.answers import Answer, Goodbye
from penstock.node.session.command_table import META_READ, SETTINGS, STREAM, CommandTable
from penstock.node.session.replies import reply
from penstock.node.session.session import Session
from penstock.node.streams.change_producer import streamable
from penstock.node.streams.not_yet import NOT_YET
from penstock.node.streams.stream_filter import bare_filter
from penstock.node.tap.tap_producer import TapProducer
from penstock.node.tap.tap_receiver import MESSAGES
from penstock.wire.codec.constants import MAX_KEY, Dialect
from penstock.wire.codec.flags import TapConnectFlag
from penstock.wire.codec.frame import Frame, opcode_name
from penstock.wire.codec.layout import Code
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.tap import (
    ChangeVbFilter,
    CheckpointPersistence,
    CreateCheckpoint,
    DeregisterTapClient,
    LastClosedCheckpoint,
    ResetReplicationChain,
    TapConnect,
    TapOptions,
    unpack_checkpoints,
    unpack_options,
)

__all__ = ["COMMANDS", "FIRST", "STREAMS", "refuse"]

COMMANDS = CommandTable()
"""Commands beside TAP streams, on every connection."""

STREAMS = CommandTable()
"""Commands that make a connection one of TAP."""

MAX_CLIENTS = 4096
"""Consumers whose places a bucket keeps; a registered one more is refused, until another is deregistered."""

_ID, _IDS = Struct(">Q"), Struct(">QQ")


@STREAMS.serve(needs=STREAM)
def connect(session: Session, request: TapConnect) -> bytes:
    """Begin to send. There is no answer but a refusal, which ends the connection."""
    bucket, older = streamable(session), session.producer
    bare_filter(session, bucket)  # raises
    if len(request.key) > MAX_KEY:
        raise InvalidArguments(f"name of {len(request.key)} bytes, limit {MAX_KEY}")
    options = _options(request)
    known = bucket.tap.clients
    if options.flags & TapConnectFlag.REGISTERED_CLIENT and request.key not in known and len(known) >= MAX_CLIENTS:
        raise Goodbye(f"{len(known)} TAP clients are kept, limit {MAX_CLIENTS}", reply(request, Status.ENOMEM))
    if older is not None:
        if older.dialect is not Dialect.TAP:
            raise InvalidArguments(f"this connection speaks {older.dialect.value}")
        older.stop()
    session.producer = TapProducer(session, bucket, request.key, options)
    return b""


def _options(request: TapConnect) -> TapOptions:
    flags = request.flags or 0
    try:
        options = unpack_options(flags, request.value)
    except RemoteProtocolError as error:
        raise Goodbye(str(error), b"" if error.fatal else reply(request, Status.NOT_SUPPORTED)) from error
    if flags & TapConnectFlag.TAKEOVER_VBUCKETS:
        status, capability = NOT_YET["TAKEOVER_VBUCKETS"]
        raise Goodbye(f"TAKEOVER_VBUCKETS needs {capability}, which this node does not have", reply(request, status))
    return options


@COMMANDS.serve(needs=SETTINGS)
def deregister(session: Session, request: DeregisterTapClient) -> bytes:
    """Forget a registered client; if it is here, its connection ends."""
    bucket = session.selected()
    producer = bucket.producers.get((Dialect.TAP, request.key))
    client = bucket.tap.clients.pop(request.key, None)
    if producer is not None:
        producer.abort("deregistered")
        bucket.tap.clients.pop(request.key, None)
    if client is not None and client.forget is not None:
        client.forget.cancel()
    return reply(request)


@COMMANDS.serve(needs=SETTINGS)
def change_filter(session: Session, request: ChangeVbFilter) -> bytes:
    pairs = unpack_checkpoints(request.value)
    producer = session.selected().producers.get((Dialect.TAP, request.key))
    if not isinstance(producer, TapProducer):
        raise KeyNotFound(f"no TAP stream {request.key!r}")
    producer.change_filter(pairs)
    return reply(request)


@COMMANDS.serve(needs=SETTINGS)
def reset_chain(session: Session, request: ResetReplicationChain) -> bytes:
    for producer in tuple(session.selected().producers.values()):
        if isinstance(producer, TapProducer):
            producer.begin_anew()
    return reply(request)


@COMMANDS.serve(needs=META_READ)
def get_last_closed(session: Session, request: LastClosedCheckpoint) -> bytes:
    bucket = session.selected()
    vbucket = bucket.store.existing(request.vbucket)
    return reply(request, value=_ID.pack(bucket.tap.checkpoints(vbucket).last_closed))


@COMMANDS.serve(needs=SETTINGS)
def create_checkpoint(session: Session, request: CreateCheckpoint) -> bytes:
    """Answered with the ids of the open checkpoint and of the last one on disk."""
    bucket = session.selected()
    vbucket = bucket.store.find(request.vbucket)
    checkpoints = bucket.tap.checkpoints(vbucket)
    answer = _IDS.pack(checkpoints.create(), checkpoints.persisted)
    session.changed.add(vbucket.id)
    return reply(request, value=answer)


@COMMANDS.serve(needs=META_READ)
def wait_for_checkpoint(session: Session, request: CheckpointPersistence) -> bytes:
    bucket = session.selected()
    vbucket = bucket.store.existing(request.vbucket)

    def is_done() -> bool:
        return request.checkpoint_id <= bucket.tap.checkpoints(vbucket).persisted

    if bucket.flusher is not None:
        return bucket.flusher.waits.until(vbucket, is_done, reply(request))
    if not is_done():
        last = bucket.tap.checkpoints(vbucket).last_closed
        raise TemporaryFailure(f"checkpoint {request.checkpoint_id} is not closed yet; the last closed one is {last}")
    return reply(request)


FIRST: frozenset[Code] = frozenset((*STREAMS.commands, *MESSAGES.commands))
"""The requests that may be a connection's first."""


def refuse(session: Session, frame: Frame) -> Answer:
    """Serve a request that no shape lists, or one that TAP does not have. Raises Goodbye, RemoteProtocolError."""
    code = Opcode(frame.opcode)
    command = STREAMS.commands.get(code) or MESSAGES.commands.get(code)
    if command is None:
        raise Goodbye(f"{opcode_name(frame.opcode)} on a TAP connection")
    return command.checked(session, frame)
