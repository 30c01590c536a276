"""A cluster map that an orchestrator has made and sent to the node. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.replication.map_layout import find_own_place, read_map_layout
from penstock.errors import InvalidArguments, RemoteProtocolError
from penstock.wire.codec.constants import VbucketState
from penstock.wire.values.peer_json import read_peer_json

_ANY_ENDPOINT = ("$HOST", 0)
_VERSION_FIELDS = ("rev", "revEpoch")


@dataclass(frozen=True, slots=True)
class OwnedVbuckets:
    """The owners of vbuckets, as a map names them to one node.

    Attributes:
        own: vbuckets of this node: clients may use these alone.
        foreign: vbucket of another node -> its state here: replica if its chain has this node, else dead. A vbucket
            without an owner is in neither.
    """

    own: Collection[int]
    foreign: Mapping[int, VbucketState]


@dataclass(frozen=True, slots=True)
class PushedMap:
    """A map from outside. The node sends its text unchanged.

    Attributes:
        epoch: epoch of the revision.
        revision: its revision, at least 1.
        text: the map as JSON.
        content: the map without its revision.
    """

    epoch: int
    revision: int
    text: bytes
    content: Mapping[str, Any]

    @classmethod
    def parse(cls, epoch: int, revision: int, text: bytes) -> PushedMap:
        """Return the map of a request.

        Raises:
            InvalidArguments: the revision is below 1, or the text is no JSON object.
        """
        if revision < 1:
            raise InvalidArguments(f"revision {revision} of a cluster map, expected 1 or more")
        try:
            document = read_peer_json(text, dict[str, Any], "cluster map")
        except RemoteProtocolError as error:
            raise InvalidArguments(str(error)) from None
        content = {name: value for name, value in document.items() if name not in _VERSION_FIELDS}
        return cls(epoch, revision, text, content)

    def find_owned(self) -> OwnedVbuckets | None:
        """Return the vbuckets of this node, which nodesExt marks with `thisNode`. Behind the others, it has none.

        Returns:
            The vbuckets; None for a map without vbuckets, or without the mark: it is of no use for this.
        """
        try:
            layout, here = read_map_layout(self.content, _ANY_ENDPOINT), find_own_place(self.content)
        except RemoteProtocolError:
            return None
        if here == NO_NODE:
            return None
        foreign = {
            vbucket: VbucketState.REPLICA if here in chain else VbucketState.DEAD
            for vbucket, chain in enumerate(layout.chains)
            if chain[0] not in (NO_NODE, here)
        }
        return OwnedVbuckets({*layout.list_owned(here)}, foreign)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> PushedMap:
        """Return a map from the form of `to_dict`."""
        return cls.parse(stored["epoch"], stored["revision"], stored["text"].encode())

    def to_dict(self) -> dict[str, Any]:
        """Return the map as a JSON object for the record of a bucket."""
        return {"epoch": self.epoch, "revision": self.revision, "text": self.text.decode()}
