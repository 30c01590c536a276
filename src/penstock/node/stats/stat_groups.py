"""The groups of STAT: names as kv_engine has them, values from where they are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

from penstock.errors import AccessDenied, InvalidArguments, KeyNotFound, TooBig
from penstock.node.auth import Privilege
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.session.session import Session
from penstock.node.stats import bucket_stats, collection_stats, key_stats, producer_stats, storage_stats, tap_stats
from penstock.node.stats.stat_group import (
    StatGroup,
    StatRequest,
    Stats,
    group_of_bucket,
    group_of_vbuckets,
    missing_group,
    shown,
)
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import MAX_VALUE, VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.messages.kv import Stat

__all__ = ["GROUPS", "MISSING", "read_stats"]

_LONGEST_ECHO = 50
_MOST_OPTIONS = 4096  # bytes


def read_stats(session: Session, stat: Stat) -> Stats:
    """Return (name, value) of each statistic that a STAT asks for.

    Raises KeyNotFound for an unknown group, as kv_engine does, NotSupported for a group of kv_engine that a node does
    not have, InvalidArguments for an argument or value that does not fit, TooBig, AccessDenied, NoBucket, NotMyVbucket.
    """
    text = stat.key.decode("utf-8", "replace")
    name, _, argument = text.partition(" ")
    request = StatRequest(session, name, argument, _read_options(stat))
    group = GROUPS.get(name) or MISSING.get(name)
    if group is None:
        raise KeyNotFound(f"no statistics {text[:_LONGEST_ECHO]!r}")
    bucket, user = session.selected(), session.login.acting
    # A user of one scope or collection may have the privilege only there, and follows it with these statistics.
    if user is None or not user.may_somewhere(group.privilege, bucket.store.name):
        raise AccessDenied(f"STAT {name}: not for {session.login.acting_name}")
    group.check(request)
    return group.read(request)


def _read_options(stat: Stat) -> Mapping[str, Any]:
    """Return the JSON object in the value of a STAT. Raises InvalidArguments for another value, TooBig for a long one.

    Source: kv_engine mcbp_validators.cc, stat_validator.
    """
    if not stat.value:
        return {}
    if len(stat.value) > _MOST_OPTIONS:  # reading megabytes of them would hold up the event loop
        raise TooBig(f"STAT: value of {len(stat.value)} bytes, limit {_MOST_OPTIONS}")
    if not stat.datatype & Datatype.JSON:
        raise InvalidArguments(f"STAT: value with datatype 0x{stat.datatype:02x}, expected JSON (0x01)")
    try:
        options = json.loads(stat.value)
    except (ValueError, RecursionError):
        raise InvalidArguments(f"STAT: the value of {len(stat.value)} bytes is no JSON") from None
    return options if isinstance(options, dict) else {}


def _vbucket_seqno(bucket: ServedBucket, vbucket: Vbucket) -> Stats:
    high, persisted = vbucket.changes.high_seqno, bucket.reported_persisted_seqno(vbucket)
    snap_start, snap_end = _persisted_snapshot(vbucket, persisted)
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
    whole = vbucket.history.whole_seqno
    if persisted == whole or vbucket.history.state is VbucketState.ACTIVE:
        return persisted, persisted
    return (whole, vbucket.changes.high_seqno) if persisted > whole else (0, whole)


def _failovers(bucket: ServedBucket, vbucket: Vbucket) -> Stats:
    log = vbucket.history.failover_log
    yield f"vb_{vbucket.id}:num_entries", len(log)
    yield f"vb_{vbucket.id}:num_erroneous_entries_erased", 0
    for place, entry in enumerate(log):
        yield f"vb_{vbucket.id}:{place}:id", entry.vbuuid
        yield f"vb_{vbucket.id}:{place}:seq", entry.seqno


def _state(bucket: ServedBucket, vbucket: Vbucket) -> Stats:
    assert vbucket.history.state is not None
    yield f"vb_{vbucket.id}", vbucket.history.state.name.lower()


def _details(bucket: ServedBucket, vbucket: Vbucket) -> Stats:
    """Show the state of a vbucket, and what kv_engine's group of this name shows and a node has too."""
    yield from _state(bucket, vbucket)
    yield from (
        (f"vb_{vbucket.id}:{name}", value)
        for name, value in (
            ("num_items", vbucket.changes.items),
            ("tap_items", bucket.tap.items(vbucket)),
            ("ht_memory", vbucket.changes.keys.nbytes),
            ("queue_size", vbucket.changes.high_seqno - vbucket.history.persisted_seqno),
            ("high_seqno", vbucket.changes.high_seqno),
            ("persisted_seqno", vbucket.history.persisted_seqno),
            ("whole_seqno", vbucket.history.whole_seqno),
            ("purge_seqno", vbucket.index.purge_seqno),
            ("uuid", vbucket.history.vbuuid),
            ("max_cas", vbucket.changes.clock.last),
            ("num_non_resident", 0),
            ("max_visible_seqno", vbucket.changes.high_seqno),
        )
    )


def _hash(bucket: ServedBucket, vbucket: Vbucket) -> Stats:
    """Show the table of keys. Its slots hold one key each, and nothing but the event loop uses it."""
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


