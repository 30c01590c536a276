"""Shares out places, such as connections, between the addresses that want them."""

from __future__ import annotations

import ipaddress
from collections import Counter

__all__ = ["AddressShares", "network_of"]


class AddressShares:
    """Counts the places that each address holds, and keeps room for addresses that hold none yet.

    An address may take one more place while it holds fewer than are free. So one address gets half of all places at
    most, two get a third each, and n get 1/(n+1) each. A fixed share would be too small for a single busy host, or too
    large when several hosts attack. Source: Choudhury and Hahne, "Dynamic Queue Length Thresholds" (1998).

    Attributes:
        places: how many places there are in all. A change counts from the next `take` on.
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self._held: Counter[str] = Counter()
        self._taken = 0

    def __len__(self) -> int:
        """Return how many places are taken."""
        return self._taken

    def held(self, address: str) -> int:
        """Return how many places an address holds."""
        return self._held[network_of(address)]

    def take(self, address: str) -> bool:
        """Take a place for an address, and return True; False if its share is used up."""
        network = network_of(address)
        if self._held[network] >= self.places - self._taken:
            return False
        self._held[network] += 1
        self._taken += 1
        return True

    def give_back(self, address: str) -> None:
        """Free a place that `take` gave to this address."""
        network = network_of(address)
        self._held[network] -= 1
        self._taken -= 1
        if not self._held[network]:
            del self._held[network]


def network_of(address: str) -> str:
    """Return the address that a host's connections are counted under.

    This is the address itself, or the first 64 bits of an IPv6 address: a host chooses the rest freely. An IPv4 address
    that is mapped into IPv6 counts as IPv4. Any other text counts as it is.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    return str(found.ipv4_mapped or ipaddress.ip_network((int(found) >> 64 << 64, 64)))
