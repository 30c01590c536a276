"""What is said about the node and its buckets, as clients of Couchbase expect it.

Fields that say nothing here are those without which a client fails. `$HOST` in them stands for the host that the client
knows the node by.
"""

from __future__ import annotations

import os
import platform
import time
from typing import Any
from urllib.parse import quote

from penstock.node.buckets.bucket_storage import file_bytes
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.cluster.release import RELEASE
from penstock.node.cluster.topology import EPOCH
from penstock.node.session.node_services import NodeServices
from penstock.node.stats.bucket_stats import read_bucket
from penstock.store.definition.manifest import Manifest
from penstock.wire.codec.constants import VbucketState

__all__ = [
    "bucket",
    "bucket_nodes",
    "bucket_stat",
    "bucket_stats",
    "nodes",
    "pool",
    "pools",
    "pools_for_stranger",
    "visible_items",
]

_COMPATIBILITY = (7 << 16) + 6
_MEGABYTE = 1024 * 1024
_TYPES = {"couchbase": "membase"}  # what the others are called is what they are


def pools_for_stranger() -> dict[str, Any]:
    """Return the document about the cluster for a client that has not logged in.

    Clients that begin here without a login need the pool's URI and the version that they talk to; KV's VERSION tells it
    before a login too. Real servers ask for a login here; 2.5.1 and 3.1.3 do not if a bucket has no password.
    Source: ns_server, menelaus_web.erl, auth_any_bucket.
    """
    return {
        "isAdminCreds": False,
        "isROAdminCreds": False,
        "isEnterprise": True,
        "pools": [{"name": "default", "uri": "/pools/default", "streamingUri": "/poolsStreaming/default"}],
        "settings": {},
        "implementationVersion": RELEASE,
    }


def pools(node: NodeServices, *, is_admin: bool) -> dict[str, Any]:
    return {
        "isAdminCreds": is_admin,
        "isROAdminCreds": False,
        "isEnterprise": True,
        "allowedServices": ["kv"],
        "pools": [
            {
                "name": "default",
                "uri": f"/pools/default?uuid={node.uuid}",
                "streamingUri": f"/poolsStreaming/default?uuid={node.uuid}",
            }
        ],
        "settings": {},
        "uuid": node.uuid,
        "implementationVersion": RELEASE,
        "componentsVersion": {"ns_server": RELEASE},
    }


def pool(node: NodeServices, items: int) -> dict[str, Any]:
    return {
        "name": "default",
        "clusterName": "",
        "nodes": nodes(node, items),
        "buckets": {
            "uri": f"/pools/default/buckets?uuid={node.uuid}",
            "terseBucketsBase": "/pools/default/b/",
            "terseStreamingBucketsBase": "/pools/default/bs/",
        },
        "bucketNames": [{"bucketName": name, "uuid": served.uuid} for name, served in node.buckets.items()],
        "nodeServicesUri": "/pools/default/nodeServices",
        "balanced": True,
        "rebalanceStatus": "none",
        "rebalanceProgressUri": "/pools/default/rebalanceProgress",
        "memoryQuota": _memory() // _MEGABYTE,
        "counters": {},
        "alerts": [],
        "storageTotals": {"ram": {"total": _memory(), "quotaTotal": _memory()}},
    }


def nodes(node: NodeServices, items: int) -> list[dict[str, Any]]:
    """Return what there is to say of each node: of others only where they are, they are taken to be well.

    items: how many documents of this node the user may see.
    """
    topology = node.topology
    found: list[dict[str, Any]] = []
    for number, place in enumerate(topology.places):
        ports = {"direct": place.kv, "httpsMgmt": place.mgmt_tls}
        said: dict[str, Any] = {
            "hostname": place.address,
            "ports": {name: port for name, port in ports.items() if port},
            "otpNode": f"ns_{number + 1}@{place.host}",
            "nodeUUID": f"{number + 1:032x}",
            "clusterMembership": "active",
            "clusterCompatibility": _COMPATIBILITY,
            "recoveryType": "none",
            "services": ["kv"],
            "status": "healthy",
            "version": RELEASE,
            "os": platform.platform(),
            "cpuCount": os.cpu_count() or 1,
            "memoryTotal": _memory(),
            "systemStats": {"mem_total": _memory()},
            "interestingStats": {},
            "uptime": str(int(node.loop.time() - node.started_at)),
        }
        if number == topology.this:
            said["thisNode"] = True
            said["interestingStats"] = {"curr_items": items}
        found.append(said)
    return found


