"""The commands of a bucket that read and write documents."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any

from penstock.argument_types import CHECKED_INSIDE, check_arguments
from penstock.client.documents.document import (
    BYTES,
    Document,
    Expiry,
    compute_vbucket,
    decode_document,
    encode_expiry,
    encode_key,
    split_chunks,
)
from penstock.client.documents.document_attributes import OWN_ATTRIBUTE, DocumentAttributes
from penstock.client.documents.document_requests import DocumentRequests
from penstock.client.documents.durability_levels import DurabilityName
from penstock.client.documents.mutation_tokens import MutationToken, check_tokens
from penstock.errors import KeyNotFound, UsageError
from penstock.wire.codec.constants import MAX_KEY, MAX_VALUE
from penstock.wire.codec.layout import Request
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Add, Delete, Get, Set


@check_arguments
class DocumentCommands:
    """The documents of a bucket.

    Keys are bytes, or text that is encoded in UTF-8. `collection` is `name` or `scope.name`; the default is the default
    collection.

    Reading commands and `upsert` are retried when a connection ends, and raise Unreachable after `retry_seconds`. Other
    commands might have been executed, so they are not retried, and raise ConnectionClosed or OperationTimeout. A
    command that a node refuses for now is always retried: its StatusError is `retriable`. Reasons are a vbucket that
    the node does not have, too little memory, or a locked document.

    `durability` makes a write wait until a majority of its vbucket's nodes has it. `majority` means in memory,
    `majorityAndPersistActive` also on the active node's disk, `persistToMajority` on their disks. Such a write has
    three more errors:

    - DurabilityImpossible: too few nodes of the vbucket exist.
    - SyncWriteAmbiguous: the write was not decided in time. It may be committed later.
    - NotSupported: the nodes have no such writes.

    All commands raise these errors:

    - StatusError: the node's answer. UnknownCollection or UnknownScope: the collection does not exist.
    - UsageError: an invalid key or value, a bucket that does not exist, or a collection on a node without collections.
    - RemoteProtocolError: the node violates the protocol.
    - AuthenticationFailed, AccessDenied, UntrustedNode: the login or the TLS handshake failed.

    Attributes:
        attributes: the extended attribute with Penstock's own data, such as saved positions.
    """

    def __init__(self, requests: DocumentRequests) -> None:
        self._requests = requests
        self.attributes = DocumentAttributes(requests, OWN_ATTRIBUTE)

    async def get(self, key: str | bytes, *, collection: str = "") -> Document:
        """Return a document. Raises KeyNotFound."""
        found = (await self.get_many([key], collection=collection))[0]
        if found is None:
            raise KeyNotFound(f"no document {key!r}")
        return found

    async def get_many(self, keys: Iterable[str | bytes], *, collection: str = "") -> list[Document | None]:
        """Return documents in the order of the keys; None for a key without a document."""
        found: list[Document | None] = []
        for chunk in split_chunks(map(encode_key, keys)):
            frames = await self._requests.send(collection, chunk, self._make_get, accept=(Status.KEY_ENOENT,))
            found += [decode_document(key, frame) for key, frame in zip(chunk, frames, strict=True)]
        return found

    async def upsert(
        self,
        key: str | bytes,
        value: bytes,
        *,
        expiry: Expiry = 0,
        flags: int = 0,
        datatype: int = 0,
        collection: str = "",
        durability: DurabilityName | None = None,
    ) -> int:
        """Store a document, replacing an existing one; return its cas.

        Args:
            key: the key.
            value: the value.
            expiry: seconds from now, a timedelta, or the time of the expiry; 0: never. A number above 50 years is Unix
                time.
            flags: the client's flags, 32 bits.
            datatype: the datatype bits of the value.
            collection: `name` or `scope.name`.
            durability: as of the class.

        Returns:
            The cas of the new version.
        """
        _check_sizes(flags=flags, datatype=datatype)
        framing = self._requests.pack_durability(durability)
        ends = encode_expiry(expiry, time.time())
        store = partial(self._make_store, Set, expiry=ends, flags=flags, datatype=datatype, framing=framing)
        return (await self._requests.send(collection, [(encode_key(key), value)], store))[0].cas

    async def upsert_many(
        self,
        documents: Iterable[tuple[str | bytes, bytes]],
        *,
        expiry: Expiry = 0,
        flags: int = 0,
        datatype: int = 0,
        collection: str = "",
        durability: DurabilityName | None = None,
    ) -> list[int]:
        """Store documents with many requests in flight; return their cas in the same order."""
        written: list[int] = []
        _check_sizes(flags=flags, datatype=datatype)
        framing = self._requests.pack_durability(durability)
        ends = encode_expiry(expiry, time.time())
        store = partial(self._make_store, Set, expiry=ends, flags=flags, datatype=datatype, framing=framing)
        for chunk in split_chunks(map(_encode_document, documents)):
            written += [frame.cas for frame in await self._requests.send(collection, chunk, store)]
        return written

    async def insert(
        self,
        key: str | bytes,
        value: bytes,
        *,
        expiry: Expiry = 0,
        flags: int = 0,
        datatype: int = 0,
        collection: str = "",
        durability: DurabilityName | None = None,
    ) -> int:
        """Store a new document and return its cas. Raises KeyExists."""
        _check_sizes(flags=flags, datatype=datatype)
        framing = self._requests.pack_durability(durability)
        ends = encode_expiry(expiry, time.time())
        store = partial(self._make_store, Add, expiry=ends, flags=flags, datatype=datatype, framing=framing)
        return (await self._requests.send(collection, [(encode_key(key), value)], store, retry=False))[0].cas

    async def replace(
        self,
        key: str | bytes,
        value: bytes,
        *,
        cas: int,
        expiry: Expiry = 0,
        flags: int = 0,
        collection: str = "",
        durability: DurabilityName | None = None,
    ) -> int:
        """Replace the version with this cas; return the new cas.

        Raises KeyExists if the document has another version, KeyNotFound if it does not exist.
        """
        if not cas:
            raise UsageError(f"cas 0 to replace {key!r}, expected the cas of the version to replace")
        _check_sizes(flags=flags, cas=cas)
        framing = self._requests.pack_durability(durability)
        ends = encode_expiry(expiry, time.time())
        store = partial(self._make_store, Set, expiry=ends, flags=flags, cas=cas, framing=framing)
        return (await self._requests.send(collection, [(encode_key(key), value)], store, retry=False))[0].cas

    async def remove(
        self, key: str | bytes, *, cas: int = 0, collection: str = "", durability: DurabilityName | None = None
    ) -> int:
        """Remove a document; return the tombstone's cas. Raises KeyNotFound; KeyExists if its cas differs."""
        _check_sizes(cas=cas)
        delete = partial(self._make_delete, cas=cas, framing=self._requests.pack_durability(durability))
        return (await self._requests.send(collection, [encode_key(key)], delete, retry=False))[0].cas

    async def remove_many(self, keys: Iterable[str | bytes], *, collection: str = "") -> int:
        """Remove documents with many requests in flight; return the number of removed documents."""
        removed = 0
        for chunk in split_chunks(map(encode_key, keys)):
            accept = (Status.KEY_ENOENT,)
            frames = await self._requests.send(collection, chunk, self._make_delete, accept=accept, retry=False)
            removed += sum(frame.specific == Status.SUCCESS for frame in frames)
        return removed

    def tokens(self) -> tuple[MutationToken, ...]:
        """Return the tokens of the newest writes and removals of this object, one for each vbucket.

        Nodes without MUTATION_SEQNO and writes without a reply give no token.
        """
        return self._requests.tokens.list_newest()

    async def wait_for(
        self,
        tokens: Annotated[MutationToken | Iterable[MutationToken], CHECKED_INSIDE],
        *,
        replicas: int = 0,
        persisted: int = 0,
        timeout: float | None = None,
    ) -> None:
        """Wait until writes are on replicas or on disk. It works with servers that have no durability levels.

        Args:
            tokens: the writes, for example `tokens()`.
            replicas: replicas that must have each write in memory.
            persisted: nodes that must have each write on disk, the active one included.
            timeout: seconds; None: the operation timeout of the bucket.

        Raises:
            UsageError: the cluster map has fewer copies of a vbucket, or `tokens` are none.
            WriteLost: a failover has rolled a write back.
            OperationTimeout: the writes are not there in time.
        """
        writes = check_tokens([tokens] if isinstance(tokens, MutationToken) else tokens)
        seconds = self._requests.operation_timeout if timeout is None else timeout
        await self._requests.observer.wait(writes, replicas=replicas, persisted=persisted, timeout=seconds)

    async def flush(self) -> None:
        """Remove all documents of the bucket; its vbuckets start new histories. Raises NotSupported."""
        await self._requests.flush()

    def _compute_vbucket(self, key: bytes) -> int:
        if not 0 < len(key) <= MAX_KEY:
            raise UsageError(f"key of {len(key)} bytes, expected 1 to {MAX_KEY}")
        return compute_vbucket(key, self._requests.vbuckets)

    def _make_get(self, prefix: bytes, key: bytes) -> Request:
        return Get(key=prefix + key, vbucket=self._compute_vbucket(key))

    def _make_delete(self, prefix: bytes, key: bytes, cas: int = 0, framing: bytes = b"") -> Request:
        return Delete(key=prefix + key, vbucket=self._compute_vbucket(key), cas=cas, framing=framing)

    def _make_store(self, kind: type[Set], prefix: bytes, document: tuple[bytes, bytes], **fields: Any) -> Request:
        key, value = document
        if type(value) is not bytes and not isinstance(value, BYTES):
            raise UsageError(f"value is {value!r:.80} under {key!r}, expected bytes")
        if len(value) > MAX_VALUE:
            raise UsageError(f"value of {len(value)} bytes under {key!r}, limit {MAX_VALUE}")
        return kind(key=prefix + key, value=value, vbucket=self._compute_vbucket(key), **fields)


_PAIRS = (tuple, list)
_BITS = {"flags": 32, "datatype": 8, "cas": 64}


def _check_sizes(**numbers: int) -> None:
    for name, number in numbers.items():
        if number and not 0 < number < 1 << _BITS[name]:
            raise UsageError(f"{name} is {number}, expected 0 to {2 ** _BITS[name] - 1}")


def _encode_document(document: object) -> tuple[bytes, bytes]:
    """Return a document with its key as bytes. Raises UsageError for anything but a pair."""
    if not isinstance(document, _PAIRS) or len(document) != 2:
        raise UsageError(f"document is {document!r:.80}, expected a key and a value")
    key, value = document
    return encode_key(key), value
