"""Limits pending connections: those without a login, or without a finished TLS handshake."""

from __future__ import annotations

from typing import Generic, TypeVar

from penstock.node.transport.address_shares import AddressShares, get_network

T = TypeVar("T")


class PendingConnections(Generic[T]):
    """Pending connections by address, the oldest first.

    An address above its share loses its own oldest connection, so it cannot end the connections of other addresses.

    Args:
        limit: most pending connections from all addresses.
    """

    def __init__(self, limit: int) -> None:
        self._shares = AddressShares(limit)
        self._since: dict[str, dict[T, float]] = {}

    def __len__(self) -> int:
        return len(self._shares)

    def add(self, peer: T, address: str, now: float) -> T | None:
        """Add a connection, unless it is pending already.

        Args:
            peer: the connection.
            address: the address of the client.
            now: event-loop time, in seconds.

        Returns:
            The connection that lost its place to the new one, None if there was room.
        """
        network = get_network(address)
        of_address = self._since.setdefault(network, {})
        if peer in of_address:
            return None
        oldest = None
        if not self._shares.take_place(address):
            if of_address:
                oldest = next(iter(of_address))
                del of_address[oldest]  # the new connection takes its place
            else:
                oldest = self._remove_oldest()
                self._shares.take_place(address)
        of_address[peer] = now
        return oldest

    def remove(self, peer: T, address: str) -> None:
        """Remove a connection that has logged in, or was lost. Does nothing if it is not pending."""
        network = get_network(address)
        of_address = self._since.get(network, {})
        if of_address.pop(peer, None) is not None:
            self._shares.free_place(address)
        if not of_address:
            self._since.pop(network, None)

    def list_peers_since(self, time: float) -> list[T]:
        """Return the connections that were added at a time or before."""
        return [peer for some in self._since.values() for peer, since in some.items() if since <= time]

    def list_peers(self) -> list[T]:
        """Return all pending connections."""
        return [peer for some in self._since.values() for peer in some]

    def _remove_oldest(self) -> T:
        network = min((some for some in self._since if self._since[some]), key=self._get_oldest_time)
        peer = next(iter(self._since[network]))
        self.remove(peer, network)
        return peer

    def _get_oldest_time(self, network: str) -> float:
        return next(iter(self._since[network].values()))
