"""Attributes with one writer, which replaces only the versions that it has read or written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Protocol

from penstock.client.documents.document_attributes import AttributeVersion


class AttributeStore(Protocol):
    """Versioned attributes of documents, see DocumentAttributes."""

    async def read_many(self, keys: Sequence[str]) -> list[AttributeVersion | None]:
        """Return attributes in the order of the keys; None for a key without a document."""

    async def write_many(self, items: Mapping[str, AttributeVersion]) -> dict[str, int | None]:
        """Write attributes; return the new cas by key, None for another version."""

    async def replace_many(self, items: Mapping[str, AttributeVersion]) -> dict[str, int | None]:
        """Write attributes, and find out whether a write without a reply was executed."""


class OwnedAttributes:
    """The versions of attributes that this program knows.

    A write may end without an answer: its caller is cancelled, or the node does not serve for too long. The node may
    have executed it, or may do so later. So after a refusal, `replace` looks whether the document has the value of such
    a write, and then replaces that version.

    Args:
        attributes: the attributes of the bucket.
    """

    def __init__(self, attributes: AttributeStore) -> None:
        self._attributes = attributes
        self._known: dict[str, AttributeVersion] = {}
        self._unanswered: dict[str, set[bytes]] = {}
        """Key -> the digests of the values of writes without an answer."""

    async def read(self, keys: Sequence[str]) -> list[AttributeVersion | None]:
        """Return attributes in the order of the keys; None for a key without a document."""
        found = await self._attributes.read_many(keys)
        for key, version in zip(keys, found, strict=True):
            self._know(key, version)
        return found

    async def replace(self, values: Mapping[str, bytes]) -> set[str]:
        """Replace the known versions.

        Args:
            values: key -> the new value.

        Returns:
            The keys whose documents have a version of another writer, and were not written.
        """
        left = dict(values)
        refused: set[str] = set()
        while left:
            earlier = {key: frozenset(self._unanswered.get(key, ())) for key in left}
            for key, value in left.items():
                self._unanswered.setdefault(key, set()).add(_digest(value))
            new = {key: AttributeVersion(value, self._find_known(key).cas) for key, value in left.items()}
            written = await self._attributes.replace_many(new)
            for key, cas in written.items():
                if cas is not None:
                    self._know(key, AttributeVersion(left.pop(key), cas))
                    self._unanswered.pop(key, None)
            doubtful = [key for key in left if earlier[key]]
            found = await self._attributes.read_many(doubtful) if doubtful else ()
            own = dict(zip(doubtful, found, strict=True))
            for key in [*left]:
                version = own.get(key)
                if version is None or version.cas == new[key].cas or _digest(version.value) not in earlier[key]:
                    refused.add(key)
                    del left[key]
                else:
                    self._know(key, version)
        return refused

    def has_value(self, key: str, value: bytes) -> bool:
        """Return whether the known version has a value."""
        return self._find_known(key).value == value

    def forget(self, keys: Sequence[str]) -> None:
        """Forget the versions of documents that were removed."""
        for key in keys:
            self._know(key, None)

    def _find_known(self, key: str) -> AttributeVersion:
        return self._known.get(key, AttributeVersion(b"", 0))

    def _know(self, key: str, version: AttributeVersion | None) -> None:
        if version is None:
            self._known.pop(key, None)
        else:
            self._known[key] = version


def _digest(value: bytes) -> bytes:
    return sha256(value).digest()
