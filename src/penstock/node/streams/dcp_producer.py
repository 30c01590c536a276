"""The producer of a DCP connection: its flags and settings, and NOOPs that find out whether the peer still lives."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from penstock.errors import InvalidArguments, KeyNotFound, NotMyVbucket, NotSupported, OutOfRange, StatusError
from penstock.node.answers import Goodbye
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.session.session import Session
from penstock.node.streams.change_producer import AnswerDeadline
from penstock.node.streams.stream_encoder import StreamEncoder, WireOptions
from penstock.node.streams.stream_filter import FilterRequest, filter_for, may_stream, read_filter_request
from penstock.node.streams.stream_producer import StreamProducer
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.rollback import StreamRequest, range_error
from penstock.wire.codec.constants import Dialect, VbucketState
from penstock.wire.codec.flags import Datatype, OpenFlag, StreamFlag
from penstock.wire.codec.frame import Frame, opcode_name
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status, StreamEndReason
from penstock.wire.columns.frame_form import FrameForm
from penstock.wire.columns.revalue import Content
from penstock.wire.messages.dcp import DcpNoop, Deletion, DeletionV2, Expiration, Mutation, PrototypeMutation, StreamReq

__all__ = ["DcpProducer"]

_ACTIVE = frozenset((VbucketState.ACTIVE,))
_STREAMED = _ACTIVE | {VbucketState.REPLICA}
"""The states of a vbucket that has streams. Source: kv_engine, DcpProducer::checkConditionsForStreamRequest."""

_NOOP_OPAQUES = 10_000_000  # the first one is the next
_VBUCKET_BITS = 16

_DATA = frozenset(
    (
        Opcode.DCP_SNAPSHOT_MARKER,
        Opcode.DCP_MUTATION,
        Opcode.DCP_DELETION,
        Opcode.DCP_EXPIRATION,
        Opcode.DCP_SYSTEM_EVENT,
        Opcode.DCP_SEQNO_ADVANCED,
        Opcode.DCP_STREAM_END,
    )
)
# The consumer has closed the stream meanwhile, or has another of the same vbucket.
_LATE = frozenset(
    (Status.SUCCESS, Status.NOT_MY_VBUCKET, Status.DCP_STREAM_NOT_FOUND, Status.OPAQUE_NO_MATCH),
)
_LATE_BEFORE_7 = _LATE | {Status.KEY_ENOENT, Status.KEY_EEXISTS}


class DcpNoops:
    """Sends NOOPs, if the consumer wants them, with or without a stream.

    A NOOP goes out `interval` seconds after the last one. A peer that leaves one unanswered for the node's idle timeout
    (360 s, as kv_engine's dcp_idle_timeout) is gone.

    Attributes:
        enabled: the consumer wants them.
        interval: seconds.
    """

    def __init__(self, session: Session) -> None:
        self.enabled = False
        self.interval = 20.0
        self._session = session
        self._opaque = _NOOP_OPAQUES
        self._timer: asyncio.TimerHandle | None = None
        self._answer = AnswerDeadline(session)

    @property
    def is_unanswered(self) -> bool:
        return self._answer.is_running

    def enable(self, enabled: bool) -> None:
        self.enabled = enabled
        self._restart()

    def set_interval(self, seconds: float) -> None:
        self.interval = seconds
        self._restart()

    def take_answer(self, opaque: int) -> None:
        """Take a NOOP as answered. Raises Goodbye if it is not the one that was sent."""
        if not self._answer.is_running or opaque != self._opaque:
            raise Goodbye(f"answer to a NOOP {opaque} that is not open")
        self._answer.stop()

    def stop(self) -> None:
        self._answer.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _restart(self) -> None:
        """Begin a new interval, if NOOPs are wanted. Source: kv_engine, DcpProducer::maybeSendNoop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.enabled:
            session = self._session
            self._timer = session.node.loop.call_later(self.interval, session.output.guarded, self._send)

    def _send(self) -> None:
        if not self._answer.is_running:
            self._opaque += 1
            self._session.output.write(DcpNoop(opaque=self._opaque).encode())
            self._answer.start(self._session.node.idle_timeout, "NOOP unanswered")
        self._restart()


class DcpProducer(StreamProducer):
    """The producer of a connection after DCP OPEN.

    Attributes:
        flags: those of OPEN.
        collections: they were agreed on before OPEN.
        noops: whether the peer is alive.
        expiries: expirations are no deletions, if their times are sent.
        ext_metadata: a section of meta data comes behind values.
        flatbuffers: system events come as FlatBuffers.
        compress: values come compressed, if that makes them smaller.
        purge_seqno: markers have the purge seqno.
        several_streams: each stream has an id, and a vbucket any number of them.
        v7_codes: a stream that does not exist has a status of its own.
        end_on_close: a stream that the consumer closes ends with a message.
    """

    def __init__(self, session: Session, bucket: ServedBucket, name: bytes, flags: OpenFlag) -> None:
        super().__init__(session, bucket, Dialect.DCP, name)
        self.flags = flags
        self.collections = session.collections
        self.noops = DcpNoops(session)
        self.expiries = self.ext_metadata = self.flatbuffers = self.compress = self.purge_seqno = False
        self.several_streams = self.v7_codes = self.end_on_close = False
        self.choose_options()

    def choose_options(self) -> None:
        """Send changes as the flags and settings say."""
        flags, session = self.flags, self.session
        deletion = DeletionV2 if flags & OpenFlag.INCLUDE_DELETE_TIMES else Deletion
        without = bool(flags & (OpenFlag.NO_VALUE | OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE))
        form = FrameForm(
            PrototypeMutation if session.listener.prototype else Mutation,
            deletion,
            Expiration if self.expiries and deletion is DeletionV2 else deletion,
            keys_only=without,
            datatypes=0 if flags & OpenFlag.NO_VALUE else None,
            bare_keys=not self.collections,
        )
        content = Content(
            body=not without,
            xattrs=bool(flags & OpenFlag.INCLUDE_XATTRS),
            deleted_user_xattrs=bool(flags & OpenFlag.INCLUDE_DELETED_USER_XATTRS),
            snappy=bool(session.datatypes & Datatype.SNAPPY),
            compress=self.compress,
            underlying=bool(flags & OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE),
        )
        skips = bool(flags & OpenFlag.SKIP_DELETES_IN_INITIAL_BACKFILL)
        self.options = WireOptions(
            form,
            content,
            flatbuffers=self.flatbuffers,
            ext_metadata=self.ext_metadata,
            seqno_advanced=self.collections or skips,
            purge_seqno=self.purge_seqno,
            skip_first_deletions=skips,
        )

    # Streams

    def open(self, request: StreamReq) -> tuple[Vbucket, int | None]:
        """Open a stream. Returns its vbucket, and None or the seqno that the consumer has to roll back to first.

        Raises NotMyVbucket and NotSupported, InvalidArguments for a value that says nothing, UnknownCollection and
        UnknownScope for a filter that lets nothing through, and as open_stream does.
        """
        if request.value and not self.collections:
            raise InvalidArguments("a stream request with a value, without collections")
        flags, store = StreamFlag(request.flags), self.bucket.store
        vbucket = store.existing(request.vbucket)
        if vbucket.history.state not in (_ACTIVE if flags & StreamFlag.ACTIVE_VB_ONLY else _STREAMED):
            assert vbucket.history.state is not None
            raise NotMyVbucket(f"vbucket {vbucket.id} is {vbucket.history.state.name.lower()}", vbucket=vbucket.id)
        if not self.noops.enabled and (self.flags & OpenFlag.INCLUDE_XATTRS or self.collections):
            raise NotSupported("xattrs and collections are streamed only with noop enabled")
        asked = _asked(vbucket, request, flags)
        if error := range_error(asked):
            raise OutOfRange(error)
        wanted = read_filter_request(request.value)
        self._check_stream_id(wanted.stream_id)
        encoder = self._encoder(wanted)
        high = encoder.filter.high_seqno(vbucket) if encoder is not None else None
        asked = replace(asked, purge_seqno=wanted.purge_seqno, collections_high_seqno=high)
        last = None
        if flags & StreamFlag.DISK_ONLY:  # a bucket in memory counts as persisted
            last = vbucket.history.persisted_seqno
        elif flags & StreamFlag.TO_LATEST:
            last = vbucket.changes.high_seqno if high is None else high
        key = _key(vbucket.id, wanted.stream_id)
        return vbucket, self.open_stream(vbucket, key, request.opaque, asked, last=last, encoder=encoder)

    def _check_stream_id(self, stream_id: int | None) -> None:
        if (stream_id is None) == self.several_streams:
            text = "no stream id, on a connection that has them" if self.several_streams else f"stream id {stream_id}"
            raise StatusError(text, status=Status.DCP_STREAMID_INVALID)

    def _encoder(self, wanted: FilterRequest) -> StreamEncoder | None:
        """Return the encoder of a stream, None for a consumer without collections."""
        if not self.collections:
            return None
        return StreamEncoder(filter_for(self.session, self.bucket, wanted), wanted.stream_id)

    def close_stream(self, vbucket: int, stream_id: int | None = None) -> None:
        """Close a stream at the consumer's wish. Raises StatusError if it has none, or none that goes on."""
        self._check_stream_id(stream_id)
        stream = self.streams.get(_key(vbucket, stream_id))
        if stream is None or stream.reason is not None:
            text = f"vbucket {vbucket} has no stream"
            if stream_id is not None and self._of_vbucket[vbucket]:
                raise StatusError(f"{text} {stream_id}", status=Status.DCP_STREAMID_INVALID)
            raise StatusError(text, status=Status.DCP_STREAM_NOT_FOUND) if self.v7_codes else KeyNotFound(text)
        if self.end_on_close:
            self.end_stream(stream, StreamEndReason.CLOSED)
            return
        self.bucket.forget(stream)
        stream.close()
        self.drop(stream)

    def renew(self) -> bool:
        """End the streams that the user may no longer have.

        To a client without collections kv_engine reports such an end as OK, which looks as if all had been sent: there
        the connection ends instead.
        """
        if not self.collections:
            return False
        user, bucket = self.session.login.acting, self.bucket
        for stream in tuple(self.streams.values()):
            if not may_stream(user, bucket, stream.encoder.filter):
                self.end_stream(stream, StreamEndReason.LOST_PRIVILEGES if stream.reason is None else stream.reason)
        return True

    def stop(self) -> None:
        super().stop()
        self.noops.stop()

    def take_response(self, frame: Frame) -> bytes:
        if frame.opcode == Opcode.DCP_NOOP:
            self.noops.take_answer(frame.opaque)
        elif frame.opcode == Opcode.DCP_SET_VBUCKET_STATE:
            pass  # about no stream that there is: such a message goes out in a takeover alone
        elif frame.opcode not in _DATA or frame.specific not in (_LATE if self.v7_codes else _LATE_BEFORE_7):
            raise Goodbye(f"response to {opcode_name(frame.opcode)} with status 0x{frame.specific:02x}")
        return b""

    def details(self) -> dict[str, Any]:
        return {
            "flags": int(self.flags),
            "noop_enabled": self.noops.enabled,
            "noop_wait": self.noops.is_unanswered,
            "noop_tx_interval": self.noops.interval,
            "flow_control": "enabled" if self.flow.window else "none",
            "max_buffer_bytes": self.flow.window,
            "unacked_bytes": self.flow.unacked,
            "total_acked_bytes": self.flow.acked,
        }


def _key(vbucket: int, stream_id: int | None) -> int:
    """Return what a stream is known by."""
    return vbucket | (stream_id or 0) << _VBUCKET_BITS


def _asked(vbucket: Vbucket, request: StreamReq, flags: StreamFlag) -> StreamRequest:
    """Return what the consumer says of itself, or with FROM_LATEST: that it has all there is."""
    start, low, high, vbuuid = request.start_seqno, request.snap_start, request.snap_end, request.vbuuid
    if flags & StreamFlag.FROM_LATEST:
        start = low = high = vbucket.changes.high_seqno
        vbuuid = vbuuid or vbucket.history.vbuuid
    return StreamRequest(
        start_seqno=start,
        end_seqno=request.end_seqno,
        vbuuid=vbuuid,
        snap_start=low,
        snap_end=high,
        strict_vbuuid=bool(flags & StreamFlag.STRICT_VBUUID),
        ignore_purged=bool(flags & StreamFlag.IGNORE_PURGED_TOMBSTONES),
    )
