"""STAT without a group, and STAT memory: a bucket as a whole. Names are ep-engine's."""

from __future__ import annotations

import os
import resource
import struct
from collections.abc import Mapping

from penstock.node.buckets.bucket_storage import count_file_bytes
from penstock.node.buckets.endpoint_reports import EndpointLoad
from penstock.node.buckets.served_bucket import BucketEndpoint, CommandCounters, ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.cluster.release import VERSION
from penstock.node.session.node_services import NodeServices
from penstock.node.stats import producer_stats
from penstock.node.stats.stat_group import StatGroup, Stats, format_value, make_bucket_group
from penstock.store.bucket_store import BucketStats, BucketStore
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import VbucketState

_EVENT_NAMES = {
    VbucketEvent.STATE_CHANGED: "ep_vb_state_changes",
    VbucketEvent.DELETED: "ep_vb_deletions",
    VbucketEvent.FLUSHED: "ep_vb_flushes",
    VbucketEvent.HANDED_OVER: "ep_vb_handovers",
}


def read_bucket_stats(node: NodeServices, bucket: ServedBucket) -> Stats:
    """Yield the statistics of a bucket and its node: those of STAT without a group."""
    yield from read_node_stats(node)
    yield from read_own_stats(node, bucket)


def read_own_stats(
    node: NodeServices, bucket: ServedBucket, measured: Mapping[BucketEndpoint, EndpointLoad] | None = None
) -> Stats:
    """Yield the statistics of a bucket without those of its node; measured: as for `read_totals`."""
    memory, vbuckets = bucket.store.collect_stats(), bucket.store.vbuckets
    yield (
        "curr_items",
        sum(vbucket.changes.items for vbucket in vbuckets if vbucket.history.state is VbucketState.ACTIVE),
    )
    yield "curr_items_tot", memory.items
    yield from _read_commands(bucket.counters)
    yield from _read_memory(bucket.store, memory)
    yield "ep_bucket_type", "persistent" if bucket.spec.is_persistent else "ephemeral"
    yield "ep_uuid", bucket.uuid
    yield from _read_warmup(bucket)
    yield "ep_num_expiry_pager_runs", bucket.maintenance.pager_runs
    yield "ep_queue_size", bucket.store.log.commits.unpersisted_records
    yield "ep_diskqueue_items", bucket.store.log.commits.unpersisted_records
    yield from _read_storage(node, bucket)
    yield "ep_log_segments", memory.segments
    yield "ep_max_vbuckets", len(vbuckets)
    yield "ep_vb_total", sum(vbucket.history.state is not None for vbucket in vbuckets)
    yield "ep_num_non_resident", 0
    yield "ep_num_value_ejects", 0
    yield "ep_bg_fetched", 0
    for state in VbucketState:
        yield from _read_vbucket_state(
            state.name.lower(), [vbucket for vbucket in vbuckets if vbucket.history.state is state]
        )
    if not bucket.spec.is_persistent:
        yield "vb_active_auto_delete_count", bucket.store.memory.auto_deleted
    yield "ep_expired", sum(vbucket.expiry.expired_count for vbucket in vbuckets)
    yield "ep_pending_durable_writes", sum(len(vbucket.history.prepares.pending) for vbucket in vbuckets)
    for event, name in _EVENT_NAMES.items():
        yield name, bucket.event_counts[event]
    yield from producer_stats.read_totals(bucket, measured)


def read_node_stats(node: NodeServices) -> Stats:
    """Yield the statistics of the node's process and its connections."""
    yield "pid", os.getpid()
    yield "node_uuid", node.uuid
    yield "start_id", node.start_id
    yield "uptime", int(node.loop.time() - node.started_at)
    yield "time", int(node.machine.time())
    yield "version", VERSION
    yield "ep_version", VERSION
    yield "curr_connections", len(node.connections.open_connections)
    yield "total_connections", node.connections.total
    yield "threads", 1
    yield "pointer_size", struct.calcsize("P") * 8
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield "rusage_user", f"{usage.ru_utime:.6f}"
    yield "rusage_system", f"{usage.ru_stime:.6f}"
    yield "auth_cmds", node.attempts.checked
    yield "auth_errors", node.attempts.refused
    yield "buckets_unopened", len(node.buckets.unopened)
    yield "ep_requests_waiting", sum(len(c.requests) for c in node.connections.open_connections)
    yield "ep_bytes_unsent", sum(c.bytes_unsent for c in node.connections.open_connections)


def _read_commands(counters: CommandCounters) -> Stats:
    yield "cmd_get", counters.cmd_get
    yield "get_hits", counters.cmd_get - counters.get_misses
    yield "get_misses", counters.get_misses
    yield "cmd_set", counters.cmd_set
    yield "cmd_delete", counters.cmd_delete


