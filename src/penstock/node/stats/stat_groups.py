"""The groups of STAT by name. Names are those of kv_engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

from penstock.errors import AccessDenied, InvalidArguments, KeyNotFound, TooBig
from penstock.node.auth import Privilege
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.session.session import Session
from penstock.node.stats import (
    bucket_stats,
    collection_stats,
    connection_stats,
    key_stats,
    producer_stats,
    storage_stats,
    tap_stats,
)
from penstock.node.stats.stat_group import (
    StatGroup,
    StatRequest,
    Stats,
    format_value,
    make_bucket_group,
    make_missing_group,
    make_vbucket_group,
)
from penstock.store.documents.durability_monitor import get_high_prepared_seqno
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import MAX_VALUE, VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.messages.kv import Stat

_LONGEST_ECHO = 50
_MOST_OPTIONS = 4096  # bytes


def read_stats(session: Session, stat: Stat) -> Stats:
    """Return (name, value) of each statistic that a STAT requests.

    Raises:
        KeyNotFound: the group is unknown, as in kv_engine.
        NotSupported: a group of kv_engine that a node does not support.
        InvalidArguments: the argument or the value is invalid.
        TooBig: the value is too long.
        AccessDenied: the user lacks the group's privilege.
        NoBucket: no bucket is selected.
        NotMyVbucket: the vbucket does not exist on this node.
    """
    text = stat.key.decode("utf-8", "replace")
    name, _, argument = text.partition(" ")
    request = StatRequest(session, name, argument, _read_options(stat))
    group = GROUPS.get(name) or MISSING.get(name)
    if group is None:
        raise KeyNotFound(f"no statistics {text[:_LONGEST_ECHO]!r}")
    bucket, user = session.require_bucket(), session.login.effective_user
    # A user of one scope or collection may have the privilege only there, and needs these statistics to follow it.
    if user is None or not user.has_privilege_within(group.privilege, bucket.store.name):
        raise AccessDenied(f"STAT {name}: no privilege for {session.login.effective_user_name}")
    group.check(request)
    return group.read(request)


def _read_options(stat: Stat) -> Mapping[str, Any]:
    """Return the JSON object in the value of a STAT; empty if the value is another JSON value.

    Source: kv_engine mcbp_validators.cc, stat_validator.

    Raises:
        InvalidArguments: the value is not JSON.
        TooBig: the value is too long.
    """
    if not stat.value:
        return {}
    if len(stat.value) > _MOST_OPTIONS:  # parsing megabytes would block the event loop
        raise TooBig(f"STAT: value of {len(stat.value)} bytes, limit {_MOST_OPTIONS}")
    if not stat.datatype & Datatype.JSON:
        raise InvalidArguments(f"STAT: value with datatype 0x{stat.datatype:02x}, expected JSON (0x01)")
    try:
        options = json.loads(stat.value)
    except (ValueError, RecursionError):
        raise InvalidArguments(f"STAT: the value of {len(stat.value)} bytes is not JSON") from None
    return options if isinstance(options, dict) else {}


def read_seqnos(bucket: ServedBucket, vbucket: Vbucket) -> Stats:
    """Yield the sequence numbers of a vbucket."""
    high, persisted = vbucket.changes.high_seqno, bucket.get_reported_persisted_seqno(vbucket)
    snap_start, snap_end = _find_persisted_snapshot(vbucket, persisted)
    yield from (
        (f"vb_{vbucket.id}:{name}", value)
        for name, value in (
            ("high_seqno", high),
            ("abs_high_seqno", high),
            ("last_persisted_seqno", persisted),
            ("uuid", vbucket.history.vbuuid),
            ("purge_seqno", vbucket.index.purge_seqno),
            ("last_persisted_snap_start", snap_start),
            ("last_persisted_snap_end", snap_end),
            ("high_prepared_seqno", get_high_prepared_seqno(vbucket)),
            ("high_completed_seqno", vbucket.history.prepares.high_completed_seqno),
            ("max_visible_seqno", vbucket.history.prepares.find_visible(high)),
        )
    )


def read_durability(bucket: ServedBucket, vbucket: Vbucket) -> Stats:
    """Yield the undecided durable writes of a vbucket."""
    prepares = vbucket.history.prepares
    yield f"vb_{vbucket.id}:num_tracked", len(prepares.pending)
    yield f"vb_{vbucket.id}:high_prepared_seqno", get_high_prepared_seqno(vbucket)
    yield f"vb_{vbucket.id}:high_completed_seqno", prepares.high_completed_seqno
    for number, names in enumerate(bucket.sync_writes.get_chains(vbucket)):
        yield f"vb_{vbucket.id}:replication_chain_{number}", json.dumps(names)


def _find_persisted_snapshot(vbucket: Vbucket, persisted: int) -> tuple[int, int]:
    """Return start and end of the snapshot that the changes on disk end in. Both are equal if it is complete.

    In an active vbucket, every change is a snapshot by itself. In a replica, only the complete part is known, but not
    where earlier snapshots began or where the open one will end. Then the result is the known bounds.
    """
    whole = vbucket.history.whole_seqno
    if persisted == whole or vbucket.history.state is VbucketState.ACTIVE:
        return persisted, persisted
    return (whole, vbucket.changes.high_seqno) if persisted > whole else (0, whole)


def _read_failover_log(bucket: ServedBucket, vbucket: Vbucket) -> Stats:
    log = vbucket.history.failover_log
    yield f"vb_{vbucket.id}:num_entries", len(log)
    yield f"vb_{vbucket.id}:num_erroneous_entries_erased", 0
    for place, entry in enumerate(log):
        yield f"vb_{vbucket.id}:{place}:id", entry.vbuuid
        yield f"vb_{vbucket.id}:{place}:seq", entry.seqno


def _read_state(bucket: ServedBucket, vbucket: Vbucket) -> Stats:
    assert vbucket.history.state is not None
    yield f"vb_{vbucket.id}", vbucket.history.state.name.lower()


def read_vbucket_details(bucket: ServedBucket, vbucket: Vbucket) -> Stats:
    """Yield the state of a vbucket, and those statistics of kv_engine's group that a node has."""
    yield from _read_state(bucket, vbucket)
    yield from (
        (f"vb_{vbucket.id}:{name}", value)
        for name, value in (
            ("num_items", vbucket.changes.items),
            ("tap_items", bucket.tap.count_items(vbucket)),
            ("ht_memory", vbucket.changes.keys.nbytes),
            ("queue_size", vbucket.changes.high_seqno - vbucket.history.persisted_seqno),
            ("high_seqno", vbucket.changes.high_seqno),
            ("persisted_seqno", vbucket.history.persisted_seqno),
            ("whole_seqno", vbucket.history.whole_seqno),
            ("unused", int(vbucket.changes.is_unused)),
            ("purge_seqno", vbucket.index.purge_seqno),
            ("history_start_seqno", _find_history_start(bucket, vbucket)),
            ("uuid", vbucket.history.vbuuid),
            ("max_cas", vbucket.changes.clock.last),
            ("num_non_resident", 0),
            ("max_visible_seqno", vbucket.history.prepares.find_visible(vbucket.changes.high_seqno)),
        )
    )
    if vbucket.history.feed is not None:
        yield f"vb_{vbucket.id}:last_message_age_ms", vbucket.history.feed.measure_age()


