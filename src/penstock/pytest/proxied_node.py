"""A node behind fault proxies, which can be stopped and started again with its data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

from penstock.client.blocking import LoopThread
from penstock.client.cluster.cluster_file import NodeEntry
from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.errors import UsageError
from penstock.node import Node
from penstock.node.cluster.own_map import NodePlace
from penstock.pytest.fault_proxy import FaultProxy

T = TypeVar("T")

_HOST = "127.0.0.1"
_CALL_SECONDS = 60.0
_NO_PORT = 1
"""Port of a stopped node: nothing listens there, so the proxy resets the connections of clients."""


class PenstockNode:
    """A node whose clients reach it through proxies. Its ports stay the same when it is started again.

    Methods block, and may be called from any thread.

    Attributes:
        index: the number of the node in its cluster.
        proxy: passes the bytes of the key-value port on, and injects faults.
        place: the addresses that the cluster map names: those of the proxies.
        is_failed_over: whether another node has taken its vbuckets over while it was stopped.
    """

    def __init__(
        self, index: int, directory: Path, vbuckets: int, loop: LoopThread, routes: dict[Endpoint, Endpoint]
    ) -> None:
        """Create a node that is stopped.

        Args:
            index: the number of the node in its cluster.
            directory: has the data of the node.
            vbuckets: vbuckets of the bucket `default`.
            loop: the thread of the proxies.
            routes: gets the way around the proxy: its host and port -> those of the node, while the node runs.
        """
        self.index = index
        self.proxy = FaultProxy((_HOST, _NO_PORT), loop)
        self.is_failed_over = False
        self._http_proxy = FaultProxy((_HOST, _NO_PORT), loop)
        self.place = NodePlace(host=_HOST, kv=self.proxy.port, mgmt=self._http_proxy.port)
        self._directory = directory
        self._vbuckets = vbuckets
        self._routes = routes
        self._node: Node | None = None
        self._running = ExitStack()
        self._proxies = ExitStack()

    def __enter__(self) -> Self:
        for proxy in (self.proxy, self._http_proxy):
            self._proxies.enter_context(proxy)
        return self

    def __exit__(self, *exc: object) -> None:
        with self._proxies:
            self.stop()

    @property
    def is_running(self) -> bool:
        """Whether the node runs."""
        return self._node is not None

    @property
    def node(self) -> Node:
        """The node itself, without the proxies. Raises UsageError while it is stopped."""
        if self._node is None:
            raise UsageError(f"node {self.index} is stopped, expected a running one")
        return self._node

    @property
    def http_port(self) -> int:
        """The port for management over HTTP. No faults are injected there."""
        return self._http_proxy.port

    @property
    def entry(self) -> NodeEntry:
        """The node in the definition of a cluster."""
        kv, http = (format_endpoint(self.place.host, port) for port in (self.place.kv, self.place.mgmt))
        return NodeEntry(url=f"couchbase://{kv}", http=http)

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port of the node itself, without the proxy; those of the proxy while the node is stopped."""
        return _HOST, self.proxy.port if self._node is None else self._node.kv_port

    def start(self) -> None:
        """Start the node with the data that it had. A running node stays as it is.

        Raises:
            UsageError: its vbuckets have been taken over, so it would own them a second time.
        """
        if self.is_running:
            return
        if self.is_failed_over:
            raise UsageError(f"node {self.index} was failed over while it was stopped, and cannot start again")
        running = Node.running(vbuckets=self._vbuckets, place=self.place, http_port=0, data_dir=self._directory)
        node = self._node = self._running.enter_context(running)
        self.proxy.target = (_HOST, node.kv_port)
        self._http_proxy.target = (_HOST, node.http_port)
        self._routes[self.entry.endpoint] = self.endpoint

    def stop(self) -> None:
        """Stop the node. Its data stays. A stopped node stays as it is."""
        self._node = None
        self._routes.pop(self.entry.endpoint, None)
        for proxy in (self.proxy, self._http_proxy):
            proxy.target = (_HOST, _NO_PORT)
        self._running.close()

    def restart(self) -> None:
        """Stop the node, and start it again with its data."""
        self.stop()
        self.start()

    def call(self, function: Callable[[Node], T]) -> T:
        """Return the result of a function of the node. It runs on the node's event loop."""
        node = self.node
        return node.call(lambda: function(node))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine that runs on the node's event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.node.loop).result(_CALL_SECONDS)