def bucket(node: NodeServices, served: ServedBucket, manifest: Manifest, items: int) -> dict[str, Any]:
    """Return the document about a bucket, with all that the cluster map has.

    manifest: as the user sees it. items: as for `nodes`.
    """
    spec, base = served.spec, f"/pools/default/buckets/{quote(served.store.name)}"
    # Clients read the quota and send it back with other settings, and gocb refuses one below 100 MB: never 0.
    quota = spec.settings(node.storage.settings).memory_bytes or _memory()
    said: dict[str, Any] = {
        "rev": served.map.revision,
        "revEpoch": EPOCH,
        **served.map.said,
        "nodes": nodes(node, items),
        "bucketType": _TYPES.get(spec.kind, spec.kind),
        "authType": "sasl",
        "saslPassword": "",  # users have passwords, buckets have none; cbtransfer of 2.5.1 and cbrestore insist on it
        "storageBackend": spec.storage_backend if spec.persistent else "undefined",
        "localRandomKeyUri": f"{base}/localRandomKey",
        "stats": {
            "uri": f"{base}/stats",
            "nodeStatsListURI": f"{base}/nodes",
        },
        "ddocs": {"uri": f"{base}/ddocs"},
        "controllers": {"compactAll": f"{base}/controller/compactBucket"},
        **_settings(served, quota),
        "basicStats": _basic_stats(node, served, manifest, quota),
    }
    if served.may_be_flushed:
        said["controllers"]["flush"] = f"{base}/controller/doFlush"
    return said


def _settings(served: ServedBucket, quota: int) -> dict[str, Any]:
    spec, settings = served.spec, served.store.settings
    return {
        "replicaNumber": spec.replicas,
        "replicaIndex": False,
        "numVBuckets": len(served.store.vbuckets),
        "threadsNumber": 1,
        "quota": {"ram": quota, "rawRAM": quota},
        "maxTTL": spec.max_ttl,
        "compressionMode": "passive",
        "evictionPolicy": spec.eviction_policy,
        "durabilityMinLevel": "none",
        "conflictResolutionType": settings.conflict_resolution,
        "historyRetentionSeconds": int(settings.retention_seconds or 0),
        "historyRetentionBytes": settings.retention_bytes or 0,
    }


def _basic_stats(node: NodeServices, served: ServedBucket, manifest: Manifest, quota: int) -> dict[str, Any]:
    stats = served.store.stats()
    return {
        "quotaPercentUsed": round(100 * stats.memory_bytes / quota, 3),
        "opsPerSec": 0,
        "diskFetches": 0,
        "itemCount": visible_items(served, manifest),
        "diskUsed": _on_disk(node, served),
        "dataUsed": stats.live_bytes,
        "memUsed": stats.memory_bytes,
    }


def bucket_nodes(node: NodeServices, served: ServedBucket) -> dict[str, Any]:
    """Return the nodes of a bucket, with the path of its statistics on each."""
    base = f"/pools/default/buckets/{quote(served.store.name)}/nodes"
    paths = {place.address: f"{base}/{place.address}" for place in node.topology.places}
    servers = [{"hostname": name, "uri": path, "stats": {"uri": f"{path}/stats"}} for name, path in paths.items()]
    return {"servers": servers}


def bucket_stat(node: NodeServices, served: ServedBucket, name: str) -> dict[str, Any] | None:
    """Return the newest sample of one statistic of this node's, None for a name that does not exist."""
    found: dict[str, Any] = bucket_stats(node, served)["op"]
    samples = found.pop("samples")
    if name not in samples:
        return None
    return found | {"timestamp": samples["timestamp"], "nodeStats": {node.topology.here.address: samples[name]}}


def bucket_stats(node: NodeServices, served: ServedBucket) -> dict[str, Any]:
    """Return the newest sample of every statistic that is a number: those of STAT without a group."""
    now = int(time.time() * 1000)
    numbers = {name: value for name, value in read_bucket(node, served) if isinstance(value, int | float)}
    samples = {"timestamp": now, **numbers}
    return {
        "op": {
            "samples": {name: [value] for name, value in samples.items()},
            "samplesCount": 1,
            "isPersistent": served.spec.persistent,
            "lastTStamp": now,
            "interval": 1000,
        }
    }


def _items(served: ServedBucket) -> int:
    return sum(
        vbucket.changes.items for vbucket in served.store.vbuckets if vbucket.history.state is VbucketState.ACTIVE
    )


def visible_items(served: ServedBucket, manifest: Manifest) -> int:
    """Return how many documents a bucket has in the collections of a manifest."""
    if manifest is served.store.manifests.current:
        return _items(served)
    active = [vbucket for vbucket in served.store.vbuckets if vbucket.history.state is VbucketState.ACTIVE]
    return sum(vbucket.collections.item_count(collection) for vbucket in active for collection in manifest.collections)


def _on_disk(node: NodeServices, served: ServedBucket) -> int:
    data_dir = node.storage.data_dir
    return 0 if data_dir is None or not served.store.log.durable else file_bytes(data_dir / served.store.name)


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
