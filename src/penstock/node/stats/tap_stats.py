"""What STAT `checkpoint` says, and STAT `tap` beside what all producers say.

Names are ep-engine's, and so is their order.

Nothing is fetched from disk here, and nothing is throttled: without a limit of memory none of that is ever reached.
Source: ep-engine 2.5 docs/stats.org, "Tap stats".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.session.session import Session
from penstock.node.tap.tap_producer import TapProducer
from penstock.node.tap_state.tap_clients import Phase
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import Dialect

__all__ = ["of_checkpoints", "with_totals"]

Stats = Iterator[tuple[str, object]]


def with_totals(session: Session, said: Iterable[tuple[str, object]]) -> Stats:
    """Return the totals, the settings, what was said of the producers, and the absent clients; each name once."""
    totals = {f"ep_tap_{name}": value for name, value in _totals(session)}
    return iter((totals | dict(said) | dict(_absent(session.selected()))).items())


def _absent(bucket: ServedBucket) -> Stats:
    """Show the named clients that are not connected, and how much they have missed."""
    vbuckets = bucket.store.vbuckets
    for name, client in bucket.tap.clients.items():
        if (Dialect.TAP, name) in bucket.producers:
            continue
        prefix = f"eq_tapq:{name.decode('utf-8', 'backslashreplace')}"
        missed = sum(
            max(vbuckets[number].changes.high_seqno - place.seqno, 0) for number, place in client.places.items()
        )
        yield f"{prefix}:type", "producer"
        yield f"{prefix}:protocol", Dialect.TAP.value
        yield f"{prefix}:connected", "false"
        yield f"{prefix}:registered", str(client.registered).lower()
        yield f"{prefix}:num_streams", 0
        yield f"{prefix}:items_remaining", missed


def of_checkpoints(bucket: ServedBucket, vbucket: Vbucket) -> Stats:
    """What STAT `checkpoint` says of a vbucket. Items are counted by their seqnos, so with those that were replaced.

    In memory nothing waits to be written. Source: ep-engine 2.5 docs/stats.org, "Checkpoint statistics".
    """
    assert vbucket.history.state is not None
    checkpoints, high = bucket.tap.checkpoints(vbucket), vbucket.changes.high_seqno
    starts = checkpoints.starts
    said: dict[str, object] = {
        "state": vbucket.history.state.name.lower(),
        "open_checkpoint_id": checkpoints.open_id,
        "last_closed_checkpoint_id": checkpoints.last_closed,
        "num_tap_cursors": sum(vbucket.id in producer.streams for producer in _producers(bucket)),
        "num_checkpoint_items": high - min(starts, default=high),
        "num_open_checkpoint_items": high - max(starts, default=high),
        "num_checkpoints": len(starts),
        "num_items_for_persistence": high - vbucket.history.persisted_seqno,
        "persisted_checkpoint_id": checkpoints.persisted,
    }
    for name, value in said.items():
        yield f"vb_{vbucket.id}:{name}", value


def _producers(bucket: ServedBucket) -> list[TapProducer]:
    return [producer for producer in bucket.producers.values() if isinstance(producer, TapProducer)]


def _totals(session: Session) -> Stats:
    bucket, settings = session.selected(), session.node.tap
    sent = bucket.sent[Dialect.TAP]
    producers = _producers(bucket)
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
