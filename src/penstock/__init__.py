"""Change streams of vbucketed key-value buckets, from the socket to the Spark table."""

from typing import TYPE_CHECKING

from penstock.lazy_names import lazy_names
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.client.blocking import read_changes
    from penstock.client.bucket import Bucket, connect
    from penstock.client.documents.document import Document
    from penstock.client.feeds.stream_position import Position
    from penstock.node import Node
    from penstock.wire.columns.schema import CHANGE_SCHEMA, Change

__all__ = [
    "CHANGE_SCHEMA",
    "Bucket",
    "Change",
    "Document",
    "Node",
    "Position",
    "__version__",
    "connect",
    "read_changes",
]

_HOMES = {
    "CHANGE_SCHEMA": "penstock.wire.columns.schema",
    "Bucket": "penstock.client.bucket",
    "Change": "penstock.wire.columns.schema",
    "Document": "penstock.client.documents.document",
    "Node": "penstock.node",
    "Position": "penstock.client.feeds.stream_position",
    "connect": "penstock.client.bucket",
    "read_changes": "penstock.client.blocking",
}
"""Where each name is. Loaded when it is first asked for: Arrow takes 0.4 s, which `penstock --help` must not."""

__getattr__, __dir__ = lazy_names(globals(), _HOMES)
