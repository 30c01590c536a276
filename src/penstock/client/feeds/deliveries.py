"""The output of a feed: deliveries for the caller, their bytes, and acknowledgements for the producer."""

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


class Delivery(NamedTuple):
    """Changes that a caller receives together.

    Attributes:
        content: the changes, as a batch or as objects.
        positions: vbucket -> position after the changes.
        nbytes: bytes of the changes on the wire.
        connection: how often the connection with this number had been lost when the changes arrived. They are
            acknowledged only if it was not lost since.
        logs: vbucket -> failover log, newest entry first, of the streams that began before these changes.
        connection_id: the number of the connection that the changes came from.
    """

    content: pa.RecordBatch | list[Change]
    positions: dict[int, Position]
    nbytes: int
    connection: int
    logs: Mapping[int, FailoverLog]
    connection_id: int = 0

    @property
    def batch(self) -> pa.RecordBatch:
        """The changes as a batch."""
        return make_batch(self.content) if isinstance(self.content, list) else self.content

    @property
    def changes(self) -> list[Change]:
        """The changes as objects."""
        return self.content if isinstance(self.content, list) else list_changes(self.content)


class DeliveryQueue(ABC):
    """Deliveries that wait for the caller, and bytes that wait to be sent.

    Attributes:
        connection_id: the connection whose messages are processed now; replies go to it.
        deliveries: deliveries that were not handed out yet; the oldest is on the left.
        queued_bytes: bytes of all deliveries that were not consumed yet, handed out or not. A producer may count them
            against the window.
        rows: changes that are in no delivery yet.
        arrived_bytes: bytes of the messages that arrived since the last delivery.
        outgoing: messages to send.
        delivered, consumed: number of deliveries made, and consumed, since a connection was last lost.
        generations: connection number -> how often it was lost.
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
        """Make a delivery of changes, with the bytes that arrived since the last delivery."""
        positions, logs = self.take_positions(), self.take_logs()
        delivery = Delivery(
            content, positions, self.take_bytes(), self.generations[self.connection_id], logs, self.connection_id
        )
        self.queued_bytes += delivery.nbytes
        self.delivered += 1
        self.deliveries.append(delivery)

    def flush(self) -> None:
        """Make a delivery of `rows`, if there are any."""
        if self.rows:
            rows, self.rows = self.rows, []
            self.deliver(rows)

    def consume(self, delivery: Delivery) -> bytes:
        """Record that the caller has consumed a delivery.

        Returns:
            The acknowledgement for the connection that the delivery came from; may be empty.
        """
        self.connection_id = delivery.connection_id
        self.queued_bytes -= delivery.nbytes
        if delivery.connection == self.generations[delivery.connection_id]:
            self.consumed += 1
            self.acknowledge(delivery.nbytes)
        return self.take_outgoing()

    def take_bytes(self) -> int:
        """Return the number of bytes that arrived since the last delivery, and reset it.

        The messages in these bytes were dropped or processed.
        """
        nbytes, self.arrived_bytes = self.arrived_bytes, 0
        return nbytes

    def take_outgoing(self) -> bytes:
        """Return the messages to send, and remove them."""
        outgoing, self.outgoing = b"".join(self.outgoing), []
        return outgoing

    def take_positions(self) -> dict[int, Position]:
        """Return the positions that have moved since the last call: vbucket -> position."""
        return {}

    def take_logs(self) -> dict[int, FailoverLog]:
        """Return the failover logs that became known since the last call: vbucket -> log."""
        return {}

    def forget_connections(self, connection_ids: Iterable[int]) -> None:
        """Stop acknowledging deliveries that came from these connections."""
        for connection_id in connection_ids:
            self.generations[connection_id] += 1
        self.delivered = self.consumed = self.arrived_bytes = 0

    @abstractmethod
    def acknowledge(self, nbytes: int, *, at_once: bool = False) -> None:
        """Record consumed bytes, and add the acknowledgements that are due to `outgoing`.

        Args:
            nbytes: bytes that the caller has consumed, or that held nothing to deliver.
            at_once: also send acknowledgements that could wait.
        """
