"""The spans of a client. Each is declared once, for the code that makes it and for the reference.

No span belongs to a single message: a span covers a connection, a delivery or a commit, so their number stays small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class SpanType:
    """A kind of span.

    Attributes:
        operation: the first part of its name; the bucket, source or table follows.
        role: OpenTelemetry's kind of the span.
        text: the work that it covers.
        attributes: the attributes that it may have.
        events: the events that it may have.
    """

    operation: str
    role: Literal["client", "consumer", "internal"]
    text: str
    attributes: tuple[str, ...] = ()
    events: tuple[str, ...] = ()


ATTRIBUTES = {
    "db.namespace": "the bucket",
    "db.system.name": "always `couchbase`",
    "error.type": "the class of the error, if the work failed",
    "messaging.batch.message_count": "changes, or rows of the changelog",
    "messaging.client.id": "the name of the DCP connection, as logs and the STAT group `dcp` have it",
    "messaging.consumer.group.name": "the group of the consumer",
    "messaging.destination.name": "the bucket",
    "messaging.operation.name": "the operation in the span's name",
    "messaging.operation.type": "`process`, or `settle` for a commit",
    "messaging.system": "always `couchbase`",
    "penstock.attempt": "number of the failed attempt",
    "penstock.from_seqno": "the seqno from which the vbucket was rolled back",
    "penstock.received_bytes": "bytes of the changes on the wire",
    "penstock.rollbacks": "vbuckets that were rolled back",
    "penstock.to_seqno": "the seqno to which the vbucket was rolled back",
    "penstock.vbucket": "the vbucket",
    "penstock.vbuckets": "number of vbuckets",
    "server.address": "the host of the node",
    "server.port": "the port of the node",
}
"""Attribute -> its meaning."""

_DATABASE = ("db.system.name", "db.namespace")
_MESSAGING = ("messaging.system", "messaging.destination.name", "messaging.operation.name")

CONNECT = SpanType(
    "connect",
    "client",
    "A connection to one node of several candidates: TCP, TLS, login, cluster map.",
    (*_DATABASE, "server.address", "server.port", "messaging.client.id", "error.type"),
    ("refused",),
)
BOOTSTRAP = SpanType(
    "bootstrap",
    "internal",
    "The first connections of a change stream; the parent of its `connect`.",
    (*_MESSAGING, "penstock.vbuckets", "error.type"),
    ("failed",),
)
RECONNECT = SpanType(
    "reconnect",
    "internal",
    "One attempt to connect again to the nodes of vbuckets whose connection or stream failed.",
    (*_MESSAGING, "penstock.vbuckets", "error.type"),
    ("failed",),
)
OPEN_STREAMS = SpanType(
    "open_streams",
    "client",
    "The stream requests of one connection, from the first request to the last answer.",
    (*_MESSAGING, "messaging.client.id", "server.address", "server.port", "penstock.vbuckets", "error.type"),
)
ROLLBACK = SpanType(
    "rollback",
    "internal",
    "The rollbacks of one delivery. It has no duration.",
    (*_MESSAGING, "penstock.rollbacks"),
    ("vbucket",),
)
PROCESS = SpanType(
    "process",
    "consumer",
    "The work on one delivery: until all its handlers are finished, or until the loop requests the next one.",
    (
        *_MESSAGING,
        "messaging.operation.type",
        "messaging.batch.message_count",
        "messaging.consumer.group.name",
        "penstock.received_bytes",
        "error.type",
    ),
    ("retry",),
)
COMMIT = SpanType(
    "commit",
    "client",
    "A commit of positions. The number of changes is that since the last commit.",
    (
        *_MESSAGING,
        "messaging.operation.type",
        "messaging.batch.message_count",
        "penstock.vbuckets",
        "error.type",
    ),
)


def describe_messaging(kind: SpanType, bucket: str) -> dict[str, object]:
    """Return the attributes that the conventions of OpenTelemetry for messaging demand."""
    return {
        "messaging.system": "couchbase",
        "messaging.destination.name": bucket,
        "messaging.operation.name": kind.operation,
    }


def describe_failure(error: BaseException, vbuckets: int) -> dict[str, object]:
    """Return the attributes of the event `failed`."""
    return {"error.type": type(error).__name__, "penstock.vbuckets": vbuckets}


CLIENT_SPANS = (CONNECT, BOOTSTRAP, RECONNECT, OPEN_STREAMS, ROLLBACK, PROCESS, COMMIT)
"""All spans of a client."""

EVENTS = {
    "failed": ("a node failed, and is tried again later", ("error.type", "penstock.vbuckets")),
    "refused": ("a candidate failed", ("server.address", "server.port", "error.type")),
    "retry": ("a handler failed, and gets the change again", ("penstock.vbucket", "penstock.attempt", "error.type")),
    "vbucket": (
        "one vbucket was rolled back; at most 100 in a span",
        ("penstock.vbucket", "penstock.from_seqno", "penstock.to_seqno"),
    ),
}
"""Event -> its meaning and its attributes."""
