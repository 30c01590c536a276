"""Publishing of a cluster map: each node gets the map with its own place marked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from penstock.client.cluster.orchestrator_lock import LockRole, OrchestratorLock
from penstock.client.connect.address import Address
from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.client.replication.map_layout import (
    PUSHED_EPOCH,
    MapLayout,
    MapNode,
    MapVersion,
    find_next_version,
    make_map_document,
    read_map_layout,
    read_own_node,
)
from penstock.client.replication.node_control import NodeControl, check_identities
from penstock.errors import KeyExists, RemoteProtocolError


class MapPublisher:
    """The newest map of a bucket, and the nodes that get its changes.

    Attributes:
        layout: the nodes and vbuckets of the newest map.
        controls: the control of each node.
    """

    def __init__(self, address: Address) -> None:
        """Create a publisher that knows no map. `load` reads one.

        Args:
            address: the bucket; its options and credentials are used for all nodes.
        """
        self.layout = MapLayout((), ())
        self.controls: dict[Endpoint, NodeControl] = {}
        self._address = address
        self._base: Mapping[str, Any] = {}
        self._version: MapVersion = (0, 0)  # of the layout
        self._added: list[MapNode] = []  # nodes that belong to the layout, and that the newest map may not have
        self._documents: list[Mapping[str, Any]] = []

    async def close(self) -> None:
        """Close the connections to all nodes."""
        for control in self.controls.values():
            await control.close()

    @property
    def tls(self) -> bool:
        """Whether the nodes are connected with TLS."""
        return self._address.tls

    def get_control(self, endpoint: Endpoint) -> NodeControl:
        """Return the control of a node.

        Args:
            endpoint: host and port to connect to.
        """
        return self.controls.setdefault(endpoint, NodeControl(self._address, endpoint))

    def list_endpoints(self, layout: MapLayout) -> list[Endpoint]:
        """Return host and port of each node of a layout, with TLS if the address has it."""
        return [node.get_endpoint(tls=self._address.tls) for node in layout.nodes]

    @property
    def has_shared_map(self) -> bool:
        """Whether the newest map is one of several nodes. A node that stands alone lists all that it has active."""
        return _is_shared(self._base)

    async def load(self, endpoint: Endpoint) -> None:
        """Read the map of a node. The newest map that several nodes share is used, and the order of reading is free.

        A node that stands alone is added to the layout: its own map has that node only, and every vbucket there.

        Raises:
            RemoteProtocolError: the node has another number of vbuckets than the others, or no map of vbuckets.
        """
        document = await self.get_control(endpoint).read_map()
        layout, known = read_map_layout(document, endpoint), self.layout
        if known.chains and len(layout.chains) != len(known.chains):
            raise RemoteProtocolError(
                f"{format_endpoint(*endpoint)} has {len(layout.chains)} vbuckets, expected {len(known.chains)}"
            )
        rank = (_is_shared(document), find_next_version([document]))
        if not known.chains or (rank[0] and rank > (self.has_shared_map, self._version)):
            self._base, self._version, self.layout = document, rank[1], layout.add_nodes(self._added)
        if not rank[0]:
            self._add_nodes(layout.nodes)
        self._documents.append(document)

    async def add_node(self, endpoint: Endpoint) -> None:
        """Add a node to the layout that has left the map, or was failed over. Other nodes stay as they are.

        Its ports are those of the map that it sends without a bucket. A node forgets its alternate address when it
        restarts, so that of the bucket's map counts then.

        Raises:
            UsageError: it is a node of the layout, under another name.
        """
        if self.layout.find_node(endpoint) == NO_NODE:
            await check_identities(map(self.get_control, [*self.list_endpoints(self.layout), endpoint]))
            control = self.get_control(endpoint)
            alone = MapNode(endpoint, {"kvSSL" if self.tls else "kv": endpoint[1]})
            known = read_own_node(await control.read_map(), endpoint) or alone
            own = read_own_node(await control.read_node_map(), endpoint) or known
            self._add_nodes([replace(own, alternates=own.alternates or known.alternates)])

    def _add_nodes(self, nodes: Sequence[MapNode]) -> None:
        self._added += nodes
        self.layout = self.layout.add_nodes(nodes)

    async def publish(self, layout: MapLayout, first: Endpoint | None = None, removed: Iterable[Endpoint] = ()) -> None:
        """Send a new map to all of its nodes. A bucket that has changed otherwise keeps these changes.

        Args:
            layout: the new layout.
            first: the node that gets the map first.
            removed: nodes that get the map although they are not in it, so that their clients learn the new nodes.

        Raises:
            KeyExists: as in `adopt_map`.
        """
        endpoints = sorted([*self.list_endpoints(layout), *removed], key=lambda each: each != first)
        while not await self._send(layout, endpoints):
            pass

    async def _send(self, layout: MapLayout, endpoints: Iterable[Endpoint]) -> bool:
        """Send a layout with the next version. Return whether no node has a newer map."""
        version = find_next_version(self._documents)
        for endpoint in endpoints:
            outside = None if layout.find_node(endpoint) != NO_NODE else await self._find_removed(endpoint)
            document = make_map_document(self._base, layout, version, endpoint, outside)
            try:
                await self.get_control(endpoint).push_map(document)
            except KeyExists:
                if await self.adopt_map(endpoint, layout):
                    return False
                raise
        self.layout, self._version = layout, find_next_version([{"revEpoch": version[0], "rev": version[1]}])
        self._documents.append({"revEpoch": version[0], "rev": version[1]})
        return True

    async def _find_removed(self, endpoint: Endpoint) -> MapNode:
        """Return a node that a new map leaves out. If an earlier map has left it out, it names itself."""
        found = next((node for node in self.layout.nodes if node.is_at(endpoint)), None)
        found = found or read_own_node(await self.get_control(endpoint).read_map(), endpoint)
        return found or MapNode(endpoint, {"kv": endpoint[1]})

    async def adopt_map(self, endpoint: Endpoint, sent: MapLayout | None = None) -> bool:
        """Continue from the map of a node if it is newer: the bucket has changed, for example its collections.

        Args:
            endpoint: the node.
            sent: a layout that some nodes may have already.

        Returns:
            Whether the node has a newer map of several nodes.

        Raises:
            KeyExists: the newer map has other places, from another orchestrator. Its layout is the newest from then on.
        """
        document = await self.get_control(endpoint).read_map()
        version = find_next_version([document])
        if document.get("revEpoch", 1) < PUSHED_EPOCH or version <= find_next_version(self._documents):
            return False
        expected = self.layout.list_places(), (sent or self.layout).list_places()
        layout = read_map_layout(document, endpoint)
        self._base, self._version, self.layout = document, version, layout.add_nodes(self._added)
        self._documents.append(document)
        if layout.list_places() not in expected:
            raise KeyExists(
                f"{format_endpoint(*endpoint)} has a newer cluster map, in which another program has placed vbuckets"
            )
        return True


@asynccontextmanager
async def open_map(address: Address, endpoints: Sequence[Endpoint]) -> AsyncGenerator[MapPublisher]:
    """Yield the newest map of a bucket, while no other orchestrator changes it.

    Args:
        address: the bucket; its options and credentials are used for all nodes.
        endpoints: nodes of the bucket, with a map of several or alone.

    Raises:
        UsageError: another program changes the map. Or two endpoints are the same node, or nodes on copies of one data
            directory.
        Error, OSError: a node does not answer.
    """
    publisher = MapPublisher(address)
    async with OrchestratorLock(address, LockRole.MAP) as lock:
        try:
            await lock.take(endpoints)
            for endpoint in endpoints:
                await publisher.load(endpoint)
            await check_identities(map(publisher.get_control, endpoints))
            yield publisher
        finally:
            await publisher.close()


def _is_shared(document: Mapping[str, Any]) -> bool:
    return len(document.get("nodesExt", ())) > 1 or document.get("revEpoch", 1) >= PUSHED_EPOCH