def _uuid(bucket: ServedBucket) -> Stats:
    yield "uuid", bucket.uuid


def _config(request: StatRequest) -> Stats:
    """Show what the bucket was told to be like, as far as kv_engine has a name for it."""
    bucket, data_dir = request.bucket, request.node.storage.data_dir
    settings, store = bucket.store.settings, bucket.store
    config: dict[str, object] = {
        "ep_bucket_type": "persistent" if bucket.spec.persistent else "ephemeral",
        "ep_conflict_resolution_type": settings.conflict_resolution,
        "ep_couch_bucket": store.name,
        "ep_exp_pager_stime": f"{bucket.upkeep.pager_seconds:g}",
        "ep_exp_pager_enabled": shown(bucket.upkeep.pager_enabled),
        "ep_flushall_enabled": shown(bucket.may_be_flushed),
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


def _settings(request: StatRequest) -> Stats:
    """Show the settings of the node. Source: memcached 3.x; later releases show one JSON document."""
    node = request.node
    settings: dict[str, object] = {
        "num_threads": 1,
        "auth_enabled_sasl": "yes",
        "auth_required_sasl": "no" if node.users is None else "yes",
        f"interface-{node.host}:{node.kv_port}-ssl": "false",
    }
    if node.tls_port:
        settings[f"interface-{node.host}:{node.tls_port}-ssl"] = "true"
    return iter(settings.items())


def _reset(request: StatRequest) -> Stats:
    """Count from 0 again; the totals of connections and what STAT shows of the present stay."""
    bucket = request.bucket
    bucket.counters.reset()
    for sent in bucket.sent.values():
        sent.reset()
    for histogram in chain(bucket.stat_times.values(), storage_stats.histograms(bucket)):
        histogram.reset()
    return iter(())


def _tap(request: StatRequest) -> Stats:
    return tap_stats.with_totals(request.session, producer_stats.GROUPS["tap"].read(request))


def _follow(request: StatRequest) -> Stats:
    """Show how a copy of a bucket elsewhere keeps up. Raises KeyNotFound for a bucket that is none."""
    bridge = request.bucket.bridge
    if bridge is None:
        raise KeyNotFound(f"bucket {request.bucket.store.name} follows no other node")
    return bridge.stats()


GROUPS: dict[str, StatGroup] = {
    **bucket_stats.GROUPS,
    **collection_stats.GROUPS,
    **key_stats.GROUPS,
    **producer_stats.GROUPS,
    **storage_stats.GROUPS,
    "checkpoint": group_of_vbuckets(tap_stats.of_checkpoints, "the checkpoints, or those of one vbucket"),
    "config": StatGroup(_config, "the settings of the bucket"),
    "failovers": group_of_vbuckets(_failovers, "the failover logs, or that of one vbucket"),
    "follow": StatGroup(_follow, "how a bucket that follows another node keeps up"),
    "hash": group_of_vbuckets(_hash, "the tables of keys, or that of one vbucket"),
    "reset": StatGroup(_reset, "nothing; counters begin at 0 again", privilege=Privilege.SETTINGS),
    "settings": StatGroup(_settings, "the settings of the node"),
    "tap": StatGroup(_tap, "the TAP producers with their vbuckets, absent registered clients, and totals"),
    "uuid": group_of_bucket(_uuid, "the uuid of the bucket"),
    "vbucket": group_of_vbuckets(_state, "the state of each vbucket, or of one"),
    "vbucket-details": group_of_vbuckets(_details, "all about each vbucket, or one"),
    "vbucket-seqno": group_of_vbuckets(_vbucket_seqno, "the sequence numbers of each vbucket, or of one"),
}
"""By name; "" is STAT without a group."""

MISSING: dict[str, StatGroup] = {
    "allocator": missing_group("the allocator of Python is not shown"),
    "audit": missing_group("nothing is audited"),
    "bucket_details": missing_group("ask for `tasks-all`"),
    "clocks": missing_group("there is one clock, that of the system"),
    "connections": missing_group("ask for `streams`"),
    "dispatcher": missing_group("there are no dispatchers; ask for `tasks`"),
    "durability-monitor": missing_group("writes are not prepared before they are committed"),
    "eviction": missing_group("values are not evicted"),
    "external-auth-timings": missing_group("no other service authenticates users"),
    "frequency-counters": missing_group("documents are not counted by use"),
    "fusion": missing_group("there is no log store beside the disk"),
    "info": missing_group("there is no document about statistics"),
    "items": missing_group("there are no slabs"),
    "klog": missing_group("there is no mutation log beside the log of changes"),
    "prev-vbucket": missing_group("earlier states of vbuckets are not kept"),
    "range-scans": missing_group("ranges are not scanned"),
    "responses": missing_group("replies are not counted by their status"),
    "scheduler": missing_group("delays of tasks are not measured; ask for `runtimes`"),
    "slabs": missing_group("there are no slabs"),
    "topkeys": missing_group("documents are not counted by use"),
    "vbucket-durability-state": missing_group("writes are not prepared before they are committed"),
}
"""Groups of kv_engine, ep-engine and memcached that a node does not have."""
