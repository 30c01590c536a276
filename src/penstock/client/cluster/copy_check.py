"""Compares a vbucket with its copy in a takeover, before the target owns it: its owner serves no client then."""

from __future__ import annotations

import asyncio

from penstock.client.connect.stat_numbers import read_number
from penstock.client.discovery.endpoint import format_endpoint
from penstock.client.replication.node_control import NodeControl
from penstock.client.topology.item_counts import ITEM_COUNT_GROUP
from penstock.errors import UsageError

__all__ = ["compare_copies"]

_POLL_SECONDS, _PATIENCE = 0.05, 10.0
"""ep-engine counts a deleted document until the deletion is on disk."""


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
