"""JSON in an extended attribute of a document, which is read and written apart from the document's value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from penstock.client.documents.document import compute_vbucket, encode_key, split_chunks
from penstock.client.documents.document_requests import DocumentRequests
from penstock.errors import ConnectionClosed, OperationTimeout, UsageError
from penstock.names import quote_key_part
from penstock.wire.codec.flags import DocFlag, PathFlag
from penstock.wire.codec.layout import Request
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.subdoc import (
    MultiLookup,
    MultiMutation,
    pack_lookup_specs,
    pack_mutation_specs,
    unpack_lookup_results,
)

OWN_ATTRIBUTE = "penstock"
"""The attribute with Penstock's own data. It is a user attribute: system attributes need one more privilege."""

OWN_KEYS = "_penstock:"
"""The start of the keys of Penstock's own documents, which consumers do not deliver."""

_READ_REFUSALS = (Status.KEY_ENOENT, Status.SUBDOC_MULTI_PATH_FAILURE)
_WRITE_REFUSALS = (Status.KEY_ENOENT, Status.KEY_EEXISTS)


_MAX_KEY_BYTES = 250


def make_own_key(kind: str, name: str, *rest: str) -> str:
    """Return the key of a document that Penstock keeps for a name of the user's choice.

    Args:
        kind: the kind of the name, for the key and for errors.
        name: the name.
        rest: further parts. No two lists of parts have the same key.

    Returns:
        The key.

    Raises:
        UsageError: no key can have the name.
    """
    key = OWN_KEYS + ":".join((kind, *map(quote_key_part, (name, *rest))))
    if not name or len(encode_key(key)) > _MAX_KEY_BYTES:
        room = _MAX_KEY_BYTES - len(encode_key(key)) + len(encode_key(quote_key_part(name)))
        raise UsageError(f"name {name!r} of {kind}, expected 1 to {room} bytes: it is a part of a document's key")
    return key


class AttributeVersion(NamedTuple):
    """An attribute as it was read.

    Attributes:
        value: the JSON; empty if the document does not have the attribute.
        cas: the version of the document.
    """

    value: bytes
    cas: int


class DocumentAttributes:
    """Reads and writes one extended attribute of documents in the default collection, guarded by the cas.

    The methods raise the errors of DocumentCommands; NotSupported or UnknownCommand for a server without attributes.
    """

    def __init__(self, requests: DocumentRequests, name: str) -> None:
        self._requests = requests
        self._path = name.encode()

    async def read_many(self, keys: Sequence[str], *, attribute: str = "") -> list[AttributeVersion | None]:
        """Return an attribute of documents in the order of the keys; None for a key without a document.

        Args:
            keys: the keys.
            attribute: the name of another program's attribute; empty: the own attribute.
        """
        make_lookup = partial(self._make_lookup, path=attribute.encode() or self._path)
        found: list[AttributeVersion | None] = []
        for chunk in split_chunks(map(encode_key, keys)):
            for frame in await self._requests.send("", chunk, make_lookup, accept=_READ_REFUSALS):
                if frame.specific == Status.KEY_ENOENT:
                    found.append(None)
                else:
                    results = unpack_lookup_results(frame.value)
                    found.append(AttributeVersion(results[0].value if results else b"", frame.cas))
        return found

    async def write_many(self, items: Mapping[str, AttributeVersion]) -> dict[str, int | None]:
        """Write the attributes of documents.

        A write is not repeated after a lost connection, because it might have been executed.

        Args:
            items: key -> the new attribute, with the cas of the version to replace; cas 0: the document must not exist.

        Returns:
            Key -> the new cas; None if the document has another version, so that nothing was written.
        """
        written: dict[str, int | None] = {}
        for chunk in split_chunks(items.items()):
            frames = await self._requests.send("", chunk, self._make_mutation, accept=_WRITE_REFUSALS, retry=False)
            written |= {
                key: None if frame.specific else frame.cas for (key, _), frame in zip(chunk, frames, strict=True)
            }
        return written

    async def replace_many(self, items: Mapping[str, AttributeVersion]) -> dict[str, int | None]:
        """Write attributes as `write_many` does, and find out whether a write without a reply was executed.

        A document with exactly the new attribute counts as written, so no two writers may write equal attributes.
        """
        done: dict[str, int | None] = {}
        while left := {key: item for key, item in items.items() if key not in done}:
            is_ambiguous = False
            try:
                written = await self.write_many(left)
            except (ConnectionClosed, OperationTimeout):
                written, is_ambiguous = {}, True
            done |= {key: cas for key, cas in written.items() if cas is not None}
            doubtful = [key for key in left if key not in done]
            for key, found in zip(doubtful, await self.read_many(doubtful) if doubtful else (), strict=True):
                if found is not None and found.value == left[key].value:
                    done[key] = found.cas
                elif not is_ambiguous or (0 if found is None else found.cas) != left[key].cas:
                    done[key] = None
        return done

    def _make_lookup(self, prefix: bytes, key: bytes, path: bytes) -> Request:
        vbucket = compute_vbucket(key, self._requests.vbuckets)
        wanted = pack_lookup_specs([(Opcode.SUBDOC_GET, PathFlag.XATTR, path)])
        return MultiLookup(key=prefix + key, vbucket=vbucket, value=wanted)

    def _make_mutation(self, prefix: bytes, item: tuple[str, AttributeVersion]) -> Request:
        key, new = encode_key(item[0]), item[1]
        # ADD and a cas exclude each other. Without ADD the document must exist, and must have the cas.
        return MultiMutation(
            key=prefix + key,
            vbucket=compute_vbucket(key, self._requests.vbuckets),
            cas=new.cas,
            doc_flags=None if new.cas else DocFlag.ADD,
            value=pack_mutation_specs([(Opcode.SUBDOC_DICT_UPSERT, PathFlag.XATTR, self._path, new.value)]),
        )
