"""The streams of a consumer, one for each vbucket: positions, ends, and what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from penstock.client.feeds.consumer_feed import FeedState, StreamFailure
from penstock.client.feeds.deliveries import DeliveryQueue
from penstock.client.feeds.stream_position import Position, advance_position
from penstock.client.feeds.vbucket_stream import EndRule, StreamTarget, VbucketStream, is_empty_target
from penstock.errors import Error
from penstock.store.history.failover_log import FailoverLog
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.columns.schema import signed64
from penstock.wire.messages.dcp import BufferAck

__all__ = ["StreamOutput", "StreamSet"]


class StreamOutput(DeliveryQueue):
    """Deliveries with the positions behind them, acknowledged by bytes where the dialect counts these.

    Attributes:
        moved: the streams whose positions are in no delivery yet.
        adopted: failover logs that are in no delivery yet.
    """

    def __init__(self, window: int, *, flow_control: bool, deliver_positions: bool) -> None:
        super().__init__()
        self.moved_streams: dict[int, VbucketStream] = {}
        self.adopted_logs: dict[int, FailoverLog] = {}
        self._window = window
        self._flow_control = flow_control
        self._every_move = deliver_positions
        self._unacked: Counter[int] = Counter()

    def flush(self) -> None:
        if self._every_move and self.moved_streams and not self.rows:
            self.deliver([])
        super().flush()

    def take_positions(self) -> dict[int, Position]:
        moved, self.moved_streams = self.moved_streams, {}
        return {vbucket: stream.position for vbucket, stream in moved.items()}

    def take_logs(self) -> dict[int, FailoverLog]:
        logs, self.adopted_logs = self.adopted_logs, {}
        return logs

    def acknowledge(self, nbytes: int, *, at_once: bool = False) -> None:
        """Count bytes as dealt with, and report them to the producer when they are a fifth of the window.

        Source: docs/dcp, flow-control.md. What is less is reported with the next answer to a NOOP.
        """
        if not self._flow_control:
            return
        unacked = self._unacked[self.connection_id] + nbytes
        if unacked and (at_once or unacked * 5 >= self._window):
            self.outgoing.append(BufferAck(nbytes=unacked).encode())
            unacked = 0
        self._unacked[self.connection_id] = unacked

    def forget_unacked(self, connection_id: int | None) -> None:
        """Acknowledge nothing more to a connection, None: to any."""
        for each in {*self._unacked} if connection_id is None else {connection_id}:
            del self._unacked[each]


class StreamSet:
    """The streams by vbucket, over one connection after another.

    Attributes:
        unfinished: the vbuckets of which there is more to come.
        ends_now: each connection's first act is to find out where the streams end (EndRule.NOW).
    """

    def __init__(
        self, state: FeedState, output: StreamOutput, targets: Mapping[int, StreamTarget], end_rule: EndRule
    ) -> None:
        self.ends_now = end_rule is EndRule.NOW
        self.by_vbucket = {
            vb: VbucketStream(vb, each.policy, each.position, each.end_seqno) for vb, each in targets.items()
        }
        nothing = {vb for vb, each in targets.items() if is_empty_target(each.position, each.end_seqno)}
        self.unfinished = set(targets) - (set() if self.ends_now else nothing)
        self._state = state
        self._output = output

    @property
    def is_endless(self) -> bool:
        return not self.ends_now and all(stream.end_seqno == MAX_SEQNO for stream in self.by_vbucket.values())

    def set_end(self, vbucket: int, end_seqno: int) -> None:
        stream = self.by_vbucket[vbucket]
        stream.end_seqno = end_seqno
        self._state.pending_ends.discard(vbucket)
        if is_empty_target(stream.position, end_seqno) and stream.requested_seqno is None:
            self.finish(stream)

    def skip_vbucket(self, vbucket: int) -> None:
        self._state.pending_ends.discard(vbucket)
        self.finish(self.by_vbucket[vbucket])

    def finish(self, stream: VbucketStream) -> None:
        self.unfinished.discard(stream.vbucket)
        self._state.recovering.discard(stream.vbucket)

    def finish_when_confirmed(self, stream: VbucketStream) -> None:
        """Finish a stream of which everything is here, but not before it is known which history that is of."""
        if stream.is_confirmed:
            self.finish(stream)
        else:
            stream.has_ended = True

    def confirm(self, stream: VbucketStream) -> None:
        """Let count what a stream has sent: the history it is of is known."""
        stream.is_confirmed = True
        if stream.is_whole:
            self.complete_snapshot(stream)
        if stream.has_ended:
            self.finish(stream)

    def record_failure(self, stream: VbucketStream, error: Error, *, was_open: bool = False) -> None:
        """Ask again for a stream, but later, when `request_again` is called: at once would be a busy loop."""
        self._state.failures.add(StreamFailure(stream.vbucket, stream.connection_id, error, was_open))
        self._state.recovering.add(stream.vbucket)

    def adopt_history(self, stream: VbucketStream, position: Position, log: FailoverLog) -> None:
        """Take over a position in the history of the producer of this log."""
        context, vbucket = self._state.context, stream.vbucket
        stream.position, stream.log = position, log
        self._output.adopted_logs[vbucket] = log
        self._output.moved_streams[vbucket] = stream
        context.vbuuid[vbucket] = signed64(log[0].vbuuid)
        context.history[vbucket] = position.history

    def advance(self, stream: VbucketStream, seqno: int) -> None:
        """Move a position over changes up to a seqno, within the snapshot of the newest marker."""
        stream.position = advance_position(stream.position, seqno, stream.snap_end, stream.log)
        self._output.moved_streams[stream.vbucket] = stream

    def complete_snapshot(self, stream: VbucketStream) -> None:
        """Remember that the snapshot is complete at the last change of it, wherever its end was announced."""
        position = stream.position
        if not position.is_complete and position.seqno >= stream.least_end:
            stream.position = advance_position(position, position.seqno, position.seqno, stream.log)
            self._output.moved_streams[stream.vbucket] = stream
