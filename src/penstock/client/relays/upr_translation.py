"""The translation between a UPR producer and a DCP consumer. It reads and writes no socket.

| DCP, of the consumer | UPR, of the producer |
| --- | --- |
| CONTROL | refused, since UPR has no settings |
| STREAM_REQ | GET_FAILOVER_LOG, then STREAM_REQ from the last complete snapshot: UPR has no snapshot bounds |
| the failover log of the accepted stream | that of GET_FAILOVER_LOG |
| ROLLBACK | ROLLBACK, or KEY_ENOENT for an unknown branch |
| SNAPSHOT_MARKER | SNAPSHOT_START, which names no end |
| BUFFER_ACK | none: a full socket stops the producer |

A marker must name the end of its snapshot before the first change. Here it is the high seqno of the vbucket, read after
the snapshot has begun: the snapshot cannot end above it. If it ends below, the next one continues it. So the consumer
counts a snapshot as complete only with a seqno that was the newest one, as UPR_SNAPSHOT_END would show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.feeds.dialect_rules import (
    LOG_FIRST_RULES,
    AcceptedAnswer,
    RefusedAnswer,
    RollbackAnswer,
    UnknownBranchAnswer,
)
from penstock.client.relays.refused_messages import make_refused_error
from penstock.errors import ConnectionClosed, RemoteProtocolError
from penstock.store.history.failover_log import FailoverLog
from penstock.store.history.rollback import StreamRequest, find_rollback_point
from penstock.wire.codec.constants import MAX_SEQNO, Dialect
from penstock.wire.codec.flags import SnapshotFlag
from penstock.wire.codec.frame import Frame, join_frame, name_opcode
from penstock.wire.codec.layout import Request, decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode, UprOpcode
from penstock.wire.codec.statuses import Status, StreamEndReason, UprEndReason
from penstock.wire.columns.heads import Run, StreamContext
from penstock.wire.columns.run_decoder import decode_run
from penstock.wire.columns.run_encoder import encode_columns
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import CloseStream, SnapshotMarker, StreamEnd, StreamReq, pack_rollback
from penstock.wire.messages.kv import pack_failover_log
from penstock.wire.messages.upr import UprSnapshotStart, UprStreamEnd, UprStreamReq
from penstock.wire.protocol.frame_receiver import ReceiveEvent
from penstock.wire.protocol.stream_state import EVENTS, StreamEvent, StreamState, advance_state

_RULES: Final = LOG_FIRST_RULES[Dialect.UPR]
_EVENTS: Final = EVENTS[Dialect.UPR]
_END_REASONS: Final = {
    int(UprEndReason.OK): StreamEndReason.OK,
    int(UprEndReason.STATE_CHANGED): StreamEndReason.STATE_CHANGED,
}


class Translated(NamedTuple):
    """The messages for both sides.

    Attributes:
        to_source: the bytes for the producer.
        to_target: the bytes for the consumer.
        ended: vbuckets whose streams the producer has ended, with its reason.
    """

    to_source: bytes = b""
    to_target: bytes = b""
    ended: tuple[tuple[int, int], ...] = ()


class _TranslatedStream:
    """One stream.

    Attributes:
        request: the request of the consumer.
        state: the state of the producer's stream.
        log: the producer's failover log; empty before its answer.
        snapshot_end: the end of the newest marker. The next one begins there.
    """

    __slots__ = ("log", "request", "snapshot_end", "state")

    def __init__(self, request: StreamReq) -> None:
        self.request = request
        self.state = StreamState.REQUESTED
        self.log: FailoverLog = ()
        self.snapshot_end = request.snap_start

    def advance(self, event: StreamEvent) -> None:
        self.state = advance_state(self.state, event, self.request.vbucket, Dialect.UPR)


class UprTranslation:
    """Translates the messages of one connection on each side. Streams have the consumer's opaques on both."""

    def __init__(self, vbuckets: int) -> None:
        """Create a translation without streams. vbuckets: the number of vbuckets of the bucket."""
        self._context = StreamContext(vbuckets)
        self._streams: dict[int, _TranslatedStream] = {}
        self._opaques = np.zeros(vbuckets, np.uint32)
        self._starts = np.zeros(vbuckets, np.int64)

    # The consumer

    def translate_request(self, frame: Frame) -> Translated:
        """Return the messages that follow from a frame of the consumer.

        Raises:
            RemoteProtocolError: no DCP consumer sends the frame, or it is malformed.
            MessageRefused: the consumer has refused a message.
            ConnectionClosed: the consumer has closed a stream.
        """
        if frame.magic == Magic.RESPONSE:
            if frame.specific == Status.SUCCESS:
                return Translated()
            streams = [number for number, each in self._streams.items() if each.request.opaque == frame.opaque]
            raise make_refused_error(frame, "the target", *streams)
        if frame.opcode == Opcode.DCP_BUFFER_ACK:
            return Translated()
        if frame.opcode == Opcode.DCP_CONTROL:
            return Translated(to_target=_encode_reply(Opcode.DCP_CONTROL, frame.opaque, Status.EINVAL))
        request = decode_frame(frame)
        if isinstance(request, CloseStream):
            raise ConnectionClosed(f"vbucket {request.vbucket}: the target closed its stream")
        if not isinstance(request, StreamReq):
            raise RemoteProtocolError(f"{name_opcode(frame.opcode)} of the target, expected a DCP consumer")
        return self._request_stream(request)

    def _request_stream(self, request: StreamReq) -> Translated:
        if request.flags or request.vbucket >= len(self._opaques):
            return Translated(to_target=_encode_reply(Opcode.DCP_STREAM_REQ, request.opaque, Status.EINVAL))
        old = self._streams.get(request.vbucket)
        if old is not None and old.state is not StreamState.ENDED:
            raise ConnectionClosed(f"vbucket {request.vbucket}: UPR cannot end its first stream")
        self._streams[request.vbucket] = _TranslatedStream(request)
        self._opaques[request.vbucket] = request.opaque
        self._starts[request.vbucket] = request.start_seqno
        return Translated(to_source=_RULES.make_log_request(request.vbucket, request.opaque).encode())

    # The producer

    def needs_seqnos(self, events: Iterable[ReceiveEvent]) -> bool:
        """Return whether the translation of the events needs high seqnos: a snapshot begins."""
        return any(
            isinstance(event, Frame) and event.magic == Magic.REQUEST and event.opcode == UprSnapshotStart.opcode
            for event in events
        )

    def translate_events(self, events: Iterable[ReceiveEvent], seqnos: Mapping[int, int]) -> Translated:
        """Return the messages that follow from events of the producer's connection.

        Args:
            events: the events.
            seqnos: vbucket -> the high seqno in the producer's default collection, read after the events.

        Raises:
            RemoteProtocolError: a message is malformed, or belongs to no stream.
            OrderViolation: a message is not due.
            ConnectionClosed: the producer has emptied a vbucket, or does not serve it any more.
        """
        parts = [
            self._translate_run(event) if isinstance(event, Run) else self._translate_frame(event, seqnos)
            for event in events
            if isinstance(event, Run | Frame)
        ]
        return Translated(
            b"".join(part.to_source for part in parts),
            b"".join(part.to_target for part in parts),
            tuple(end for part in parts for end in part.ended),
        )

    def _translate_run(self, run: Run) -> Translated:
        """Return the changes of a run. The consumer has those before its start: they complete its open snapshot."""
        batch = decode_run(run, self._context)
        vbuckets = batch.column("vbucket").to_numpy()
        for vbucket in np.unique(vbuckets).tolist():
            self._find_stream(vbucket).advance(StreamEvent.DATA)
        new = batch.column("seqno").to_numpy() > self._starts[vbuckets]
        if not new.all():
            batch, vbuckets = batch.filter(pa.array(new)), vbuckets[new]
        # A consumer without delete times takes an expiration as a deletion.
        events = batch.column("event")
        deletions = pc.if_else(pc.equal(events, str(Event.EXPIRATION)), str(Event.DELETION), events)
        batch = batch.set_column(batch.schema.get_field_index("event"), batch.schema.field("event"), deletions)
        return Translated(to_target=encode_columns(batch, self._opaques[vbuckets]).buffer.to_pybytes())

    def _translate_frame(self, frame: Frame, seqnos: Mapping[int, int]) -> Translated:
        if _RULES.is_answer(frame):
            return self._translate_answer(frame)
        message = decode_frame(frame, Dialect.UPR)
        event = _EVENTS.get(type(message))
        if event is None or not isinstance(message, Request):
            raise RemoteProtocolError(
                f"{UprOpcode(frame.opcode).name} of the source, expected a message of a UPR stream"
            )
        stream = self._find_stream(message.vbucket)
        stream.advance(event)
        translate = _TRANSLATIONS.get(event)
        return Translated() if translate is None else translate(stream, message, seqnos)

    def _find_stream(self, vbucket: int) -> _TranslatedStream:
        stream = self._streams.get(vbucket)
        if stream is None:
            raise RemoteProtocolError(f"vbucket {vbucket}: a message without a stream")
        return stream

    def _translate_answer(self, frame: Frame) -> Translated:
        stream = next((each for each in self._streams.values() if each.request.opaque == frame.opaque), None)
        if stream is None or stream.state is not StreamState.REQUESTED:
            raise RemoteProtocolError(f"answer to opcode 0x{frame.opcode:02x} of the source to no request")
        if frame.opcode == UprOpcode.UPR_GET_FAILOVER_LOG and not stream.log:
            return _translate_log(stream, frame)
        answer = _RULES.read_stream_answer(frame)
        if isinstance(answer, AcceptedAnswer) and stream.log:
            stream.advance(StreamEvent.ACCEPTED)
            return _answer_stream(stream, Status.SUCCESS, pack_failover_log(stream.log))
        if isinstance(answer, RollbackAnswer):
            return _roll_back(stream, answer.seqno)
        if isinstance(answer, UnknownBranchAnswer):
            return _roll_back(stream, 0)
        if isinstance(answer, RefusedAnswer):
            return _refuse(stream, answer.status)
        raise RemoteProtocolError(f"answer to opcode 0x{frame.opcode:02x} of the source, which was not requested")


