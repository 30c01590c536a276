"""The producer of a DCP connection: its flags and settings, and NOOPs that detect a dead peer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.errors import InvalidArguments, KeyNotFound, NotMyVbucket, NotSupported, OutOfRange, StatusError
from penstock.node.answers import CloseConnection
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.session.session import Session
from penstock.node.streams.cached_documents import CachedDocumentReader
from penstock.node.streams.change_producer import AnswerDeadline
from penstock.node.streams.producer_stream import ProducerStream
from penstock.node.streams.pushed_filter import PushedFilter
from penstock.node.streams.stream_encoder import StreamEncoder, WireOptions
from penstock.node.streams.stream_filter import FilterRequest, can_stream, make_filter, read_filter_request
from penstock.node.streams.stream_producer import StreamProducer
from penstock.node.streams.stream_takeover import ANSWERS, StreamTakeover
from penstock.node.streams.vbucket_handover import VbucketHandover, check_completeness
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.rollback import StreamRequest, find_range_error
from penstock.wire.codec.constants import MAX_SEQNO, Dialect, VbucketState
from penstock.wire.codec.flags import Datatype, OpenFlag, StreamFlag
from penstock.wire.codec.frame import Frame, name_opcode
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status, StreamEndReason
from penstock.wire.columns.frame_form import FrameForm
from penstock.wire.columns.revalue import ValueOptions
from penstock.wire.messages.dcp import DcpNoop, Deletion, DeletionV2, Expiration, Mutation, PrototypeMutation, StreamReq

_ACTIVE = frozenset((VbucketState.ACTIVE,))
_STREAMED = _ACTIVE | {VbucketState.REPLICA}
"""States of a vbucket that may have streams. Source: kv_engine, DcpProducer::checkConditionsForStreamRequest."""

_NEEDS_ACTIVE = StreamFlag.ACTIVE_VB_ONLY | StreamFlag.TAKEOVER

_NOOP_OPAQUES = 10_000_000  # the first opaque is the next number
_VBUCKET_BITS = 16  # the key of a stream has the stream id above the bits of its vbucket

_ANSWERED_OPCODES = frozenset(
    (
        # Requests of a consumer, which a producer never sends: kv_engine ignores such answers too.
        Opcode.DCP_OPEN,
        Opcode.DCP_ADD_STREAM,
        Opcode.DCP_CLOSE_STREAM,
        Opcode.DCP_STREAM_REQ,
        Opcode.DCP_GET_FAILOVER_LOG,
        Opcode.DCP_BUFFER_ACK,
        Opcode.DCP_CONTROL,
        # Messages of a stream.
        Opcode.DCP_SNAPSHOT_MARKER,
        Opcode.DCP_MUTATION,
        Opcode.DCP_DELETION,
        Opcode.DCP_EXPIRATION,
        Opcode.DCP_SYSTEM_EVENT,
        Opcode.DCP_PREPARE,
        Opcode.DCP_COMMIT,
        Opcode.DCP_ABORT,
        Opcode.DCP_SEQNO_ADVANCED,
        Opcode.DCP_CACHE_TRANSFER,
        Opcode.DCP_CACHE_TRANSFER_END,
        Opcode.DCP_STREAM_END,
    )
)
"""Opcodes whose answers may come. Source: kv_engine, DcpProducer::handleResponse."""

# Statuses of responses from a consumer that has closed the stream meanwhile, or has a new stream of the vbucket.
_STATUSES_AFTER_CLOSE = frozenset(
    (Status.SUCCESS, Status.NOT_MY_VBUCKET, Status.DCP_STREAM_NOT_FOUND, Status.OPAQUE_NO_MATCH),
)
_STATUSES_AFTER_CLOSE_BEFORE_7 = _STATUSES_AFTER_CLOSE | {Status.KEY_ENOENT, Status.KEY_EEXISTS}


class DcpNoops:
    """Sends NOOPs if the consumer has enabled them, also without a stream.

    A NOOP goes out `interval` seconds after the last one. A peer that does not answer it within the node's idle timeout
    counts as dead. The default is 360 s, as of kv_engine's dcp_idle_timeout.

    Attributes:
        enabled: whether the consumer has enabled them.
        interval: seconds between two NOOPs.
        answered_at: seconds since the epoch of the last answer; 0 before the first one.
    """

    def __init__(self, session: Session) -> None:
        self.enabled = False
        self.interval = 20.0
        self.answered_at = 0.0
        self._session = session
        self._opaque = _NOOP_OPAQUES
        self._timer: asyncio.TimerHandle | None = None
        self._answer = AnswerDeadline(session)

    @property
    def is_unanswered(self) -> bool:
        """Whether the peer owes an answer."""
        return self._answer.is_running

    def enable(self, enabled: bool) -> None:
        """Enable or disable NOOPs."""
        self.enabled = enabled
        self._restart()

    def set_interval(self, seconds: float) -> None:
        """Set the seconds between two NOOPs."""
        self.interval = seconds
        self._restart()

    def handle_answer(self, opaque: int) -> None:
        """Accept the answer to a NOOP. Raises CloseConnection if it answers no pending NOOP."""
        if not self._answer.is_running or opaque != self._opaque:
            raise CloseConnection(f"answer to a NOOP {opaque} that is not open")
        self._answer.stop()
        self.answered_at = self._session.node.machine.time()

    def stop(self) -> None:
        """Send no more NOOPs."""
        self._answer.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _restart(self) -> None:
        """Start a new interval, if NOOPs are enabled. Source: kv_engine, DcpProducer::maybeSendNoop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.enabled:
            session = self._session
            self._timer = session.node.loop.call_later(self.interval, session.output.run_guarded, self._send)

    def _send(self) -> None:
        if not self._answer.is_running:
            self._opaque += 1
            self._session.output.write(DcpNoop(opaque=self._opaque).encode())
            self._answer.start(self._session.node.idle_timeout, "NOOP unanswered")
        self._restart()


