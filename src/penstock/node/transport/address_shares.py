"""Shares places, such as connections, among client addresses."""

from __future__ import annotations

import ipaddress
from collections import Counter


class AddressShares:
    """Counts the places that each address holds, and keeps room for new addresses.

    An address may take another place while it holds fewer places than are free. So one address gets at most half of all
    places, two addresses get a third each, and n addresses get 1/(n+1) each. A fixed share would be too small for one
    busy host, or too large when several hosts attack.
    Source: Choudhury and Hahne, "Dynamic Queue Length Thresholds" (1998).

    Attributes:
        places: the number of places. A change applies from the next `take_place` on.
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self._held: Counter[str] = Counter()
        self._taken = 0

    def __len__(self) -> int:
        """Return the number of taken places."""
        return self._taken

    def count_places(self, address: str) -> int:
        """Return the number of places that an address holds."""
        return self._held[get_network(address)]

    def take_place(self, address: str) -> bool:
        """Take a place for an address. Return whether the address had a place left.

        Returns:
            False if the share of the address is used up.
        """
        network = get_network(address)
        if self._held[network] >= self.places - self._taken:
            return False
        self._held[network] += 1
        self._taken += 1
        return True

    def free_place(self, address: str) -> None:
        """Free a place of an address."""
        network = get_network(address)
        self._held[network] -= 1
        self._taken -= 1
        if not self._held[network]:
            del self._held[network]


def get_network(address: str) -> str:
    """Return the address under which a host's connections are counted.

    An IPv6 address counts as its first 64 bits, since a host chooses the rest freely. An IPv4 address that is mapped
    into IPv6 counts as IPv4. Any text that is not an address counts as itself.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    return str(found.ipv4_mapped or ipaddress.ip_network((int(found) >> 64 << 64, 64)))
