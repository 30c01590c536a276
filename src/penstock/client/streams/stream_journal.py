"""What happens to a change stream: counted for reports, and logged with the names that the server logs."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from penstock.client.connect.address import Address
from penstock.client.connect.client_session import generate_stream_name
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.feeds.deliveries import Delivery
from penstock.client.signals.stream_counts import StreamCounts
from penstock.wire.codec.layout import Request
from penstock.wire.columns.schema import Event

__all__ = ["StreamJournal"]

logger = logging.getLogger("penstock.client.streams")


class StreamJournal:
    """Counts and logs the events of one change stream.

    Each record has attributes for structured logs: `connection`, the name that the client gives to the server, and
    where they apply `node`, `vbucket` and `opaque`.

    Attributes:
        counts: the counts.
    """

    def __init__(self, address: Address) -> None:
        self.counts = StreamCounts(connection_name=generate_stream_name())
        self._address = address
        self._opened: set[tuple[Endpoint, str]] = set()
        self._missing_collections: tuple[str, ...] = ()

    @property
    def connection_name(self) -> str:
        """The name of the stream's connections, without the suffix of each."""
        return self.counts.connection_name

    def record_delivery(self, delivery: Delivery) -> None:
        """Record that the caller gets a delivery."""
        counts, content = self.counts, delivery.content
        counts.changes += len(content)
        counts.received_bytes += delivery.nbytes
        if isinstance(content, list):  # record batches have documents only
            counts.rollbacks += sum(change.event == Event.ROLLBACK for change in content)

    def record_missing_collections(self, missing: tuple[str, ...]) -> None:
        """Record the selected scopes and collections that the bucket does not have, and log a change of them."""
        if missing != self._missing_collections:
            self._missing_collections = missing
            if missing:
                text = "%s: the bucket has no %s; the stream goes on, and reads it as soon as it exists"
                logger.warning(text, self._address, " and no ".join(missing))
            else:
                logger.info("%s: the bucket has all selected collections again", self._address)

    def record_connection(self, endpoint: Endpoint, name: str) -> None:
        """Record an open connection.

        Args:
            endpoint: host and port of its node.
            name: the name that the node knows; different connections to a node have different names.
        """
        is_again = (endpoint, name) in self._opened
        self._opened.add((endpoint, name))
        self.counts.reconnects += is_again
        logger.info(
            "%s: connection %s to %s:%d is open%s",
            *(self._address, name, *endpoint, " again" if is_again else ""),
            extra={"connection": name, "node": f"{endpoint[0]}:{endpoint[1]}"},
        )

    def record_error(self, error: Exception) -> None:
        """Record a failure, after which the stream tries again."""
        counts = self.counts
        counts.errors += 1
        counts.last_error, counts.last_error_at = str(error) or type(error).__name__, time.time()
        logger.info(
            "%s: connection %s: %s",
            *(self._address, self.connection_name, counts.last_error),
            extra={"connection": self.connection_name},
        )

    def log_requests(self, requests: Iterable[Request]) -> None:
        """Log requests of streams, with their opaques."""
        if not logger.isEnabledFor(logging.DEBUG):
            return
        for request in requests:
            logger.debug(
                "%s: connection %s sends %s for vbucket %d, opaque 0x%x",
                *(self._address, self.connection_name, type(request).__name__, request.vbucket, request.opaque),
                extra={"connection": self.connection_name, "vbucket": request.vbucket, "opaque": request.opaque},
            )
