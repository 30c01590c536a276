"""The places of a bucket's vbuckets in the document of a cluster: by vbucket, the owner and its replicas. Pure."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence

from msgspec import Struct

from penstock.errors import UsageError

__all__ = ["MAX_COPIES", "Chain", "MapRevision", "VbucketMap", "spread_vbuckets"]

MAX_COPIES = 4
"""Places of a vbucket: its owner and at most 3 replicas."""

_NO_PLACE = 255
_MOST_NODES = _NO_PLACE
_MOST_NUMBER = 2**62

Chain = tuple[str | None, ...]
"""The ids of the nodes of a vbucket: of its owner, then of its replicas. None: no node."""


class MapRevision(Struct, frozen=True, order=True, array_like=True):
    """The revision of a map. Clients compare the epoch first."""

    epoch: int = 1
    number: int = 0

    @property
    def successor(self) -> MapRevision:
        """The next revision."""
        return MapRevision(self.epoch, self.number + 1)

    def check(self) -> None:
        """Raise UsageError if the revision, or one of the next, would be no number of clients."""
        if not (0 < self.epoch < _MOST_NUMBER and 0 <= self.number < _MOST_NUMBER):
            raise UsageError(f"revision {self.epoch}:{self.number} of a map, expected 1:0 to 2**62:2**62")


class VbucketMap(Struct, frozen=True, kw_only=True):
    """The nodes of each vbucket. It is compact: 1024 vbuckets with 4 copies have less than 6 KB.

    Attributes:
        revision: never goes back.
        nodes: ids of all nodes with a vbucket or a replica, sorted.
        copies: places of each vbucket, 1 to 4; 0 for a plain cache, whose clients split the keys over the nodes.
        places: by vbucket and copy, one byte with the position in `nodes`; 255: none. Compressed, in Base64.
    """

    revision: MapRevision
    nodes: tuple[str, ...]
    copies: int = 0
    places: str = ""

    @classmethod
    def from_chains(cls, chains: Sequence[Chain], revision: MapRevision) -> VbucketMap:
        """Return the map with these chains. Shorter chains get places without a node.

        Raises:
            UsageError: a chain has no place or too many, or lists a node twice; or there are too many nodes.
        """
        copies = max(map(len, chains))
        for vbucket, chain in enumerate(chains):
            placed = [node for node in chain if node is not None]
            if not 1 <= len(chain) <= MAX_COPIES or len(set(placed)) < len(placed):
                raise UsageError(f"vbucket {vbucket} on {chain}, expected 1 to {MAX_COPIES} different nodes")
        nodes = tuple(sorted({node for chain in chains for node in chain if node is not None}))
        if len(nodes) > _MOST_NODES:
            raise UsageError(f"a map with {len(nodes)} nodes: the limit is {_MOST_NODES}")
        numbers: dict[str | None, int] = {node: number for number, node in enumerate(nodes)}
        content = bytearray([_NO_PLACE]) * (len(chains) * copies)
        for vbucket, chain in enumerate(chains):
            for copy, node in enumerate(chain):
                content[vbucket * copies + copy] = numbers.get(node, _NO_PLACE)
        places = b64encode(zlib.compress(content, 9)).decode()
        return cls(revision=revision, nodes=nodes, copies=copies, places=places)

    def read_chains(self, vbuckets: int) -> tuple[Chain, ...]:
        """Return the chains; none for a plain cache.

        Args:
            vbuckets: number of vbuckets of the bucket.

        Raises:
            ValueError: the map is malformed.
            UsageError: the revision is out of range.
        """
        self.revision.check()
        if not self.copies and not self.places:
            return ()
        if not 1 <= self.copies <= MAX_COPIES or len(self.nodes) > _MOST_NODES:
            raise ValueError(f"{self.copies} copies on {len(self.nodes)} nodes")
        size = vbuckets * self.copies
        try:
            content = zlib.decompressobj().decompress(b64decode(self.places, validate=True), size + 1)
        except zlib.error as error:
            raise ValueError(f"places of vbuckets: {error}") from None
        if len(content) != size:
            raise ValueError(f"places of {len(content)} or more copies, expected {size}")
        names: list[Chain] = [(node,) for node in self.nodes]
        names += [(None,)] * (_NO_PLACE + 1 - len(names))
        if any(len(self.nodes) <= place < _NO_PLACE for place in set(content)):
            raise ValueError("a place on a node that the map does not list")
        flat = [names[place][0] for place in content]
        return tuple(tuple(flat[start : start + self.copies]) for start in range(0, size, self.copies))


def spread_vbuckets(nodes: Sequence[str], vbuckets: int) -> list[Chain]:
    """Return chains without replicas: each node owns one part of the vbuckets, in order."""
    return [(nodes[vbucket * len(nodes) // vbuckets],) for vbucket in range(vbuckets)]
