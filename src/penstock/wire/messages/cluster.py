"""Commands about a node rather than a bucket's documents, and requests that a node sends to its clients.

Source: kv_engine docs/BinaryProtocol.md; GET_ERROR_MAP: docs/ErrorMap.md. See penstock.wire.messages.kv for the first
commands of every connection (NOOP, VERSION, HELLO and others), and penstock.wire.messages.sasl for logins.
"""

from __future__ import annotations

from penstock.wire.codec.layout import MAYBE, PRESENT, Request, ServerRequest, ServerResponse, message, u16, u32, u64
from penstock.wire.codec.opcodes import Opcode, ServerOpcode


@message(Opcode.VERBOSITY)
class Verbosity(Request):
    """Set the server's level of logging. The server answers and ignores it: clients may not change the log."""

    level: int = u32("a higher level logs more")


@message(Opcode.LIST_BUCKETS)
class ListBuckets(Request):
    """Answered with the names of the buckets that the user may select, with a space between them."""


@message(Opcode.GET_ERROR_MAP)
class GetErrorMap(Request):
    """Answered with the meaning of each status, as JSON: see penstock.wire.messages.error_map."""

    version: int = u16("the newest form of the map that the client reads", within="value")


@message(Opcode.SET_CLUSTER_CONFIG, key=MAYBE, value=PRESENT)
class SetClusterConfig(Request):
    """Replace the map that the server sends to clients. The key is a bucket's name, empty for the map of nodes alone.

    The value is the map as JSON. Clients of the bucket get the map at once, if they agreed on that.
    """

    epoch: int = u64("revEpoch of the map, a signed number")
    revision: int = u64("rev of the map, a signed number, at least 1")


@message(Opcode.SET_CLUSTER_CONFIG, key=MAYBE, value=PRESENT)
class OldSetClusterConfig(Request):
    """As SetClusterConfig, in the form of the releases 6.5.0 to 7.0.1, which have no epoch."""

    revision: int = u32("rev of the map")


@message(Opcode.SET_CLUSTER_CONFIG, key=MAYBE, value=PRESENT)
class OldestSetClusterConfig(Request):
    """As SetClusterConfig, in the form of the releases before 6.5, which store the whole body as the map."""


@message(ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION, key=MAYBE, value=MAYBE)
class ClustermapChanged(ServerRequest):
    """Server to client: a bucket's map has changed. The key is the bucket's name, empty for the map of nodes alone.

    The value is the map, as GET_CLUSTER_CONFIG returns it. It is empty where CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF was
    agreed on. The server does not wait for an answer.
    """

    epoch: int = u64("revEpoch of the map")
    revision: int = u64("rev of the map")


@message(ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION, key=MAYBE, value=MAYBE)
class OldClustermapChanged(ServerRequest):
    """As ClustermapChanged, in the form that releases before 6.5 sent."""

    revision: int = u32("rev of the map")


@message(ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION, key=MAYBE, value=MAYBE, cas=MAYBE)
class ServerReply(ServerResponse):
    """A client's answer; the status shows whether the client could use the request."""