class DcpProducer(StreamProducer):
    """The producer of a connection after DCP OPEN.

    Attributes:
        flags: the flags of OPEN.
        collections: whether the connection had agreed on collections before OPEN.
        noops: detects a dead peer.
        sends_expirations: whether expirations are messages of their own, provided that delete times are sent.
        sends_ext_metadata: whether an extended metadata section follows each value.
        sends_flatbuffers: whether system events are FlatBuffers.
        sends_compressed: whether values are compressed if that makes them smaller.
        sends_purge_seqno: whether snapshot markers have the purge seqno.
        accepts_history: whether snapshots may have the older versions of documents.
        out_of_order: whether SEQNO_ADVANCED ends changes out of order; None if the consumer accepts none.
        sends_prepares: whether the consumer gets prepares, commits and aborts of synchronous writes.
        consumer_name: the consumer's name in the topology of vbuckets, with which it acknowledges prepares; or empty.
        uses_stream_ids: whether each stream has an id, so that a vbucket may have several streams.
        uses_v7_statuses: whether a missing stream has a status of its own.
        end_on_close: whether a stream that the consumer closes ends with a message.
        pushed_filter: chooses changes by key and value for streams that open from now on; None: all changes.
    """

    def __init__(self, session: Session, bucket: ServedBucket, name: bytes, flags: OpenFlag) -> None:
        super().__init__(session, bucket, Dialect.DCP, name)
        self.flags = flags
        self.collections = session.collections
        self.noops = DcpNoops(session)
        self.sends_expirations = self.sends_ext_metadata = self.sends_flatbuffers = self.sends_compressed = (
            self.sends_purge_seqno
        ) = self.accepts_history = False
        self.out_of_order: bool | None = None
        self.sends_prepares = False
        self.consumer_name = ""
        self.uses_stream_ids = self.uses_v7_statuses = self.end_on_close = False
        self.pushed_filter: PushedFilter | None = None
        self._takeovers: dict[int, StreamTakeover] = {}  # by the opaque of the stream
        self.choose_options()

    def choose_options(self) -> None:
        """Derive the wire options from the flags and settings."""
        flags, session = self.flags, self.session
        deletion = DeletionV2 if flags & OpenFlag.INCLUDE_DELETE_TIMES else Deletion
        without = bool(flags & (OpenFlag.NO_VALUE | OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE))
        form = FrameForm(
            PrototypeMutation if session.listener.prototype else Mutation,
            deletion,
            Expiration if self.sends_expirations and deletion is DeletionV2 else deletion,
            keys_only=without,
            datatypes=0 if flags & OpenFlag.NO_VALUE else None,
            bare_keys=not self.collections,
        )
        content = ValueOptions(
            body=not without,
            xattrs=bool(flags & OpenFlag.INCLUDE_XATTRS),
            deleted_user_xattrs=bool(flags & OpenFlag.INCLUDE_DELETED_USER_XATTRS),
            snappy=bool(session.datatypes & Datatype.SNAPPY),
            compress=self.sends_compressed,
            underlying=bool(flags & OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE),
        )
        skips = bool(flags & OpenFlag.SKIP_DELETES_IN_INITIAL_BACKFILL)
        self.options = WireOptions(
            form,
            content,
            flatbuffers=self.sends_flatbuffers,
            ext_metadata=self.sends_ext_metadata,
            seqno_advanced=self.collections or skips,
            sync_writes=self.sends_prepares,
            visible_seqnos=self.sends_prepares and bool(self.consumer_name),
            purge_seqno=self.sends_purge_seqno,
            history=self.accepts_history,
            out_of_order=self.out_of_order is not None,
            out_of_order_seqno=bool(self.out_of_order) or self.pushed_filter is not None,
            skip_first_deletions=skips,
        )

    # Streams

    def accept_request(self, request: StreamReq) -> tuple[Vbucket, int | None]:
        """Open a stream.

        Args:
            request: the stream request.

        Returns:
            The vbucket, and None or the seqno that the consumer has to roll back to.

        Raises:
            NotMyVbucket: the vbucket is in a state without streams.
            NotSupported: the consumer has to enable NOOPs first.
            InvalidArguments: the value of the request is invalid.
            UnknownCollection: the filter names an unknown collection.
            UnknownScope: the filter names an unknown scope.
            OutOfRange: the seqnos of the request contradict each other.
            KeyExists: the vbucket has a stream already.
        """
        if request.value and not self.collections:
            raise InvalidArguments("stream request with a value on a connection without collections")
        flags, store = StreamFlag(request.flags), self.bucket.store
        vbucket = store.find_existing(request.vbucket)
        if vbucket.history.state not in (_ACTIVE if flags & _NEEDS_ACTIVE else _STREAMED):
            assert vbucket.history.state is not None
            raise NotMyVbucket(f"vbucket {vbucket.id} is {vbucket.history.state.name.lower()}", vbucket=vbucket.id)
        if not self.noops.enabled and (self.flags & OpenFlag.INCLUDE_XATTRS or self.collections):
            raise NotSupported("xattrs and collections are streamed only with noop enabled")
        takes_over = bool(flags & StreamFlag.TAKEOVER)
        if takes_over and request.opaque in self._takeovers:
            raise InvalidArguments(f"opaque {request.opaque} is that of another takeover")
        position = _make_stream_request(vbucket, request, flags)
        if error := find_range_error(position):
            raise OutOfRange(error)
        wanted = read_filter_request(request.value)
        encoder = self._make_encoder(wanted)
        self._check_stream_id(wanted.stream_id)
        self._check_filters(wanted, flags)
        if takes_over:
            check_completeness(vbucket, sees_all=_sees_all(encoder))
        high = encoder.filter.high_seqno(vbucket) if encoder is not None else None
        position = replace(position, purge_seqno=wanted.purge_seqno, collections_high_seqno=high)
        last = None
        if takes_over:
            pass  # it ends with the last change
        elif flags & StreamFlag.DISK_ONLY:  # a bucket in memory reports all its changes as persisted
            last = vbucket.history.persisted_seqno
        elif flags & StreamFlag.TO_LATEST:
            last = vbucket.changes.high_seqno if high is None else high
        key = _make_stream_key(vbucket.id, wanted.stream_id)
        point = self.open_stream(vbucket, key, request.opaque, position, last_seqno=last, encoder=encoder)
        if point is None:
            self._choose_phases(self.streams[key], flags, wanted)
        return vbucket, point

    def _choose_phases(self, stream: ProducerStream, flags: StreamFlag, wanted: FilterRequest) -> None:
        """Add a cache transfer before the changes of an accepted stream, and a takeover at their end."""
        if flags & StreamFlag.CACHE_TRANSFER:
            start = stream.request.start_seqno
            stream.cache = CachedDocumentReader(stream.vbucket, stream.encoder.filter, wanted.cache, start)
        if stream.encoder.filter.is_empty:
            self.end_stream(stream, StreamEndReason.FILTER_EMPTY)
        elif flags & StreamFlag.TAKEOVER:
            self._start_takeover(stream, sees_all=self.collections and _sees_all(stream.encoder))

    def _start_takeover(self, stream: ProducerStream, *, sees_all: bool) -> None:
        handover = VbucketHandover(self.session, self.bucket, stream.vbucket, sees_all=sees_all)
        resume = partial(self.schedule_now, stream)
        stream.takeover = StreamTakeover(self.session, stream.vbucket, handover, resume)
        self._takeovers[stream.opaque] = stream.takeover

    def _check_filters(self, wanted: FilterRequest, flags: StreamFlag) -> None:
        if self.sends_prepares and (wanted.collections is not None or wanted.scope is not None):
            raise NotSupported("a stream of some collections with synchronous writes")
        if self.pushed_filter is not None and flags & (StreamFlag.TAKEOVER | StreamFlag.CACHE_TRANSFER):
            raise NotSupported("a takeover or a cache transfer on a connection with a filter")

    def _check_stream_id(self, stream_id: int | None) -> None:
        if (stream_id is None) == self.uses_stream_ids:
            text = "no stream id, on a connection that has them" if self.uses_stream_ids else f"stream id {stream_id}"
            raise StatusError(text, status=Status.DCP_STREAMID_INVALID)

    def _make_encoder(self, wanted: FilterRequest) -> StreamEncoder | None:
        """Return the encoder of a stream, None for a consumer without collections."""
        if not self.collections:
            return None
        stream_filter = make_filter(self.session, self.bucket, wanted)
        return StreamEncoder(stream_filter, wanted.stream_id, self.pushed_filter)

    def close_stream(self, vbucket: int, stream_id: int | None = None) -> None:
        """Close a stream at the consumer's request. Raises StatusError if the stream does not exist or is ending."""
        self._check_stream_id(stream_id)
        stream = self.streams.get(_make_stream_key(vbucket, stream_id))
        if stream is None or stream.reason is not None:
            text = f"vbucket {vbucket} has no stream"
            if stream_id is not None and self._streams_by_vbucket[vbucket]:
                raise StatusError(f"{text} {stream_id}", status=Status.DCP_STREAMID_INVALID)
            raise StatusError(text, status=Status.DCP_STREAM_NOT_FOUND) if self.uses_v7_statuses else KeyNotFound(text)
        if self.end_on_close:
            self.end_stream(stream, StreamEndReason.CLOSED)
            return
        self.bucket.remove_waiting_stream(stream)
        stream.close()
        self.remove_stream(stream)

    def renew_login(self) -> bool:
        """End the streams that the user may no longer read.

        Without collections, kv_engine ends such a stream with status OK, as if all changes had been sent. Here, the
        connection ends instead.

        Returns:
            Whether the connection may continue.
        """
        if not self.collections:
            return False
        user, bucket = self.session.login.effective_user, self.bucket
        for stream in tuple(self.streams.values()):
            if not can_stream(user, bucket, stream.encoder.filter):
                self.end_stream(stream, StreamEndReason.LOST_PRIVILEGES if stream.reason is None else stream.reason)
        return True

    def end_stream(self, stream: ProducerStream, reason: StreamEndReason) -> None:
        """End a stream with its next message, and its takeover at once."""
        self._stop_takeover(stream)
        super().end_stream(stream, reason)

    def remove_stream(self, stream: ProducerStream) -> None:
        """Forget a stream that has ended, with its takeover and the acknowledgements of its consumer."""
        self._stop_takeover(stream)
        self.bucket.sync_writes.forget(stream.vbucket, self.consumer_name, stream)
        super().remove_stream(stream)

    def _stop_takeover(self, stream: ProducerStream) -> None:
        if stream.takeover is not None and self._takeovers.get(stream.opaque) is stream.takeover:
            self._takeovers.pop(stream.opaque).stop()

    def stop(self) -> None:
        """Stop all streams, their takeovers and the NOOPs."""
        for stream in self.streams.values():
            self.bucket.sync_writes.forget(stream.vbucket, self.consumer_name, stream)
        super().stop()
        self.noops.stop()
        for takeover in self._takeovers.values():
            takeover.stop()
        self._takeovers.clear()

    def handle_response(self, frame: Frame) -> bytes:
        """Return an empty reply to a response. A response to a NOOP shows that the peer is alive.

        Raises:
            CloseConnection: the consumer refuses a message, or answers none.
        """
        if frame.opcode == Opcode.DCP_NOOP:
            self.noops.handle_answer(frame.opaque)
        elif frame.opcode in ANSWERS and (takeover := self._takeovers.get(frame.opaque)) is not None:
            takeover.handle_answer(frame)
        elif frame.opcode == Opcode.DCP_SET_VBUCKET_STATE:
            pass  # the takeover has ended
        elif (frame.opcode, frame.specific) == (Opcode.DCP_CACHE_TRANSFER, Status.ENOMEM):
            self._cancel_caches(frame.opaque)
        elif frame.opcode not in _ANSWERED_OPCODES or frame.specific not in self._list_harmless_statuses(frame.opcode):
            raise CloseConnection(f"response to {name_opcode(frame.opcode)} with status 0x{frame.specific:02x}")
        return b""

    def _list_harmless_statuses(self, opcode: int) -> frozenset[Status]:
        """Return the statuses of answers after which the connection goes on.

        A commit or abort is sent only to a consumer that has the prepare, so a missing key there is a lost prepare.
        """
        if self.uses_v7_statuses:
            return _STATUSES_AFTER_CLOSE
        if opcode in (Opcode.DCP_COMMIT, Opcode.DCP_ABORT):
            return _STATUSES_AFTER_CLOSE | {Status.KEY_EEXISTS}
        return _STATUSES_AFTER_CLOSE_BEFORE_7

    def _cancel_caches(self, opaque: int) -> None:
        """End a cache transfer, since the consumer has no memory for it. The changes follow."""
        for stream in self.streams.values():
            if stream.opaque == opaque and stream.cache is not None:
                stream.cache.cancel()

    def details(self) -> dict[str, Any]:
        """Return the statistics of the connection, by their name in STAT."""
        return {
            "flags": int(self.flags),
            "noop_enabled": self.noops.enabled,
            "noop_wait": self.noops.is_unanswered,
            "noop_tx_interval": self.noops.interval,
            "noop_answered": int(self.noops.answered_at),
            "flow_control": "enabled" if self.flow.window else "none",
            "max_buffer_bytes": self.flow.window,
            "unacked_bytes": self.flow.unacked,
            "total_acked_bytes": self.flow.acked,
        }


