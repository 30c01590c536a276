"""Check whether a bucket has the selected collections, before a stream begins."""

from __future__ import annotations

from penstock.client.connect.address import Address
from penstock.client.feeds.collection_selection import CollectionFilter, CollectionSelection, parse_manifest
from penstock.client.topology.nodes import Nodes
from penstock.wire.messages.collections import GetManifest

__all__ = ["check_selection"]


async def check_selection(nodes: Nodes, address: Address, selection: CollectionSelection) -> None:
    """Check that the bucket has the selected scope and collections.

    Args:
        nodes: the connections of the bucket.
        address: the bucket.
        selection: the scope and the collections.

    Raises:
        NoSuchCollection: the bucket does not have the scope or a collection.
        UsageError: the node has no collections.
        Error, OSError: as `run_with_retry` raises them.
    """

    async def attempt() -> None:
        link, known = await nodes.connect_first(), None
        if nodes.has_collections:
            reply = await link.request(GetManifest(), address.options.operation_timeout)
            known = parse_manifest(reply.value)
        CollectionFilter(selection).resolve_names(known)

    await nodes.run_with_retry(attempt)