def _translate_log(stream: _TranslatedStream, frame: Frame) -> Translated:
    """Return the stream request that follows the failover log, or the rollback that the log shows already."""
    log = _RULES.read_log_answer(frame)
    if isinstance(log, RefusedAnswer):
        return _refuse(stream, log.status)
    request = stream.request
    position = StreamRequest(
        start_seqno=request.start_seqno,
        vbuuid=request.vbuuid,
        snap_start=request.snap_start,
        snap_end=request.snap_end,
    )
    point = find_rollback_point(log, MAX_SEQNO, 0, position)
    if point is not None:
        return _roll_back(stream, point)
    stream.log = log
    start = request.start_seqno if request.start_seqno == request.snap_end else request.snap_start
    vbuuid = request.vbuuid if start else 0
    following = UprStreamReq(
        vbucket=request.vbucket,
        opaque=request.opaque,
        start_seqno=start,
        end_seqno=MAX_SEQNO,
        vbuuid=vbuuid,
        high_seqno=next((entry.seqno for entry in log if entry.vbuuid == vbuuid), 0),
    )
    return Translated(to_source=following.encode())


def _start_snapshot(stream: _TranslatedStream, message: Request, seqnos: Mapping[int, int]) -> Translated:
    end = seqnos.get(message.vbucket)
    if end is None:
        raise ConnectionClosed(f"vbucket {message.vbucket}: the source does not serve it any more")
    if end <= stream.snapshot_end:
        return Translated()  # it continues the open snapshot
    marker = SnapshotMarker(
        vbucket=message.vbucket,
        opaque=stream.request.opaque,
        start_seqno=stream.snapshot_end,
        end_seqno=end,
        flags=SnapshotFlag.MEMORY,
    )
    stream.snapshot_end = end
    return Translated(to_target=marker.encode())


