"""Change streams of vbucketed key-value buckets, from the socket to the Spark table."""

from penstock.client.blocking import read_changes
from penstock.client.bucket import Bucket, Document, connect
from penstock.client.position import Position
from penstock.version import __version__
from penstock.wire.schema import CHANGE_SCHEMA, Change

__all__ = ["CHANGE_SCHEMA", "Bucket", "Change", "Document", "Position", "__version__", "connect", "read_changes"]
