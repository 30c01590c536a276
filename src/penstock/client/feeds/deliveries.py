"""What a feed hands out, and what it sends in return: deliveries, their bytes, and acknowledgements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from penstock.client.feeds.stream_position import Position
from penstock.store.history.failover_log import FailoverLog
from penstock.wire.columns.run_decoder import list_changes, make_batch
from penstock.wire.columns.schema import Change

__all__ = ["Delivery", "DeliveryQueue"]


class Delivery(NamedTuple):
    """What a caller gets at once.

    Attributes:
        content: changes, as a batch or as objects.
        positions: those behind the changes.
        nbytes: what the changes took on the wire.
        connection: the number of the connection that they came by, to which they are acknowledged.
        logs: the failover logs, newest entry first, of the streams that began in front of these changes.
        connection_id: of several connections at a time, which one it was.
    """

    content: pa.RecordBatch | list[Change]
    positions: dict[int, Position]
    nbytes: int
    connection: int
    logs: Mapping[int, FailoverLog]
    connection_id: int = 0

    @property
    def batch(self) -> pa.RecordBatch:
        return make_batch(self.content) if isinstance(self.content, list) else self.content

    @property
    def changes(self) -> list[Change]:
        return self.content if isinstance(self.content, list) else list_changes(self.content)


class DeliveryQueue(ABC):
    """Deliveries that wait for the caller, and bytes that wait to be sent.

    Attributes:
        connection_id: the connection whose messages are dealt with at the moment; there the answers go.
        deliveries: what has arrived and not been handed out, to be taken from the left.
        queued_bytes: what a producer may count against the window, of them and of deliveries that are not consumed.
        rows: changes that are in no delivery yet.
        arrived_bytes: of messages that arrived since the last delivery.
        outgoing: what is to be sent.
        delivered, consumed: how many deliveries there were since a connection was lost.
        generations: by connection, how often it was lost.
    """

    def __init__(self) -> None:
        self.connection_id = 0
        self.deliveries: deque[Delivery] = deque()
        self.queued_bytes = self.arrived_bytes = 0
        self.rows: list[Change] = []
        self.outgoing: list[bytes] = []
        self.delivered = self.consumed = 0
        self.generations: Counter[int] = Counter()

    def deliver(self, content: pa.RecordBatch | list[Change]) -> None:
        """Hand out changes, with the bytes that arrived since the last delivery."""
        positions, logs = self.take_positions(), self.take_logs()
        delivery = Delivery(
            content, positions, self.take_bytes(), self.generations[self.connection_id], logs, self.connection_id
        )
        self.queued_bytes += delivery.nbytes
        self.delivered += 1
        self.deliveries.append(delivery)

    def flush(self) -> None:
        """Hand out the rows."""
        if self.rows:
            rows, self.rows = self.rows, []
            self.deliver(rows)

    def consume(self, delivery: Delivery) -> bytes:
        """Note that the caller is done with a delivery; return what acknowledges it where it came from."""
        self.connection_id = delivery.connection_id
        self.queued_bytes -= delivery.nbytes
        if delivery.connection == self.generations[delivery.connection_id]:
            self.consumed += 1
            self.acknowledge(delivery.nbytes)
        return self.take_outgoing()

    def take_bytes(self) -> int:
        """Return the bytes that arrived since the last delivery: what they held was dropped or dealt with."""
        nbytes, self.arrived_bytes = self.arrived_bytes, 0
        return nbytes

    def take_outgoing(self) -> bytes:
        outgoing, self.outgoing = b"".join(self.outgoing), []
        return outgoing

    def take_positions(self) -> dict[int, Position]:
        """Return the positions that have moved since this was asked last."""
        return {}

    def take_logs(self) -> dict[int, FailoverLog]:
        """Return the failover logs that have become known since this was asked last."""
        return {}

    def forget_connections(self, connection_ids: Iterable[int]) -> None:
        """Acknowledge nothing more that came by these connections."""
        for connection_id in connection_ids:
            self.generations[connection_id] += 1
        self.delivered = self.consumed = self.arrived_bytes = 0

    @abstractmethod
    def acknowledge(self, nbytes: int, *, at_once: bool = False) -> None:
        """Note that so many bytes were consumed, or held nothing to hand out; send what that makes due.

        at_once: send also what could wait.
        """
