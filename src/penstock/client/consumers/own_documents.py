"""Penstock's own documents in a bucket, which its consumers do not deliver."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.documents.document_attributes import OWN_KEYS

__all__ = ["is_own_key", "remove_own_documents"]

_START = OWN_KEYS.encode()


def is_own_key(key: bytes | None) -> bool:
    """Return whether a key is that of an own document."""
    return key is not None and key.startswith(_START)


def remove_own_documents(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch without the changes of own documents; the same batch if it has none."""
    own = pc.fill_null(pc.starts_with(batch.column("key"), _START), False)
    return batch.filter(pc.invert(own)) if pc.any(own).as_py() else batch
