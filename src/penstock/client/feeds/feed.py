"""The consumer without its socket, of the dialects that stream by vbucket: DCP, UPR and its draft.

A Feed is given the events of one connection after another. It opens streams, checks what they send, turns it into
batches, counts bytes for flow control, and keeps the position of every vbucket, so that a new connection goes on where
the last one ended: nothing is lost, nothing comes twice. A rollback is a row like any other.

Where an accepted stream does not say which branches the producer has, the failover log is asked for in front of the
stream request, to decide where to go on, and once more behind it: only if both are the same did the stream begin in the
history that was decided upon. Until then no snapshot counts as complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa

from penstock.client.connect.dropped import DropReason
from penstock.client.feeds.collection_events import change_of
from penstock.client.feeds.dialects import (
    Accepted,
    Answer,
    Refused,
    Rollback,
    UnknownBranch,
)
from penstock.client.feeds.follower import Delivery
from penstock.client.feeds.order import (
    NONE_WANTED,
    RunPart,
    behind_snapshot,
    foreign_vbucket,
    is_flush,
    not_above,
    take_parts,
    wrong_snapshot,
)
from penstock.client.feeds.resume_policy import Resumption, is_whole_end
from penstock.client.feeds.selection import KnownCollections, Selection
from penstock.client.feeds.stream_position import UNKNOWN_END, Position, accepted, advance_to
from penstock.client.feeds.stream_set import AskedLog, StreamTable
from penstock.client.feeds.vbucket_stream import UNNAMED, StreamTarget, VbucketStream, rollback_row
from penstock.errors import AccessDenied, ConnectionClosed, OrderViolation, RemoteProtocolError, status_error
from penstock.store.failover import FailoverLog
from penstock.wire.columns import SMALL_RUN, columns_of, decode_messages
from penstock.wire.constants import MAX_SEQNO, Dialect, Magic, Status, StreamEndReason
from penstock.wire.dcp import (
    BufferAck,
    DcpNoop,
    SeqnoAdvanced,
    SnapshotMarker,
    SnapshotMarkerV2,
    StreamEnd,
    SystemEvent,
)
from penstock.wire.frame import Frame, join_frame, status_name
from penstock.wire.heads import Run
from penstock.wire.inflated import inflate_run, plain_heads
from penstock.wire.layout import Message, decode
from penstock.wire.schema import signed64
from penstock.wire.stream import EVENTS, StreamEvent, StreamState, advance

__all__ = ["Delivery", "Feed", "StreamTarget"]


class Feed(StreamTable):
    """The streams of some vbuckets, each from its own position. Attributes as of Follower."""

    def __init__(
        self,
        vbuckets: int,
        wanted: Mapping[int, StreamTarget],
        *,
        window: int,
        dialect: Dialect = Dialect.DCP,
        exact_end: bool = False,
        ends_now: bool = False,
        every_move: bool = False,
        selection: Selection | None = None,
        xattrs: bool = False,
        values: bool = True,
    ) -> None:
        """vbuckets: how many the bucket has. window: flow control, bytes. dialect: any but TAP.

        exact_end: leave out changes behind end_seqno, which a producer may send to complete a snapshot. ends_now:
        each connection's first act is to find out where the streams end; the end_seqno of `wanted` says nothing.
        every_move: a position that moves without a change makes a delivery as well, without any. selection: the
        collections, of a node that has them; None: only the default one, as if there were no others. xattrs: with
        extended attributes. These two are for DCP. values: with values; if not, DCP does not send them.
        Raises UsageError for a vbucket that the bucket does not have.
        """
        super().__init__(vbuckets, wanted, window, dialect, ends_now=ends_now, selection=selection)
        self._exact_end = exact_end
        self._every_move = every_move
        self.xattrs = self._context.xattrs = xattrs
        self.values = self._context.values = values
        self._moved: set[int] = set()
        self._adopted: dict[int, FailoverLog] = {}
        self.connection_lost()

    # collections

    def use_collections(self, known: KnownCollections | None) -> None:
        """As of Follower. Raises UsageError for what is wanted and not there."""
        if self._filter is not None:
            self._context.collections = self._filter.use(known)

    def _give_up(self, stream: VbucketStream) -> None:
        """Leave a stream alone whose producer has another history than the expected one."""
        if self._by_opaque.get(stream.opaque) is stream:
            self._close(stream)
        self._finish(stream)
        self.given_up.append(stream.vbucket)

    # failover logs

    def _decide(self, stream: VbucketStream, log: FailoverLog) -> None:
        """Find out where to go on with the producer of this log, and ask for the stream."""
        if self._resume(stream, stream.policy.with_log(stream.position, log)):
            stream.log = log
            self._due.add(stream.vbucket)

    def _confirm(self, stream: VbucketStream, log: FailoverLog) -> None:
        """Compare the log behind a stream request with the one in front of it."""
        if stream.is_confirmed or (stream.state is StreamState.ENDED and not stream.has_ended):
            return
        if log == stream.log:
            self._confirmed(stream)
        elif self._resume(stream, stream.policy.after_new_log(stream.position)):
            self._forget(stream.opaque)
            stream.state = StreamState.ENDED
            self.troubled.add(stream.vbucket)
            # The producer goes on with the stream, and there is no message that stops it.
            raise ConnectionClosed(f"vbucket {stream.vbucket}: its history changed as the stream began")

    def _rename(self, stream: VbucketStream, log: FailoverLog) -> None:
        """Learn the names of the branches that a flush began."""
        if stream.state is not StreamState.ENDED or stream.has_ended:
            self._adopt(stream, accepted(stream.position, log), log)
            self._confirmed(stream)

    def _confirmed(self, stream: VbucketStream) -> None:
        """Let count what a stream has sent: the history it is of is known."""
        stream.is_confirmed = True
        if stream.is_whole:
            self._complete(stream)
        if stream.has_ended:
            self._finish(stream)

    # what arrives

    def take_positions(self) -> dict[int, Position]:
        return {} if self.deliveries or self._rows else self._moved_positions()

    def _dealt_with(self, nbytes: int, *, at_once: bool = False) -> None:
        """Count bytes as dealt with, and tell the producer when they are a fifth of the window.

        Source: docs/dcp, flow-control.md. What is less is told with the next answer to a NOOP.
        """
        if not self._speech.flow_control:
            return
        unacked = self._unacked[self._via] + nbytes
        if unacked and (at_once or unacked * 5 >= self.window):
            self._outgoing.append(BufferAck(nbytes=unacked).encode())
            unacked = 0
        self._unacked[self._via] = unacked

    def _on_frame(self, frame: Frame) -> None:
        if self._speech.is_answer(frame):
            self._on_answer(frame)
            return
        message = decode(frame, self.dialect)
        if isinstance(message, DcpNoop):
            self._outgoing.append(join_frame(Frame(Magic.RESPONSE, frame.opcode, opaque=frame.opaque)))
            self._dealt_with(0, at_once=True)
            return
        event = EVENTS[self.dialect].get(type(message))
        handle = None if event is None else _HANDLERS.get(event) or _DATA_HANDLERS.get(type(message))
        if event is None or handle is None:
            raise RemoteProtocolError(f"{message.opcode.name} from a producer")
        self._nbytes += frame.size
        stream = self._by_opaque.get(frame.opaque)
        if stream is None or stream.via != self._via:
            self._opaques[self._via].check(frame.opaque, frame.specific, message.opcode.name)
            return
        if stream.vbucket != frame.specific:
            raise foreign_vbucket(frame.specific, stream.vbucket, message.opcode.name)
        stream.state = advance(stream.state, event, stream.vbucket, self.dialect)
        handle(self, stream, message)

    def _on_answer(self, frame: Frame) -> None:
        if (asked := self._logs.pop(frame.opaque, None)) is not None:
            self._on_log(asked, frame)
            return
        stream = self._by_opaque.get(frame.opaque)
        answer = None if stream is None else self._speech.stream_answer(frame)
        if stream is None or answer is None or stream.via != self._via:
            self.dropped.add(DropReason.UNEXPECTED_REPLY)
            return
        event = _ANSWERS[type(answer)]
        stream.state = advance(stream.state, event, stream.vbucket, self.dialect)
        self._requested.discard(frame.opaque)
        if isinstance(answer, Accepted):
            self._on_accepted(stream, answer.log)
            return
        self._forget(frame.opaque)
        if isinstance(answer, Refused):
            self._on_refused(stream, answer.status)
        elif isinstance(answer, UnknownBranch) and not stream.position.seqno:
            self._on_refused(stream, Status.KEY_ENOENT)
        else:
            self._on_rollback(stream, answer)

    def _on_log(self, asked: AskedLog, frame: Frame) -> None:
        assert self._log_first is not None
        stream, answer = asked.stream, self._log_first.log_answer(frame)
        if asked.of != stream.opaque or stream.vbucket not in self._unfinished:
            self.dropped.add(DropReason.OUTDATED_LOG)
            return
        if isinstance(answer, Refused):
            self._on_refused(stream, answer.status)
        else:
            asked.then(stream, answer)

    def _on_refused(self, stream: VbucketStream, status: int) -> None:
        about = f"vbucket {stream.vbucket}: stream from {stream.position.seqno} refused, {status_name(status)}"
        error = status_error(status, about, opaque=stream.opaque, vbucket=stream.vbucket)
        if not error.retriable:
            raise error
        self._fail(stream, error)

    def _on_accepted(self, stream: VbucketStream, log: FailoverLog) -> None:
        known = stream.log if self._log_first is not None else log
        if not stream.policy.accepts(known):
            self._give_up(stream)
            return
        position = accepted(stream.position, known)
        if stream.requested_seqno is not None:
            position = replace(position, history=position.history + 1)
            self._rows.append(rollback_row(stream.vbucket, known[0].vbuuid, position, stream.requested_seqno))
            stream.requested_seqno = None
        stream.least_end = 0 if position.snap_end == UNKNOWN_END else position.snap_end
        self._adopt(stream, position, known)
        if log:
            self._confirm(stream, log)

    def _adopt(self, stream: VbucketStream, position: Position, log: FailoverLog) -> None:
        stream.position, stream.log = position, log
        self._adopted[stream.vbucket] = log
        self._context.vbuuid[stream.vbucket] = signed64(log[0].vbuuid)
        self._context.history[stream.vbucket] = position.history
        self._moved.add(stream.vbucket)

    def _on_rollback(self, stream: VbucketStream, answer: Rollback | UnknownBranch) -> None:
        position, policy = stream.position, stream.policy
        if isinstance(answer, UnknownBranch):
            decision = policy.after_unknown_branch(position)
        elif not position.seqno or answer.seqno > position.seqno:
            raise RemoteProtocolError(
                f"vbucket {stream.vbucket}: ROLLBACK to {answer.seqno} of a stream from {position.seqno}"
            )
        else:
            decision = policy.after_rollback(position, answer.seqno)
        if self._resume(stream, decision):
            self._make_due(stream.vbucket)

    def _resume(self, stream: VbucketStream, decision: Resumption | None) -> bool:
        """Let a stream go on as its policy has decided; return whether it does."""
        if decision is None:
            self._give_up(stream)
            return False
        position, requested_seqno, received = decision
        stream.position = position
        stream.received = max(stream.received, received)
        if requested_seqno is not None:
            earlier = stream.requested_seqno
            stream.requested_seqno = requested_seqno if earlier is None else min(requested_seqno, earlier)
            if self._ends_now:
                self.needs_end.add(stream.vbucket)
        return True

    def _begin_again(self) -> None:
        """Begin every stream at 0 again: the bucket was flushed, and its seqnos start anew under the same vbuuids.

        The producer cannot tell a position of the old history from one of the new, once that has grown as long.
        """
        self._flush()  # first, or rows of the old history would be handed out with positions of the new one
        for stream in [self._streams[vbucket] for vbucket in sorted(self._unfinished)]:
            if not stream.position.seqno:
                continue
            # What still comes by other connections is of the old history, or out of its place in the new one.
            self._forget(stream.opaque)
            stream.state = StreamState.ENDED
            last = stream.position.seqno
            if self._resume(stream, stream.policy.after_flush(stream.position)):
                stream.troubled_until = max(stream.troubled_until, last)
                self._moved.discard(stream.vbucket)

    def _on_marker(self, stream: VbucketStream, marker: Message) -> None:
        assert isinstance(marker, SnapshotMarker | SnapshotMarkerV2)
        vbucket, position = stream.vbucket, stream.position
        last = position.seqno
        begins_again = is_flush(marker, last, stream.least_start)
        if begins_again or marker.start_seqno > marker.end_seqno or marker.end_seqno < position.seqno:
            if begins_again:
                self._begin_again()
            bounds = marker.start_seqno, marker.end_seqno
            raise wrong_snapshot(vbucket, *bounds, last, begins_again=begins_again)
        stream.least_start = marker.end_seqno + 1
        stream.snap_end = max(marker.end_seqno, position.snap_end)
        self._context.snapshot_start[vbucket] = signed64(marker.start_seqno)
        self._context.snapshot_end[vbucket] = signed64(marker.end_seqno)
        self._context.snapshot_flags[vbucket] = marker.flags

    def _on_snapshot_start(self, stream: VbucketStream, message: Message) -> None:
        stream.snap_end = UNKNOWN_END
        stream.is_whole = False

    def _on_snapshot_end(self, stream: VbucketStream, message: Message) -> None:
        stream.is_whole = True
        if stream.is_confirmed:
            self._complete(stream)

    def _complete(self, stream: VbucketStream) -> None:
        """Remember that the snapshot is complete at the last change of it, wherever its end was said to be."""
        position = stream.position
        if not position.is_complete and position.seqno >= stream.least_end:
            stream.position = advance_to(position, position.seqno, position.seqno, stream.log)
            self._moved.add(stream.vbucket)

    def _on_flush(self, stream: VbucketStream, message: Message) -> None:
        """Go on with the history that begins here, whose branch is still to be asked for."""
        decision = stream.policy.after_flush(stream.position)
        if decision is None:
            self._give_up(stream)
            return
        stream.least_end = stream.received = 0
        stream.is_whole = False
        position = replace(decision.position, history=decision.position.history + 1)  # the stream goes on by itself
        self._adopt(stream, position, UNNAMED)
        self._rows.append(rollback_row(stream.vbucket, None, stream.position, 0))
        self._logs_due[stream.vbucket] = self._rename

    def _on_nothing(self, stream: VbucketStream, message: Message) -> None:
        """Pass over a stream's start, and a state that the vbucket shall have here, which is for replicas."""
        is_state = EVENTS[self.dialect][type(message)] is StreamEvent.STATE
        self.dropped.add(DropReason.STATE if is_state else DropReason.STREAM_START)

    def _on_system_event(self, stream: VbucketStream, message: Message) -> None:
        assert isinstance(message, SystemEvent)
        names = self._context.collections
        if names is None:
            raise RemoteProtocolError(f"vbucket {stream.vbucket}: system event of a connection without collections")
        change = change_of(message, names, self._context)
        if self._is_wanted(stream, message.by_seqno):
            self._rows.append(change)

    def _on_advanced(self, stream: VbucketStream, message: Message) -> None:
        """Go on to where there is nothing more for this stream; to say so twice does no harm."""
        assert isinstance(message, SeqnoAdvanced)
        if message.by_seqno != stream.position.seqno:
            self._move(stream, message.by_seqno, message.by_seqno)
        else:
            self.dropped.add(DropReason.REPEATED_ADVANCE)

    def _on_end(self, stream: VbucketStream, message: Message) -> None:
        self._forget(stream.opaque)
        is_empty = isinstance(message, StreamEnd) and message.reason == StreamEndReason.FILTER_EMPTY
        if is_empty and self._filter and self._filter.value:
            self._arrived(stream)  # what was wanted is gone, and will not be there again
            return
        position, reason = stream.position, self._speech.end_reason(message)
        if isinstance(message, StreamEnd) and message.reason == StreamEndReason.LOST_PRIVILEGES:
            raise AccessDenied(
                f"vbucket {stream.vbucket}: the user lost the privilege to stream it, and the stream ended at seqno "
                f"{position.seqno}: give the user a role for it, such as stream_reader, and start again from there"
            )
        at_end = is_whole_end(position, stream.end_seqno, is_whole=stream.is_whole)
        if reason or stream.end_seqno == MAX_SEQNO or not at_end:
            about = f"vbucket {stream.vbucket}: the producer ended the stream at {position.seqno}, {reason or 'OK'}"
            self._fail(stream, ConnectionClosed(about), was_open=True)
        else:
            self._arrived(stream)

    def _arrived(self, stream: VbucketStream) -> None:
        """Finish a stream of which everything is here, but not before it is known which history that is of."""
        if stream.is_confirmed:
            self._finish(stream)
        else:
            stream.has_ended = True

    def _on_run(self, run: Run) -> None:
        nbytes = run.end - int(run.offsets[0])
        if len(run.offsets) < SMALL_RUN:
            self._nbytes += nbytes
            run = inflate_run(run)
            changes = decode_messages(run, self._context)
            for place, (change, offset) in enumerate(zip(changes, run.offsets, strict=True)):
                opaque = int.from_bytes(run.buffer[offset + 12 : offset + 16], "big")
                try:
                    is_taken = self._is_taken(change.vbucket, opaque, change.seqno or 0)
                except OrderViolation:
                    self.dropped.add(DropReason.BEHIND_VIOLATION, len(changes) - place)
                    raise
                if is_taken:
                    self._rows.append(change)
            return
        self._flush()  # first, or the rows of smaller runs would be handed out with positions behind this one
        self._nbytes += nbytes
        run, heads = plain_heads(run, prefixed=self._context.collections is not None)
        batch = columns_of(run, heads, self._context)
        keep, violation = take_parts(heads, self._take, self.dropped)
        if keep is not None:
            batch = batch.filter(pa.array(keep))
        if batch.num_rows:
            self._deliver(batch)
        if violation is not None:
            raise violation

    def _take(self, part: RunPart) -> tuple[int, int]:
        """Move a vbucket's position over some changes; return which of them are wanted, as (first, last).

        NONE_WANTED: none, because the stream was given up, closed or ended.
        """
        stream = self._stream_of(part.vbucket, part.opaque, part.behind - part.first)
        return NONE_WANTED if stream is None else self._move(stream, part.least, part.most)

    def _is_taken(self, vbucket: int, opaque: int, seqno: int) -> bool:
        """Do as _take does with a single change; return whether it is wanted."""
        stream = self._stream_of(vbucket, opaque, 1)
        return stream is not None and self._is_wanted(stream, seqno)

    def _is_wanted(self, stream: VbucketStream, seqno: int) -> bool:
        first, last = self._move(stream, seqno, seqno)
        if first <= seqno <= last:
            return True
        self.dropped.add(DropReason.RECEIVED_BEFORE if seqno < first else DropReason.BEHIND_END)
        return False

    def _stream_of(self, vbucket: int, opaque: int, changes: int) -> VbucketStream | None:
        """Return the open stream to which changes belong; None, and the changes are counted, if it is not open."""
        stream = self._by_opaque.get(opaque)
        if stream is None or stream.via != self._via:
            self._opaques[self._via].check(opaque, vbucket, "change", changes)
            return None
        if stream.vbucket != vbucket:
            raise foreign_vbucket(vbucket, stream.vbucket, "change")
        stream.state = advance(stream.state, StreamEvent.DATA, vbucket, self.dialect)
        return stream

    def _move(self, stream: VbucketStream, least: int, most: int) -> tuple[int, int]:
        """Do what _take does, to a stream that is open."""
        vbucket = stream.vbucket
        if least <= stream.position.seqno:
            raise not_above(vbucket, least, stream.position.seqno)
        if most > stream.snap_end:
            raise behind_snapshot(vbucket, most, stream.snap_end)
        last = min(most, stream.end_seqno) if self._exact_end else most
        if last > stream.position.seqno:
            stream.position = advance_to(stream.position, last, stream.snap_end, stream.log)
            self._moved.add(vbucket)
        if most > stream.troubled_until:
            self.troubled.discard(vbucket)
        if self._exact_end and most >= stream.end_seqno and stream.snap_end > stream.end_seqno:
            self._close(stream)
            self._arrived(stream)
        return (max(least, stream.received + 1), last)

    def _close(self, stream: VbucketStream) -> None:
        """Tell the producer that what is still to come is not wanted."""
        self._forget(stream.opaque)
        stream.state = advance(stream.state, StreamEvent.CLOSED, stream.vbucket, self.dialect)
        closing = self._speech.close_request(stream.vbucket)
        if stream.via == self._via:
            self._outgoing.append(closing)
        self._is_untidy = self._is_untidy or not closing

    def _flush(self) -> None:
        if self._every_move and self._moved and not self._rows:
            self._deliver([])
        super()._flush()

    def _new_logs(self) -> dict[int, FailoverLog]:
        logs, self._adopted = self._adopted, {}
        return logs

    def _moved_positions(self) -> dict[int, Position]:
        moved, self._moved = self._moved, set()
        return {vbucket: self._streams[vbucket].position for vbucket in moved}


_HANDLERS: dict[StreamEvent, Callable[[Feed, VbucketStream, Message], None]] = {
    StreamEvent.START: Feed._on_nothing,
    StreamEvent.MARKER: Feed._on_marker,
    StreamEvent.SNAPSHOT_START: Feed._on_snapshot_start,
    StreamEvent.SNAPSHOT_END: Feed._on_snapshot_end,
    StreamEvent.FLUSH: Feed._on_flush,
    StreamEvent.STATE: Feed._on_nothing,
    StreamEvent.END: Feed._on_end,
}
"""What a message of a stream does, behind the change of state that the table of its dialect says."""

_DATA_HANDLERS: dict[type[Message], Callable[[Feed, VbucketStream, Message], None]] = {
    SystemEvent: Feed._on_system_event,
    SeqnoAdvanced: Feed._on_advanced,
}
"""What the changes do that do not come in runs."""

_ANSWERS: dict[type[Answer], StreamEvent] = {
    Accepted: StreamEvent.ACCEPTED,
    Rollback: StreamEvent.ROLLBACK,
    UnknownBranch: StreamEvent.ROLLBACK,
    Refused: StreamEvent.REFUSED,
}
