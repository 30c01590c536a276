"""The consumer without its socket, of the dialects that stream by vbucket: DCP, UPR and its draft.

A Feed is given the events of one connection after another. It opens streams, checks what they send, turns it into
batches, counts bytes for flow control, and keeps the position of every vbucket, so that a new connection goes on where
the last one ended: nothing is lost, nothing comes twice. A rollback is a row like any other.

Where an accepted stream does not say which branches the producer has, the failover log is asked for in front of the
stream request, to decide where to go on, and once more behind it: only if both are the same did the stream begin in the
history that was decided upon. Until then no snapshot counts as complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

import pyarrow as pa

from penstock.client.follower import Delivery, Follower
from penstock.client.order import behind_snapshot, foreign_vbucket, is_flush, not_above, take_parts, wrong_snapshot
from penstock.client.position import UNKNOWN_END, Position, accepted, advance_to, reconciled
from penstock.client.selection import Filter, KnownCollections, Selection
from penstock.client.speech import (
    SPEECHES,
    Accepted,
    Answer,
    LogFirst,
    Refused,
    Rollback,
    UnknownBranch,
    position_behind,
)
from penstock.client.system_event import change_of
from penstock.client.vbucket_stream import UNNAMED, VbucketStream, Wanted, is_nothing, rollback_row
from penstock.errors import AccessDenied, ConnectionClosed, Error, RemoteProtocolError, UsageError, status_error
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
from penstock.wire.layout import Message, Request, decode
from penstock.wire.schema import signed64
from penstock.wire.stream import EVENTS, StreamEvent, StreamState, advance

__all__ = ["Delivery", "Feed", "Wanted"]


class _Asked(NamedTuple):
    """A failover log that was asked for. of: the opaque of the stream that it was asked about."""

    stream: VbucketStream
    then: Callable[[VbucketStream, FailoverLog], None]
    of: int


class Feed(Follower):
    """The streams of some vbuckets, each from its own position. Attributes as of Follower."""

    def __init__(
        self,
        vbuckets: int,
        wanted: Mapping[int, Wanted],
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
        if foreign := [vb for vb in wanted if not 0 <= vb < vbuckets]:
            raise UsageError(f"vbucket {foreign[0]}, expected one below {vbuckets}")
        super().__init__(dialect, vbuckets, window, {vb: each.position for vb, each in wanted.items()})
        self._speech = SPEECHES[dialect]
        self._log_first = self._speech if isinstance(self._speech, LogFirst) else None
        self.noop = self._speech.noop
        self._exact_end = exact_end
        self._ends_now = ends_now
        self._every_move = every_move
        self._filter = None if selection is None else Filter(selection)
        self.collections = selection is not None
        self.xattrs = self._context.xattrs = xattrs
        self.values = self._context.values = values
        self._streams = {vb: VbucketStream(vb, each, each.position, each.end_seqno) for vb, each in wanted.items()}
        nothing = {vb for vb, each in wanted.items() if is_nothing(each.position, each.end_seqno)}
        self._unfinished = set(wanted) - (set() if ends_now else nothing)
        self._due: set[int] = set()
        self._by_opaque: dict[int, VbucketStream] = {}
        self._logs_due: dict[int, Callable[[VbucketStream, FailoverLog], None]] = {}
        self._logs: dict[int, _Asked] = {}
        self._unanswered = 0
        self._moved: set[int] = set()
        self._adopted: dict[int, FailoverLog] = {}
        self._unacked: Counter[int] = Counter()
        self._is_untidy = False  # a producer goes on with a stream that nobody wants
        self.connection_lost()

    # what is asked for

    def unfinished(self) -> Collection[int]:
        return self._unfinished

    def use_collections(self, known: KnownCollections | None) -> None:
        """As of Follower. Raises UsageError for what is wanted and not there."""
        if self._filter is not None:
            self._context.collections = self._filter.use(known)

    @property
    def is_done(self) -> bool:
        return not self._unfinished

    @property
    def is_tidy(self) -> bool:
        return self.is_done and not self._by_opaque and not self._is_untidy

    @property
    def awaits_replies(self) -> bool:
        return self._unanswered > 0 or bool(self._logs)

    def connection_lost(self) -> None:
        super().connection_lost()
        self._by_opaque.clear()
        self._logs.clear()
        self._logs_due.clear()
        self._is_untidy = False
        self._unanswered = 0
        self._unacked.clear()
        self.needs_end = set(self._unfinished) if self._ends_now else set()
        for stream in self._streams.values():
            stream.state = StreamState.ENDED
            stream.opaque, stream.has_ended = 0, False
        for vbucket in self._unfinished:
            self._make_due(vbucket)

    def set_end(self, vbucket: int, end_seqno: int) -> None:
        stream = self._streams[vbucket]
        stream.end_seqno = end_seqno
        self.needs_end.discard(vbucket)
        if is_nothing(stream.position, end_seqno) and stream.requested_seqno is None:
            self._finish(stream)

    def leave_out(self, vbucket: int) -> None:
        self.needs_end.discard(vbucket)
        self._finish(self._streams[vbucket])

    def requests(self, take_opaque: Callable[[], int]) -> list[Request]:
        """Return the requests that are due: one for each stream that is neither open nor at its end.

        Where the failover log has to be known first it is that which is asked for, and then the stream.
        """
        due, self._due = sorted(self._due - self.needs_end), self._due & self.needs_end
        requests = [self._ask(self._streams[vbucket], self._fresh(take_opaque)) for vbucket in due]
        logs, self._logs_due = self._logs_due, {}
        if self._log_first is not None:
            for vbucket, then in sorted(logs.items(), key=itemgetter(0)):
                opaque, stream = self._fresh(take_opaque), self._streams[vbucket]
                if (before := self._logs.get(stream.log_opaque)) is not None and before.stream is stream:
                    del self._logs[stream.log_opaque]  # it asked about what is over; one question each is enough
                stream.log_opaque = opaque
                self._logs[opaque] = _Asked(stream, then, stream.opaque)
                requests.append(self._log_first.log_request(vbucket, opaque))
        return requests

    def _fresh(self, take_opaque: Callable[[], int]) -> int:
        """Return an opaque that nothing has: all messages of a stream are known by it alone."""
        while (opaque := take_opaque()) in self._by_opaque or opaque in self._logs:
            continue
        return opaque

    def _make_due(self, vbucket: int) -> None:
        if self._log_first is None:
            self._due.add(vbucket)
        else:
            self._logs_due[vbucket] = self._decide

    def _ask(self, stream: VbucketStream, opaque: int) -> Request:
        stream.opaque = opaque
        stream.state = StreamState.REQUESTED
        stream.is_whole = False
        stream.least_start = stream.position.snap_start
        if self._log_first is not None:
            stream.is_confirmed = False
            self._logs_due[stream.vbucket] = self._confirm
        self._by_opaque[opaque] = stream
        self._opaques.add(opaque)
        self._unanswered += 1
        request = self._speech.stream_request(stream.vbucket, stream.position, stream.end_seqno, opaque, stream.log)
        return replace(request, value=self._filter.value) if self._filter and self._filter.value else request

    def _finish(self, stream: VbucketStream) -> None:
        self._unfinished.discard(stream.vbucket)
        self._due.discard(stream.vbucket)
        self._logs_due.pop(stream.vbucket, None)
        self.troubled.discard(stream.vbucket)

    def _give_up(self, stream: VbucketStream) -> None:
        """Leave a stream alone whose producer has another history than the expected one."""
        if self._by_opaque.get(stream.opaque) is stream:
            self._close(stream)
        self._finish(stream)
        self.given_up.append(stream.vbucket)

    def _fail(self, stream: VbucketStream, failure: Error) -> None:
        """Ask again for a stream, but only on another connection and later: at once would be a busy loop."""
        self.failure = failure
        self.troubled.add(stream.vbucket)

    # failover logs

    def _decide(self, stream: VbucketStream, log: FailoverLog) -> None:
        """Find out where to go on with the producer of this log, and ask for the stream."""
        position, requested_seqno = reconciled(stream.position, log)
        expected = stream.wanted.expect_vbuuid
        if expected is not None and (log[0].vbuuid != expected or requested_seqno is not None):
            self._give_up(stream)
            return
        stream.log = log
        if requested_seqno is not None:
            self._go_back(stream, position, requested_seqno)
        self._due.add(stream.vbucket)

    def _confirm(self, stream: VbucketStream, log: FailoverLog) -> None:
        """Compare the log behind a stream request with the one in front of it."""
        if stream.is_confirmed or (stream.state is StreamState.ENDED and not stream.has_ended):
            return
        if log == stream.log:
            self._confirmed(stream)
        elif stream.wanted.expect_vbuuid is not None:
            self._give_up(stream)
        else:
            self._by_opaque.pop(stream.opaque, None)
            stream.state = StreamState.ENDED
            self._fail(stream, ConnectionClosed(f"vbucket {stream.vbucket}: its history changed as the stream began"))

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
        if stream is None:
            self._opaques.check(frame.opaque, frame.specific, message.opcode.name)
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
        if stream is None or answer is None:
            return
        event = _ANSWERS[type(answer)]
        stream.state = advance(stream.state, event, stream.vbucket, self.dialect)
        self._unanswered -= 1
        if isinstance(answer, Accepted):
            self._on_accepted(stream, answer.log)
            return
        del self._by_opaque[frame.opaque]
        if isinstance(answer, Refused):
            self._on_refused(stream, answer.status)
        elif isinstance(answer, UnknownBranch) and not stream.position.seqno:
            self._on_refused(stream, Status.KEY_ENOENT)
        else:
            self._on_rollback(stream, answer)

    def _on_log(self, asked: _Asked, frame: Frame) -> None:
        assert self._log_first is not None
        stream, answer = asked.stream, self._log_first.log_answer(frame)
        if asked.of != stream.opaque or stream.vbucket not in self._unfinished:
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
        if stream.wanted.expect_vbuuid not in (None, known[0].vbuuid):
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
        position = stream.position
        back, requested_seqno = position_behind(answer, stream.vbucket, position)
        if stream.wanted.expect_vbuuid is None:
            self._go_back(stream, back, requested_seqno)
        elif position.seqno < stream.wanted.purge_seqno:
            stream.received = max(stream.received, position.seqno)
            stream.position = Position(history=position.history)
        else:
            self._give_up(stream)
            return
        self._make_due(stream.vbucket)

    def _go_back(self, stream: VbucketStream, position: Position, requested_seqno: int) -> None:
        if stream.requested_seqno is not None:
            requested_seqno = min(requested_seqno, stream.requested_seqno)
        stream.requested_seqno = requested_seqno
        stream.position = position
        if self._ends_now:
            self.needs_end.add(stream.vbucket)

    def _begin_again(self) -> None:
        """Begin every stream at 0 again: the bucket was flushed, and its seqnos start anew under the same vbuuids.

        The producer cannot tell a position of the old history from one of the new, once that has grown as long.
        """
        self._flush()  # first, or rows of the old history would be handed out with positions of the new one
        for stream in [self._streams[vbucket] for vbucket in sorted(self._unfinished)]:
            if not stream.position.seqno:
                continue
            if stream.wanted.expect_vbuuid is not None:
                self._by_opaque.pop(stream.opaque, None)
                self._give_up(stream)
                continue
            stream.troubled_until = max(stream.troubled_until, stream.position.seqno)
            self._moved.discard(stream.vbucket)
            self._go_back(stream, Position(history=stream.position.history), 0)

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
        if stream.wanted.expect_vbuuid is not None:
            self._give_up(stream)
            return
        stream.least_end = stream.received = 0
        stream.is_whole = False
        self._adopt(stream, Position(history=stream.position.history + 1), UNNAMED)
        self._rows.append(rollback_row(stream.vbucket, None, stream.position, 0))
        self._logs_due[stream.vbucket] = self._rename

    def _on_nothing(self, stream: VbucketStream, message: Message) -> None:
        """Pass over a stream's start, and a state that the vbucket shall have here, which is for replicas."""

    def _on_system_event(self, stream: VbucketStream, message: Message) -> None:
        assert isinstance(message, SystemEvent)
        names = self._context.collections
        if names is None:
            raise RemoteProtocolError(f"vbucket {stream.vbucket}: system event of a connection without collections")
        change = change_of(message, names, self._context)
        least, most = self._move(stream, message.by_seqno, message.by_seqno)
        if least <= most:
            self._rows.append(change)

    def _on_advanced(self, stream: VbucketStream, message: Message) -> None:
        """Go on to where there is nothing more for this stream; to say so twice does no harm."""
        assert isinstance(message, SeqnoAdvanced)
        if message.by_seqno != stream.position.seqno:
            self._move(stream, message.by_seqno, message.by_seqno)

    def _on_end(self, stream: VbucketStream, message: Message) -> None:
        del self._by_opaque[stream.opaque]
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
        at_end = position.seqno >= stream.end_seqno or position.is_complete or stream.is_whole
        if reason or stream.end_seqno == MAX_SEQNO or not at_end:
            about = f"vbucket {stream.vbucket}: the producer ended the stream at {position.seqno}, {reason or 'OK'}"
            self._fail(stream, ConnectionClosed(about))
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
            for change, offset in zip(decode_messages(run, self._context), run.offsets, strict=True):
                opaque = int.from_bytes(run.buffer[offset + 12 : offset + 16], "big")
                seqno = change.seqno or 0
                first, last = self._take(change.vbucket, opaque, seqno, seqno)
                if first <= last:
                    self._rows.append(change)
            return
        self._flush()  # first, or the rows of smaller runs would be handed out with positions behind this one
        self._nbytes += nbytes
        run, heads = plain_heads(run, prefixed=self._context.collections is not None)
        batch = columns_of(run, heads, self._context)
        keep, violation = take_parts(heads, self._take)
        if keep is not None:
            batch = batch.filter(pa.array(keep))
        if batch.num_rows:
            self._deliver(batch)
        if violation is not None:
            raise violation

    def _take(self, vbucket: int, opaque: int, least: int, most: int) -> tuple[int, int]:
        """Move a vbucket's position over changes `least` to `most`; return which of them are wanted, as (first, last).

        (1, 0): none, because the stream was given up, closed or ended.
        """
        stream = self._by_opaque.get(opaque)
        if stream is None:
            self._opaques.check(opaque, vbucket, "change")
            return (1, 0)
        if stream.vbucket != vbucket:
            raise foreign_vbucket(vbucket, stream.vbucket, "change")
        stream.state = advance(stream.state, StreamEvent.DATA, vbucket, self.dialect)
        return self._move(stream, least, most)

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
        del self._by_opaque[stream.opaque]
        stream.state = advance(stream.state, StreamEvent.CLOSED, stream.vbucket, self.dialect)
        closing = self._speech.close_request(stream.vbucket)
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
