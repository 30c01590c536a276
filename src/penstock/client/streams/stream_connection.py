"""One connection of a change stream, and its timeouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from penstock.client.connect.address import ConnectionOptions
from penstock.client.connect.client_session import ClientSession
from penstock.client.connect.node_link import NodeLink
from penstock.client.connect.retry import LONGEST_DELAY
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.feeds.consumer_feed import ConsumerFeed
from penstock.client.tracing.tracer import NO_SPAN, WorkSpan

_WIDEST_SILENCE = 24.0
"""Upper limit, in seconds, for tolerated silences that were widened after timeouts.

Couchbase 3.1.6 checks every 6 s whether a NOOP is due, even if it has agreed to a shorter interval.
"""


def tolerated_silence(noop_interval: int, timeouts: int) -> float:
    """Return the seconds of silence after which a producer counts as lost.

    That is twice the interval. Each timeout doubles it, up to _WIDEST_SILENCE, so that a producer which rarely checks
    its NOOPs keeps its connection after a few attempts.

    Args:
        noop_interval: the interval that the producer has agreed to, in seconds.
        timeouts: the number of connections of this stream that ended for silence.
    """
    shortest = 2.0 * noop_interval
    return max(shortest, min(shortest * (1 << min(timeouts, 10)), _WIDEST_SILENCE))


@dataclass(slots=True)
class StreamConnection:
    """The connection of a change stream to one node.

    Attributes:
        connection_id: a number that is unique among all connections of the stream, including earlier ones.
        slot: its number among the stream's connections to this node.
        session: the connection after its handshake.
        connected_at: when the connection was opened, on the loop's clock.
        alive_at: when the last bytes arrived, on the loop's clock.
        asked_at: when the last stream request was sent, or the last answer to one arrived, on the loop's clock.
        unanswered: requests without an answer at the last count.
        opening: the span of its stream requests; NO_SPAN while all are answered.
    """

    connection_id: int
    slot: int
    session: ClientSession
    connected_at: float
    alive_at: float
    asked_at: float
    unanswered: int = 0
    opening: WorkSpan = NO_SPAN

    @property
    def link(self) -> NodeLink:
        """The connection without the results of its handshake."""
        return self.session.link

    @property
    def endpoint(self) -> Endpoint:
        """Host and port of the node."""
        return self.session.endpoint

    def has_lasted(self) -> bool:
        """Return whether the connection worked for a while, even if there was nothing to deliver.

        If so, the time without changes does not count against the node. A connection that ends at once is no success.
        """
        return self.alive_at - self.connected_at > LONGEST_DELAY and not self.unanswered

    @property
    def is_opening(self) -> bool:
        """Whether a span covers its stream requests. It is False in a program that does not trace."""
        return self.opening is not NO_SPAN

    def end_opening(self, error: BaseException | None = None) -> None:
        """End the span of its stream requests, if there is one."""
        self.opening.end(error)
        self.opening = NO_SPAN

    def record_unanswered(self, unanswered: int, now: float) -> None:
        """Record the number of unanswered requests. An answer restarts the timeout of the others."""
        if unanswered < self.unanswered:
            self.asked_at = now
        self.unanswered = unanswered


class Deadline(NamedTuple):
    """The time at which a connection is given up.

    Attributes:
        time: on the loop's clock.
        connection: the connection.
        reason: the text of the error.
        is_silence: whether the reason is that the producer sent no NOOP in time.
    """

    time: float
    connection: StreamConnection
    reason: str
    is_silence: bool = False


def list_deadlines(
    connection: StreamConnection, feed: ConsumerFeed, options: ConnectionOptions, waiting_since: float, silences: int
) -> Iterator[Deadline]:
    """Yield the times at which the connection is given up unless bytes arrive before.

    Args:
        connection: the connection.
        feed: the feed of its stream.
        options: the options of the connection string.
        waiting_since: when the caller began to wait, on the loop's clock. Earlier bytes may be unread in the socket.
        silences: the argument `timeouts` of `tolerated_silence`.
    """
    silent_since, timeout = max(connection.alive_at, waiting_since), options.operation_timeout
    if feed.noop:
        silence = tolerated_silence(options.noop_interval, silences)
        reason = f"the node sent nothing for {silence:g} s, although it had agreed to send NOOPs"
        yield Deadline(silent_since + silence, connection, reason, is_silence=True)
    if half := connection.link.transport.incomplete_frame:
        yield Deadline(silent_since + timeout, connection, f"nothing for {timeout:g} s after {half}")
    if connection.unanswered:
        yield Deadline(
            connection.asked_at + timeout, connection, f"a stream request without an answer for {timeout:g} s"
        )
