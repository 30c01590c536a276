"""A TAP connection, from the side that sends: one stream of many vbuckets.

What is to be said comes first: TAP_OPAQUE, checkpoints, TAP_FLUSH. Then changes: those that the consumer refused for
the moment, the backfill in order of the vbuckets, and once that is acknowledged what comes new, in turns of the
vbuckets. A *turn* of the event loop ends as one of DCP does (node.producer), and when a message has to be acknowledged
first.
Source: TAP, "Message order" and "ACK"; ep-engine 2.5 tapconnection.cc.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.node.answers import Goodbye
from penstock.node.buckets.producer_reports import Load, StreamReport
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.session.session import Session
from penstock.node.streams.change_producer import CHUNK_BYTES, TURN_BYTES, WRITE_BYTES, ChangeProducer
from penstock.node.tap.tap_changes import Column, encode_changes, mutations_of, seqnos_of, shown, without_spent
from penstock.node.tap.tap_log import TapLog
from penstock.node.tap.tap_request import TapRequest
from penstock.node.tap.tap_stream import TapStream, opaque_message
from penstock.node.tap_state.tap_clients import Phase, TapClient, TapPosition
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.frame_chunks import Chunk
from penstock.wire.codec.constants import Dialect, TapOpaque
from penstock.wire.codec.frame import Buffer, Frame, opcode_name
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Noop
from penstock.wire.messages.tap import TapFlush, TapMessage, TapOptions

__all__ = ["TapProducer"]

_STEP_BYTES = 2 * 1024  # what it costs to look at a vbucket, in bytes sent
_AGAIN_BYTES = 32 * 1024  # to find out whether a change that was refused still counts
_REMARKS = 16
"""Of each vbucket, on average. A consumer before which more wait takes none, and begins better anew."""

_TRANSIENT = frozenset((Status.EBUSY, Status.ETMPFAIL))
_MESSAGES = frozenset(range(Opcode.TAP_MUTATION, Opcode.TAP_CHECKPOINT_END + 1))


@dataclass(frozen=True, slots=True)
class _Said:
    """A message that is no change. places: where the consumer is with these vbuckets once it has acknowledged it."""

    message: TapMessage
    places: tuple[tuple[TapStream, TapPosition], ...] = ()


@dataclass(frozen=True, slots=True)
class _Sent:
    """Changes of one vbucket. place: behind the last one. again: sent a second time."""

    stream: TapStream
    place: TapPosition
    seqnos: Column
    again: bool = False


class TapProducer(ChangeProducer):
    """The producer of one connection.

    request: what the consumer asked for; form: of the changes. client: what outlives the connection. streams: by
    vbucket. log: what is unacknowledged.
    """

    def __init__(self, session: Session, bucket: ServedBucket, name: bytes, options: TapOptions) -> None:
        super().__init__(session, bucket, Dialect.TAP, name)
        self.request = TapRequest(options)
        self.settings = session.node.tap
        interval = self.settings.ack_interval
        self.log: TapLog[_Said | _Sent] = TapLog(self.request.acks, interval, interval * self.settings.ack_window_size)
        self.form = self.request.form(session.datatypes)
        self.streams: dict[int, TapStream] = {}
        self.turns = 0
        self.client = self._client()
        self._loop = session.node.loop
        self._to_say: deque[_Said] = deque()
        self._again: deque[tuple[int, int]] = deque()
        self._backfill: deque[TapStream] = deque()
        self._filled: list[TapStream] = []  # whose backfill was sent, but not said to be
        self._ready: deque[TapStream] = deque()
        self._flushed: set[int] = set()
        self._turn_asked = False
        self._stopped = self._given_up = False
        self._quiet = True  # nothing was sent since the last NOOP was due
        self._suspended: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._noop = self._loop.call_later(self.settings.noop_interval, session.output.guarded, self._tick)
        self._begin()

    # Beginning

    def _client(self) -> TapClient:
        """Return what is known of this consumer, or begin to know it."""
        request, known = self.request, self.bucket.tap.clients
        client = known.get(self.name) if self.named else None
        if client is None or request.is_dump:
            client = TapClient(self.name)
        if client.forget is not None:
            client.forget.cancel()
            client.forget = None
        client.registered = request.registered
        if self.named and not request.is_dump and (request.registered or self.settings.keepalive):
            known[self.name] = client
        return client

    def _begin(self) -> None:
        if self.log.acks:
            self._say(opaque_message(TapOpaque.ENABLE_AUTO_NACK))
        if self.request.checkpoints:
            self._say(opaque_message(TapOpaque.ENABLE_CHECKPOINT_SYNC))
        for vbucket in self.bucket.store.vbuckets:
            if self._wants(vbucket):
                self._open(vbucket)
        # Of a vbucket that it does not ask for any more, nothing is owed.
        self._again.extend(again for again in self.client.again if again[0] in self.streams)
        self.client.again = dict.fromkeys(self._again)
        self.resume()

    def _wants(self, vbucket: Vbucket) -> bool:
        return self.request.wants(vbucket, bridged=self.bucket.bridge is not None)

    def _open(self, vbucket: Vbucket) -> None:
        """Begin with a vbucket, or go on with it."""
        place = self.client.places.get(vbucket.id)
        if place is None or not place.is_on_history(vbucket):
            place = self.request.first_place(vbucket, self.bucket.tap.checkpoints(vbucket), time.time())
        stream = self.streams[vbucket.id] = TapStream(self, vbucket, place)
        self.bucket.sent[Dialect.TAP].streams_opened += 1
        self._queue(stream)

    def _queue(self, stream: TapStream) -> None:
        """Put a stream where its place says."""
        if stream.place.phase is Phase.LIVE:
            self._ready.append(stream)
            return
        if stream.place.phase is Phase.NEW:
            stream.restart(TapPosition(Phase.BACKFILL, stream.vbucket.vbuuid))
            self._say(opaque_message(TapOpaque.INITIAL_VBUCKET_STREAM, stream.vbucket.id), stream)
        self._backfill.append(stream)

    def change_filter(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Send these vbuckets from now on, all where there is none.

        pairs: (vbucket, the last checkpoint that the consumer has closed). Vbuckets that are sent already go on where
        they are.
        """
        self.request.change_filter(pairs)
        self._say(opaque_message(TapOpaque.COMPLETE_VB_FILTER_CHANGE))
        for vbucket in self.bucket.store.vbuckets:
            stream, wanted = self.streams.get(vbucket.id), self._wants(vbucket)
            if stream is None and wanted:
                self._open(vbucket)
            elif stream is not None and not wanted:
                self._drop(stream)
        self.resume()

    def begin_anew(self) -> None:
        """Send everything again, from the beginning."""
        for stream in tuple(self.streams.values()):
            self._restart(stream)
        self.resume()

    def _restart(self, stream: TapStream) -> None:
        """Begin a vbucket anew. What is acknowledged of the old stream counts no more."""
        self._remove(stream)
        new = self.streams[stream.vbucket.id] = TapStream(
            self, stream.vbucket, TapPosition(Phase.NEW, stream.vbucket.vbuuid)
        )
        new.items_sent, new.bytes_sent = stream.items_sent, stream.bytes_sent
        self._queue(new)

    def _drop(self, stream: TapStream) -> None:
        self._remove(stream)
        self.keep_totals(stream.items_sent, stream.bytes_sent)
        del self.streams[stream.vbucket.id]
        self.client.places.pop(stream.vbucket.id, None)

    def _remove(self, stream: TapStream) -> None:
        """Take a stream out of wherever it waits."""
        self.bucket.forget(stream)
        for queue in (self._ready, self._backfill, self._filled):
            if stream in queue:
                queue.remove(stream)
        for place in [place for place in self.client.again if place[0] == stream.vbucket.id]:
            del self.client.again[place]
        self._again = deque(place for place in self._again if place[0] != stream.vbucket.id)

    # What happens

    def add(self, stream: TapStream) -> None:
        """Let a stream that waited have its turn."""
        self._ready.append(stream)
        self.resume()

    def resume(self) -> None:
        if not (self._turn_asked or self._stopped or self._suspended or self.session.output.paused):
            self._turn_asked = True
            self._loop.call_soon(self.session.output.guarded, self._turn)

    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        stream = self.streams.get(vbucket.id)
        if event is VbucketEvent.FLUSHED:
            self._flushed.add(vbucket.id)  # also one that is not sent: whether all were flushed decides what is said
        if stream is None:
            if not self.request.is_dump and self._wants(vbucket):
                self._open(vbucket)
        elif event is VbucketEvent.DELETED:
            self._drop(stream)
        elif event is VbucketEvent.FLUSHED:
            self._remove(stream)
        self.resume()

    def take_response(self, frame: Frame) -> bytes:
        if frame.opcode == Opcode.NOOP:
            return b""
        if frame.opcode not in _MESSAGES:
            raise Goodbye(f"response to {opcode_name(frame.opcode)} on a TAP connection")
        number = self.log.find(frame.opaque)
        if number is None:
            return b""
        if frame.specific not in _TRANSIENT and frame.specific != Status.SUCCESS:
            raise Goodbye(f"{opcode_name(frame.opcode)} refused with status 0x{frame.specific:02x}")
        if frame.specific in _TRANSIENT:
            self._acknowledged(number)
            self._refused(number)
        else:
            self._acknowledged(number + 1)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._watch()
        self.resume()
        return b""

    def _acknowledged(self, end: int) -> None:
        for item, first, last in self.log.take(end):
            if isinstance(item, _Said):
                for stream, place in item.places:
                    stream.acked = place
            elif item.again:
                for seqno in item.seqnos[first:last]:
                    self.client.again.pop((item.stream.vbucket.id, int(seqno)), None)
            else:
                item.stream.acked = item.place._replace(seqno=int(item.seqnos[last - 1]))

    def _refused(self, number: int) -> None:
        """Send a message again, after a while."""
        for item, first, _ in self.log.take(number + 1):
            if isinstance(item, _Said):
                self._to_say.appendleft(item)
            elif self.streams.get(item.stream.vbucket.id) is item.stream:
                again = item.stream.vbucket.id, int(item.seqnos[first])
                self.client.again[again] = None
                self._again.append(again)
        self.bucket.tap.backoffs += 1
        if self._suspended is not None:
            self._suspended.cancel()
        self._suspended = self._loop.call_later(self.settings.backoff_period, self.session.output.guarded, self._rested)

    def _rested(self) -> None:
        self._suspended = None
        self.resume()

    def stop(self) -> None:
        """Keep what the consumer has acknowledged, if it may come back, and give up all else.

        A connection that is ended from here ends twice; by the second time another may be this client.
        """
        if self._stopped:
            return
        super().stop()
        self._stopped = True
        for timer in (self._noop, self._suspended, self._deadline):
            if timer is not None:
                timer.cancel()
        client, known = self.client, self.bucket.tap.clients
        client.places = {number: stream.acked for number, stream in self.streams.items()}
        for stream in self.streams.values():
            self.bucket.forget(stream)
        self.streams.clear()
        if known.get(self.name) is client and not client.registered:
            client.forget = self._loop.call_later(self.settings.keepalive, known.pop, self.name, None)

    # Sending

    def _turn(self) -> None:
        self._turn_asked = False
        if self._stopped:  # another has taken its place on this connection
            return
        self.turns += 1
        share = TURN_BYTES
        pieces: list[Buffer] = []
        waiting = 0
        while share > 0 and not self.session.output.paused:
            cost = _AGAIN_BYTES if self._again else _STEP_BYTES
            piece = self._next()
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
        if self.request.is_dump and self._has_all:
            raise Goodbye("the dump is complete")

    @property
    def _has_all(self) -> bool:
        waiting = self._to_say or self._again or self._backfill or self._filled
        return not (waiting or self.log.unacked or self.session.output.paused)

    def _next(self) -> Buffer | None:
        """Return what comes next, nothing where only the state went on; None if it has to wait for something."""
        if self._suspended is not None or self.log.room <= 0:
            return None
        if self._flushed:
            self._say_flushed()
        if self._to_say:
            return self._spoken(self._to_say.popleft())
        if self.log.barred:
            return None
        if self._again:
            return self._resent(*self._again.popleft())
        if self._backfill:
            return self._next_of_backfill(self._backfill[0])
        if self._filled:
            return None if self.log.answer_due else self._end_backfill()
        if self._ready:
            return self._next_of(self._ready.popleft())
        return None

    def _next_of_backfill(self, stream: TapStream) -> Buffer:
        if stream.is_lost:
            self._restart(stream)
            return b""
        chunk = stream.pull(CHUNK_BYTES, self.log.room)
        if not chunk.frames or not stream.remaining:
            self._backfill.popleft()
            self._filled.append(stream)
        if not chunk.frames:
            return b""
        return self._changes(stream, chunk, last=not any(other.remaining for other in self._backfill))

    def _end_backfill(self) -> bytes:
        for stream in self._filled:
            stream.place = stream.place._replace(phase=Phase.LIVE)
            self._say(opaque_message(TapOpaque.CLOSE_BACKFILL, stream.vbucket.id), stream)
            if not self.request.is_dump:
                self._ready.append(stream)
        self._filled.clear()
        return b""

    def _next_of(self, stream: TapStream) -> Buffer:
        if stream.is_lost:
            self._restart(stream)
            return b""
        if message := stream.announce():
            self._ready.append(stream)
            return self._spoken(_Said(message, ((stream, stream.place),)))
        chunk = stream.pull(CHUNK_BYTES, self.log.room)
        if not chunk.frames:
            self.bucket.wait(stream)
            return b""
        self._ready.append(stream)
        drained = not stream.remaining
        ends_checkpoint = drained and stream.place.seqno < stream.vbucket.whole_seqno
        return self._changes(stream, chunk, last=drained and (ends_checkpoint or not self._other_has_more(stream)))

    def _other_has_more(self, stream: TapStream) -> bool:
        return any(other is not stream and other.remaining for other in self._ready)

    def _resent(self, vbucket: int, seqno: int) -> Buffer:
        stream = self.streams[vbucket]
        chunk = stream.one(seqno)
        if not chunk.frames:
            self.client.again.pop((vbucket, seqno), None)
            if stream.has_lost(seqno):
                self._restart(stream)
            return b""
        return self._changes(stream, chunk, last=True, again=True)

    def _say(self, message: TapMessage, *streams: TapStream) -> None:
        most = _REMARKS * len(self.bucket.store.vbuckets)
        if len(self._to_say) < most:
            self._to_say.append(_Said(message, tuple((stream, stream.place) for stream in streams)))
        elif not self._given_up:
            self._given_up = True
            self._loop.call_soon(self.session.output.abort, f"{most} remarks wait for a TAP consumer that takes none")

    def _say_flushed(self) -> None:
        """Say once that all was flushed; where it was only some vbuckets, begin those anew."""
        flushed, self._flushed = self._flushed, set()
        alive = {v.id for v in self.bucket.store.vbuckets if v.state is not None}
        streams = [stream for number, stream in self.streams.items() if number in flushed]
        if not streams:
            return
        if not alive <= flushed:
            for stream in streams:
                self._restart(stream)
            return
        for stream in streams:
            phase = Phase.BACKFILL if stream.place.phase is Phase.BACKFILL else Phase.LIVE
            stream.restart(TapPosition(phase, stream.vbucket.vbuuid))
        self._say(TapFlush(), *streams)
        for stream in streams:
            self._queue(stream)

    def _spoken(self, said: _Said) -> bytes:
        sequences, flags = self.log.number(1, said, asks=True, barrier=True)
        if not self.log.acks:
            for stream, place in said.places:
                stream.acked = place
        return replace(said.message, opaque=int(sequences[0]), tap_flags=int(flags[0])).encode()

    def _changes(self, stream: TapStream, chunk: Chunk, *, last: bool, again: bool = False) -> Buffer:
        """Return changes as TAP has them. last: nothing follows for now."""
        chunk = shown(chunk, stream.vbucket)
        hops = self.bucket.tap.hops.get(stream.vbucket.id)
        if hops is not None:
            chunk = without_spent(chunk, hops)
        if not chunk.frames:
            return b""
        changes = _Sent(stream, stream.place, seqnos_of(chunk), again)
        sequences, flags = self.log.number(chunk.frames, changes, asks=last)
        if not self.log.acks and not again:
            stream.acked = stream.place
        piece = encode_changes(chunk, self.form, sequences, flags, hops)
        stream.bytes_sent += len(piece)
        sent = self.bucket.sent[Dialect.TAP]
        sent.items += chunk.frames
        sent.nbytes += len(piece)
        self.bucket.tap.deletes_sent += chunk.frames - int(mutations_of(chunk).sum())
        return piece

    def _write(self, pieces: Sequence[Buffer]) -> None:
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if data:
            self._quiet = False
            self.session.output.write(data)

    # Is the peer alive?

    def _watch(self) -> None:
        """End the connection in a while, if the peer owes an answer."""
        if self.log.answer_due and self._deadline is None:
            seconds = self.settings.ack_grace_period
            self._deadline = self._loop.call_later(
                seconds, self.session.output.abort, f"no TAP answer for {seconds:g} s"
            )

    def _tick(self) -> None:
        if self._quiet:
            self.session.output.write(Noop().encode())
        self._quiet = True
        self._noop = self._loop.call_later(self.settings.noop_interval, self.session.output.guarded, self._tick)

    # What STAT shows

    def load(self) -> Load:
        waiting = len(self._to_say) + len(self._again)
        return Load(
            streams=len(self.streams),
            ready=len(self._ready) + len(self._backfill) + len(self._filled) + waiting,
            remaining=sum(stream.remaining for stream in self.streams.values()),
            unacked=self.log.unacked,
            turns=self.turns,
        )

    def stream_reports(self) -> Iterable[StreamReport]:
        return (stream.report() for stream in self.streams.values())

    def details(self) -> dict[str, Any]:
        return {
            "flags": int(self.request.flags),
            "vb_filter": ",".join(map(str, sorted(self.request.listed))),
            "unacked": self.log.unacked,
            "sequence": self.log.sent,
        }
