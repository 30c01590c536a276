"""Documents about the node and its buckets, in the form that Couchbase's clients expect.

Fields with constant values are those without which a client fails. `$HOST` stands for the host by which the client
knows the node.
"""

from __future__ import annotations

import os
import platform
from typing import Any

from penstock.names import quote_part
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.node.buckets.bucket_storage import count_file_bytes
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.cluster.own_map import NodePlace, read_places
from penstock.node.cluster.release import RELEASE
from penstock.node.http.pages.http_state import ManagedNode
from penstock.node.session.node_services import NodeServices
from penstock.node.stats.bucket_stats import read_bucket_stats
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.definition.manifest import Manifest
from penstock.wire.codec.constants import VbucketState

_COMPATIBILITY = (7 << 16) + 6
_MEGABYTE = 1024 * 1024
_TYPES = {"couchbase": "membase"}  # other kinds have the same name in documents


def make_unauthenticated_pools() -> dict[str, Any]:
    """Return the document about the cluster for a client that has not logged in.

    Clients that begin here without a login need the pool's URI and the version; the command VERSION reveals the version
    before a login too. Real servers require a login here; 2.5.1 and 3.1.3 do not if a bucket has no password.
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


def make_pools(node: NodeServices, *, is_admin: bool) -> dict[str, Any]:
    """Return the document about the cluster for a user."""
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


def make_pool(node: ManagedNode, items: int) -> dict[str, Any]:
    """Return the document about the nodes and buckets of the cluster; items as in `make_nodes`."""
    return {
        "name": "default",
        "clusterName": "",
        "nodes": make_nodes(node, items),
        "buckets": {
            "uri": f"/pools/default/buckets?uuid={node.uuid}",
            "terseBucketsBase": "/pools/default/b/",
            "terseStreamingBucketsBase": "/pools/default/bs/",
        },
        "bucketNames": [{"bucketName": name, "uuid": get_shown_uuid(served)} for name, served in node.buckets.items()],
        "nodeServicesUri": "/pools/default/nodeServices",
        "balanced": True,
        "rebalanceStatus": "none",
        "rebalanceProgressUri": "/pools/default/rebalanceProgress",
        "memoryQuota": _get_memory_bytes() // _MEGABYTE,
        "counters": {},
        "alerts": [],
        "storageTotals": {"ram": {"total": _get_memory_bytes(), "quotaTotal": _get_memory_bytes()}},
    }


def make_nodes(node: ManagedNode, items: int, served: ServedBucket | None = None) -> list[dict[str, Any]]:
    """Return the documents about this node, or about the nodes of a bucket's map. They do not ask each other.

    Args:
        node: this node.
        items: number of documents of this node that the user may know of.
        served: the bucket; None: this node alone.
    """
    places, own_number = ([node.place], 0) if served is None else list_places(node, served)
    found: list[dict[str, Any]] = []
    for number, place in enumerate(places):
        ports = {"direct": place.kv, "httpsMgmt": place.mgmt_tls}
        document: dict[str, Any] = {
            "hostname": place.address,
            "configuredHostname": place.address,
            "ports": {name: port for name, port in ports.items() if port},
            "otpNode": f"ns_{number + 1}@{place.host}",
            "nodeUUID": f"{number + 1:032x}",
            "clusterMembership": "active",
            "status": "healthy",
            "clusterCompatibility": _COMPATIBILITY,
            "recoveryType": "none",
            "services": ["kv"],
            "version": RELEASE,
            "os": platform.platform(),
            "cpuCount": os.cpu_count() or 1,
            "memoryTotal": _get_memory_bytes(),
            "systemStats": {"mem_total": _get_memory_bytes()},
            "interestingStats": {},
            "uptime": str(int(node.loop.time() - node.started_at)),
        }
        if number == own_number:
            document["thisNode"] = True
            document["nodeUUID"], document["startId"] = node.uuid, node.start_id
            document["interestingStats"] = {"curr_items": items}
        found.append(document)
    return found


def list_places(node: NodeServices, served: ServedBucket) -> tuple[list[NodePlace], int]:
    """Return the nodes of a bucket's map, and the number of this node."""
    pushed = served.cluster_map.pushed
    return ([node.place], 0) if pushed is None else read_places(pushed.content, node.place)


def get_shown_uuid(served: ServedBucket) -> str:
    """Return the uuid of a bucket in its map. It is the same on all nodes."""
    return str(served.cluster_map.content.get("uuid", served.uuid))


