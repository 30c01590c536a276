"""What the producers of all dialects have in common: how the node knows them, and what they report of themselves."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from penstock.errors import NotSupported
from penstock.node.buckets.producer_reports import Load, ProducerReport, StreamReport, StreamTotals
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.session.session import Session
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Frame

__all__ = [
    "CHUNK_BYTES",
    "TURN_BYTES",
    "WRITE_BYTES",
    "ChangeProducer",
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


class ChangeProducer(ABC):
    """What sends changes on one connection, from its first change-stream request to its end.

    name: empty for one without; the bucket then calls it `anon_N`. An older producer of the same dialect and name is
    ended. Everything runs on the node's event loop: nothing may block, and nothing is sent but by
    `session.output.write` while the connection is not `paused`. An exception that work of its own may raise is
    caught by `session.output.guarded`, through which such work is to be called.
    """

    def __init__(self, session: Session, bucket: ServedBucket, dialect: Dialect, name: bytes = b"") -> None:
        self.session = session
        self.bucket = bucket
        self.dialect = dialect
        self.created = time.time()
        self.named = bool(name)
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
        """Go on: the peer takes what is sent again."""

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

    @abstractmethod
    def load(self) -> Load:
        """Return what there is left to do. Asked for by STAT alone."""

    @abstractmethod
    def stream_reports(self) -> Iterable[StreamReport]: ...

    def details(self) -> dict[str, Any]:
        """Return what only this dialect says of a producer, by its name in STAT."""
        return {}

    def keep_totals(self, items: int, nbytes: int) -> None:
        """Add what a stream has sent that ends now."""
        self.ended = StreamTotals(self.ended.items + items, self.ended.nbytes + nbytes)

    def stop(self) -> None:
        """Give everything up: the connection is at its end. Whoever adds to this calls it too."""
        self.bucket.leave(self)

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
            streams=tuple(self.stream_reports()),
            bytes_unsent=session.output.bytes_unsent,
            details=self.details(),
            ended=self.ended,
        )
