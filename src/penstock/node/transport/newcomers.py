"""Bounds how many peers may be on their way in: connections without a login, or without a finished TLS handshake."""

from __future__ import annotations

from typing import Generic, TypeVar

from penstock.node.transport.address_shares import AddressShares, network_of

__all__ = ["Newcomers"]

T = TypeVar("T")


class Newcomers(Generic[T]):
    """Peers on their way in, by address, the oldest first.

    An address that brings more than its share loses its own oldest one, so that it cannot end those of others.

    Args:
        most: how many there may be from all addresses.
    """

    def __init__(self, most: int) -> None:
        self._shares = AddressShares(most)
        self._since: dict[str, dict[T, float]] = {}

    def __len__(self) -> int:
        return len(self._shares)

    def add(self, peer: T, address: str, now: float) -> T | None:
        """Add a peer, unless it is there. Return the peer that it replaces, or None if there was room."""
        network = network_of(address)
        of_address = self._since.setdefault(network, {})
        if peer in of_address:
            return None
        oldest = None
        if not self._shares.take(address):
            if of_address:
                oldest = next(iter(of_address))
                del of_address[oldest]  # its place is the new one's
            else:
                oldest = self._remove_oldest()
                self._shares.take(address)
        of_address[peer] = now
        return oldest

    def remove(self, peer: T, address: str) -> None:
        """Remove a peer that is in, or has left; nothing happens if it is not there."""
        network = network_of(address)
        of_address = self._since.get(network, {})
        if of_address.pop(peer, None) is not None:
            self._shares.give_back(address)
        if not of_address:
            self._since.pop(network, None)

    def older_than(self, time: float) -> list[T]:
        """Return those that were added at this time or before."""
        return [peer for some in self._since.values() for peer, since in some.items() if since <= time]

    def all(self) -> list[T]:
        return [peer for some in self._since.values() for peer in some]

    def _remove_oldest(self) -> T:
        network = min((some for some in self._since if self._since[some]), key=self._oldest_of)
        peer = next(iter(self._since[network]))
        self.remove(peer, network)
        return peer

    def _oldest_of(self, network: str) -> float:
        return next(iter(self._since[network].values()))
