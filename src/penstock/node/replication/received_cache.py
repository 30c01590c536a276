"""The documents of a cache transfer, which the consumer compares with its own.

Source: kv_engine dcp/passive_stream.cc, PassiveStream::processCacheTransfer; hash_table.cc, HashTable::addItem.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import KeyExists, KeyNotFound, UnknownCollection
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.messages.dcp_values import CachedDocument
from penstock.wire.values.collection_key import split_collection_key


def check_cached_documents(vbucket: Vbucket, documents: Iterable[CachedDocument]) -> None:
    """Check that a vbucket has the documents that are in the memory of its producer. Nothing is stored.

    A vbucket has all documents of its history in memory. Both sides may store a value in another form, and so with
    another datatype.

    Args:
        vbucket: the vbucket of the consumer.
        documents: the documents of the producer.

    Raises:
        UnknownCollection: the vbucket does not have the collection.
        KeyNotFound: the vbucket does not have the document.
        KeyExists: the vbucket has another version of the document.
        RemoteProtocolError: a key does not begin with a collection id.
    """
    versions, ids = vbucket.versions, vbucket.collections.ids
    for document in documents:
        collection_id, _ = split_collection_key(document.key)
        if collection_id not in ids:
            raise UnknownCollection(f"vbucket {vbucket.id}: no collection {collection_id:x}")
        meta, seqno = versions.find_meta(document.key), versions.find_newest_seqno(document.key)
        if meta is None or meta.deleted:
            raise KeyNotFound(f"vbucket {vbucket.id}: no document of the cached one at {document.by_seqno}")
        own = seqno, meta.cas, meta.rev_seqno, meta.flags, meta.expiry
        if own != (document.by_seqno, document.cas, document.rev_seqno, document.flags, document.expiry):
            raise KeyExists(f"vbucket {vbucket.id}: seqno {seqno} of the cached document at {document.by_seqno}")
