"""What STAT `tap` says beside what all producers say. Names are ep-engine's, and so is their order.

Nothing is fetched from disk here, and nothing is throttled: without a limit of memory none of that is ever reached.
Source: ep-engine 2.5 docs/stats.org, "Tap stats".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.node.tap_clients import Phase
from penstock.node.tap_producer import TapProducer
from penstock.wire.constants import Dialect

if TYPE_CHECKING:
    from penstock.node.connection import NodeConnection

__all__ = ["with_totals"]

Stats = Iterator[tuple[str, object]]


def with_totals(connection: NodeConnection, said: Iterable[tuple[str, object]]) -> Stats:
    """Return the totals, the settings, and what was said of the producers; each name once."""
    return iter(({f"ep_tap_{name}": value for name, value in _totals(connection)} | dict(said)).items())


def _totals(connection: NodeConnection) -> Stats:
    bucket, settings = connection.selected(), connection.node.tap
    sent = bucket.sent[Dialect.TAP]
    producers = [producer for producer in bucket.producers.values() if isinstance(producer, TapProducer)]
    streams = [stream for producer in producers for stream in producer.streams.values()]
    backfill = sum(stream.remaining for stream in streams if stream.place.phase is Phase.BACKFILL)
    remaining = sum(stream.remaining for stream in streams)
    yield "total_fetched", sent.items
    yield "bg_max_pending", 500
    yield "bg_fetched", 0
    yield "bg_fetch_requeued", 0
    yield "fg_fetched", sent.items
    yield "deletes", bucket.tap.deletes_sent
    yield "throttled", 0
    yield "noop_interval", f"{settings.noop_interval:g}"
    yield "count", len(producers)
    yield "total_queue", remaining - backfill
    yield "queue_fill", sent.items + remaining
    yield "queue_drain", sent.items
    yield "queue_backoff", bucket.tap.backoffs
    yield "queue_backfillremaining", backfill
    yield "queue_itemondisk", 0
    yield "total_backlog_size", remaining
    yield "ack_window_size", settings.ack_window_size
    yield "ack_interval", settings.ack_interval
    yield "ack_grace_period", f"{settings.ack_grace_period:g}"
    yield "backoff_period", f"{settings.backoff_period:g}"
    yield "throttle_threshold", 99
    yield "throttle_queue_cap", -1
    yield "items_received", bucket.tap.items_received
    yield "messages_refused", bucket.tap.refused
    yield "clients_kept", len(bucket.tap.clients)