def _end_stream(stream: _TranslatedStream, message: Request, seqnos: Mapping[int, int]) -> Translated:
    assert isinstance(message, UprStreamEnd)
    reason = _END_REASONS.get(message.reason, StreamEndReason.STATE_CHANGED)
    end = StreamEnd(vbucket=message.vbucket, opaque=stream.request.opaque, reason=reason)
    return Translated(to_target=end.encode(), ended=((message.vbucket, message.reason),))


def _restart(stream: _TranslatedStream, message: Request, seqnos: Mapping[int, int]) -> Translated:
    """Raise ConnectionClosed: the consumer learns the new history or state with a new stream, which UPR cannot open."""
    raise ConnectionClosed(f"vbucket {message.vbucket}: {UprOpcode(message.opcode).name} of the source")


_TRANSLATIONS: Final[dict[StreamEvent, Callable[[_TranslatedStream, Request, Mapping[int, int]], Translated]]] = {
    StreamEvent.SNAPSHOT_START: _start_snapshot,
    StreamEvent.END: _end_stream,
    StreamEvent.FLUSH: _restart,
    StreamEvent.STATE: _restart,
}
"""Event -> its translation. The consumer needs no message for the other events."""


def _roll_back(stream: _TranslatedStream, seqno: int) -> Translated:
    stream.advance(StreamEvent.ROLLBACK)
    return _answer_stream(stream, Status.ROLLBACK, pack_rollback(seqno))


def _refuse(stream: _TranslatedStream, status: int) -> Translated:
    stream.advance(StreamEvent.REFUSED)
    return _answer_stream(stream, status)


def _answer_stream(stream: _TranslatedStream, status: int, value: bytes = b"") -> Translated:
    return Translated(to_target=_encode_reply(Opcode.DCP_STREAM_REQ, stream.request.opaque, status, value))


def _encode_reply(opcode: Opcode, opaque: int, status: int, value: bytes = b"") -> bytes:
    return join_frame(Frame(int(Magic.RESPONSE), int(opcode), int(status), opaque=opaque, value=value))
