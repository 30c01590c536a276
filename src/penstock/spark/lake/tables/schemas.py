"""The columns of a lake's tables."""

from __future__ import annotations

import pyarrow as pa

from penstock.spark.lake.tables.delta_table import RANGE
from penstock.wire.columns.schema import CHANGE_SCHEMA

CHANGELOG_SCHEMA = CHANGE_SCHEMA.append(pa.field(RANGE, pa.int32()))

MERGE_SCHEMA = pa.schema(
    [
        CHANGE_SCHEMA.field(name)
        for name in ("vbucket", "vbuuid", "seqno", "rev_seqno", "cas", "event", "key", "value", "collection_id",
                     "scope", "collection", "datatype", "flags", "expiry", "xattrs", "history")
    ]
)  # fmt: skip
"""The columns of a change that decide about the current table or stand in it."""

CURRENT_COLUMNS = pa.schema(
    [
        ("key", pa.string()),
        ("key_bytes", pa.binary()),
        ("value", pa.binary()),
        ("vbucket", pa.int32()),
        ("collection_id", pa.int64()),
        ("scope", pa.string()),
        ("collection", pa.string()),
        ("seqno", pa.int64()),
        ("rev_seqno", pa.int64()),
        ("cas", pa.int64()),
        ("datatype", pa.int32()),
        ("flags", pa.int64()),
        ("expiry", pa.int64()),
        ("xattrs", pa.map_(pa.string(), pa.binary())),
        ("history", pa.int32()),
        ("vbuuid", pa.int64()),
    ]
)
"""A document: `key` is null where the key is not UTF-8, and only then `key_bytes` is not. collection_id is 0 for the
default collection, also where the changes came from a node or in a dialect that knows no collections."""

CURRENT_SCHEMA = CURRENT_COLUMNS.append(pa.field(RANGE, pa.int32()))
