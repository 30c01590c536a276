"""Reports of producers and their streams: plain values, for STAT and for users of the node."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

__all__ = ["Load", "ProducerReport", "StreamReport", "StreamTotals"]


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