def _read_vbucket_state(name: str, vbuckets: list[Vbucket]) -> Stats:
    """Yield the statistics of the vbuckets in one state.

    Every value counts as resident: values on disk are read through the memory map of their file.
    """
    yield f"vb_{name}_num", len(vbuckets)
    yield f"vb_{name}_curr_items", sum(vbucket.changes.items for vbucket in vbuckets)
    yield f"vb_{name}_num_non_resident", 0
    yield f"vb_{name}_perc_mem_resident", 100
    yield f"vb_{name}_expired", sum(vbucket.expiry.expired_count for vbucket in vbuckets)


def _read_warmup(bucket: ServedBucket) -> Stats:
    """Yield the state of the warmup. It is never degraded: the bucket serves requests while its keys are loaded."""
    yield "ep_degraded_mode", "false"
    yield "ep_warmup_thread", get_warmup_state(bucket)
    yield "ep_keys_loaded", format_value(bucket.maintenance.keys_loaded)


def get_warmup_state(bucket: ServedBucket) -> str:
    """Return the state of the loading of keys, as ep-engine names it."""
    return "complete" if bucket.maintenance.keys_loaded else "running"


def _read_storage(node: NodeServices, bucket: ServedBucket) -> Stats:
    """Return the state of commits and compaction.

    Yields:
        Name and value of each statistic.
    """
    flusher, compactor, data_dir = bucket.flusher, bucket.compactor, node.storage.data_dir
    yield "ep_flusher_todo", bucket.store.log.commits.uncommitted_records
    if flusher is None or compactor is None or data_dir is None:
        yield from _read_memory_storage(bucket)
        return
    path = data_dir / bucket.store.name
    yield "ep_data_dir", path
    yield "ep_dbname", path
    yield "ep_db_file_size", count_file_bytes(path)
    yield "ep_flusher_state", flusher.state
    yield "ep_commit_num", flusher.commits
    yield "ep_commit_time", round(flusher.last_seconds * 1000, 3)  # milliseconds
    yield "ep_commit_last", int(flusher.last_at)
    yield "ep_item_commit_failed", flusher.failures
    yield "ep_total_persisted", flusher.persisted_changes
    yield "ep_persistence_waiters", len(flusher.waits)
    yield "ep_storage_fault", bucket.store.log.room.fault or ""
    yield "ep_compactions", compactor.pieces
    yield "ep_compaction_failed", compactor.failures


def _read_memory_storage(bucket: ServedBucket) -> Stats:
    """Yield the storage statistics of a bucket in memory.

    Clients of a bucket of type `couchbase` wait for commits. There every change counts as persisted once it is stored,
    as
    in `get_reported_persisted_seqno`, so each change is a commit.
    """
    yield "ep_dbname", ""
    if bucket.spec.is_persistent:
        changes = sum(vbucket.changes.high_seqno for vbucket in bucket.store.vbuckets)
        yield "ep_commit_num", changes
        yield "ep_total_persisted", changes


def read_memory_stats(bucket: ServedBucket) -> Stats:
    """Return the memory that the bucket's data occupies.

    The log of a bucket on disk is mapped, except its newest files.
    """
    return _read_memory(bucket.store, bucket.store.collect_stats())


def _read_memory(store: BucketStore, memory: BucketStats) -> Stats:
    quota = store.log.quota
    yield "bytes", memory.memory_bytes
    yield "mem_used", memory.memory_bytes
    yield "mem_used_estimate", memory.memory_bytes
    if not store.log.durable:
        yield "ep_kv_size", memory.live_bytes
    yield "ep_overhead", memory.index_bytes + (0 if store.log.durable else memory.dead_bytes)
    yield "ep_index_bytes", memory.index_bytes
    yield "ep_log_live_bytes", memory.live_bytes
    yield "ep_log_dead_bytes", memory.dead_bytes
    yield "ep_item_num", memory.items
    yield "ep_max_size", quota.nbytes or 0  # 0: no quota
    if quota.nbytes is not None:
        yield "ep_mem_high_wat", quota.high_water
        yield "ep_mem_low_wat", quota.low_water
    yield "ep_oom_errors", quota.errors
    yield "ep_tmp_oom_errors", quota.temporary_errors


GROUPS: dict[str, StatGroup] = {
    "": StatGroup(
        lambda request: read_bucket_stats(request.node, request.bucket), "the bucket and the node as a whole"
    ),
    "memory": make_bucket_group(read_memory_stats, "the memory that the data of the bucket occupies"),
}