def make_bucket(node: ManagedNode, served: ServedBucket, manifest: Manifest, items: int) -> dict[str, Any]:
    """Return the document about a bucket, including its cluster map.

    Args:
        node: this node.
        served: the bucket.
        manifest: the manifest as the user sees it.
        items: as in `make_nodes`.
    """
    spec, base = served.spec, f"/pools/default/buckets/{quote_part(served.store.name)}"
    # Clients read the quota and send it back with other settings, and gocb refuses one below 100 MB: never 0.
    epoch, revision = served.cluster_map.version
    quota = spec.make_settings(node.storage.settings).memory_bytes or _get_memory_bytes()
    document: dict[str, Any] = {
        "rev": revision,
        "revEpoch": epoch,
        **served.cluster_map.content,
        "nodes": make_nodes(node, items, served),
        "bucketType": _TYPES.get(spec.kind, spec.kind),
        "authType": "sasl",
        "saslPassword": "",  # buckets have no passwords, but cbtransfer of 2.5.1 and cbrestore need the field
        "storageBackend": spec.storage_backend if spec.is_persistent else "undefined",
        "localRandomKeyUri": f"{base}/localRandomKey",
        "stats": {
            "uri": f"{base}/stats",
            "nodeStatsListURI": f"{base}/nodes",
        },
        "ddocs": {"uri": f"{base}/ddocs"},
        "controllers": {"compactAll": f"{base}/controller/compactBucket"},
        **_make_settings(served, quota),
        "basicStats": _make_basic_stats(node, served, manifest, quota),
    }
    if served.can_be_flushed:
        document["controllers"]["flush"] = f"{base}/controller/doFlush"
    return document


def make_unopened_bucket(node: ManagedNode, name: str, problem: str) -> dict[str, Any]:
    """Return the entry of a bucket that the node could not open, in a list of buckets.

    Args:
        node: this node.
        name: the bucket.
        problem: why the node could not open it.
    """
    return {
        "name": name,
        "uuid": "",
        "bucketType": "membase",
        "nodeLocator": "vbucket",
        "nodes": [{**found, "status": "unhealthy"} for found in make_nodes(node, 0)],
        "quota": {"ram": 0, "rawRAM": 0},
        "replicaNumber": 0,
        "controllers": {},
        "basicStats": {"itemCount": 0},
        "problem": problem,
    }


def _make_settings(served: ServedBucket, quota: int) -> dict[str, Any]:
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
        **(_make_history_settings(spec, settings) if spec.has_history else {}),
    }


def _make_history_settings(spec: BucketSpec, settings: BucketSettings) -> dict[str, Any]:
    return {
        "historyRetentionSeconds": int(settings.retention_seconds or 0),
        "historyRetentionBytes": settings.retention_bytes or 0,
        "historyRetentionCollectionDefault": bool(spec.history_default),
    }


def _make_basic_stats(node: NodeServices, served: ServedBucket, manifest: Manifest, quota: int) -> dict[str, Any]:
    stats = served.store.collect_stats()
    return {
        "quotaPercentUsed": round(100 * stats.memory_bytes / quota, 3),
        "opsPerSec": 0,
        "diskFetches": 0,
        "itemCount": count_visible_items(served, manifest),
        "diskUsed": _count_disk_bytes(node, served),
        "dataUsed": stats.live_bytes,
        "memUsed": stats.memory_bytes,
    }


def make_bucket_nodes(node: NodeServices, served: ServedBucket) -> dict[str, Any]:
    """Return the nodes of a bucket, with the path of its statistics on each."""
    base = f"/pools/default/buckets/{quote_part(served.store.name)}/nodes"
    paths = {place.address: f"{base}/{place.address}" for place in list_places(node, served)[0]}
    servers = [{"hostname": name, "uri": path, "stats": {"uri": f"{path}/stats"}} for name, path in paths.items()]
    return {"servers": servers}


def make_bucket_stat(node: NodeServices, served: ServedBucket, name: str) -> dict[str, Any] | None:
    """Return the newest sample of one statistic of this node; None for an unknown name."""
    found: dict[str, Any] = make_bucket_stats(node, served)["op"]
    samples = found.pop("samples")
    if name not in samples:
        return None
    places, own_number = list_places(node, served)
    return found | {"timestamp": samples["timestamp"], "nodeStats": {places[own_number].address: samples[name]}}


def make_bucket_stats(node: NodeServices, served: ServedBucket) -> dict[str, Any]:
    """Return the newest sample of every numeric statistic of STAT without a group."""
    now = node.machine.time_ns() // 1_000_000
    numbers = {name: value for name, value in read_bucket_stats(node, served) if isinstance(value, int | float)}
    samples = {"timestamp": now, **numbers}
    return {
        "op": {
            "samples": {name: [value] for name, value in samples.items()},
            "samplesCount": 1,
            "isPersistent": served.spec.is_persistent,
            "lastTStamp": now,
            "interval": 1000,
        }
    }


def _count_items(served: ServedBucket) -> int:
    return sum(
        vbucket.changes.items for vbucket in served.store.vbuckets if vbucket.history.state is VbucketState.ACTIVE
    )


def count_visible_items(served: ServedBucket, manifest: Manifest) -> int:
    """Return the number of documents in the collections of a manifest."""
    if manifest is served.store.manifests.current:
        return _count_items(served)
    active = [vbucket for vbucket in served.store.vbuckets if vbucket.history.state is VbucketState.ACTIVE]
    return sum(vbucket.collections.item_count(collection) for vbucket in active for collection in manifest.collections)


def _count_disk_bytes(node: NodeServices, served: ServedBucket) -> int:
    data_dir = node.storage.data_dir
    return 0 if data_dir is None or not served.store.log.durable else count_file_bytes(data_dir / served.store.name)


def _get_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
