"""In which order a TAP connection sends what waits.

Notices come first: TAP_OPAQUE, checkpoints, TAP_FLUSH. Then come changes: those that the consumer refused for the
moment, the backfill in order of the vbuckets, and once that is acknowledged new changes, in turns of the vbuckets.
Source: TAP, "Message order" and "ACK"; ep-engine 2.5 tapconnection.cc.
"""

from __future__ import annotations

from penstock.node.streams.change_producer import CHUNK_BYTES
from penstock.node.tap.tap_backlog import TapBacklog, TapNotice
from penstock.node.tap.tap_delivery import TapDelivery
from penstock.node.tap.tap_selection import TapSelection
from penstock.node.tap.tap_stream import TapStream, opaque_message
from penstock.node.tap_state.tap_clients import Phase
from penstock.wire.codec.constants import TapOpaque
from penstock.wire.codec.frame import Buffer

__all__ = ["TapOrder"]


class TapOrder:
    """Chooses the next piece that a connection sends."""

    def __init__(self, selection: TapSelection, backlog: TapBacklog, delivery: TapDelivery) -> None:
        self._selection = selection
        self._backlog = backlog
        self._delivery = delivery
        self._log = delivery.log

    @property
    def is_complete(self) -> bool:
        """Whether the consumer has acknowledged all that there was to send, beside new changes."""
        return not (self._backlog.has_old_changes or self._log.unacked)

    def next_piece(self) -> Buffer | None:
        """Return what comes next, nothing where only the state went on; None if it has to wait for something."""
        backlog, log = self._backlog, self._log
        if log.room <= 0:
            return None
        self._selection.apply_flushes()
        if backlog.notices:
            return self._delivery.encode_notice(backlog.notices.take())
        if log.barred:
            return None
        if backlog.refusals:
            return self._refused_again(*backlog.refusals.take())
        if backlog.backfill:
            return self._backfill_of(backlog.backfill[0])
        if backlog.filled:
            return None if log.answer_due else self._end_backfill()
        if backlog.live:
            return self._changes_of(backlog.live.popleft())
        return None

    def _refused_again(self, vbucket: int, seqno: int) -> Buffer:
        stream = self._selection.streams[vbucket]
        chunk = stream.one(seqno)
        if not chunk.frames:
            self._backlog.refusals.settle(vbucket, seqno)
            if stream.has_lost(seqno):
                self._selection.restart(stream)
            return b""
        return self._delivery.encode_changes(stream, chunk, last=True, again=True)

    def _backfill_of(self, stream: TapStream) -> Buffer:
        if stream.is_lost:
            self._selection.restart(stream)
            return b""
        chunk = stream.pull(CHUNK_BYTES, self._log.room)
        backfill = self._backlog.backfill
        if not chunk.frames or not stream.remaining:
            self._backlog.filled.append(backfill.popleft())
        if not chunk.frames:
            return b""
        return self._delivery.encode_changes(stream, chunk, last=not any(other.remaining for other in backfill))

    def _end_backfill(self) -> bytes:
        """Announce that the backfill is complete. The streams go on with new changes, unless it was a dump."""
        for stream in self._backlog.filled:
            stream.place = stream.place._replace(phase=Phase.LIVE)
            self._backlog.notices.add(opaque_message(TapOpaque.CLOSE_BACKFILL, stream.vbucket.id), stream)
            if not self._selection.request.is_dump:
                self._backlog.live.append(stream)
        self._backlog.filled.clear()
        return b""

    def _changes_of(self, stream: TapStream) -> Buffer:
        if stream.is_lost:
            self._selection.restart(stream)
            return b""
        live = self._backlog.live
        if message := stream.announce():
            live.append(stream)
            return self._delivery.encode_notice(TapNotice(message, ((stream, stream.place),)))
        chunk = stream.pull(CHUNK_BYTES, self._log.room)
        if not chunk.frames:
            self._selection.bucket.wait(stream)
            return b""
        is_drained = not stream.remaining
        ends_checkpoint = is_drained and stream.place.seqno < stream.vbucket.history.whole_seqno
        is_last = is_drained and (ends_checkpoint or not any(other.remaining for other in live))
        live.append(stream)
        return self._delivery.encode_changes(stream, chunk, last=is_last)
