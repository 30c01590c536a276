"""The groups of STAT: names as kv_engine has them, values from where they are kept."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from penstock.errors import InvalidArguments, KeyNotFound
from penstock.node import collection_stats, producer_stats
from penstock.node.disk.opening import file_bytes
from penstock.node.release import VERSION
from penstock.node.served import ServedBucket
from penstock.node.tap import stats as tap_stats
from penstock.store.vbucket import Vbucket
from penstock.wire.constants import MAX_VALUE, VbucketState

if TYPE_CHECKING:
    from penstock.node.connection import NodeConnection

__all__ = ["group"]

Stats = Iterator[tuple[str, object]]

_LONGEST_NUMBER = 5  # of a u16, in digits


def group(connection: NodeConnection, text: str) -> Stats:
    """Return (name, value) of each statistic of a group; text: its name, and a vbucket where it takes one.

    Raises KeyNotFound for an unknown group, InvalidArguments for what is no number, NotMyVbucket, NoBucket.
    """
    bucket = connection.selected()
    store = bucket.store
    name, *arguments = text.split(" ")
    if not text:
        return _default(connection)
    about_producers = producer_stats.GROUPS.get(name)
    if about_producers is not None:
        found = about_producers(bucket, name, " ".join(arguments))
        return tap_stats.with_totals(connection, found) if name == "tap" else found
    if text == "follow" and bucket.bridge is not None:
        return bucket.bridge.stats()
    of_bucket = _OF_BUCKET.get(text)
    if of_bucket is not None:
        return of_bucket(bucket)
    of_vbucket = _OF_VBUCKET.get(name)
    if of_vbucket is None:
        raise KeyNotFound(f"no statistics {text!r}")
    if not arguments:
        return (line for vbucket in store.vbuckets if vbucket.state for line in of_vbucket(bucket, vbucket))
    return of_vbucket(bucket, store.existing(_number(name, " ".join(arguments))))


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
        raise InvalidArguments(f"{name}: expected a vbucket's number, found {text[:20]!r}")
    return int(text)


def _default(connection: NodeConnection) -> Stats:
    node, bucket = connection.node, connection.selected()
    counters, memory, vbuckets = bucket.counters, bucket.store.stats(), bucket.store.vbuckets
    yield "pid", os.getpid()
    yield "uptime", int(node.loop.time() - node.started_at)
    yield "time", int(time.time())
    yield "version", VERSION
    yield "curr_connections", len(node.guests.present)
    yield "total_connections", node.guests.total
    yield "threads", 1
    yield "curr_items", sum(vbucket.items for vbucket in vbuckets if vbucket.state is VbucketState.ACTIVE)
    yield "curr_items_tot", memory.items
    yield "cmd_get", counters.cmd_get
    yield "get_hits", counters.cmd_get - counters.get_misses
    yield "get_misses", counters.get_misses
    yield "cmd_set", counters.cmd_set
    yield "cmd_delete", counters.cmd_delete
    yield "bytes", memory.live_bytes
    yield "mem_used", memory.index_bytes + memory.live_bytes + memory.dead_bytes
    yield "ep_bucket_type", "persistent" if bucket.spec.persistent else "ephemeral"
    yield "ep_uuid", bucket.uuid
    yield from _storage(connection, bucket)
    yield "ep_index_bytes", memory.index_bytes
    yield "ep_log_live_bytes", memory.live_bytes
    yield "ep_log_dead_bytes", memory.dead_bytes
    yield "ep_log_segments", memory.segments
    yield "ep_max_vbuckets", len(vbuckets)
    for state in VbucketState:
        items = [vbucket.items for vbucket in vbuckets if vbucket.state is state]
        yield f"vb_{state.name.lower()}_num", len(items)
        yield f"vb_{state.name.lower()}_curr_items", sum(items)
    yield from producer_stats.totals(bucket)
    yield "ep_requests_waiting", sum(c.requests_waiting for c in node.guests.present)
    yield "ep_bytes_unsent", sum(c.bytes_unsent for c in node.guests.present)


def _storage(connection: NodeConnection, bucket: ServedBucket) -> Stats:
    """What is said of the disk, where the bucket is on one, and of the work that nobody asks for."""
    flusher, compactor, data_dir = bucket.flusher, bucket.compactor, connection.node.storage.data_dir
    yield "ep_keys_loaded", str(bucket.upkeep.keys_loaded).lower()
    yield "ep_num_expiry_pager_runs", bucket.upkeep.pages
    if flusher is None or compactor is None or data_dir is None:
        return
    yield "ep_data_dir", data_dir / bucket.store.name
    yield "ep_db_file_size", file_bytes(data_dir / bucket.store.name)
    yield "ep_queue_size", bucket.store.unpersisted
    yield "ep_flusher_state", flusher.state
    yield "ep_commit_num", flusher.commits
    yield "ep_commit_time", round(flusher.last_seconds * 1000, 3)  # milliseconds
    yield "ep_commit_last", int(flusher.last_at)
    yield "ep_total_persisted", flusher.persisted
    yield "ep_persistence_waiters", flusher.waiting
    yield "ep_storage_fault", bucket.store.fault or ""
    yield "ep_compactions", compactor.pieces


def _vbucket_seqno(bucket: ServedBucket, vbucket: Vbucket) -> Stats:
    high, persisted = vbucket.high_seqno, bucket.reported_persisted_seqno(vbucket)
    snap_start, snap_end = _persisted_snapshot(vbucket, persisted)
    yield from (
        (f"vb_{vbucket.id}:{name}", value)
        for name, value in (
            ("high_seqno", high),
            ("abs_high_seqno", high),
            ("last_persisted_seqno", persisted),
            ("uuid", vbucket.vbuuid),
            ("purge_seqno", vbucket.purge_seqno),
            ("last_persisted_snap_start", snap_start),
            ("last_persisted_snap_end", snap_end),
            ("high_prepared_seqno", 0),
            ("high_completed_seqno", 0),
            ("max_visible_seqno", high),
        )
    )


def _persisted_snapshot(vbucket: Vbucket, persisted: int) -> tuple[int, int]:
    """Return the snapshot that what is on disk ends in, its start and end the same where it is complete.

    Every change of an active vbucket is one by itself. Of a copy it is known how much is complete, not where the
    snapshots before that began or when the one that arrives now will end: then these are the bounds that are certain.
    """
    whole = vbucket.whole_seqno
    if persisted == whole or vbucket.state is VbucketState.ACTIVE:
        return persisted, persisted
    return (whole, vbucket.high_seqno) if persisted > whole else (0, whole)


def _failovers(bucket: ServedBucket, vbucket: Vbucket) -> Stats:
    log = vbucket.failover_log
    yield f"vb_{vbucket.id}:num_entries", len(log)
    yield f"vb_{vbucket.id}:num_erroneous_entries_erased", 0
    for place, entry in enumerate(log):
        yield f"vb_{vbucket.id}:{place}:id", entry.vbuuid
        yield f"vb_{vbucket.id}:{place}:seq", entry.seqno


def _state(bucket: ServedBucket, vbucket: Vbucket) -> Stats:
    assert vbucket.state is not None
    yield f"vb_{vbucket.id}", vbucket.state.name.lower()


def _details(bucket: ServedBucket, vbucket: Vbucket) -> Stats:
    """As `vbucket`, with what kv_engine's group of this name says of what there is here too."""
    yield from _state(bucket, vbucket)
    yield from (
        (f"vb_{vbucket.id}:{name}", value)
        for name, value in (
            ("num_items", vbucket.items),
            ("tap_items", bucket.tap.items(vbucket)),
            ("ht_memory", vbucket.index_bytes),
            ("queue_size", vbucket.high_seqno - vbucket.persisted_seqno),
            ("high_seqno", vbucket.high_seqno),
            ("persisted_seqno", vbucket.persisted_seqno),
            ("whole_seqno", vbucket.whole_seqno),
            ("purge_seqno", vbucket.purge_seqno),
            ("uuid", vbucket.vbuuid),
            ("max_cas", vbucket.max_cas),
        )
    )


_OF_VBUCKET: dict[str, Callable[[ServedBucket, Vbucket], Stats]] = {
    "checkpoint": tap_stats.of_checkpoints,
    "vbucket": _state,
    "vbucket-details": _details,
    "vbucket-seqno": _vbucket_seqno,
    "failovers": _failovers,
}


def _uuid(bucket: ServedBucket) -> Stats:
    yield "uuid", bucket.uuid


def _config(bucket: ServedBucket) -> Stats:
    """What the bucket was told to be like, as far as kv_engine has a name for it."""
    settings, store = bucket.store.settings, bucket.store
    yield "ep_bucket_type", "persistent" if bucket.spec.persistent else "ephemeral"
    yield "ep_conflict_resolution_type", settings.conflict_resolution
    yield "ep_max_item_size", MAX_VALUE
    yield "ep_max_size", settings.memory_bytes or 0
    yield "ep_max_ttl", settings.max_ttl
    yield "ep_max_vbuckets", len(store.vbuckets)
    yield "ep_persistent_metadata_purge_age", int(settings.purge_age)


_OF_BUCKET: dict[str, Callable[[ServedBucket], Stats]] = {
    **collection_stats.GROUPS,
    "config": _config,
    "uuid": _uuid,
}
