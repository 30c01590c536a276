"""The columns of a lake's tables."""

from __future__ import annotations

import pyarrow as pa

from penstock.spark.lake.tables.data_files import RANGE_COLUMN
from penstock.wire.columns.schema import CHANGE_SCHEMA

CHANGELOG_SCHEMA = CHANGE_SCHEMA.append(pa.field(RANGE_COLUMN, pa.int32()))

MERGE_SCHEMA = pa.schema(
    [
        CHANGE_SCHEMA.field(name)
        for name in ("vbucket", "vbuuid", "seqno", "rev_seqno", "cas", "event", "key", "value", "collection_id",
                     "scope", "collection", "datatype", "flags", "expiry", "xattrs", "history")
    ]
)  # fmt: skip
"""The columns of a change that decide about the current table, or that the current table has."""

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
"""The columns of a document.

`key` is null if the key is not UTF-8; only then `key_bytes` has it. collection_id is 0 for the default collection, also
for changes from a node or dialect without collections.
"""

CURRENT_SCHEMA = CURRENT_COLUMNS.append(pa.field(RANGE_COLUMN, pa.int32()))
