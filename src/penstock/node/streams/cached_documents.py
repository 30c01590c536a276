"""The documents of a vbucket that are in memory, for a stream that begins with a cache transfer.

Source: kv_engine docs/dcp, cache-transfer.md; dcp/cache_transfer_stream.cc.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Final

import numpy as np

from penstock.node.streams.stream_encoder import read_chunk_collections
from penstock.node.streams.stream_filter import CacheBudget, StreamFilter
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.frame_chunks import Chunk, select_frames
from penstock.store.history.history_snapshot import Snapshot
from penstock.store.log.frame_fields import mask_mutations, read_by_seqnos
from penstock.wire.messages.dcp import MUTATION_HEAD, Mutation, make_head_struct
from penstock.wire.messages.dcp_values import CACHED_HEAD_BYTES, CachedDocument, pack_cached_documents

_BATCH_BYTES: Final = 1440
_BATCH_DOCUMENTS: Final = 20
"""Limits of one message. A longer document is alone in its message. Source: kv_engine configuration.json."""

_READ_BYTES: Final = 64 * 1024
"""Bytes of the log that are read at once: documents are packed one by one, which takes a few milliseconds."""

_NANOSECONDS = 10**9
_read_head = make_head_struct(
    Mutation, "key_length", "datatype", "cas", "by_seqno", "rev_seqno", "flags", "expiry", "nru"
).unpack_from


class CachedDocumentReader:
    """Reads the documents whose newest change the consumer has: those up to the start seqno of its stream.

    The node keeps all documents in memory. They are those of the moment of the first `read`.

    Attributes:
        is_complete: whether no document is left.
    """

    def __init__(self, vbucket: Vbucket, stream_filter: StreamFilter, budget: CacheBudget, last_seqno: int) -> None:
        """Create a reader that has read nothing.

        Args:
            vbucket: the vbucket.
            stream_filter: chooses the collections.
            budget: the consumer's limits.
            last_seqno: the start seqno of the stream.
        """
        self.is_complete = False
        self._vbucket = vbucket
        self._filter = stream_filter
        self._all_keys = budget.all_keys
        self._room = budget.free_memory  # None for no limit
        self._with_values = True
        if budget.all_keys and not budget.free_memory:
            self._with_values, self._room = False, None
        self._last_seqno = last_seqno
        self._snapshot: Snapshot | None = None

    def cancel(self) -> None:
        """Read no more documents, since the consumer has no memory for them."""
        self.is_complete = True
        self._snapshot = None

    def read(self, max_bytes: int) -> list[bytes]:
        """Return the values of the next CACHE_TRANSFER messages.

        Args:
            max_bytes: about the bytes to read.

        Returns:
            The values. There may be none before the last document was read.
        """
        if self.is_complete:
            return []
        if self._snapshot is None:
            # A document with a newer change is left out. So the snapshot counts at the newest change.
            self._snapshot = Snapshot(self._vbucket.index, 0, self._vbucket.changes.high_seqno)
        chunk = self._snapshot.read(0, min(max_bytes, _READ_BYTES))
        if not chunk.frame_count:
            self.cancel()
            return []
        return [pack_cached_documents(batch) for batch in _split_batches(self._choose(self._select(chunk)))]

    def _select(self, chunk: Chunk) -> Chunk:
        """Return the documents among some changes. The last seqno ends the transfer."""
        view, offsets = memoryview(chunk.data), np.asarray(chunk.offsets, np.int64)
        seqnos = read_by_seqnos(view, offsets)
        if seqnos[-1] >= self._last_seqno:
            self.cancel()
        owners = read_chunk_collections(chunk)
        wanted = np.isin(owners, list(self._vbucket.collections.ids)) & self._filter.select(owners)
        return select_frames(chunk, wanted & mask_mutations(view, offsets) & (seqnos <= self._last_seqno))

    def _choose(self, chunk: Chunk) -> Iterator[CachedDocument]:
        """Yield documents, without their values where the consumer has no room. Without room, the transfer may end."""
        now = self._vbucket.changes.now() // _NANOSECONDS
        for document in _read_documents(chunk):
            if not self._all_keys and 0 < document.expiry <= now:
                continue
            if self._with_values and self._room is not None:
                nbytes = _count_bytes(document)
                if nbytes > self._room and not self._all_keys:
                    self.cancel()
                    return
                self._with_values = nbytes <= self._room
                self._room -= nbytes
            yield document if self._with_values else document._replace(value=b"")


def _read_documents(chunk: Chunk) -> Iterator[CachedDocument]:
    view = memoryview(chunk.data)
    for begin, end in pairwise(chain(map(int, chunk.offsets), (len(view),))):
        key_length, datatype, cas, by_seqno, rev_seqno, flags, expiry, nru = _read_head(view, begin)
        key_at = begin + MUTATION_HEAD.size
        value_at = key_at + key_length
        key, value = bytes(view[key_at:value_at]), bytes(view[value_at:end])
        yield CachedDocument(key, value, cas, by_seqno, rev_seqno, flags, expiry, datatype, nru)


def _count_bytes(document: CachedDocument) -> int:
    return CACHED_HEAD_BYTES + len(document.key) + len(document.value)


def _split_batches(documents: Iterator[CachedDocument]) -> Iterator[list[CachedDocument]]:
    """Yield the documents of one message after the other."""
    batch: list[CachedDocument] = []
    total = 0
    for document in documents:
        nbytes = _count_bytes(document)
        if batch and (total + nbytes > _BATCH_BYTES or len(batch) >= _BATCH_DOCUMENTS):
            yield batch
            batch, total = [], 0
        batch.append(document)
        total += nbytes
    if batch:
        yield batch
