"""What a DCP producer has beside its streams: flags, settings, and NOOPs that find out whether the peer still lives."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from penstock.errors import InvalidArguments, KeyNotFound, NotMyVbucket, NotSupported, OutOfRange, StatusError
from penstock.node.answers import Goodbye
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.session.session import Session
from penstock.node.streams.stream_encoder import Look, Outlet
from penstock.node.streams.stream_filter import Wish, filter_for, may_stream, read_wish
from penstock.node.streams.stream_producer import Producer
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


class DcpProducer(Producer):
    """flags: an OpenFlag. expiries: they are told apart from deletions, if times are told. v7_codes: streams that are
    not there have a status of their own. end_on_close: a closed stream is told its end. tables: system events come as
    FlatBuffers. compress: values come compressed, if they get smaller. ext_metadata: a section comes behind them.
    several_streams: each has an id, and a vbucket any number of them. collections: they were agreed on before OPEN.

    A NOOP goes out `noop_interval` seconds after the last one, with or without a stream. A peer that leaves one
    unanswered for the node's idle timeout (360 s, as kv_engine's dcp_idle_timeout) is gone.
    """

    def __init__(self, session: Session, bucket: ServedBucket, name: bytes, flags: OpenFlag) -> None:
        super().__init__(session, bucket, Dialect.DCP, name)
        self.flags = flags
        self.collections = session.collections
        self.expiries = False
        self.ext_metadata = self.tables = self.compress = False
        self.several_streams = False
        self.v7_codes = False
        self.end_on_close = False
        self.noop = False
        self.noop_interval = 20.0
        self._noop_opaque = _NOOP_OPAQUES
        self._timer: asyncio.TimerHandle | None = None  # the next NOOP
        self._deadline: asyncio.TimerHandle | None = None  # the end, while a NOOP is unanswered
        self.skips_deletions = bool(flags & OpenFlag.SKIP_DELETES_IN_INITIAL_BACKFILL)
        self.advances = self.collections or self.skips_deletions
        self.choose_look()

    def choose_look(self) -> None:
        """Let changes look as the flags and settings say."""
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
        self.look = Look(form, content, self.tables, self.ext_metadata)

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
        if vbucket.state not in (_ACTIVE if flags & StreamFlag.ACTIVE_VB_ONLY else _STREAMED):
            assert vbucket.state is not None
            raise NotMyVbucket(f"vbucket {vbucket.id} is {vbucket.state.name.lower()}", vbucket=vbucket.id)
        if not self.noop and (self.flags & OpenFlag.INCLUDE_XATTRS or self.collections):
            raise NotSupported("xattrs and collections are streamed only with noop enabled")
        asked = _asked(vbucket, request, flags)
        if error := range_error(asked):
            raise OutOfRange(error)
        wish = read_wish(request.value)
        self._check_stream_id(wish.stream_id)
        outlet = self._outlet(wish)
        high = outlet.chosen.high_seqno(vbucket) if outlet is not None else None
        asked = replace(asked, purge_seqno=wish.purge_seqno, collections_high_seqno=high)
        last = None
        if flags & StreamFlag.DISK_ONLY:  # a bucket in memory counts as persisted
            last = vbucket.persisted_seqno
        elif flags & StreamFlag.TO_LATEST:
            last = vbucket.high_seqno if high is None else high
        key = _key(vbucket.id, wish.stream_id)
        return vbucket, self.open_stream(vbucket, key, request.opaque, asked, last=last, outlet=outlet)

    def _check_stream_id(self, stream_id: int | None) -> None:
        if (stream_id is None) == self.several_streams:
            text = "no stream id, on a connection that has them" if self.several_streams else f"stream id {stream_id}"
            raise StatusError(text, status=Status.DCP_STREAMID_INVALID)

    def _outlet(self, wish: Wish) -> Outlet | None:
        """Return what a stream is to send, None for what who knows no collections sees."""
        if not self.collections:
            return None
        return Outlet(filter_for(self.session, self.bucket, wish), wish.stream_id)

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
            if not may_stream(user, bucket, stream.outlet.chosen):
                self.end_stream(stream, StreamEndReason.LOST_PRIVILEGES if stream.reason is None else stream.reason)
        return True

    def stop(self) -> None:
        super().stop()
        for timer in (self._timer, self._deadline):
            if timer is not None:
                timer.cancel()

    def take_response(self, frame: Frame) -> bytes:
        if frame.opcode == Opcode.DCP_NOOP:
            self._answered_noop(frame.opaque)
        elif frame.opcode == Opcode.DCP_SET_VBUCKET_STATE:
            pass  # about no stream that there is: such a message goes out in a takeover alone
        elif frame.opcode not in _DATA or frame.specific not in (_LATE if self.v7_codes else _LATE_BEFORE_7):
            raise Goodbye(f"response to {opcode_name(frame.opcode)} with status 0x{frame.specific:02x}")
        return b""

    def details(self) -> dict[str, Any]:
        return {
            "flags": int(self.flags),
            "noop_enabled": self.noop,
            "noop_wait": self._deadline is not None,
            "noop_tx_interval": self.noop_interval,
            "flow_control": "enabled" if self.window else "none",
            "max_buffer_bytes": self.window,
            "unacked_bytes": self.unacked,
            "total_acked_bytes": self.acked,
        }

    # Is the peer alive?

    def set_noop(self) -> None:
        """Begin a new interval, if NOOPs are wanted. Source: kv_engine, DcpProducer::maybeSendNoop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.noop:
            self._timer = self._loop.call_later(self.noop_interval, self.session.output.guarded, self._send_noop)

    def _answered_noop(self, opaque: int) -> None:
        """Take a NOOP as answered. Raises Goodbye if it is not the one that was sent."""
        if self._deadline is None or opaque != self._noop_opaque:
            raise Goodbye(f"answer to a NOOP {opaque} that is not open")
        self._deadline.cancel()
        self._deadline = None

    def _send_noop(self) -> None:
        if self._deadline is None:
            self._noop_opaque += 1
            self.session.output.write(DcpNoop(opaque=self._noop_opaque).encode())
            seconds = self.session.node.idle_timeout
            self._deadline = self._loop.call_later(
                seconds, self.session.output.abort, f"NOOP unanswered for {seconds:g} s"
            )
        self.set_noop()


def _key(vbucket: int, stream_id: int | None) -> int:
    """Return what a stream is known by."""
    return vbucket | (stream_id or 0) << _VBUCKET_BITS


def _asked(vbucket: Vbucket, request: StreamReq, flags: StreamFlag) -> StreamRequest:
    """Return what the consumer says of itself, or with FROM_LATEST: that it has all there is."""
    start, low, high, vbuuid = request.start_seqno, request.snap_start, request.snap_end, request.vbuuid
    if flags & StreamFlag.FROM_LATEST:
        start = low = high = vbucket.high_seqno
        vbuuid = vbuuid or vbucket.vbuuid
    return StreamRequest(
        start_seqno=start,
        end_seqno=request.end_seqno,
        vbuuid=vbuuid,
        snap_start=low,
        snap_end=high,
        strict_vbuuid=bool(flags & StreamFlag.STRICT_VBUUID),
        ignore_purged=bool(flags & StreamFlag.IGNORE_PURGED_TOMBSTONES),
    )
