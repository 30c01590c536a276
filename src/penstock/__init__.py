"""Change streams of vbucketed key-value buckets, from the socket to the Spark table."""

from typing import TYPE_CHECKING

from penstock import errors
from penstock.errors import (
    AccessDenied,
    AuthenticationFailed,
    BucketAccessDenied,
    BucketNotServed,
    BucketRecreated,
    ConnectionClosed,
    DiskFull,
    Error,
    KeyExists,
    KeyNotFound,
    LakeRefused,
    LocalProtocolError,
    NoSuchCollection,
    NotCouchbase,
    OperationTimeout,
    OrderViolation,
    PositionAhead,
    PositionOfOtherBucket,
    PositionsChanged,
    PositionsLocked,
    PositionsUnreadable,
    ProtocolError,
    RemoteProtocolError,
    RolledBack,
    ServiceMissing,
    StatusError,
    StoreDamaged,
    StoreRefused,
    TransformFailed,
    Unreachable,
    UnsupportedServer,
    UntrustedNode,
    UsageError,
    WriteLost,
)
from penstock.lazy_names import make_lazy_names
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.client.blocking import read_changes
    from penstock.client.bucket import Bucket, connect
    from penstock.client.consumers.commit_policy import BY_HAND, CommitPolicy
    from penstock.client.consumers.consumer import Consumer
    from penstock.client.consumers.handler_failures import DeadLetter, DeadLetterLog, HandlerRetry
    from penstock.client.documents.bulk import BulkWriter
    from penstock.client.documents.document import Document
    from penstock.client.feeds.stream_position import Position
    from penstock.client.positions.document_positions import DocumentPositions
    from penstock.client.positions.file_positions import FilePositions
    from penstock.client.positions.saved_positions import SavedPositions
    from penstock.client.positions.sqlite_positions import SqlitePositions
    from penstock.client.signals.consumer_report import ConsumerReport, VbucketLag
    from penstock.client.signals.stream_counts import StreamCounts
    from penstock.client.xdcr.bucket_replication import BucketReplication
    from penstock.client.xdcr.xdcr_options import XdcrOptions
    from penstock.node import Node
    from penstock.spark.lake.reading.lake import Lake
    from penstock.spark.pipeline.run.pipeline import Pipeline
    from penstock.wire.columns.schema import CHANGE_SCHEMA, Change, ChangeKind, find_kinds

__all__ = [
    "BY_HAND",
    "CHANGE_SCHEMA",
    "AccessDenied",
    "AuthenticationFailed",
    "Bucket",
    "BucketAccessDenied",
    "BucketNotServed",
    "BucketRecreated",
    "BucketReplication",
    "BulkWriter",
    "Change",
    "ChangeKind",
    "CommitPolicy",
    "ConnectionClosed",
    "Consumer",
    "ConsumerReport",
    "DeadLetter",
    "DeadLetterLog",
    "DiskFull",
    "Document",
    "DocumentPositions",
    "Error",
    "FilePositions",
    "HandlerRetry",
    "KeyExists",
    "KeyNotFound",
    "Lake",
    "LakeRefused",
    "LocalProtocolError",
    "NoSuchCollection",
    "Node",
    "NotCouchbase",
    "OperationTimeout",
    "OrderViolation",
    "Pipeline",
    "Position",
    "PositionAhead",
    "PositionOfOtherBucket",
    "PositionsChanged",
    "PositionsLocked",
    "PositionsUnreadable",
    "ProtocolError",
    "RemoteProtocolError",
    "RolledBack",
    "SavedPositions",
    "ServiceMissing",
    "SqlitePositions",
    "StatusError",
    "StoreDamaged",
    "StoreRefused",
    "StreamCounts",
    "TransformFailed",
    "Unreachable",
    "UnsupportedServer",
    "UntrustedNode",
    "UsageError",
    "VbucketLag",
    "WriteLost",
    "XdcrOptions",
    "__version__",
    "connect",
    "errors",
    "find_kinds",
    "read_changes",
]

_HOMES = {
    "BY_HAND": "penstock.client.consumers.commit_policy",
    "CHANGE_SCHEMA": "penstock.wire.columns.schema",
    "Bucket": "penstock.client.bucket",
    "BucketReplication": "penstock.client.xdcr.bucket_replication",
    "BulkWriter": "penstock.client.documents.bulk",
    "Change": "penstock.wire.columns.schema",
    "ChangeKind": "penstock.wire.columns.schema",
    "CommitPolicy": "penstock.client.consumers.commit_policy",
    "Consumer": "penstock.client.consumers.consumer",
    "ConsumerReport": "penstock.client.signals.consumer_report",
    "DeadLetter": "penstock.client.consumers.handler_failures",
    "DeadLetterLog": "penstock.client.consumers.handler_failures",
    "Document": "penstock.client.documents.document",
    "DocumentPositions": "penstock.client.positions.document_positions",
    "FilePositions": "penstock.client.positions.file_positions",
    "HandlerRetry": "penstock.client.consumers.handler_failures",
    "Lake": "penstock.spark.lake.reading.lake",
    "Node": "penstock.node",
    "Pipeline": "penstock.spark.pipeline.run.pipeline",
    "Position": "penstock.client.feeds.stream_position",
    "SavedPositions": "penstock.client.positions.saved_positions",
    "SqlitePositions": "penstock.client.positions.sqlite_positions",
    "StreamCounts": "penstock.client.signals.stream_counts",
    "VbucketLag": "penstock.client.signals.consumer_report",
    "XdcrOptions": "penstock.client.xdcr.xdcr_options",
    "connect": "penstock.client.bucket",
    "find_kinds": "penstock.wire.columns.schema",
    "read_changes": "penstock.client.blocking",
}
"""Name -> its module, which is imported on the name's first use.

Arrow takes 0.4 s to import, which `penstock --help` must not wait for. Lake and Pipeline need the extra `spark`.
"""

__getattr__, __dir__ = make_lazy_names(globals(), _HOMES)
