"""A cluster map that an orchestrator has made and sent to the node. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import InvalidArguments, RemoteProtocolError
from penstock.wire.values.peer_json import read_peer_json

__all__ = ["PushedMap"]

_VERSION_FIELDS = ("rev", "revEpoch")


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

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> PushedMap:
        """Return a map from the form of `to_dict`."""
        return cls.parse(stored["epoch"], stored["revision"], stored["text"].encode())

    def to_dict(self) -> dict[str, Any]:
        """Return the map as a JSON object for the record of a bucket."""
        return {"epoch": self.epoch, "revision": self.revision, "text": self.text.decode()}
