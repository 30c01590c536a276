"""What the producers of all dialects have in common: turns, deadlines, and what they report of themselves."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from penstock.errors import NotSupported
from penstock.node.buckets.producer_reports import Load, ProducerReport, StreamReport, StreamTotals
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent, Waiting
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
    "Turns",
    "streamable",
]

CHUNK_BYTES = 1024 * 1024
"""What a stream sends before the next one's turn. Against 256 KiB a quarter more at 1 KB values, the same at 100 B."""

TURN_BYTES = 1024 * 1024
"""What one turn sends before the event loop serves others: below a millisecond."""

WRITE_BYTES = CHUNK_BYTES // 2
"""Pieces are put together up to here."""


def streamable(session: Session) -> ServedBucket:
    """Return the bucket whose changes a connection asks for. Raises NoBucket, NotSupported for one that has none."""
    bucket = session.selected()
    if bucket.spec.plain_cache:
        raise NotSupported(f"bucket {bucket.store.name} is a plain cache, whose changes are not told")
    return bucket


class Turns:
    """The turns of a producer on the event loop. At most one is asked for at a time.

    Attributes:
        count: how many turns there were.
        are_over: there are no more.
    """

    def __init__(self, session: Session, take: Callable[[], None]) -> None:
        self.count = 0
        self.are_over = False
        self._output = session.output
        self._call_soon = session.node.loop.call_soon
        self._take = take
        self._is_asked = False

    def ask(self) -> None:
        """Ask for a turn, if none is asked for yet and the peer takes what is sent."""
        if not (self._is_asked or self.are_over or self._output.paused):
            self._is_asked = True
            self._call_soon(self._output.guarded, self._begin)

    def stop(self) -> None:
        """Give up the turn that was asked for, and take no more."""
        self.are_over = True

    def _begin(self) -> None:
        self._is_asked = False
        if not self.are_over:
            self.count += 1
            self._take()


class AnswerDeadline:
    """Ends the connection if the peer owes an answer for too long."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return self._timer is not None

    def start(self, seconds: float, why: str) -> None:
        """Begin to wait, if the deadline does not run yet. why: begins the reason for which the connection ends."""
        if self._timer is None:
            session = self._session
            self._timer = session.node.loop.call_later(seconds, session.output.abort, f"{why} for {seconds:g} s")

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ProducedStream(Waiting, Protocol):
    """One of a producer's streams, as far as its reports need it."""

    @property
    def items_sent(self) -> int: ...
    @property
    def bytes_sent(self) -> int: ...
    @property
    def remaining(self) -> int:
        """How many changes are left to send, at most."""

    def report(self) -> StreamReport: ...


class ChangeProducer(ABC):
    """Sends changes on one connection, from its first change-stream request to its end.

    Everything runs on the node's event loop: nothing may block, and nothing is sent but by `session.output.write` while
    the connection is not `paused`. Work that a producer has called later is called by `session.output.guarded`, which
    deals with its exceptions.

    Attributes:
        name: how the bucket calls it: the client's name for it, or `anon_N`. An older producer of the same dialect and
            name was ended.
        named: the client gave a name.
        created: epoch seconds.
        streams: by what they are known by.
        turns: in which changes are sent.
        sent: what all producers of the dialect have sent, for STAT.
        ended: what the streams have sent that are no longer there.
    """

    streams: Mapping[int, ProducedStream]

    def __init__(self, session: Session, bucket: ServedBucket, dialect: Dialect, name: bytes = b"") -> None:
        self.session = session
        self.bucket = bucket
        self.dialect = dialect
        self.created = time.time()
        self.named = bool(name)
        self.turns = Turns(session, self.take_turn)
        self.sent = bucket.sent[dialect]
        self.ended = StreamTotals()
        self.name = bucket.enter(self, name)

    @property
    def user(self) -> str | None:
        return self.session.user

    @property
    def port(self) -> int:
        """The port of the node that the connection came in by."""
        node = self.session.node
        return node.kv_port if self.session.listener.tls is None else node.tls_port

    def abort(self, why: str) -> None:
        """End the connection at once."""
        self.session.output.abort(why)

    def close_soon(self) -> None:
        """End the connection in a turn of its own."""
        self.session.node.loop.call_soon(self.session.output.close)

    @abstractmethod
    def resume(self) -> None:
        """Ask for a turn, if there is something to send: the peer takes what is sent again, for instance."""

    @abstractmethod
    def take_turn(self) -> None:
        """Send some of what there is, and ask for the next turn."""

    @abstractmethod
    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """Take note of what happened to a whole vbucket; sent is what comes of it in a turn of its own."""

    def renew(self) -> bool:
        """Apply a change of the user's roles to the streams. False: the connection must end, which is the default."""
        return False

    @abstractmethod
    def take_response(self, frame: Frame) -> bytes:
        """Take what the peer says about something that was sent to it. Raises Goodbye where that ends the connection.

        Returns what to answer, as a rule nothing.
        """

    @property
    @abstractmethod
    def ready(self) -> int:
        """How many streams and messages have something to send now."""

    @property
    @abstractmethod
    def unacked(self) -> int:
        """How much the peer has yet to acknowledge: bytes, with TAP messages."""

    def details(self) -> dict[str, Any]:
        """Return what only this dialect says of a producer, by its name in STAT."""
        return {}

    def keep_totals(self, stream: ProducedStream) -> None:
        """Add what a stream has sent that ends now."""
        self.ended = StreamTotals(self.ended.items + stream.items_sent, self.ended.nbytes + stream.bytes_sent)

    def stop(self) -> None:
        """Give everything up: the connection is at its end. A method that overrides this one calls it."""
        self.turns.stop()
        self.bucket.leave(self)
        for stream in self.streams.values():
            self.bucket.forget(stream)

    def load(self) -> Load:
        """Return what there is left to do. Only STAT asks for it."""
        remaining = sum(stream.remaining for stream in self.streams.values())
        return Load(len(self.streams), self.ready, remaining, self.unacked, self.turns.count)

    def report(self) -> ProducerReport:
        session, name = self.session, self.name.decode("utf-8", "backslashreplace")
        return ProducerReport(
            name=name,
            label=name if self.named else f"{session.user or 'anonymous'}@{session.peer}",
            dialect=self.dialect.value,
            peer=session.peer,
            agent=session.agent,
            user=session.user,
            created=self.created,
            streams=tuple(stream.report() for stream in self.streams.values()),
            bytes_unsent=session.output.bytes_unsent,
            details=self.details(),
            ended=self.ended,
        )
