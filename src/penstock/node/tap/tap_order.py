"""The order of a TAP connection's messages.

Notices come first: TAP_OPAQUE, checkpoints, TAP_FLUSH. Then come changes that the consumer has refused for the moment,
and then the backfill in order of the vbuckets. Once the backfill is acknowledged, the vbuckets take turns with new
changes. Source: TAP, "Message order" and "ACK"; ep-engine 2.5 tapconnection.cc.
"""

from __future__ import annotations

from penstock.node.streams.change_producer import CHUNK_BYTES
from penstock.node.tap.tap_backlog import TapBacklog, TapNotice
from penstock.node.tap.tap_delivery import TapDelivery
from penstock.node.tap.tap_selection import TapSelection
from penstock.node.tap.tap_stream import TapStream, make_opaque_message
from penstock.node.tap_state.tap_clients import TapPhase
from penstock.wire.codec.constants import TapOpaque
from penstock.wire.codec.frame import Buffer


class TapOrder:
    """Chooses and encodes the next messages of a connection."""

    def __init__(self, selection: TapSelection, backlog: TapBacklog, delivery: TapDelivery) -> None:
        self._selection = selection
        self._backlog = backlog
        self._delivery = delivery
        self._log = delivery.log

    @property
    def is_complete(self) -> bool:
        """Whether the consumer has acknowledged everything but new changes."""
        return not (self._backlog.has_old_changes or self._log.unacked)

    def encode_next(self) -> Buffer | None:
        """Return the next messages, empty after a mere change of state; None if the connection has to wait."""
        backlog, log = self._backlog, self._log
        if log.room <= 0:
            return None
        self._selection.apply_flushes()
        if backlog.notices:
            return self._delivery.encode_notice(backlog.notices.pop_notice())
        if log.is_data_blocked:
            return None
        if backlog.refusals:
            return self._encode_refused(*backlog.refusals.pop_change())
        if backlog.backfill:
            return self._encode_backfill(backlog.backfill[0])
        if backlog.filled:
            return None if log.is_answer_due else self._end_backfill()
        if backlog.live:
            return self._encode_changes(backlog.live.popleft())
        return None

    def _encode_refused(self, vbucket: int, seqno: int) -> Buffer:
        stream = self._selection.streams[vbucket]
        chunk = stream.read_change(seqno)
        if not chunk.frame_count:
            self._backlog.refusals.remove_change(vbucket, seqno)
            if stream.has_purged(seqno):
                self._selection.restart_stream(stream)
            return b""
        return self._delivery.encode_changes(stream, chunk, is_last=True, is_resend=True)

    def _encode_backfill(self, stream: TapStream) -> Buffer:
        if stream.must_restart:
            self._selection.restart_stream(stream)
            return b""
        chunk = stream.read_changes(CHUNK_BYTES, self._log.room)
        backfill = self._backlog.backfill
        if not chunk.frame_count or not stream.remaining:
            self._backlog.filled.append(backfill.popleft())
        if not chunk.frame_count:
            return b""
        return self._delivery.encode_changes(stream, chunk, is_last=not any(other.remaining for other in backfill))

    def _end_backfill(self) -> bytes:
        """Add notices that the backfill is complete. The streams continue with new changes, unless it was a dump.

        Returns:
            No bytes.
        """
        for stream in self._backlog.filled:
            stream.position = stream.position._replace(phase=TapPhase.LIVE)
            self._backlog.notices.add(make_opaque_message(TapOpaque.CLOSE_BACKFILL, stream.vbucket.id), stream)
            if not self._selection.request.is_dump:
                self._backlog.live.append(stream)
        self._backlog.filled.clear()
        return b""

    def _encode_changes(self, stream: TapStream) -> Buffer:
        if stream.must_restart:
            self._selection.restart_stream(stream)
            return b""
        live = self._backlog.live
        if message := stream.take_notice():
            live.append(stream)
            return self._delivery.encode_notice(TapNotice(message, ((stream, stream.position),)))
        chunk = stream.read_changes(CHUNK_BYTES, self._log.room)
        if not chunk.frame_count:
            self._selection.bucket.add_waiting_stream(stream)
            return b""
        is_drained = not stream.remaining
        ends_checkpoint = is_drained and stream.position.seqno < stream.vbucket.history.whole_seqno
        is_last = is_drained and (ends_checkpoint or not any(other.remaining for other in live))
        live.append(stream)
        return self._delivery.encode_changes(stream, chunk, is_last=is_last)
