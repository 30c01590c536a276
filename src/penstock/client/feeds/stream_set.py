"""The streams of a consumer, one for each vbucket: their positions, ends and outcomes."""

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


class StreamOutput(DeliveryQueue):
    """Deliveries with the positions after them. Their bytes are acknowledged if the dialect has flow control.

    Attributes:
        moved_streams: vbucket -> stream whose position is in no delivery yet.
        adopted_logs: vbucket -> failover log that is in no delivery yet.
    """

    def __init__(self, window: int, *, flow_control: bool, deliver_positions: bool) -> None:
        """Create an empty queue.

        Args:
            window: bytes of the flow control window.
            flow_control: whether the producer counts acknowledged bytes.
            deliver_positions: whether positions that move without a change make a delivery without changes.
        """
        super().__init__()
        self.moved_streams: dict[int, VbucketStream] = {}
        self.adopted_logs: dict[int, FailoverLog] = {}
        self._window = window
        self._flow_control = flow_control
        self._every_move = deliver_positions
        self._unacked: Counter[int] = Counter()

    def flush(self) -> None:
        """Make a delivery of `rows`, or of positions without changes if these are requested."""
        if self._every_move and self.moved_streams and not self.rows:
            self.deliver([])
        super().flush()

    def take_positions(self) -> dict[int, Position]:
        """Return the positions that have moved since the last call: vbucket -> position."""
        moved, self.moved_streams = self.moved_streams, {}
        return {vbucket: stream.position for vbucket, stream in moved.items()}

    def take_logs(self) -> dict[int, FailoverLog]:
        """Return the failover logs that were adopted since the last call: vbucket -> log."""
        logs, self.adopted_logs = self.adopted_logs, {}
        return logs

    def acknowledge(self, nbytes: int, *, at_once: bool = False) -> None:
        """Record consumed bytes, and acknowledge them to the producer when they reach a fifth of the window.

        Fewer bytes are acknowledged with the next reply to a NOOP. Source: docs/dcp, flow-control.md.

        Args:
            nbytes: bytes that the caller has consumed, or that held nothing to deliver.
            at_once: acknowledge any number of bytes.
        """
        if not self._flow_control:
            return
        unacked = self._unacked[self.connection_id] + nbytes
        if unacked and (at_once or unacked * 5 >= self._window):
            self.outgoing.append(BufferAck(nbytes=unacked).encode())
            unacked = 0
        self._unacked[self.connection_id] = unacked

    def forget_unacked(self, connection_id: int | None) -> None:
        """Forget the bytes that were not acknowledged to a connection yet.

        Args:
            connection_id: its number; None: all connections.
        """
        for each in {*self._unacked} if connection_id is None else {connection_id}:
            del self._unacked[each]


class StreamSet:
    """The streams by vbucket, over one connection after another.

    Attributes:
        by_vbucket: vbucket -> stream.
        unfinished: the vbuckets that will send more changes.
        ends_now: whether the ends of the streams are requested at the start of each connection (EndRule.NOW).
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
        """Whether all streams continue without an end."""
        return not self.ends_now and all(stream.end_seqno == MAX_SEQNO for stream in self.by_vbucket.values())

    def set_end(self, vbucket: int, end_seqno: int) -> None:
        """Set the last seqno to read of a vbucket. A vbucket with nothing to read is finished."""
        stream = self.by_vbucket[vbucket]
        stream.end_seqno = end_seqno
        self._state.pending_ends.discard(vbucket)
        if is_empty_target(stream.position, end_seqno) and stream.requested_seqno is None:
            self.finish(stream)

    def skip_vbucket(self, vbucket: int) -> None:
        """Finish a vbucket that no node serves."""
        self._state.pending_ends.discard(vbucket)
        self.finish(self.by_vbucket[vbucket])

    def finish(self, stream: VbucketStream) -> None:
        """Expect no more changes of a stream."""
        self.unfinished.discard(stream.vbucket)
        self._state.recovering.discard(stream.vbucket)

    def finish_when_confirmed(self, stream: VbucketStream) -> None:
        """Finish a stream whose changes have all arrived, as soon as its history is confirmed."""
        if stream.is_confirmed:
            self.finish(stream)
        else:
            stream.has_ended = True

    def confirm(self, stream: VbucketStream) -> None:
        """Accept the snapshots and the end of a stream, since its history is known now."""
        stream.is_confirmed = True
        if stream.is_whole:
            self.complete_snapshot(stream)
        if stream.has_ended:
            self.finish(stream)

    def record_failure(self, stream: VbucketStream, error: Error, *, was_open: bool = False) -> None:
        """Record the failure of a stream. It becomes due with `request_again`: to request it at once makes a busy loop.

        Args:
            stream: the stream.
            error: the reason.
            was_open: whether the producer had accepted the stream.
        """
        self._state.failures.add(StreamFailure(stream.vbucket, stream.connection_id, error, was_open))
        self._state.recovering.add(stream.vbucket)

    def adopt_history(self, stream: VbucketStream, position: Position, log: FailoverLog) -> None:
        """Continue a stream in the history of a producer.

        Args:
            stream: the stream.
            position: its position in that history.
            log: the producer's failover log, newest entry first.
        """
        context, vbucket = self._state.context, stream.vbucket
        stream.position, stream.log = position, log
        self._output.adopted_logs[vbucket] = log
        self._output.moved_streams[vbucket] = stream
        context.vbuuid[vbucket] = signed64(log[0].vbuuid)
        context.history[vbucket] = position.history

    def advance(self, stream: VbucketStream, seqno: int) -> None:
        """Move the position of a stream over changes up to a seqno, within the snapshot of the newest marker."""
        stream.position = advance_position(stream.position, seqno, stream.snap_end, stream.log)
        self._output.moved_streams[stream.vbucket] = stream

    def complete_snapshot(self, stream: VbucketStream) -> None:
        """Mark the snapshot as complete at its last change, even if another end was announced."""
        position = stream.position
        if not position.is_complete and position.seqno >= stream.least_end:
            stream.position = advance_position(position, position.seqno, position.seqno, stream.log)
            self._output.moved_streams[stream.vbucket] = stream
