"""TAP_CONNECT and the other commands of TAP: decodes requests and calls the producer."""

from __future__ import annotations

from struct import Struct

from penstock.errors import InvalidArguments, KeyNotFound, RemoteProtocolError, StatusError, TemporaryFailure
from penstock.node.answers import Answer, CloseConnection
from penstock.node.auth import Privilege
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.session.command_table import READ, SETTINGS, STREAM, CommandTable
from penstock.node.session.replies import encode_reply
from penstock.node.session.session import Session
from penstock.node.streams.change_producer import require_streamable_bucket
from penstock.node.streams.stream_filter import make_default_filter
from penstock.node.streams.vbucket_handover import check_completeness
from penstock.node.tap.tap_producer import TapProducer
from penstock.node.tap.tap_receiver import MESSAGES
from penstock.wire.codec.constants import MAX_KEY, Dialect
from penstock.wire.codec.flags import TapConnectFlag
from penstock.wire.codec.frame import Frame, name_opcode
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
    unpack_tap_options,
)

COMMANDS = CommandTable()
"""Commands of every connection, beside TAP streams."""

STREAMS = CommandTable()
"""Commands that set the connection's dialect to TAP."""

MAX_CLIENTS = 4096
"""Clients that a bucket keeps. Another registered client is refused until one is deregistered."""

_ID, _IDS = Struct(">Q"), Struct(">QQ")


@STREAMS.serve(needs=STREAM)
def connect_consumer(session: Session, request: TapConnect) -> bytes:
    """Return no reply, and start to send changes.

    Raises:
        InvalidArguments: the name is too long, or the connection has another dialect.
        CloseConnection: the options are not supported, or the bucket keeps too many clients.
    """
    bucket, older = require_streamable_bucket(session), session.endpoint
    make_default_filter(session, bucket)  # raises
    if len(request.key) > MAX_KEY:
        raise InvalidArguments(f"name of {len(request.key)} bytes, limit {MAX_KEY}")
    options = _read_options(request)
    if options.flags & TapConnectFlag.TAKEOVER_VBUCKETS:
        _check_takeover(bucket, request, options)
    known = bucket.tap.clients
    if options.flags & TapConnectFlag.REGISTERED_CLIENT and request.key not in known and len(known) >= MAX_CLIENTS:
        raise CloseConnection(
            f"{len(known)} TAP clients are kept, limit {MAX_CLIENTS}", encode_reply(request, Status.ENOMEM)
        )
    if older is not None:
        if older.dialect is not Dialect.TAP:
            raise InvalidArguments(f"this connection speaks {older.dialect.value}")
        older.stop()
    session.endpoint = TapProducer(session, bucket, request.key, options)
    return b""


def _read_options(request: TapConnect) -> TapOptions:
    flags = request.flags or 0
    try:
        options = unpack_tap_options(flags, request.value)
    except RemoteProtocolError as error:
        raise CloseConnection(
            str(error), b"" if error.fatal else encode_reply(request, Status.NOT_SUPPORTED)
        ) from error
    return options


def _check_takeover(bucket: ServedBucket, request: TapConnect, options: TapOptions) -> None:
    """Check that a takeover names active vbuckets, and gets all of their changes."""
    if options.flags & TapConnectFlag.DUMP or options.closed_only or not options.vbuckets:
        raise CloseConnection(
            "TAKEOVER_VBUCKETS of a dump, of closed checkpoints or without vbuckets",
            encode_reply(request, Status.NOT_SUPPORTED),
        )
    try:
        for number in options.vbuckets:
            check_completeness(bucket.store.find(number), sees_all=False)
    except StatusError as error:
        raise CloseConnection(str(error), encode_reply(request, error.status)) from None


@COMMANDS.serve(needs=SETTINGS)
def deregister_client(session: Session, request: DeregisterTapClient) -> bytes:
    """Return the reply to DEREGISTER_TAP_CLIENT, which forgets a client and ends its connection."""
    bucket = session.require_bucket()
    producer = bucket.endpoints.get((Dialect.TAP, request.key))
    client = bucket.tap.clients.pop(request.key, None)
    if producer is not None:
        producer.abort("deregistered")
        bucket.tap.clients.pop(request.key, None)
    if client is not None and client.forget_timer is not None:
        client.forget_timer.cancel()
    return encode_reply(request)


@COMMANDS.serve(needs=SETTINGS)
def change_filter(session: Session, request: ChangeVbFilter) -> bytes:
    """Return the reply to CHANGE_VB_FILTER. Raises KeyNotFound without a connection of the name."""
    pairs = unpack_checkpoints(request.value)
    producer = session.require_bucket().endpoints.get((Dialect.TAP, request.key))
    if not isinstance(producer, TapProducer):
        raise KeyNotFound(f"no TAP stream {request.key!r}")
    producer.change_filter(pairs)
    return encode_reply(request)


@COMMANDS.serve(needs=SETTINGS)
def restart_all_streams(session: Session, request: ResetReplicationChain) -> bytes:
    """Return the reply to RESET_REPLICATION_CHAIN: all TAP streams of the bucket start from zero."""
    for producer in tuple(session.require_bucket().endpoints.values()):
        if isinstance(producer, TapProducer):
            producer.restart_streams()
    return encode_reply(request)


@COMMANDS.serve(needs=READ)
def get_last_closed_checkpoint(session: Session, request: LastClosedCheckpoint) -> bytes:
    """Return the id of a vbucket's last closed checkpoint."""
    session.check_bucket_privilege(Privilege.READ)
    bucket = session.require_bucket()
    vbucket = bucket.store.find_existing(request.vbucket)
    return encode_reply(request, value=_ID.pack(bucket.tap.get_checkpoints(vbucket).last_closed_id))


@COMMANDS.serve(needs=SETTINGS)
def create_checkpoint(session: Session, request: CreateCheckpoint) -> bytes:
    """Return the ids of the open checkpoint and of the last one on disk, after closing the open one."""
    bucket = session.require_bucket()
    vbucket = bucket.store.find(request.vbucket)
    checkpoints = bucket.tap.get_checkpoints(vbucket)
    answer = _IDS.pack(checkpoints.close_open(), checkpoints.persisted_id)
    session.changed.add(vbucket.id)
    return encode_reply(request, value=answer)


@COMMANDS.serve(needs=SETTINGS)
def wait_for_checkpoint(session: Session, request: CheckpointPersistence) -> bytes:
    """Return the reply once a checkpoint is on disk. Raises TemporaryFailure for an open one of a bucket in memory."""
    bucket = session.require_bucket()
    vbucket = bucket.store.find_existing(request.vbucket)

    def is_done() -> bool:
        return request.checkpoint_id <= bucket.tap.get_checkpoints(vbucket).persisted_id

    if bucket.flusher is not None:
        return bucket.flusher.waits.reply_when(vbucket, is_done, encode_reply(request))
    if not is_done():
        last = bucket.tap.get_checkpoints(vbucket).last_closed_id
        raise TemporaryFailure(f"checkpoint {request.checkpoint_id} is not closed yet; the last closed one is {last}")
    return encode_reply(request)


def refuse_request(session: Session, frame: Frame) -> Answer:
    """Return the reply to a TAP request of an unlisted shape.

    Raises:
        CloseConnection: TAP does not have the request.
        RemoteProtocolError: the request is malformed.
    """
    code = Opcode(frame.opcode)
    command = STREAMS.commands.get(code) or MESSAGES.commands.get(code)
    if command is None:
        raise CloseConnection(f"{name_opcode(frame.opcode)} on a TAP connection")
    return command.checked_handler(session, frame)
