"""Reports of consumers and their streams: plain values, for STAT."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["ConsumerReport", "ReceivedStreamReport"]


@dataclass(frozen=True, slots=True)
class ReceivedStreamReport:
    """One stream of a consumer.

    Attributes:
        vbucket: the vbucket's number.
        opaque: the stream's opaque.
        state: the stream's state in words.
        changes: changes that were stored.
        seqno: the vbucket's high seqno.
    """

    vbucket: int
    opaque: int
    state: str
    changes: int
    seqno: int


@dataclass(frozen=True, slots=True)
class ConsumerReport:
    """One consumer.

    Attributes:
        name: the consumer's name.
        peer: the producer's address and port.
        agent: the peer's name in HELLO; empty without.
        user: the peer's user; None before a login.
        created: seconds since the epoch.
        streams: the open streams.
        details: further statistics, for STAT.
    """

    name: str
    peer: str
    agent: str
    user: str | None
    created: float
    streams: tuple[ReceivedStreamReport, ...]
    details: dict[str, Any] = field(default_factory=dict)
