"""Checks of a move: both nodes can hand vbuckets over, and a copy is complete before the target owns it."""

from __future__ import annotations

import asyncio

from penstock.client.connect.server_info import request_server_info
from penstock.client.connect.stat_numbers import read_number
from penstock.client.discovery.endpoint import format_endpoint
from penstock.client.replication.node_control import NodeControl
from penstock.client.topology.item_counts import ITEM_COUNT_GROUP
from penstock.errors import UnsupportedServer, UsageError
from penstock.wire.codec.constants import Dialect

_POLL_SECONDS, _PATIENCE = 0.05, 10.0
"""ep-engine counts a deleted document until the deletion is on disk."""


async def check_takeovers(node: NodeControl) -> None:
    """Check that a node can hand vbuckets over and take them. TAP, of older servers, has no seqnos to compare.

    Raises:
        UnsupportedServer: the node has no DCP.
    """
    link = (await node.connect()).link
    server = await request_server_info(link, node.address.options.operation_timeout)
    if server.dialects and Dialect.DCP not in server.dialects:
        raise UnsupportedServer(
            f"{link.peer} is {server.name}, which has no DCP to move vbuckets; expected Couchbase 3.0 or newer. "
            "penstock replicate can copy them over TAP"
        )


async def compare_copies(vbucket: int, old: NodeControl, new: NodeControl) -> None:
    """Check that a copy has as many documents as the vbucket of its owner, which is dead by now.

    Args:
        vbucket: the vbucket.
        old: its owner.
        new: the node with the copy.

    Raises:
        UsageError: the copy has fewer documents.
    """
    deadline = asyncio.get_running_loop().time() + _PATIENCE
    while True:
        expected, found = await _read_count(vbucket, old), await _read_count(vbucket, new)
        if expected is None or found is None or found >= expected:
            return
        if asyncio.get_running_loop().time() > deadline:
            owner, target = format_endpoint(*old.endpoint), format_endpoint(*new.endpoint)
            raise UsageError(
                f"vbucket {vbucket} has {found} documents at {target}, expected {expected} as at {owner}, the owner"
            )
        await asyncio.sleep(_POLL_SECONDS)


async def _read_count(vbucket: int, node: NodeControl) -> int | None:
    """Return the number of documents in a vbucket; None if the server does not report it."""
    name = f"vb_{vbucket}:num_items"
    text = (await node.read_vbucket_stats(ITEM_COUNT_GROUP, vbucket)).get(name)
    return None if text is None else read_number(name, text)