def _find_history_start(bucket: ServedBucket, vbucket: Vbucket) -> int:
    """Return the first seqno from which on all versions are there, 0 while the bucket keeps none."""
    return vbucket.index.history_floor + 1 if bucket.store.settings.keeps_history else 0


def _read_hash_table(bucket: ServedBucket, vbucket: Vbucket) -> Stats:
    """Yield the size of the table of keys. Each slot holds one key, and only the event loop uses the table."""
    assert vbucket.history.state is not None
    keys = vbucket.changes.keys.count
    yield from (
        (f"vb_{vbucket.id}:{name}", value)
        for name, value in (
            ("state", vbucket.history.state.name.lower()),
            ("size", keys),
            ("locks", 0),
            ("min_depth", 0),
            ("max_depth", min(keys, 1)),
            ("reported", vbucket.changes.items),
            ("counted", vbucket.changes.items),
            ("mem_size", vbucket.changes.keys.nbytes),
            ("mem_size_counted", vbucket.changes.keys.nbytes),
        )
    )


def _read_uuid(bucket: ServedBucket) -> Stats:
    yield "uuid", bucket.uuid


def _read_config(request: StatRequest) -> Stats:
    """Return the bucket's configuration under the names of kv_engine."""
    bucket, data_dir = request.bucket, request.node.storage.data_dir
    settings, store = bucket.store.settings, bucket.store
    config: dict[str, object] = {
        "ep_bucket_type": "persistent" if bucket.spec.is_persistent else "ephemeral",
        "ep_conflict_resolution_type": settings.conflict_resolution,
        "ep_couch_bucket": store.name,
        "ep_exp_pager_stime": f"{bucket.maintenance.pager_seconds:g}",
        "ep_exp_pager_enabled": format_value(bucket.maintenance.pager_enabled),
        "ep_flushall_enabled": format_value(bucket.can_be_flushed),
        "ep_max_item_size": MAX_VALUE,
        "ep_max_size": settings.memory_bytes or 0,
        "ep_max_ttl": settings.max_ttl,
        "ep_max_vbuckets": len(store.vbuckets),
        "ep_persistent_metadata_purge_age": int(settings.purge_age),
    }
    if bucket.spec.kind == "ephemeral":
        config["ep_ephemeral_full_policy"] = "auto_delete" if settings.auto_delete else "fail_new_data"
        config["ep_ephemeral_metadata_purge_age"] = int(settings.purge_age)
    if store.log.durable and data_dir is not None:
        config["ep_dbname"] = data_dir / store.name
    return iter(config.items())


