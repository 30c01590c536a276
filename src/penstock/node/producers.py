"""What the producers of all dialects have in common: how the node knows them, and what they report of themselves."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import NotSupported
from penstock.node.served import ServedBucket, VbucketEvent
from penstock.store.vbucket import Vbucket
from penstock.wire.constants import Dialect
from penstock.wire.frame import Frame

if TYPE_CHECKING:
    from penstock.node.connection import NodeConnection

__all__ = [
    "CHUNK_BYTES",
    "TURN_BYTES",
    "WRITE_BYTES",
    "ChangeProducer",
    "Load",
    "ProducerReport",
    "StreamReport",
    "streamable",
]

CHUNK_BYTES = 1024 * 1024
"""What a stream sends before the next one's turn. Against 256 KiB a quarter more at 1 KB values, the same at 100 B."""

TURN_BYTES = 1024 * 1024
"""What one turn sends before the event loop serves others: below a millisecond."""

WRITE_BYTES = CHUNK_BYTES // 2
"""Pieces are put together up to here."""


def streamable(connection: NodeConnection) -> ServedBucket:
    """Return the bucket whose changes a connection asks for. Raises NoBucket, NotSupported for one that has none."""
    bucket = connection.selected()
    if bucket.spec.plain_cache:
        raise NotSupported(f"bucket {bucket.store.name} is a plain cache, whose changes are not told")
    return bucket


@dataclass(frozen=True, slots=True)
class StreamReport:
    """One stream, or what a TAP connection has of one vbucket.

    start_seqno, end_seqno: as asked for; None where the dialect cannot say it. items_sent, bytes_sent: changes, and
    all of the stream's bytes. items_remaining: changes left to send, at most. filters: what is left out, such as
    "values". details: what only this dialect has, for STAT.
    """

    vbucket: int
    opaque: int
    state: str
    start_seqno: int | None
    end_seqno: int | None
    items_sent: int
    bytes_sent: int
    items_remaining: int
    filters: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


class StreamTotals(NamedTuple):
    """What the streams of a producer sent that have ended, so that its totals never go down."""

    items: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class ProducerReport:
    """One producer. name: its own, or `anon_N`. label: what to call it: the name, or user@address without one.

    peer: address and port. agent: as HELLO said, empty without. created: epoch seconds. details: as of StreamReport.
    ended: what its earlier streams have sent.
    """

    name: str
    label: str
    dialect: str
    peer: str
    agent: str
    user: str | None
    created: float
    streams: tuple[StreamReport, ...]
    bytes_unsent: int
    details: dict[str, Any] = field(default_factory=dict)
    ended: StreamTotals = field(default_factory=StreamTotals)

    @property
    def items_sent(self) -> int:
        return self.ended.items + sum(stream.items_sent for stream in self.streams)

    @property
    def bytes_sent(self) -> int:
        return self.ended.nbytes + sum(stream.bytes_sent for stream in self.streams)

    @property
    def items_remaining(self) -> int:
        return sum(stream.items_remaining for stream in self.streams)

    def to_json(self) -> dict[str, Any]:
        report = asdict(self)
        del report["ended"]
        return report | {"items_sent": self.items_sent, "bytes_sent": self.bytes_sent}


@dataclass(frozen=True, slots=True)
class Load:
    """What a producer has left to do, for the totals of STAT: on an idle system all of it is 0, but turns and streams.

    ready: streams with something to send now. remaining: changes left to send, at most. unacked: bytes that the peer
    has not acknowledged. turns: how many there were.
    """

    streams: int = 0
    ready: int = 0
    remaining: int = 0
    unacked: int = 0
    turns: int = 0


class ChangeProducer(ABC):
    """What sends changes on one connection, from its first change-stream request to its end.

    name: empty for one without; the bucket then calls it `anon_N`. An older producer of the same dialect and name is
    ended. Everything runs on the node's event loop: nothing may block, and nothing is sent but by `connection.write`
    while the connection is not `paused`. An exception that work of its own may raise is caught by
    `connection.guarded`, through which such work is to be called.
    """

    def __init__(self, connection: NodeConnection, bucket: ServedBucket, dialect: Dialect, name: bytes = b"") -> None:
        self.connection = connection
        self.bucket = bucket
        self.dialect = dialect
        self.created = time.time()
        self.named = bool(name)
        self.ended = StreamTotals()
        self.name = bucket.enter(self, name)

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
        connection, name = self.connection, self.name.decode("utf-8", "backslashreplace")
        return ProducerReport(
            name=name,
            label=name if self.named else f"{connection.user or 'anonymous'}@{connection.peer}",
            dialect=self.dialect.value,
            peer=connection.peer,
            agent=connection.agent,
            user=connection.user,
            created=self.created,
            streams=tuple(self.stream_reports()),
            bytes_unsent=connection.bytes_unsent,
            details=self.details(),
            ended=self.ended,
        )
