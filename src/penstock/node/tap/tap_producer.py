"""A TAP connection on the side of the producer: one stream of many vbuckets.

Each part of the producer has one task: `TapSelection` selects vbuckets, `TapBacklog` keeps pending messages,
`TapOrder` chooses the next message, and `TapDelivery` sends and acknowledges. A *turn* of the event loop ends as in DCP
(`streams.stream_producer`), and when a message has to be acknowledged first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from penstock.node.answers import CloseConnection
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.session.session import Session
from penstock.node.streams.change_producer import (
    TURN_BYTES,
    WRITE_BYTES,
    AnswerDeadline,
    ChangeProducer,
)
from penstock.node.streams.stream_encoder import join_pieces
from penstock.node.tap.tap_backlog import TapBacklog, TapNotices, TapRefusals
from penstock.node.tap.tap_delivery import TapDelivery
from penstock.node.tap.tap_order import TapOrder
from penstock.node.tap.tap_request import TapRequest
from penstock.node.tap.tap_selection import TapSelection
from penstock.node.tap.tap_stream import TapStream, make_opaque_message
from penstock.node.tap.tap_takeover import TapTakeover
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import Dialect, TapOpaque
from penstock.wire.codec.frame import Buffer, Frame, name_opcode
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Noop
from penstock.wire.messages.tap import TapOptions

# Costs in bytes sent: of visiting a vbucket, and of checking whether a refused change was superseded.
_STEP_COST_BYTES = 2 * 1024
_REFUSED_COST_BYTES = 32 * 1024
_MAX_NOTICES = 16
"""Waiting notices of each vbucket, on average. A consumer with more reads none, and should start from zero."""

_TRANSIENT = frozenset((Status.EBUSY, Status.ETMPFAIL))  # the message is sent again after a pause
_MESSAGES = frozenset(range(Opcode.TAP_MUTATION, Opcode.TAP_CHECKPOINT_END + 1))


class TapProducer(ChangeProducer):
    """The producer of one connection.

    Attributes:
        request: the options of TAP_CONNECT.
        client: the state that outlives the connection.
        selection: the vbuckets that the consumer gets.
        delivery: the sent messages.
        streams: the open streams by vbucket.
    """

    def __init__(self, session: Session, bucket: ServedBucket, name: bytes, options: TapOptions) -> None:
        super().__init__(session, bucket, Dialect.TAP, name)
        self._settings = settings = session.node.tap
        self.request = request = TapRequest(options)
        returns = self.is_named and not request.is_dump
        self.client = bucket.tap.connect_client(
            self.name if returns else b"", registered=request.registered, keepalive=settings.keepalive
        )
        form = request.make_form(session.datatypes)
        notices = TapNotices(_MAX_NOTICES * len(bucket.store.vbuckets), self._schedule_abort)
        self._backlog = TapBacklog(notices, TapRefusals(self.client))
        self.delivery = TapDelivery(bucket, form, request.acks, settings)
        self.selection = TapSelection(
            *(bucket, request, form, self.client, self._backlog),
            resume=self.resume,
            add_totals=self.add_totals,
            time=session.node.machine.time,
        )
        self.streams: dict[int, TapStream] = self.selection.streams
        self._order = TapOrder(self.selection, self._backlog, self.delivery)
        self._pause_timer: asyncio.TimerHandle | None = None  # runs after a refusal; nothing is sent until it ends
        self._answer = AnswerDeadline(session)
        self._noops = _TapNoops(session, settings.noop_interval)
        if request.acks:
            notices.add(make_opaque_message(TapOpaque.ENABLE_AUTO_NACK))
        if request.checkpoints:
            notices.add(make_opaque_message(TapOpaque.ENABLE_CHECKPOINT_SYNC))
        self._takeover = (
            TapTakeover(session, bucket, request.vbuckets, self._backlog, self.resume) if request.takes_over else None
        )
        self.selection.open_streams()
        self.resume()

    def change_filter(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Change the selected vbuckets. See `TapSelection.change_filter`."""
        self.selection.change_filter(pairs)
        self.resume()

    def restart_streams(self) -> None:
        """Send everything again, from the start."""
        self.selection.restart_all()
        self.resume()

    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """Apply an event of a vbucket to its stream."""
        self.selection.vbucket_changed(vbucket, event)
        if self._takeover is not None and self._takeover.is_broken_by(vbucket, event):
            self._schedule_abort(f"vbucket {vbucket.id} of a takeover: {event.value}")
        self.resume()

    def stop(self) -> None:
        """Keep the acknowledged positions of a client that may return, and free everything else.

        A connection that this node ends is stopped twice. Before the second time, the client may have a new connection.
        """
        if self.turns.is_stopped:
            return
        super().stop()
        self._noops.stop()
        self._answer.stop()
        if self._takeover is not None:
            self._takeover.stop()
        if self._pause_timer is not None:
            self._pause_timer.cancel()
        self.selection.close()
        self.bucket.tap.disconnect_client(self.name, self.client, self._settings.keepalive, self.session.node.loop)

    # Answers

    def handle_response(self, frame: Frame) -> bytes:
        """Return no reply, after applying an answer of the consumer.

        Raises:
            CloseConnection: the consumer refuses a message for good, or the response is not one of TAP.
        """
        if frame.opcode == Opcode.NOOP:
            return b""
        if frame.opcode not in _MESSAGES:
            raise CloseConnection(f"response to {name_opcode(frame.opcode)} on a TAP connection")
        number = self.delivery.log.find_message(frame.opaque)
        if number is None:
            return b""
        if frame.specific == Status.SUCCESS:
            self.delivery.acknowledge(number + 1, self._backlog)
        elif frame.specific in _TRANSIENT:
            self.delivery.refuse(number, self._backlog, self.streams)
            self._pause(self._settings.backoff_period)
        else:
            raise CloseConnection(f"{name_opcode(frame.opcode)} refused with status 0x{frame.specific:02x}")
        self._answer.stop()
        self._watch_answer()
        self.resume()
        return b""

    def _pause(self, seconds: float) -> None:
        if self._pause_timer is not None:
            self._pause_timer.cancel()
        self._pause_timer = self.session.node.loop.call_later(seconds, self.session.output.run_guarded, self._end_pause)

    def _end_pause(self) -> None:
        self._pause_timer = None
        self.resume()

    def _watch_answer(self) -> None:
        """Start the answer deadline, if the peer owes an answer."""
        if self.delivery.log.is_answer_due:
            self._answer.start(self._settings.ack_grace_period, "no TAP answer")

    def _schedule_abort(self, reason: str) -> None:
        self.session.node.loop.call_soon(self.session.output.abort, reason)

    # Sending

    def resume(self) -> None:
        """Schedule a turn, unless the consumer has asked for a pause by refusing a message."""
        if self._pause_timer is None:
            self.turns.schedule()

    def run_turn(self) -> None:
        """Send some of the pending messages.

        Raises:
            CloseConnection: a dump or a takeover is complete.
        """
        share = TURN_BYTES
        pieces: list[Buffer] = []
        waiting = 0
        while share > 0 and not self.session.output.paused:
            cost = _REFUSED_COST_BYTES if self._backlog.refusals else _STEP_COST_BYTES
            piece = self._order.encode_next() if self._pause_timer is None else None
            if piece is None:
                break
            pieces.append(piece)
            waiting += len(piece)
            share -= len(piece) + cost
            if waiting >= WRITE_BYTES:
                self._write(pieces)
                pieces, waiting = [], 0
        else:
            self.resume()
        self._write(pieces)
        self._watch_answer()
        if self._takeover is not None:
            self._takeover.advance(self.streams, self.unacked)
        if self._is_finished and not self.session.output.paused:
            raise CloseConnection("the dump or takeover is complete")

    @property
    def _is_finished(self) -> bool:
        if self._takeover is not None:
            return self._takeover.is_complete
        return self.request.is_dump and self._order.is_complete

    def _write(self, pieces: Sequence[Buffer]) -> None:
        if data := join_pieces(pieces):
            self._noops.skip_interval()
            self.session.output.write(data)

    # Statistics

    @property
    def ready_count(self) -> int:
        """Number of pending messages and streams."""
        return len(self._backlog)

    @property
    def unacked(self) -> int:
        """Number of unanswered messages."""
        return self.delivery.log.unacked

    def details(self) -> dict[str, Any]:
        """Return the statistics that only TAP has, by their name in STAT."""
        return {
            "flags": int(self.request.flags),
            "vb_filter": ",".join(map(str, sorted(self.request.vbuckets))),
            "unacked": self.unacked,
            "sequence": self.delivery.log.sent,
        }


class _TapNoops:
    """Sends a NOOP for each interval in which nothing else was sent."""

    def __init__(self, session: Session, interval: float) -> None:
        self._session = session
        self._interval = interval
        self._is_quiet = True
        self._start()

    def skip_interval(self) -> None:
        """Send no NOOP in this interval, since something else was sent."""
        self._is_quiet = False

    def stop(self) -> None:
        self._timer.cancel()

    def _start(self) -> None:
        session = self._session
        self._timer = session.node.loop.call_later(self._interval, session.output.run_guarded, self._end_interval)

    def _end_interval(self) -> None:
        if self._is_quiet:
            self._session.output.write(Noop().encode())
        self._is_quiet = True
        self._start()
