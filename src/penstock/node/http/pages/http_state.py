"""What the pages of one node have in common: the node, the logins of its ports, its open streams."""

from __future__ import annotations

import asyncio

from penstock.node.auth.listener_access import Access
from penstock.node.session.node_services import NodeServices

__all__ = ["HttpState"]


class HttpState:
    """State of a node's HTTP server that pages use.

    Attributes:
        accesses: who may log in and how, by scheme.
        streams: wakes each open stream.
        stopping: the server stops; streams end.
    """

    def __init__(self, node: NodeServices) -> None:
        self.node = node
        self.accesses: dict[str, Access] = {}
        self.streams: set[asyncio.Event] = set()
        self.stopping = False

    def wake(self) -> None:
        """Let all streams check whether they must end: the node stops, or a bucket is deleted."""
        for stream in tuple(self.streams):
            stream.set()
