"""One connection of a change stream, and the times by which something has to come over it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from penstock.client.connect.address import ConnectionOptions
from penstock.client.connect.client_session import ClientSession
from penstock.client.connect.cluster_map import Endpoint
from penstock.client.connect.node_link import NodeLink
from penstock.client.connect.retry import LONGEST_DELAY
from penstock.client.feeds.consumer_feed import ConsumerFeed

__all__ = ["Deadline", "StreamConnection", "list_deadlines", "tolerated_silence"]

_WIDEST_SILENCE = 24.0
"""Seconds to which silences are widened. Couchbase 3.1.6 looks every 6 s whether a NOOP is due, however short the
interval that it has agreed to."""


def tolerated_silence(noop_interval: int, timeouts: int) -> float:
    """Return the seconds of silence after which a producer counts as lost.

    Twice the interval, and twice as long after each timeout, up to _WIDEST_SILENCE: a producer that checks its NOOPs
    rarely then keeps its connection after a few attempts.

    Args:
        noop_interval: the interval that the producer has agreed to, in seconds.
        timeouts: how many connections of this stream have ended for silence.
    """
    shortest = 2.0 * noop_interval
    return max(shortest, min(shortest * (1 << min(timeouts, 10)), _WIDEST_SILENCE))


@dataclass(slots=True)
class StreamConnection:
    """The connection of a change stream to one node.

    Attributes:
        connection_id: its number, which no other connection of the stream ever has.
        connected_at: time of the loop when it was made.
        alive_at: time of the loop when it was heard of last.
        asked_at: time of the loop of the last stream request, or of the last answer to one.
        unanswered: requests without an answer, when they were counted last.
    """

    connection_id: int
    session: ClientSession
    connected_at: float
    alive_at: float
    asked_at: float
    unanswered: int = 0

    @property
    def link(self) -> NodeLink:
        return self.session.link

    @property
    def endpoint(self) -> Endpoint:
        return self.session.endpoint

    def has_lasted(self) -> bool:
        """Tell whether the connection did its work for a while, though there may have been nothing to deliver.

        If so, the time without changes does not count against the node. One that ends at once is no success.
        """
        return self.alive_at - self.connected_at > LONGEST_DELAY and not self.unanswered

    def record_unanswered(self, unanswered: int, now: float) -> None:
        """Note how many requests are unanswered: an answer gives the others their time again."""
        if unanswered < self.unanswered:
            self.asked_at = now
        self.unanswered = unanswered


class Deadline(NamedTuple):
    """When a connection is given up, and why. is_silence: the producer missed its signs of life."""

    time: float
    connection: StreamConnection
    reason: str
    is_silence: bool = False


def list_deadlines(
    connection: StreamConnection, feed: ConsumerFeed, options: ConnectionOptions, waiting_since: float, silences: int
) -> Iterator[Deadline]:
    """Give the times at which the connection is given up unless something comes before.

    Args:
        waiting_since: when the caller began to wait: what came before may still lie unread.
        silences: as the timeouts of `tolerated_silence`.
    """
    heard_at, timeout = max(connection.alive_at, waiting_since), options.operation_timeout
    if feed.noop:
        silence = tolerated_silence(options.noop_interval, silences)
        promised = f"nothing from the node for {silence:g} s, though it promised a sign of life"
        yield Deadline(heard_at + silence, connection, promised, is_silence=True)
    if half := connection.link.transport.incomplete_frame:
        yield Deadline(heard_at + timeout, connection, f"nothing for {timeout:g} s after {half}")
    if connection.unanswered:
        yield Deadline(
            connection.asked_at + timeout, connection, f"a stream request without an answer for {timeout:g} s"
        )
