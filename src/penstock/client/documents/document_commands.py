"""Commands that read and write documents."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from penstock.client.documents.document import Document, chunks_of, document_of, encode_key, vbucket_of
from penstock.client.documents.document_requests import DocumentRequests
from penstock.client.documents.mutation_tokens import MutationToken
from penstock.errors import KeyNotFound, UsageError
from penstock.wire.codec.constants import MAX_KEY, MAX_VALUE
from penstock.wire.codec.layout import Request
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Add, Delete, Get, Set

__all__ = ["DocumentCommands"]


class DocumentCommands:
    """The documents of a bucket. Keys may be given as text, which stands for its UTF-8 bytes.

    collection: where documents are, `name` or `scope.name`; the default one if it is not given.
    Reading commands and `upsert` are tried again when a connection ends, up to `retry_seconds`, and then raise
    Unreachable; the others are not, since they might have been carried out, and raise ConnectionClosed or
    OperationTimeout. What a node refuses because it does not have the vbucket is tried again in any case. Any of them
    raises the StatusError that the node answers with, UnknownCollection or UnknownScope for a collection that is not
    there, UsageError for a key or value that cannot be, a bucket that does not exist, or a collection of a node that
    has none, RemoteProtocolError if the node breaks the protocol; AuthenticationFailed, AccessDenied and UntrustedNode
    where there is no way in.
    """

    def __init__(self, requests: DocumentRequests) -> None:
        self._requests = requests

    async def get(self, key: str | bytes, *, collection: str = "") -> Document:
        """Raises KeyNotFound."""
        found = (await self.get_many([key], collection=collection))[0]
        if found is None:
            raise KeyNotFound(f"no document {key!r}")
        return found

    async def get_many(self, keys: Iterable[str | bytes], *, collection: str = "") -> list[Document | None]:
        """Return the documents in the order of the keys, None where there is none."""
        found: list[Document | None] = []
        for chunk in chunks_of(map(encode_key, keys)):
            frames = await self._requests.send(collection, chunk, self._get, accept=(Status.KEY_ENOENT,))
            found += [document_of(key, frame) for key, frame in zip(chunk, frames, strict=True)]
        return found

    async def upsert(
        self,
        key: str | bytes,
        value: bytes,
        *,
        expiry: int = 0,
        flags: int = 0,
        datatype: int = 0,
        collection: str = "",
    ) -> int:
        """Store a document, whether there is one or not; return its cas. expiry: seconds (30 days at most) or epoch."""
        one = [(key, value)]
        return (await self.upsert_many(one, expiry=expiry, flags=flags, datatype=datatype, collection=collection))[0]

    async def upsert_many(
        self,
        documents: Iterable[tuple[str | bytes, bytes]],
        *,
        expiry: int = 0,
        flags: int = 0,
        datatype: int = 0,
        collection: str = "",
    ) -> list[int]:
        """Store documents, many requests under way at once; return their cas in the same order."""
        written: list[int] = []
        store = partial(self._store, Set, expiry=expiry, flags=flags, datatype=datatype)
        for chunk in chunks_of((encode_key(key), value) for key, value in documents):
            written += [frame.cas for frame in await self._requests.send(collection, chunk, store)]
        return written

    async def insert(
        self,
        key: str | bytes,
        value: bytes,
        *,
        expiry: int = 0,
        flags: int = 0,
        datatype: int = 0,
        collection: str = "",
    ) -> int:
        """Store a document where there is none; return its cas. Raises KeyExists."""
        store = partial(self._store, Add, expiry=expiry, flags=flags, datatype=datatype)
        return (await self._requests.send(collection, [(encode_key(key), value)], store, again=False))[0].cas

    async def replace(
        self, key: str | bytes, value: bytes, *, cas: int, expiry: int = 0, flags: int = 0, collection: str = ""
    ) -> int:
        """Store over the version with this cas; return the new one. Raises KeyExists if it changed, KeyNotFound."""
        if not cas:
            raise UsageError(f"cas 0 to replace {key!r}, expected that of the version to replace")
        store = partial(self._store, Set, expiry=expiry, flags=flags, cas=cas)
        return (await self._requests.send(collection, [(encode_key(key), value)], store, again=False))[0].cas

    async def remove(self, key: str | bytes, *, cas: int = 0, collection: str = "") -> int:
        """Remove a document; return the tombstone's cas. Raises KeyNotFound, KeyExists if cas is not its version."""
        delete = partial(self._delete, cas=cas)
        return (await self._requests.send(collection, [encode_key(key)], delete, again=False))[0].cas

    async def remove_many(self, keys: Iterable[str | bytes], *, collection: str = "") -> int:
        """Remove documents, many requests under way at once; return how many there were."""
        removed = 0
        for chunk in chunks_of(map(encode_key, keys)):
            accept = (Status.KEY_ENOENT,)
            frames = await self._requests.send(collection, chunk, self._delete, accept=accept, again=False)
            removed += sum(frame.specific == Status.SUCCESS for frame in frames)
        return removed

    def tokens(self) -> tuple[MutationToken, ...]:
        """Return where in their vbuckets' histories this object's newest writes and removals are, one for each vbucket.

        Nothing of nodes that do not report it, and of writes whose reply did not come.
        """
        return self._requests.tokens.newest()

    async def flush(self) -> None:
        """Remove every document of the bucket; its vbuckets begin new histories. Raises NotSupported."""
        await self._requests.flush()

    def _vbucket(self, key: bytes) -> int:
        if not 0 < len(key) <= MAX_KEY:
            raise UsageError(f"key of {len(key)} bytes, expected 1 to {MAX_KEY}")
        return vbucket_of(key, self._requests.vbuckets)

    def _get(self, prefix: bytes, key: bytes) -> Request:
        return Get(key=prefix + key, vbucket=self._vbucket(key))

    def _delete(self, prefix: bytes, key: bytes, cas: int = 0) -> Request:
        return Delete(key=prefix + key, vbucket=self._vbucket(key), cas=cas)

    def _store(self, kind: type[Set], prefix: bytes, document: tuple[bytes, bytes], **fields: Any) -> Request:
        key, value = document
        if len(value) > MAX_VALUE:
            raise UsageError(f"value of {len(value)} bytes under {key!r}, limit {MAX_VALUE}")
        return kind(key=prefix + key, value=value, vbucket=self._vbucket(key), **fields)
