"""The common part of the producers of all dialects: turns, answer deadlines and reports."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from penstock.errors import NotSupported
from penstock.node.buckets.producer_reports import ProducerLoad, ProducerReport, StreamReport, StreamTotals
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent, WaitingStream
from penstock.node.session.session import Session
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Frame

__all__ = [
    "CHUNK_BYTES",
    "TURN_BYTES",
    "WRITE_BYTES",
    "AnswerDeadline",
    "ChangeProducer",
    "TurnScheduler",
    "require_streamable_bucket",
]

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


class ChangeProducer(ABC):
    """Sends changes on one connection, from its first change-stream request to its end.

    Everything runs on the node's event loop, so no method may block. Bytes are sent only by `session.output.write`, and
    only while the connection is not `paused`. Delayed work of a producer runs in `session.output.run_guarded`, which
    handles its exceptions.

    Attributes:
        name: the client's name of the producer, or `anon_N`. A new producer ends an older one of its dialect and name.
        is_named: whether the client has given the name.
        created: time of creation, in epoch seconds.
        streams: the streams by their key.
        turns: schedules the turns in which changes are sent.
        sent: totals of all producers of the dialect, for STAT.
        ended_totals: totals of the streams that have ended.
    """

    streams: Mapping[int, ProducedStream]

    def __init__(self, session: Session, bucket: ServedBucket, dialect: Dialect, name: bytes = b"") -> None:
        self.session = session
        self.bucket = bucket
        self.dialect = dialect
        self.created = time.time()
        self.is_named = bool(name)
        self.turns = TurnScheduler(session, self.run_turn)
        self.sent = bucket.sent_counts[dialect]
        self.ended_totals = StreamTotals()
        self.name = bucket.add_producer(self, name)

    @property
    def user(self) -> str | None:
        """The name of the user, None without a login."""
        return self.session.user

    @property
    def port(self) -> int:
        """The port of the node that the client has connected to."""
        node = self.session.node
        return node.kv_port if self.session.listener.tls is None else node.tls_port

    def abort(self, reason: str) -> None:
        """Close the connection at once."""
        self.session.output.abort(reason)

    def close_soon(self) -> None:
        """Close the connection in a turn of its own."""
        self.session.node.loop.call_soon(self.session.output.close)

    @abstractmethod
    def resume(self) -> None:
        """Schedule a turn, if there is something to send. Called when the peer reads again, for instance."""

    @abstractmethod
    def run_turn(self) -> None:
        """Send some of the pending changes, and schedule the next turn."""

    @abstractmethod
    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """Handle an event of a whole vbucket. Messages about it are sent in a later turn."""

    def renew_login(self) -> bool:
        """Apply a change of the user's roles to the streams.

        Returns:
            Whether the connection may continue. The default is False.
        """
        return False

    @abstractmethod
    def handle_response(self, frame: Frame) -> bytes:
        """Handle the peer's response to a message that the producer has sent.

        Returns:
            The reply, in most cases empty.

        Raises:
            CloseConnection: the response ends the connection.
        """

    @property
    @abstractmethod
    def ready_count(self) -> int:
        """Number of streams and messages that have something to send now."""

    @property
    @abstractmethod
    def unacked(self) -> int:
        """Bytes that the peer has not acknowledged; with TAP, messages."""

    def details(self) -> dict[str, Any]:
        """Return the statistics that only this dialect has, by their name in STAT."""
        return {}

    def add_totals(self, stream: ProducedStream) -> None:
        """Add the totals of a stream that ends."""
        self.ended_totals = StreamTotals(
            self.ended_totals.items + stream.items_sent, self.ended_totals.nbytes + stream.bytes_sent
        )

    def stop(self) -> None:
        """Stop everything, since the connection ends. An override must call this method."""
        self.turns.stop()
        self.bucket.remove_producer(self)
        for stream in self.streams.values():
            self.bucket.remove_waiting_stream(stream)

    def load(self) -> ProducerLoad:
        """Return the amount of pending work, for STAT."""
        remaining = sum(stream.remaining for stream in self.streams.values())
        return ProducerLoad(len(self.streams), self.ready_count, remaining, self.unacked, self.turns.count)

    def report(self) -> ProducerReport:
        """Return the report of the producer."""
        session, name = self.session, self.name.decode("utf-8", "backslashreplace")
        return ProducerReport(
            name=name,
            label=name if self.is_named else f"{session.user or 'anonymous'}@{session.peer}",
            dialect=self.dialect.value,
            peer=session.peer,
            agent=session.agent,
            user=session.user,
            created=self.created,
            streams=tuple(stream.report() for stream in self.streams.values()),
            bytes_unsent=session.output.bytes_unsent,
            details=self.details(),
            ended_streams=self.ended_totals,
        )
