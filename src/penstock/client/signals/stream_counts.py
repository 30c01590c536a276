"""The counts of a change stream, which only grow, and its last error."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.client.filters.unreadable_changes import UnreadableChanges


@dataclass(slots=True)
class StreamCounts:
    """Counts of one change stream, or of several that continue each other.

    Attributes:
        changes: changes that the caller has received, rollbacks included.
        received_bytes: bytes of these changes on the wire.
        rollbacks: vbuckets that were rolled back, counted each time.
        reconnects: connections to a node that had a connection before.
        errors: failures of connections and streams, after which the stream tried again.
        last_error: the text of the newest failure; empty without a failure.
        last_error_at: seconds since the epoch; 0 without a failure.
        unreadable: changes whose documents the filter of the stream could not read. They are not delivered.
        connection_name: the name of the stream's connections, as the server logs it.
    """

    changes: int = 0
    received_bytes: int = 0
    rollbacks: int = 0
    reconnects: int = 0
    errors: int = 0
    last_error: str = ""
    last_error_at: float = 0.0
    unreadable: UnreadableChanges = field(default_factory=UnreadableChanges)
    connection_name: str = ""

    def continue_from(self, earlier: StreamCounts) -> None:
        """Add the counts of an earlier stream, which this one continues."""
        self.changes += earlier.changes
        self.received_bytes += earlier.received_bytes
        self.rollbacks += earlier.rollbacks
        self.reconnects += earlier.reconnects
        self.errors += earlier.errors
        self.unreadable.continue_from(earlier.unreadable)
        if earlier.last_error_at > self.last_error_at:
            self.last_error, self.last_error_at = earlier.last_error, earlier.last_error_at
