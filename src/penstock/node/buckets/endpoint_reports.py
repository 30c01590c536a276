"""Reports of change-stream connections and their streams: plain values, for STAT and for programs that embed a node."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple


class StreamRole(StrEnum):
    """The side of a change-stream connection on which the node is."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class StreamReport:
    """One stream, or a TAP connection's share of one vbucket.

    Attributes:
        vbucket: the vbucket's number.
        opaque: the stream's opaque.
        state: the stream's state in words.
        start_seqno: as requested; None if the dialect has none.
        end_seqno: as requested; None if the dialect has none.
        items_sent: changes that were sent.
        bytes_sent: bytes of all messages of the stream.
        items_remaining: upper bound of the changes left to send.
        backfill_remaining: those of them that existed when the stream was opened.
        filters: parts of changes that the stream leaves out, such as "values".
        details: statistics of this dialect only, for STAT.
    """

    vbucket: int
    opaque: int
    state: str
    start_seqno: int | None = None
    end_seqno: int | None = None
    items_sent: int = 0
    bytes_sent: int = 0
    items_remaining: int = 0
    backfill_remaining: int = 0
    filters: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


class StreamTotals(NamedTuple):
    """Totals of a producer's ended streams. The totals of the producer include them, so that they never decrease.

    Attributes:
        items: changes that were sent.
        nbytes: bytes of all messages.
    """

    items: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """One change-stream connection.

    Attributes:
        name: the connection's name, or `anon_N`.
        label: the name, or user@address if the connection has none.
        dialect: name of its dialect.
        role: the side of the node.
        peer: the peer's address and port.
        agent: the peer's name in HELLO; empty without.
        user: the peer's user; None before a login.
        created: seconds since the epoch.
        streams: the open streams.
        bytes_unsent: bytes that wait in the connection's buffers.
        details: statistics of this dialect only, for STAT.
        ended_streams: totals of the ended streams.
    """

    name: str
    label: str
    dialect: str
    role: StreamRole
    peer: str
    agent: str
    user: str | None
    created: float
    streams: tuple[StreamReport, ...]
    bytes_unsent: int
    details: dict[str, Any] = field(default_factory=dict)
    ended_streams: StreamTotals = field(default_factory=StreamTotals)

    @property
    def items_sent(self) -> int:
        """Changes that all streams have sent, including ended streams."""
        return self.ended_streams.items + sum(stream.items_sent for stream in self.streams)

    @property
    def bytes_sent(self) -> int:
        """Bytes that all streams have sent, including ended streams."""
        return self.ended_streams.nbytes + sum(stream.bytes_sent for stream in self.streams)

    @property
    def items_remaining(self) -> int:
        """Upper bound of the changes left to send."""
        return sum(stream.items_remaining for stream in self.streams)

    def to_dict(self) -> dict[str, Any]:
        """Return the report with its sums as a JSON object."""
        report = asdict(self)
        del report["ended_streams"]
        return report | {"items_sent": self.items_sent, "bytes_sent": self.bytes_sent}


@dataclass(frozen=True, slots=True)
class EndpointLoad:
    """The work that a change-stream connection has left, for the totals of STAT. A consumer has none.

    On an idle node all values but streams and turns are 0.

    Attributes:
        streams: open streams.
        ready: streams with changes to send now.
        remaining: upper bound of the changes left to send.
        unacked: bytes that the consumer has not acknowledged.
        turns: turns of the event loop that the producer has used.
        is_blocked: the producer has something to send, and the consumer's window is full.
    """

    streams: int = 0
    ready: int = 0
    remaining: int = 0
    unacked: int = 0
    turns: int = 0
    is_blocked: bool = False