def _read_settings(request: StatRequest) -> Stats:
    """Return the settings of the node. Source: memcached 3.x; later releases return one JSON document."""
    node = request.node
    settings: dict[str, object] = {
        "num_threads": 1,
        "auth_enabled_sasl": "yes",
        "auth_required_sasl": "no" if node.users is None else "yes",
        f"interface-{node.host}:{node.kv_port}-ssl": "false",
    }
    if tls_port := node.place.kv_tls:
        settings[f"interface-{node.host}:{tls_port}-ssl"] = "true"
    return iter(settings.items())


def _reset_counters(request: StatRequest) -> Stats:
    """Set the counters to 0, except totals of connections and values of the present.

    Returns:
        No statistics.
    """
    bucket = request.bucket
    bucket.counters.reset()
    for sent in bucket.sent_counts.values():
        sent.reset()
    bucket.event_counts.clear()
    bucket.command_times.reset()
    for histogram in chain(bucket.stat_times.values(), storage_stats.list_histograms(bucket)):
        histogram.reset()
    return iter(())


def _read_tap(request: StatRequest) -> Stats:
    return tap_stats.add_totals(request.session, producer_stats.GROUPS["tap"].read(request))


def _read_follow(request: StatRequest) -> Stats:
    """Return the progress of a mirror. Raises KeyNotFound if the bucket is no mirror."""
    bridge = request.bucket.bridge
    if bridge is None:
        raise KeyNotFound(f"bucket {request.bucket.store.name} does not follow another node")
    return bridge.stats()


GROUPS: dict[str, StatGroup] = {
    **bucket_stats.GROUPS,
    **collection_stats.GROUPS,
    **connection_stats.GROUPS,
    **key_stats.GROUPS,
    **producer_stats.GROUPS,
    **storage_stats.GROUPS,
    "checkpoint": make_vbucket_group(tap_stats.read_checkpoints, "the checkpoints, or those of one vbucket"),
    "config": StatGroup(_read_config, "the settings of the bucket"),
    "failovers": make_vbucket_group(_read_failover_log, "the failover logs, or that of one vbucket"),
    "follow": StatGroup(_read_follow, "the progress of a bucket that mirrors another node's"),
    "hash": make_vbucket_group(_read_hash_table, "the tables of keys, or that of one vbucket"),
    "reset": StatGroup(_reset_counters, "nothing; sets the counters to 0", privilege=Privilege.SETTINGS),
    "settings": StatGroup(_read_settings, "the settings of the node"),
    "tap": StatGroup(_read_tap, "the TAP producers with their vbuckets, absent registered clients, and totals"),
    "uuid": make_bucket_group(_read_uuid, "the uuid of the bucket"),
    "vbucket": make_vbucket_group(_read_state, "the state of each vbucket, or of one"),
    "vbucket-details": make_vbucket_group(read_vbucket_details, "all about each vbucket, or one"),
    "durability-monitor": make_vbucket_group(
        read_durability, "the undecided durable writes of each vbucket, or of one"
    ),
    "vbucket-seqno": make_vbucket_group(read_seqnos, "the sequence numbers of each vbucket, or of one"),
}
"""The groups by name; "" is STAT without a group."""

MISSING: dict[str, StatGroup] = {
    "allocator": make_missing_group("the allocator of Python is not shown"),
    "audit": make_missing_group("nothing is audited"),
    "bucket_details": make_missing_group("ask for `tasks-all`"),
    "clocks": make_missing_group("there is one clock, that of the system"),
    "dispatcher": make_missing_group("there are no dispatchers; ask for `tasks`"),
    "eviction": make_missing_group("values are not evicted"),
    "external-auth-timings": make_missing_group("no other service authenticates users"),
    "frequency-counters": make_missing_group("documents are not counted by use"),
    "fusion": make_missing_group("there is no log store beside the disk"),
    "info": make_missing_group("there is no document about statistics"),
    "items": make_missing_group("there are no slabs"),
    "klog": make_missing_group("there is no mutation log beside the log of changes"),
    "prev-vbucket": make_missing_group("earlier states of vbuckets are not kept"),
    "range-scans": make_missing_group("ranges are not scanned"),
    "responses": make_missing_group("replies are not counted by their status; the metrics count refused requests"),
    "scheduler": make_missing_group("delays of tasks are not measured; ask for `runtimes`"),
    "slabs": make_missing_group("there are no slabs"),
    "topkeys": make_missing_group("documents are not counted by use"),
    "vbucket-durability-state": make_missing_group("ask for `durability-monitor`"),
}
"""Groups of kv_engine, ep-engine and memcached that a node does not have."""
