"""What happens to a change stream: counted for reports, traced, and logged with the names that the server logs."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

from penstock.client.connect.address import Address
from penstock.client.connect.client_session import ClientSession, generate_stream_name
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.feeds.deliveries import Delivery
from penstock.client.feeds.stream_position import Position
from penstock.client.signals.stream_counts import StreamCounts
from penstock.client.tracing.span_types import BOOTSTRAP, OPEN_STREAMS, RECONNECT, ROLLBACK, describe_messaging
from penstock.client.tracing.tracer import WorkSpan, start_span, trace_work
from penstock.wire.codec.layout import Request
from penstock.wire.columns.schema import Change, Event

logger = logging.getLogger("penstock.client.streams")

_MOST_EVENTS = 100
"""Events of a span. The SDK drops those above 128."""


class StreamJournal:
    """Counts, traces and logs the events of one change stream.

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

    def make_name(self, slot: int, slots: int) -> str:
        """Return the name of a connection, given its slot and the number of slots."""
        return f"{self.connection_name}:{slot}" if slots > 1 else self.connection_name

    def record_delivery(self, delivery: Delivery, before: Mapping[int, Position]) -> None:
        """Record that the caller gets a delivery.

        Args:
            delivery: the delivery.
            before: the positions before it.
        """
        counts, content = self.counts, delivery.content
        counts.changes += len(content)
        counts.received_bytes += delivery.nbytes
        if isinstance(content, list):  # record batches have documents only
            rollbacks = [change for change in content if change.event == Event.ROLLBACK]
            if rollbacks:
                counts.rollbacks += len(rollbacks)
                self._trace_rollbacks(rollbacks, before)

    def _trace_rollbacks(self, rollbacks: Sequence[Change], before: Mapping[int, Position]) -> None:
        bucket, count = self._address.bucket, len(rollbacks)
        span = start_span(ROLLBACK, bucket, describe_messaging(ROLLBACK, bucket) | {"penstock.rollbacks": count})
        for each in rollbacks[:_MOST_EVENTS] if span.is_recording else ():
            position = before.get(each.vbucket)
            seqnos = {"penstock.from_seqno": position and position.seqno, "penstock.to_seqno": each.seqno}
            span.add_event("vbucket", {"penstock.vbucket": each.vbucket, **seqnos})
        span.end()

    def trace_attempt(self, vbuckets: int, *, is_again: bool) -> AbstractContextManager[WorkSpan]:
        """Return the span of an attempt to connect to the nodes of some vbuckets: the current one in its block."""
        kind = RECONNECT if is_again or self._opened else BOOTSTRAP
        bucket = self._address.bucket
        return trace_work(kind, bucket, describe_messaging(kind, bucket) | {"penstock.vbuckets": vbuckets})

    def start_opening(self, session: ClientSession, name: str, requests: int) -> WorkSpan:
        """Return the span of stream requests.

        Args:
            session: the connection.
            name: the name that the node knows.
            requests: the number of requests.
        """
        host, port = session.endpoint
        attributes = {
            "messaging.client.id": name,
            "server.address": host,
            "server.port": port,
            "penstock.vbuckets": requests,
        }
        bucket = self._address.bucket
        return start_span(OPEN_STREAMS, bucket, describe_messaging(OPEN_STREAMS, bucket) | attributes)

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
