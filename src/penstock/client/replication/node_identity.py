"""The identity of a node: the uuid of its data directory, and the id of its start. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.errors import UsageError


class NodeIdentity(NamedTuple):
    """The identity of a node. Other servers report none.

    Attributes:
        node_uuid: the uuid that the data directory keeps. A copy of the directory has the same.
        start_id: random, new with each start.
    """

    node_uuid: str
    start_id: str


def read_identity(stats: Mapping[str, str]) -> NodeIdentity | None:
    """Return the identity in STAT without a group; None for another server."""
    found = NodeIdentity(stats.get("node_uuid", ""), stats.get("start_id", ""))
    return found if all(found) else None


def check_identity(name: str, identity: NodeIdentity, known: Mapping[str, NodeIdentity]) -> None:
    """Check that a node is none of some others, and runs on no copy of their data directories.

    Args:
        name: the address of the node.
        identity: its identity.
        known: the identities of the others, by their addresses.

    Raises:
        UsageError: it is one of them, or runs on a copy. The error names both addresses.
    """
    for other, found in known.items():
        if identity.start_id == found.start_id:
            raise UsageError(f"{other} and {name} are the same node, expected different nodes")
        if identity.node_uuid == found.node_uuid:
            raise UsageError(
                f"{other} and {name} are two nodes with the uuid {identity.node_uuid}: one runs on a copy of the "
                "other's data directory. Stop the copy, and start it with an empty directory"
            )
