"""The common part of the producers of all dialects: turns, answer deadlines and totals."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol

from penstock.errors import NotSupported
from penstock.node.buckets.endpoint_reports import EndpointLoad, StreamReport, StreamRole, StreamTotals
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import WaitingStream
from penstock.node.session.session import Session
from penstock.node.streams.stream_endpoint import StreamEndpoint
from penstock.wire.codec.constants import Dialect

CHUNK_BYTES = 1024 * 1024
"""Bytes that a stream sends before the next stream. Compared with 256 KiB, 1 KB values are a quarter faster."""

TURN_BYTES = 1024 * 1024
"""Bytes that a turn sends before the event loop serves other connections: less than a millisecond."""

WRITE_BYTES = CHUNK_BYTES // 2
"""Bytes of pieces that are joined for one write."""


def require_streamable_bucket(session: Session) -> ServedBucket:
    """Return the selected bucket.

    Raises:
        NoBucket: no bucket is selected.
        NotSupported: the bucket is a plain cache, which has no change streams.
    """
    bucket = session.require_bucket()
    if bucket.spec.is_plain_cache:
        raise NotSupported(f"bucket {bucket.store.name} is a plain cache, which has no change streams")
    return bucket


class TurnScheduler:
    """Schedules the turns of a producer on the event loop, at most one at a time.

    Attributes:
        count: number of turns so far.
        is_stopped: whether no more turns are scheduled.
    """

    def __init__(self, session: Session, run_turn: Callable[[], None]) -> None:
        self.count = 0
        self.is_stopped = False
        self._output = session.output
        self._call_soon = session.node.loop.call_soon
        self._run = run_turn
        self._is_scheduled = False

    def schedule(self) -> None:
        """Schedule a turn, unless one is scheduled already, or the peer does not read."""
        if not (self._is_scheduled or self.is_stopped or self._output.paused):
            self._is_scheduled = True
            self._call_soon(self._output.run_guarded, self._run_turn)

    def stop(self) -> None:
        """Cancel the scheduled turn, and schedule no more."""
        self.is_stopped = True

    def _run_turn(self) -> None:
        self._is_scheduled = False
        if not self.is_stopped:
            self.count += 1
            self._run()


class AnswerDeadline:
    """Ends the connection if the peer owes an answer for too long."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        """Whether the peer owes an answer."""
        return self._timer is not None

    def start(self, seconds: float, reason: str) -> None:
        """Start the deadline, unless it is running.

        Args:
            seconds: the time limit.
            reason: the first words of the reason with which the connection ends.
        """
        if self._timer is None:
            session = self._session
            self._timer = session.node.loop.call_later(seconds, session.output.abort, f"{reason} for {seconds:g} s")

    def stop(self) -> None:
        """Stop the deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ProducedStream(WaitingStream, Protocol):
    """One stream of a producer, as far as reports need it."""

    @property
    def items_sent(self) -> int:
        """Number of changes that were sent."""

    @property
    def bytes_sent(self) -> int:
        """Bytes that were sent, including messages around the changes."""

    @property
    def remaining(self) -> int:
        """Number of changes that are left to send, at most."""

    def report(self) -> StreamReport:
        """Return the report of the stream."""


class ChangeProducer(StreamEndpoint):
    """Sends changes on one connection.

    Everything runs on the node's event loop, so no method may block. Bytes are sent only by `session.output.write`, and
    only while the connection is not `paused`. Delayed work of a producer runs in `session.output.run_guarded`, which
    handles its exceptions.

    Attributes:
        streams: the streams by their key.
        turns: schedules the turns in which changes are sent.
        sent: totals of all producers of the dialect, for STAT.
    """

    role = StreamRole.PRODUCER
    streams: Mapping[int, ProducedStream]

    def __init__(self, session: Session, bucket: ServedBucket, dialect: Dialect, name: bytes = b"") -> None:
        self.turns = TurnScheduler(session, self.run_turn)
        self.sent = bucket.sent_counts[dialect]
        super().__init__(session, bucket, dialect, name)

    @abstractmethod
    def run_turn(self) -> None:
        """Send some of the pending changes, and schedule the next turn."""

    @property
    @abstractmethod
    def ready_count(self) -> int:
        """Number of streams and messages that have something to send now."""

    @property
    @abstractmethod
    def unacked(self) -> int:
        """Bytes that the peer has not acknowledged; with TAP, messages."""

    @property
    def is_blocked(self) -> bool:
        """Whether something is to be sent, and the peer's window is full. The default is for dialects without one."""
        return False

    def add_totals(self, stream: ProducedStream) -> None:
        """Add the totals of a stream that ends."""
        self.ended_totals = StreamTotals(
            self.ended_totals.items + stream.items_sent, self.ended_totals.nbytes + stream.bytes_sent
        )

    def stop(self) -> None:
        """Stop everything, since the connection ends. An override must call this method."""
        self.turns.stop()
        super().stop()
        for stream in self.streams.values():
            self.bucket.remove_waiting_stream(stream)

    def load(self) -> EndpointLoad:
        """Return the amount of pending work, for STAT."""
        remaining = sum(stream.remaining for stream in self.streams.values())
        return EndpointLoad(
            len(self.streams), self.ready_count, remaining, self.unacked, self.turns.count, self.is_blocked
        )

    def list_streams(self) -> tuple[StreamReport, ...]:
        """Return the reports of the open streams."""
        return tuple(stream.report() for stream in self.streams.values())
