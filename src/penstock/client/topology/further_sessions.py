"""Further connections to the nodes, beyond the first one to each, for the option documentConnections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import chain

from penstock.client.connect.client_session import ClientSession
from penstock.client.connect.node_link import NodeLink
from penstock.client.discovery.endpoint import Endpoint


class FurtherSessions:
    """Chooses among the connections to a node, and opens a further one while all are busy."""

    def __init__(self, most: int, open_session: Callable[[list[Endpoint]], Awaitable[ClientSession]]) -> None:
        """Create an empty set of connections.

        Args:
            most: the limit of connections to a node, the first one included.
            open_session: opens a connection to one of the endpoints.
        """
        self._most = most
        self._open_session = open_session
        self._by_endpoint: dict[Endpoint, list[ClientSession]] = {}

    def list_all(self) -> list[ClientSession]:
        """Return the further connections to all nodes."""
        return [*chain(*self._by_endpoint.values())]

    def forget_all(self) -> None:
        """Forget the further connections: the caller closes them."""
        self._by_endpoint = {}

    async def choose_link(self, endpoint: Endpoint, first: NodeLink) -> NodeLink:
        """Return the connection to a node that has the fewest pending requests, or a new one while all have some.

        Args:
            endpoint: the node.
            first: the first connection to it.
        """
        if self._most == 1:
            return first
        further = [each for each in self._by_endpoint.get(endpoint, ()) if not each.link.closed.done()]
        self._by_endpoint[endpoint] = further
        chosen = min((first, *(each.link for each in further)), key=lambda link: link.pending_requests)
        if chosen.pending_requests and len(further) + 1 < self._most:
            further.append(await self._open_session([endpoint]))
            return further[-1].link
        return chosen