def _make_stream_key(vbucket: int, stream_id: int | None) -> int:
    """Return the key of a stream among the streams of a connection."""
    return vbucket | (stream_id or 0) << _VBUCKET_BITS


def _sees_all(encoder: StreamEncoder | None) -> bool:
    """Return whether a stream has all collections."""
    return encoder is not None and not encoder.filter.is_limited


def _make_stream_request(vbucket: Vbucket, request: StreamReq, flags: StreamFlag) -> StreamRequest:
    """Return the consumer's position and range. FROM_LATEST means that the consumer has all changes.

    A takeover has no end: it ends when the consumer has the vbucket.
    """
    start, low, high, vbuuid = request.start_seqno, request.snap_start, request.snap_end, request.vbuuid
    end = MAX_SEQNO if flags & StreamFlag.TAKEOVER else request.end_seqno
    if flags & StreamFlag.FROM_LATEST:
        start = low = high = vbucket.changes.high_seqno
        vbuuid = vbuuid or vbucket.history.vbuuid
    return StreamRequest(
        start_seqno=start,
        end_seqno=end,
        vbuuid=vbuuid,
        snap_start=low,
        snap_end=high,
        strict_vbuuid=bool(flags & StreamFlag.STRICT_VBUUID),
        ignore_purged=bool(flags & StreamFlag.IGNORE_PURGED_TOMBSTONES),
    )
