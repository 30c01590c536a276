"""The state that all pages of a node share: the node, the logins of its ports, its open streams."""

from __future__ import annotations

import asyncio
from typing import Protocol

from penstock.node.auth.listener_access import ListenerAccess
from penstock.node.session.node_services import NodeServices


class ManagedNode(NodeServices, Protocol):
    """A running node, as its pages see it."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the node."""

    @property
    def default_vbuckets(self) -> int:
        """Number of vbuckets of a bucket whose definition gives none."""


class HttpState:
    """State of a node's HTTP server.

    Attributes:
        node: the node.
        accesses: scheme -> users and mechanisms.
        streams: an event for each open stream, which wakes it.
        stopping: the server stops; streams end.
    """

    def __init__(self, node: ManagedNode) -> None:
        self.node = node
        self.accesses: dict[str, ListenerAccess] = {}
        self.streams: set[asyncio.Event] = set()
        self.stopping = False

    def wake_streams(self) -> None:
        """Let all streams check whether they must end: the node stops, or a bucket is deleted."""
        for stream in tuple(self.streams):
            stream.set()
