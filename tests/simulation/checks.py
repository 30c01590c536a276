"""The rules that hold at the end of each simulation, once all faults are over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.client.feeds.stream_position import Position
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.messages.dcp import Mutation
from penstock.wire.values.collection_key import DEFAULT_PREFIX
from tests.simulation.clients import Consumer
from tests.simulation.cluster import Cluster
from tests.simulation.orchestrator import ClusterDriver
from tests.store.failing import read_newest_changes


def is_quiet(cluster: Cluster, driver: ClusterDriver, consumers: Iterable[Consumer]) -> bool:
    """Return whether all nodes have the newest map, and all replicas and consumers the newest seqnos."""
    if any(node.node is None for node in cluster.nodes):
        return False
    if len({driver.read_version(number) for number in range(len(cluster.nodes))}) > 1:
        return False
    for number, place in driver.map.items():
        active = cluster.nodes[place.owner].vbuckets[number]
        if [node for node in cluster.nodes if node.vbuckets[number].history.is_served] != [cluster.nodes[place.owner]]:
            return False
        for node in cluster.nodes:
            copy = node.vbuckets[number]
            if copy.history.prepares.pending or describe_history(copy) != describe_history(active):
                return False
    return all(
        _has_newest(consumer, cluster.nodes[driver.map[consumer.vbucket].owner].vbuckets[consumer.vbucket])
        for consumer in consumers
    )


def _has_newest(consumer: Consumer, active: Vbucket) -> bool:
    """Return whether a consumer is at the newest seqno, and on the same branch: another branch may end there too.

    Prepares and aborts at the end are not sent to a consumer.
    """
    position = consumer.position or Position()
    end = position.seqno
    for entry in active.history.failover_log:
        if entry.vbuuid == position.vbuuid:
            break
        end = entry.seqno
    newest = active.history.prepares.find_visible(active.changes.high_seqno)
    return newest <= position.seqno <= min(end, active.changes.high_seqno)


def describe_history(vbucket: Vbucket) -> tuple[object, ...]:
    """Return the branches and the newest seqno of a vbucket."""
    return tuple(vbucket.history.failover_log), vbucket.changes.high_seqno


def _list_compared(vbucket: Vbucket, *, timed: bool) -> set[tuple[object, ...]]:
    """Return the fields of the newest changes that are the same on all nodes.

    Aborts have no meaning once all prepares are decided, and each node drops them in its own compactions. The message
    of a system event has no cas.

    Args:
        vbucket: the vbucket.
        timed: whether deletions have the same time. The message of a commit has none, so each node has its own.
    """
    compared: set[tuple[object, ...]] = set()
    for change in read_newest_changes(vbucket):
        place, version = (change.key, change.by_seqno, bytes(change.value)), (change.cas, change.rev_seqno)
        if not change.key.startswith(DEFAULT_PREFIX):
            if isinstance(change, Mutation):
                compared.add(place)
        elif isinstance(change, Mutation):
            compared.add((*place, *version, change.flags, change.expiry, change.datatype))
        else:
            compared.add((*place, *version, type(change), timed and change.delete_time))
    return compared


def find_double_owners(cluster: Cluster, driver: ClusterDriver) -> Iterator[str]:
    """Yield a sentence for each vbucket that two nodes with the newest map serve."""
    running = [(number, node) for number, node in enumerate(cluster.nodes) if node.node is not None]
    versions = {number: driver.read_version(number) for number, _ in running}
    newest = max((version for version in versions.values() if version is not None), default=None)
    for vbucket in driver.map:
        owners = [
            node.name
            for number, node in running
            if versions[number] == newest and node.vbuckets[vbucket].history.is_served
        ]
        if newest is not None and len(owners) > 1:
            yield f"map {newest}: vbucket {vbucket} is served by {owners}"


def find_differences(
    cluster: Cluster, driver: ClusterDriver, consumers: Iterable[Consumer], *, timed: bool
) -> Iterator[str]:
    """Yield a sentence for each replica and each consumer that differs from the active vbucket.

    Args:
        cluster: the nodes.
        driver: the owners of the vbuckets.
        consumers: the consumers.
        timed: whether no deletion was durable: then all nodes have its time.
    """
    for number, place in driver.map.items():
        active = cluster.nodes[place.owner].vbuckets[number]
        expected = read_newest_changes(active)
        compared = _list_compared(active, timed=timed)
        for node in cluster.nodes:
            found = _list_compared(node.vbuckets[number], timed=timed)
            if found != compared:
                yield f"vbucket {number}: {node.name} has {found - compared}, its owner {compared - found}"
        documents = {
            change.key[1:]: (change.by_seqno, change.cas, bytes(change.value))
            for change in expected
            if isinstance(change, Mutation) and change.key.startswith(DEFAULT_PREFIX)
        }
        for consumer in consumers:
            if consumer.vbucket == number and consumer.documents != documents:
                yield f"vbucket {number}: a consumer has {consumer.documents}, the owner n{place.owner} has {documents}"
