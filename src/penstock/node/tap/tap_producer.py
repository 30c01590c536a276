"""A TAP connection, from the side that sends: one stream of many vbuckets.

Each part of the producer has one idea: which vbuckets the consumer gets (`TapSelection`), what waits (`TapBacklog`),
what comes next (`TapOrder`), and what was sent and acknowledged (`TapDelivery`). A *turn* of the event loop ends as one
of DCP does (`streams.stream_producer`), and when a message has to be acknowledged first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from penstock.node.answers import Goodbye
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.session.session import Session
from penstock.node.streams.change_producer import (
    TURN_BYTES,
    WRITE_BYTES,
    AnswerDeadline,
    ChangeProducer,
)
from penstock.node.streams.stream_encoder import joined
from penstock.node.tap.tap_backlog import TapBacklog, TapNotices, TapRefusals
from penstock.node.tap.tap_delivery import TapDelivery
from penstock.node.tap.tap_order import TapOrder
from penstock.node.tap.tap_request import TapRequest
from penstock.node.tap.tap_selection import TapSelection
from penstock.node.tap.tap_stream import TapStream, opaque_message
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import Dialect, TapOpaque
from penstock.wire.codec.frame import Buffer, Frame, opcode_name
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Noop
from penstock.wire.messages.tap import TapOptions

__all__ = ["TapProducer"]

_STEP_BYTES = 2 * 1024  # what it costs to look at a vbucket, in bytes sent
_REFUSED_BYTES = 32 * 1024  # to find out whether a change that was refused still counts
_MOST_NOTICES = 16
"""Of each vbucket, on average. A consumer before which more wait takes none, and better starts from zero."""

_TRANSIENT = frozenset((Status.EBUSY, Status.ETMPFAIL))
_MESSAGES = frozenset(range(Opcode.TAP_MUTATION, Opcode.TAP_CHECKPOINT_END + 1))


class TapProducer(ChangeProducer):
    """The producer of one connection.

    Attributes:
        request: what the consumer asked for.
        client: what outlives the connection.
        selection: the vbuckets that the consumer gets.
        delivery: what was sent.
    """

    def __init__(self, session: Session, bucket: ServedBucket, name: bytes, options: TapOptions) -> None:
        super().__init__(session, bucket, Dialect.TAP, name)
        self._settings = settings = session.node.tap
        self.request = request = TapRequest(options)
        returns = self.named and not request.is_dump
        self.client = bucket.tap.connect_client(
            self.name if returns else b"", registered=request.registered, keepalive=settings.keepalive
        )
        form = request.form(session.datatypes)
        notices = TapNotices(_MOST_NOTICES * len(bucket.store.vbuckets), self._abort_soon)
        self._backlog = TapBacklog(notices, TapRefusals(self.client))
        self.delivery = TapDelivery(bucket, form, request.acks, settings)
        self.selection = TapSelection(
            bucket, request, form, self.client, self._backlog, resume=self.resume, keep_totals=self.keep_totals
        )
        self.streams: dict[int, TapStream] = self.selection.streams
        self._order = TapOrder(self.selection, self._backlog, self.delivery)
        self._pause: asyncio.TimerHandle | None = None  # after a refusal nothing is sent for a while
        self._answer = AnswerDeadline(session)
        self._noops = _Noops(session, settings.noop_interval)
        if request.acks:
            notices.add(opaque_message(TapOpaque.ENABLE_AUTO_NACK))
        if request.checkpoints:
            notices.add(opaque_message(TapOpaque.ENABLE_CHECKPOINT_SYNC))
        self.selection.begin()
        self.resume()

    def change_filter(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Send other vbuckets from now on, as `TapSelection.change_filter` does."""
        self.selection.change_filter(pairs)
        self.resume()

    def begin_anew(self) -> None:
        """Send everything again, from the beginning."""
        self.selection.restart_all()
        self.resume()

    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        self.selection.vbucket_changed(vbucket, event)
        self.resume()

    def stop(self) -> None:
        """Keep what the consumer has acknowledged, if it may come back, and give up all else.

        A connection that is ended from here ends twice; by the second time another may be this client.
        """
        if self.turns.are_over:
            return
        super().stop()
        self._noops.stop()
        self._answer.stop()
        if self._pause is not None:
            self._pause.cancel()
        self.selection.close()
        self.bucket.tap.disconnect_client(self.name, self.client, self._settings.keepalive, self.session.node.loop)

    # Answers

    def take_response(self, frame: Frame) -> bytes:
        if frame.opcode == Opcode.NOOP:
            return b""
        if frame.opcode not in _MESSAGES:
            raise Goodbye(f"response to {opcode_name(frame.opcode)} on a TAP connection")
        number = self.delivery.log.find(frame.opaque)
        if number is None:
            return b""
        if frame.specific == Status.SUCCESS:
            self.delivery.acknowledge(number + 1, self._backlog)
        elif frame.specific in _TRANSIENT:
            self.delivery.refuse(number, self._backlog, self.streams)
            self._pause_for(self._settings.backoff_period)
        else:
            raise Goodbye(f"{opcode_name(frame.opcode)} refused with status 0x{frame.specific:02x}")
        self._answer.stop()
        self._watch()
        self.resume()
        return b""

    def _pause_for(self, seconds: float) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._pause = self.session.node.loop.call_later(seconds, self.session.output.guarded, self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        self.resume()

    def _watch(self) -> None:
        """End the connection in a while, if the peer owes an answer."""
        if self.delivery.log.answer_due:
            self._answer.start(self._settings.ack_grace_period, "no TAP answer")

    def _abort_soon(self, why: str) -> None:
        self.session.node.loop.call_soon(self.session.output.abort, why)

    # Sending

    def resume(self) -> None:
        if self._pause is None:
            self.turns.ask()

    def take_turn(self) -> None:
        share = TURN_BYTES
        pieces: list[Buffer] = []
        waiting = 0
        while share > 0 and not self.session.output.paused:
            cost = _REFUSED_BYTES if self._backlog.refusals else _STEP_BYTES
            piece = self._order.next_piece() if self._pause is None else None
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
        self._watch()
        if self.request.is_dump and self._order.is_complete and not self.session.output.paused:
            raise Goodbye("the dump is complete")

    def _write(self, pieces: Sequence[Buffer]) -> None:
        if data := joined(pieces):
            self._noops.put_off()
            self.session.output.write(data)

    # What STAT shows

    @property
    def ready(self) -> int:
        return len(self._backlog)

    @property
    def unacked(self) -> int:
        return self.delivery.log.unacked

    def details(self) -> dict[str, Any]:
        return {
            "flags": int(self.request.flags),
            "vb_filter": ",".join(map(str, sorted(self.request.listed))),
            "unacked": self.unacked,
            "sequence": self.delivery.log.sent,
        }


class _Noops:
    """Sends a NOOP for each interval in which nothing else was sent."""

    def __init__(self, session: Session, interval: float) -> None:
        self._session = session
        self._interval = interval
        self._is_quiet = True
        self._start()

    def put_off(self) -> None:
        """Send no NOOP in this interval, since something else was sent."""
        self._is_quiet = False

    def stop(self) -> None:
        self._timer.cancel()

    def _start(self) -> None:
        session = self._session
        self._timer = session.node.loop.call_later(self._interval, session.output.guarded, self._end_interval)

    def _end_interval(self) -> None:
        if self._is_quiet:
            self._session.output.write(Noop().encode())
        self._is_quiet = True
        self._start()
