"""The selected collections of a bucket: whether they exist before a stream begins, and their ids."""

from __future__ import annotations

from penstock.client.connect.address import Address
from penstock.client.feeds.collection_selection import (
    CollectionFilter,
    CollectionSelection,
    KnownCollections,
    parse_manifest,
)
from penstock.client.topology.nodes import Nodes
from penstock.wire.messages.collections import GetManifest


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
        CollectionFilter(selection).resolve_names(await _request_known(nodes, address))

    await nodes.run_with_retry(attempt)


async def find_selected_ids(nodes: Nodes, address: Address, selection: CollectionSelection) -> frozenset[int] | None:
    """Return the ids of the selected collections that the bucket has; None for the whole bucket.

    Raises the errors of `run_with_retry`.

    Args:
        nodes: the connections of the bucket.
        address: the bucket.
        selection: the scope and the collections.
    """
    if selection.is_everything:
        return None
    known = await nodes.run_with_retry(lambda: _request_known(nodes, address))
    return None if known is None else selection.find_ids(known)


async def _request_known(nodes: Nodes, address: Address) -> KnownCollections | None:
    """Return the collections of the bucket; None if its nodes have no collections."""
    link = await nodes.connect_first()
    if not nodes.has_collections:
        return None
    return parse_manifest((await link.request(GetManifest(), address.options.operation_timeout)).value)
