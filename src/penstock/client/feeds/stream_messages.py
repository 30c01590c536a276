"""What a feed does with the messages of its streams, beside changes: snapshots, flushes, events, ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.client.connect.dropped import DropReason
from penstock.client.feeds.collection_events import change_of
from penstock.client.feeds.consumer_feed import FeedState
from penstock.client.feeds.order import foreign_vbucket, is_flush, wrong_snapshot
from penstock.client.feeds.resume_policy import is_whole_end
from penstock.client.feeds.selection import CollectionFilter
from penstock.client.feeds.stream_answers import StreamAnswers
from penstock.client.feeds.stream_changes import StreamChanges
from penstock.client.feeds.stream_position import UNKNOWN_END
from penstock.client.feeds.stream_requests import LogUse, StreamRequests
from penstock.client.feeds.stream_set import StreamOutput, StreamSet
from penstock.client.feeds.vbucket_stream import UNNAMED, EndRule, VbucketStream, rollback_row
from penstock.errors import AccessDenied, ConnectionClosed, RemoteProtocolError
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.codec.frame import Frame, join_frame
from penstock.wire.codec.layout import Message, decode
from penstock.wire.codec.opcodes import Magic
from penstock.wire.codec.statuses import StreamEndReason
from penstock.wire.columns.heads import Run
from penstock.wire.columns.schema import signed64
from penstock.wire.messages.dcp import DcpNoop, SeqnoAdvanced, SnapshotMarker, SnapshotMarkerV2, StreamEnd, SystemEvent
from penstock.wire.protocol.stream_state import EVENTS, StreamEvent, StreamState, advance

__all__ = ["StreamMessages"]


class StreamMessages:
    """Takes what arrives, in any dialect that streams by vbucket."""

    def __init__(
        self,
        state: FeedState,
        output: StreamOutput,
        streams: StreamSet,
        requests: StreamRequests,
        collection_filter: CollectionFilter | None,
        *,
        end_rule: EndRule,
    ) -> None:
        self._state = state
        self._output = output
        self._streams = streams
        self._requests = requests
        self._filter = collection_filter
        self._answers = StreamAnswers(state, streams, requests)
        self._changes = StreamChanges(state, streams, requests, end_rule=end_rule)

    def on_run(self, run: Run) -> None:
        self._changes.take(run)

    def on_frame(self, frame: Frame) -> None:
        dialect, output = self._state.dialect, self._output
        if self._requests.rules.is_answer(frame):
            self._answers.take(frame)
            return
        message = decode(frame, dialect)
        if isinstance(message, DcpNoop):
            output.outgoing.append(join_frame(Frame(Magic.RESPONSE, frame.opcode, opaque=frame.opaque)))
            output.acknowledge(0, at_once=True)
            return
        event = EVENTS[dialect].get(type(message))
        handle = None if event is None else _HANDLERS.get(event) or _DATA_HANDLERS.get(type(message))
        if event is None or handle is None:
            raise RemoteProtocolError(f"{message.opcode.name} from a producer")
        output.arrived_bytes += frame.size
        stream = self._requests.stream_of(frame.opaque)
        if stream is None:
            self._state.opaques[output.via].check(frame.opaque, frame.specific, message.opcode.name)
            return
        if stream.vbucket != frame.specific:
            raise foreign_vbucket(frame.specific, stream.vbucket, message.opcode.name)
        stream.state = advance(stream.state, event, stream.vbucket, dialect)
        handle(self, stream, message)

    # snapshots

    def _on_marker(self, stream: VbucketStream, marker: SnapshotMarker | SnapshotMarkerV2) -> None:
        vbucket, position, context = stream.vbucket, stream.position, self._state.context
        last = position.seqno
        begins_again = is_flush(marker, last, stream.least_start)
        if begins_again or marker.start_seqno > marker.end_seqno or marker.end_seqno < position.seqno:
            if begins_again:
                self._begin_again()
            bounds = marker.start_seqno, marker.end_seqno
            raise wrong_snapshot(vbucket, *bounds, last, begins_again=begins_again)
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

    # flushes

    def _begin_again(self) -> None:
        """Begin every stream at 0 again: the bucket was flushed, and its seqnos start at 1 under the same vbuuids.

        To the producer a position of the old history looks like one of the new, once that has grown as long.
        """
        self._output.flush()  # first, or rows of the old history would be handed out with positions of the new one
        for stream in [self._streams.by_vbucket[vbucket] for vbucket in sorted(self._streams.unfinished)]:
            if not stream.position.seqno:
                continue
            # What still comes by other connections is of the old history, or out of its place in the new one.
            self._requests.forget(stream.opaque)
            stream.state = StreamState.ENDED
            last = stream.position.seqno
            if self._requests.resume(stream, stream.policy.after_flush(stream.position)):
                stream.troubled_until = max(stream.troubled_until, last)
                self._output.moved.pop(stream.vbucket, None)

    def _on_flush(self, stream: VbucketStream, message: Message) -> None:
        """Go on with the history that begins here, whose branch is still to be asked for."""
        decision = stream.policy.after_flush(stream.position)
        if decision is None:
            self._requests.give_up(stream)
            return
        stream.least_end = stream.received = 0
        stream.is_whole = False
        position = replace(decision.position, history=decision.position.history + 1)  # the stream goes on by itself
        self._streams.adopt(stream, position, UNNAMED)
        self._output.rows.append(rollback_row(stream.vbucket, None, position, 0))
        self._requests.make_log_due(stream.vbucket, LogUse.RENAME)

    # other messages

    def _on_nothing(self, stream: VbucketStream, message: Message) -> None:
        """Pass over a stream's start, and a state that the vbucket shall have here, which is for replicas."""
        is_state = EVENTS[self._state.dialect][type(message)] is StreamEvent.STATE
        self._state.dropped.add(DropReason.STATE if is_state else DropReason.STREAM_START)

    def _on_system_event(self, stream: VbucketStream, message: SystemEvent) -> None:
        names = self._state.context.collections
        if names is None:
            raise RemoteProtocolError(f"vbucket {stream.vbucket}: system event of a connection without collections")
        change = change_of(message, names, self._state.context)
        if self._changes.is_wanted(stream, message.by_seqno):
            self._output.rows.append(change)

    def _on_advanced(self, stream: VbucketStream, message: SeqnoAdvanced) -> None:
        """Go on to where there is nothing more for this stream; a repeated message does no harm."""
        if message.by_seqno != stream.position.seqno:
            self._changes.move(stream, message.by_seqno, message.by_seqno)
        else:
            self._state.dropped.add(DropReason.REPEATED_ADVANCE)

    def _on_end(self, stream: VbucketStream, message: Message) -> None:
        self._requests.forget(stream.opaque)
        is_empty = isinstance(message, StreamEnd) and message.reason == StreamEndReason.FILTER_EMPTY
        if is_empty and self._filter and self._filter.value:
            self._streams.finish_when_confirmed(stream)  # what was wanted is gone, and will not be there again
            return
        position, reason = stream.position, self._requests.rules.end_reason(message)
        if isinstance(message, StreamEnd) and message.reason == StreamEndReason.LOST_PRIVILEGES:
            raise AccessDenied(
                f"vbucket {stream.vbucket}: the user lost the privilege to stream it, and the stream ended at seqno "
                f"{position.seqno}: give the user a role for it, such as stream_reader, and start again from there"
            )
        at_end = is_whole_end(position, stream.end_seqno, is_whole=stream.is_whole)
        if reason or stream.end_seqno == MAX_SEQNO or not at_end:
            about = f"vbucket {stream.vbucket}: the producer ended the stream at {position.seqno}, {reason or 'OK'}"
            self._streams.fail(stream, ConnectionClosed(about), was_open=True)
        else:
            self._streams.finish_when_confirmed(stream)


_Handler = Callable[[StreamMessages, VbucketStream, Any], None]
"""Takes the messages of one event, or of one type, which its signature names."""

_HANDLERS: dict[StreamEvent, _Handler] = {
    StreamEvent.START: StreamMessages._on_nothing,
    StreamEvent.MARKER: StreamMessages._on_marker,
    StreamEvent.SNAPSHOT_START: StreamMessages._on_snapshot_start,
    StreamEvent.SNAPSHOT_END: StreamMessages._on_snapshot_end,
    StreamEvent.FLUSH: StreamMessages._on_flush,
    StreamEvent.STATE: StreamMessages._on_nothing,
    StreamEvent.END: StreamMessages._on_end,
}
"""What a message of a stream does, behind the change of state in the table of its dialect."""

_DATA_HANDLERS: dict[type[Message], _Handler] = {
    SystemEvent: StreamMessages._on_system_event,
    SeqnoAdvanced: StreamMessages._on_advanced,
}
"""What the changes do that do not come in runs."""
