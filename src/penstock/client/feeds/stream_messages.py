"""Processing of the messages of a feed's streams: snapshots, flushes, events, ends. Runs go to StreamChanges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.client.connect.dropped_frames import DropReason
from penstock.client.feeds.collection_events import make_event_change
from penstock.client.feeds.collection_selection import CollectionFilter
from penstock.client.feeds.consumer_feed import FeedState
from penstock.client.feeds.resume_policy import is_complete_end
from penstock.client.feeds.stream_answers import StreamAnswers
from penstock.client.feeds.stream_changes import StreamChanges
from penstock.client.feeds.stream_order import is_flush, make_foreign_vbucket_error, make_snapshot_error
from penstock.client.feeds.stream_position import UNKNOWN_END
from penstock.client.feeds.stream_requests import LogPurpose, StreamRequests
from penstock.client.feeds.stream_set import StreamOutput, StreamSet
from penstock.client.feeds.vbucket_stream import UNKNOWN_LOG, EndRule, VbucketStream, make_rollback_row
from penstock.errors import AccessDenied, ConnectionClosed, OrderViolation, RemoteProtocolError
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.codec.frame import Frame, join_frame
from penstock.wire.codec.layout import Message, decode_frame
from penstock.wire.codec.opcodes import Magic
from penstock.wire.codec.statuses import StreamEndReason
from penstock.wire.columns.heads import Run
from penstock.wire.columns.schema import signed64
from penstock.wire.messages.dcp import (
    DcpNoop,
    OsoSnapshot,
    SeqnoAdvanced,
    SnapshotMarker,
    SnapshotMarkerV2,
    StreamEnd,
    SystemEvent,
)
from penstock.wire.protocol.stream_state import EVENTS, OUT_OF_ORDER_EVENTS, StreamEvent, StreamState, advance_state


class StreamMessages:
    """Handles the messages that arrive, in any dialect with one stream for each vbucket."""

    def __init__(
        self,
        state: FeedState,
        output: StreamOutput,
        streams: StreamSet,
        requests: StreamRequests,
        collection_filter: CollectionFilter | None,
        *,
        end_rule: EndRule,
        out_of_order: bool,
    ) -> None:
        self._state = state
        self._output = output
        self._streams = streams
        self._requests = requests
        self._filter = collection_filter
        self._out_of_order = out_of_order
        self._events = EVENTS[state.dialect]
        self._answers = StreamAnswers(state, streams, requests, collection_filter)
        self._changes = StreamChanges(state, streams, requests, collection_filter, end_rule=end_rule)

    def on_run(self, run: Run) -> None:
        """Handle consecutive data messages."""
        self._changes.receive_run(run)

    def on_frame(self, frame: Frame) -> None:
        """Handle any other message: an answer, a NOOP, or a message of a stream.

        Raises:
            RemoteProtocolError: a producer must not send this message. OrderViolation if the message has the wrong
                vbucket, or is not allowed in the state of its stream.
        """
        dialect, output = self._state.dialect, self._output
        if self._requests.rules.is_answer(frame):
            self._answers.handle_answer(frame)
            return
        message = decode_frame(frame, dialect)
        if isinstance(message, DcpNoop):
            output.outgoing.append(join_frame(Frame(Magic.RESPONSE, frame.opcode, opaque=frame.opaque)))
            output.acknowledge(0, at_once=True)
            return
        event = self._events.get(type(message))
        if self._out_of_order and isinstance(message, OsoSnapshot):
            event = OUT_OF_ORDER_EVENTS.get(message.flags)
        handle = None if event is None else _HANDLERS.get(event) or _DATA_HANDLERS.get(type(message))
        if event is None or handle is None:
            raise RemoteProtocolError(f"{message.opcode.name} from a producer")
        output.arrived_bytes += frame.size
        stream = self._requests.find_stream(frame.opaque)
        if stream is None:
            self._state.opaques[output.connection_id].check(frame.opaque, frame.specific, message.opcode.name)
            return
        if stream.vbucket != frame.specific:
            raise make_foreign_vbucket_error(frame.specific, stream.vbucket, message.opcode.name)
        stream.state = advance_state(stream.state, event, stream.vbucket, dialect)
        handle(self, stream, message)

    # snapshots

    def _on_marker(self, stream: VbucketStream, marker: SnapshotMarker | SnapshotMarkerV2) -> None:
        vbucket, position, context = stream.vbucket, stream.position, self._state.context
        last = position.seqno
        is_flushed = is_flush(marker, last, stream.least_start)
        if is_flushed or marker.start_seqno > marker.end_seqno or marker.end_seqno < position.seqno:
            if is_flushed:
                self._begin_again()
            bounds = marker.start_seqno, marker.end_seqno
            raise make_snapshot_error(vbucket, *bounds, last, is_flushed=is_flushed)
        if isinstance(marker, SnapshotMarkerV2) and marker.purge_seqno is not None:
            stream.purge_seqno = marker.purge_seqno
        stream.least_start = marker.end_seqno + 1
        stream.snap_end = max(marker.end_seqno, position.snap_end)
        context.snapshot_start[vbucket] = signed64(marker.start_seqno)
        context.snapshot_end[vbucket] = signed64(marker.end_seqno)
        context.snapshot_flags[vbucket] = marker.flags

    def _on_snapshot_start(self, stream: VbucketStream, message: Message) -> None:
        stream.snap_end = UNKNOWN_END
        stream.is_whole = False

    def _on_snapshot_end(self, stream: VbucketStream, message: Message) -> None:
        stream.is_whole = True
        if stream.is_confirmed:
            self._streams.complete_snapshot(stream)

    def _on_unordered_start(self, stream: VbucketStream, message: OsoSnapshot) -> None:
        """Begin a snapshot out of order. Its changes have no marker, so their snapshot is 0 to 0."""
        vbucket, last, context = stream.vbucket, stream.position.seqno, self._state.context
        if last:
            raise OrderViolation(f"vbucket {vbucket}: snapshot out of order after seqno {last}", vbucket=vbucket)
        stream.unordered_seqno = 0
        for column in (context.snapshot_start, context.snapshot_end, context.snapshot_flags):
            column[vbucket] = 0

    def _on_unordered_end(self, stream: VbucketStream, message: OsoSnapshot) -> None:
        """Move the position to the highest seqno of the snapshot: all changes up to there have arrived."""
        seqno, stream.unordered_seqno = stream.unordered_seqno, None
        if seqno:
            stream.snap_end = seqno
            self._streams.advance(stream, seqno)

    # flushes

    def _begin_again(self) -> None:
        """Restart every stream from 0: the bucket was flushed, and its seqnos start at 1 again under the same vbuuids.

        Once the new history is as long as the old one, a producer cannot distinguish positions of the two histories.
        """
        self._output.flush()  # first: else rows of the old history would be delivered with new positions
        for stream in [self._streams.by_vbucket[vbucket] for vbucket in sorted(self._streams.unfinished)]:
            if not stream.position.seqno and stream.unordered_seqno is None:
                continue
            # Other connections may still bring messages of the old history, or of the new one in the wrong order.
            self._requests.forget(stream.opaque)
            stream.state = StreamState.ENDED
            last = stream.position.seqno
            if self._requests.resume(stream, stream.policy.decide_on_flush(stream.position)):
                stream.recovering_until = max(stream.recovering_until, last)
                self._output.moved_streams.pop(stream.vbucket, None)

    def _on_flush(self, stream: VbucketStream, message: Message) -> None:
        """Continue with the history that the flush began. Its branch is unknown, so the log is requested."""
        decision = stream.policy.decide_on_flush(stream.position)
        if decision is None:
            self._requests.give_up(stream)
            return
        stream.least_end = stream.received = 0
        stream.is_whole = False
        # The producer continues without a new request, so no accepting answer increases the history later.
        position = replace(decision.position, history=decision.position.history + 1)
        self._streams.adopt_history(stream, position, UNKNOWN_LOG)
        self._output.rows.append(make_rollback_row(stream.vbucket, None, position, 0))
        self._requests.schedule_log(stream.vbucket, LogPurpose.LEARN_BRANCHES)

    # other messages

    def _skip_message(self, stream: VbucketStream, message: Message) -> None:
        """Drop the start of a stream, or a vbucket state, which only replicas use."""
        is_state = self._events[type(message)] is StreamEvent.STATE
        self._state.dropped.add(DropReason.VBUCKET_STATE if is_state else DropReason.STREAM_START)

    def _on_system_event(self, stream: VbucketStream, message: SystemEvent) -> None:
        names = self._state.context.collections
        if names is None:
            raise RemoteProtocolError(f"vbucket {stream.vbucket}: system event of a connection without collections")
        change, manifest_uid = make_event_change(message, names, self._state.context)
        if self._changes.accept_change(stream, message.by_seqno):
            stream.position = replace(stream.position, manifest_uid=manifest_uid)
            self._changes.deliver_change(stream, change)
            if self._filter and self._filter.record_event(stream.requested, change, stream.connection_id):
                self._requests.reopen(stream)

    def _on_advanced(self, stream: VbucketStream, message: SeqnoAdvanced) -> None:
        """Move the position over seqnos without changes for this stream. A repeated message is dropped."""
        if message.by_seqno != stream.position.seqno:
            self._changes.accept_seqnos(stream, message.by_seqno, message.by_seqno)
        else:
            self._state.dropped.add(DropReason.REPEATED_ADVANCE)

    def _on_end(self, stream: VbucketStream, message: Message) -> None:
        self._requests.forget(stream.opaque)
        is_empty = isinstance(message, StreamEnd) and message.reason == StreamEndReason.FILTER_EMPTY
        chosen = self._filter if is_empty and stream.requested.value else None
        if chosen is not None and not chosen.record_empty_end(stream.connection_id):
            # The requested collections were dropped, and no later collection has their ids.
            self._streams.finish_when_confirmed(stream)
            return
        position, reason = stream.position, self._requests.rules.describe_end(message)
        if isinstance(message, StreamEnd) and message.reason == StreamEndReason.LOST_PRIVILEGES:
            raise AccessDenied(
                f"vbucket {stream.vbucket}: the user lost the privilege to stream it, and the stream ended at seqno "
                f"{position.seqno}: give the user a role for it, such as data_dcp_reader, and start again from there"
            )
        is_unordered = stream.unordered_seqno is not None
        at_end = not is_unordered and is_complete_end(position, stream.end_seqno, is_whole=stream.is_whole)
        if reason or stream.end_seqno == MAX_SEQNO or not at_end:
            about = f"vbucket {stream.vbucket}: the producer ended the stream at {position.seqno}, {reason or 'OK'}"
            self._streams.record_failure(stream, ConnectionClosed(about), was_open=True)
        else:
            self._streams.finish_when_confirmed(stream)


_Handler = Callable[[StreamMessages, VbucketStream, Any], None]
"""Handles the messages of one event, or of one type, which the signature names."""

_HANDLERS: dict[StreamEvent, _Handler] = {
    StreamEvent.START: StreamMessages._skip_message,
    StreamEvent.MARKER: StreamMessages._on_marker,
    StreamEvent.SNAPSHOT_START: StreamMessages._on_snapshot_start,
    StreamEvent.SNAPSHOT_END: StreamMessages._on_snapshot_end,
    StreamEvent.OUT_OF_ORDER_START: StreamMessages._on_unordered_start,
    StreamEvent.OUT_OF_ORDER_END: StreamMessages._on_unordered_end,
    StreamEvent.FLUSH: StreamMessages._on_flush,
    StreamEvent.STATE: StreamMessages._skip_message,
    StreamEvent.END: StreamMessages._on_end,
}
"""Event of a message -> its handler, which runs after the change of state in the table of the dialect."""

_DATA_HANDLERS: dict[type[Message], _Handler] = {
    SystemEvent: StreamMessages._on_system_event,
    SeqnoAdvanced: StreamMessages._on_advanced,
}
"""Data message that is not part of a run -> its handler."""
