"""STAT checkpoint, and the additions of STAT tap to the statistics of all producers.

Names and their order are ep-engine's. Values of fetches from disk and of throttling are constants: a node does neither.
Source: ep-engine 2.5 docs/stats.org, "Tap stats".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.session.session import Session
from penstock.node.tap.tap_producer import TapProducer
from penstock.node.tap_state.tap_clients import TapPhase
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import Dialect

Stats = Iterator[tuple[str, object]]


def add_totals(session: Session, stats: Iterable[tuple[str, object]]) -> Stats:
    """Return the statistics of producers together with totals, settings and absent clients; each name once."""
    totals = {f"ep_tap_{name}": value for name, value in _read_totals(session)}
    return iter((totals | dict(stats) | dict(_read_absent_clients(session.require_bucket()))).items())


def _read_absent_clients(bucket: ServedBucket) -> Stats:
    """Yield the named clients that are not connected, with the number of changes that they missed."""
    vbuckets = bucket.store.vbuckets
    for name, client in bucket.tap.clients.items():
        if (Dialect.TAP, name) in bucket.endpoints:
            continue
        prefix = f"eq_tapq:{name.decode('utf-8', 'backslashreplace')}"
        missed = sum(
            max(vbuckets[number].changes.high_seqno - place.seqno, 0) for number, place in client.positions.items()
        )
        yield f"{prefix}:type", "producer"
        yield f"{prefix}:protocol", Dialect.TAP.value
        yield f"{prefix}:connected", "false"
        yield f"{prefix}:registered", str(client.is_registered).lower()
        yield f"{prefix}:num_streams", 0
        yield f"{prefix}:items_remaining", missed


def read_checkpoints(bucket: ServedBucket, vbucket: Vbucket) -> Stats:
    """Yield the checkpoints of a vbucket. Items are counted by their seqnos, so replaced items are included.

    In memory no item waits to be written. Source: ep-engine 2.5 docs/stats.org, "Checkpoint statistics".
    """
    assert vbucket.history.state is not None
    checkpoints, high = bucket.tap.get_checkpoints(vbucket), vbucket.changes.high_seqno
    starts = checkpoints.start_seqnos
    stats: dict[str, object] = {
        "state": vbucket.history.state.name.lower(),
        "open_checkpoint_id": checkpoints.open_id,
        "last_closed_checkpoint_id": checkpoints.last_closed_id,
        "num_tap_cursors": sum(vbucket.id in producer.streams for producer in _list_producers(bucket)),
        "num_checkpoint_items": high - min(starts, default=high),
        "num_open_checkpoint_items": high - max(starts, default=high),
        "num_checkpoints": len(starts),
        "num_items_for_persistence": high - vbucket.history.persisted_seqno,
        "persisted_checkpoint_id": checkpoints.persisted_id,
    }
    for name, value in stats.items():
        yield f"vb_{vbucket.id}:{name}", value


def _list_producers(bucket: ServedBucket) -> list[TapProducer]:
    return [producer for producer in bucket.endpoints.values() if isinstance(producer, TapProducer)]


def _read_totals(session: Session) -> Stats:
    bucket, settings = session.require_bucket(), session.node.tap
    sent = bucket.sent_counts[Dialect.TAP]
    producers = _list_producers(bucket)
    streams = [stream for producer in producers for stream in producer.streams.values()]
    backfill = sum(stream.remaining for stream in streams if stream.position.phase is TapPhase.BACKFILL)
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
