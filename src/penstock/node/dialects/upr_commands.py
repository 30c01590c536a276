"""The commands of UPR, the first version of the protocol: a failover log, and streams without OPEN.

Source: UPR transport specification. Its contradictions and gaps are resolved as in DCP.
"""

from __future__ import annotations

from penstock.errors import InvalidArguments, KeyNotFound
from penstock.node.answers import CloseConnection
from penstock.node.session.command_table import STREAM, CommandTable
from penstock.node.session.replies import encode_reply
from penstock.node.session.session import Session
from penstock.node.streams.change_producer import require_streamable_bucket
from penstock.node.streams.stream_producer import StreamProducer
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.rollback import StreamRequest
from penstock.wire.codec.constants import MAX_KEY, Dialect
from penstock.wire.codec.frame import Frame, name_opcode
from penstock.wire.codec.layout import find_forms, find_layout
from penstock.wire.codec.opcodes import DCP_OPCODES, UprOpcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import pack_rollback
from penstock.wire.messages.kv import pack_failover_log
from penstock.wire.messages.upr import UprGetFailoverLog, UprStreamReq
from penstock.wire.messages.upr_draft import DraftStreamReq

COMMANDS = CommandTable()


def get_producer(session: Session, dialect: Dialect) -> StreamProducer:
    """Return the connection's producer. UPR has no OPEN, so the first request makes the producer.

    Raises:
        NoBucket: no bucket is selected.
        NotSupported: the bucket is a plain cache.
    """
    if session.endpoint is None:
        session.endpoint = StreamProducer(session, require_streamable_bucket(session), dialect)
    assert isinstance(session.endpoint, StreamProducer)
    return session.endpoint


def make_stream_request(request: UprStreamReq | DraftStreamReq) -> StreamRequest:
    """Return the consumer's position and range. UPR consumers send no snapshot bounds.

    The request's high seqno is not compared with the failover log.

    Raises:
        InvalidArguments: the name of the group is too long.
    """
    if len(request.key) > MAX_KEY:
        raise InvalidArguments(f"group of {len(request.key)} bytes, limit {MAX_KEY}")
    start = request.start_seqno
    return StreamRequest(
        start_seqno=start, end_seqno=request.end_seqno, vbuuid=request.vbuuid, snap_start=start, snap_end=start
    )


def has_branch(vbucket: Vbucket, vbuuid: int) -> bool:
    """Return whether the failover log of a vbucket has a branch."""
    return any(entry.vbuuid == vbuuid for entry in vbucket.history.failover_log)


@COMMANDS.serve(needs=STREAM)
def open_stream(session: Session, request: UprStreamReq) -> bytes:
    """Return the reply to a stream request: success, or the seqno to roll back to.

    Raises:
        InvalidArguments: the request has flags, or the name of the group is too long.
        KeyNotFound: the vbucket has never been on the consumer's branch.
    """
    producer = get_producer(session, Dialect.UPR)
    if request.flags:
        raise InvalidArguments(f"flags 0x{request.flags:x}, of which none is defined")
    position = make_stream_request(request)
    vbucket = producer.bucket.store.find_existing(request.vbucket)
    point = producer.open_stream(vbucket, vbucket.id, request.opaque, position, group=request.key)
    if point is None:
        return encode_reply(request)
    if not has_branch(vbucket, position.vbuuid):
        raise KeyNotFound(f"vbucket {vbucket.id} has never been on branch {position.vbuuid}")
    return encode_reply(request, Status.ROLLBACK, extras=pack_rollback(point))


@COMMANDS.serve(needs=STREAM)
def get_failover_log(session: Session, request: UprGetFailoverLog) -> bytes:
    """Return a vbucket's failover log."""
    vbucket = get_producer(session, Dialect.UPR).bucket.store.find_existing(request.vbucket)
    return encode_reply(request, value=pack_failover_log(vbucket.history.failover_log))


def refuse_request(session: Session, frame: Frame) -> bytes:
    """Refuse a change-stream request that has no handler.

    Raises:
        InvalidArguments: the request belongs to another dialect.
        RemoteProtocolError: the request is malformed.
        CloseConnection: only producers send the message.
    """
    if frame.opcode in DCP_OPCODES and find_forms(frame, Dialect.UPR) is not None:
        find_layout(frame, Dialect.UPR).check(frame)
        raise CloseConnection(f"{UprOpcode(frame.opcode).name} sent to a producer")
    raise InvalidArguments(f"{name_opcode(frame.opcode)} on a connection that speaks {Dialect.UPR}")
