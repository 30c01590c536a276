"""Delivery of the newest map to nodes that were away when it was published."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.client.connect.address import Address
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.replication.map_layout import (
    PUSHED_EPOCH,
    MapVersion,
    make_map_document,
    read_map_layout,
    read_own_node,
    read_version,
)
from penstock.client.replication.node_control import NodeControl
from penstock.errors import Error

_POLL_SECONDS = 0.5
_MAP_SECONDS = 5.0


class NodeMap(NamedTuple):
    """A map of a node: the one that it serves, or the one that it has to get.

    Attributes:
        dialled: host and port of the connection to the node.
        document: the map.
    """

    dialled: Endpoint
    document: Mapping[str, Any]

    @property
    def version(self) -> MapVersion:
        """Epoch and revision."""
        return read_version(self.document)


def find_old_maps(received: Sequence[NodeMap]) -> list[NodeMap]:
    """Return the newest map for each node that has an older one of an orchestrator. Pure.

    A node that was failed over has such a map, and serves its old vbuckets until it gets the newest. A node with a map
    of its own belongs to no orchestrator yet, or has lost all data.

    Args:
        received: the maps of the nodes that answer.
    """
    pushed = [each for each in received if each.version[0] >= PUSHED_EPOCH]
    if not pushed:
        return []
    newest = max(pushed, key=lambda each: each.version)
    layout = read_map_layout(newest.document, newest.dialled)
    found = []
    for each in pushed:
        own = read_own_node(each.document, each.dialled)
        if each.version < newest.version and own is not None:
            document = make_map_document(newest.document, layout, newest.version, own.endpoint, own)
            found.append(NodeMap(each.dialled, document))
    return found


async def keep_maps_new(address: Address, endpoints: Sequence[Endpoint]) -> None:
    """Give nodes the newest map of a bucket as soon as they answer, until the task is cancelled.

    Args:
        address: the bucket; its options and credentials are used for all nodes.
        endpoints: the nodes.
    """
    controls = {endpoint: NodeControl(address.with_retries(0.0), endpoint) for endpoint in endpoints}
    try:
        while True:
            received = await asyncio.gather(*(_read_map(*each) for each in controls.items()))
            for delivery in find_old_maps([each for each in received if each is not None]):
                with suppress(OSError, Error):  # it is tried again, or another program has sent a newer map
                    async with asyncio.timeout(_MAP_SECONDS):
                        await controls[delivery.dialled].push_map(delivery.document)
            await asyncio.sleep(_POLL_SECONDS)
    finally:
        for control in controls.values():
            await control.close()


async def _read_map(endpoint: Endpoint, control: NodeControl) -> NodeMap | None:
    """Return the map of a node; None if it does not answer, or sends no valid map."""
    try:
        async with asyncio.timeout(_MAP_SECONDS):
            document = await control.read_map()
        read_map_layout(document, endpoint)
        read_own_node(document, endpoint)
    except (OSError, Error):
        return None
    return NodeMap(endpoint, document)
