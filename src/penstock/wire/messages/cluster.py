"""The commands about a node rather than a bucket's documents, and what a node says of its own accord.

Source: kv_engine docs/BinaryProtocol.md; GET_ERROR_MAP: docs/ErrorMap.md. NOOP, VERSION, HELLO and the rest of what
every connection begins with: see penstock.wire.messages.kv; logging in: penstock.wire.messages.sasl.
"""

from __future__ import annotations

from penstock.wire.codec.layout import MAYBE, Request, ServerRequest, ServerResponse, message, u16, u32, u64
from penstock.wire.codec.opcodes import Opcode, ServerOpcode

__all__ = [
    "ClustermapChanged",
    "GetErrorMap",
    "ListBuckets",
    "OldClustermapChanged",
    "ServerReply",
    "Verbosity",
]


@message(Opcode.VERBOSITY)
class Verbosity(Request):
    """How much the server is to log. Answered and passed over: a client has no say in that."""

    level: int = u32("the higher, the more")


@message(Opcode.LIST_BUCKETS)
class ListBuckets(Request):
    """Answered with the names of the buckets that the asker may select, with a space between them."""


@message(Opcode.GET_ERROR_MAP)
class GetErrorMap(Request):
    """Answered with what each status means, as JSON: see penstock.wire.messages.error_map."""

    version: int = u16("the newest form of the map that the asker reads", within="value")


@message(ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION, key=MAYBE, value=MAYBE)
class ClustermapChanged(ServerRequest):
    """Server to client: a bucket's map has changed. key: the bucket, empty for the nodes alone.

    value: the map, as GET_CLUSTER_CONFIG has it; empty where CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF was agreed on.
    No answer is waited for.
    """

    epoch: int = u64("revEpoch of the map")
    revision: int = u64("rev of the map")


@message(ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION, key=MAYBE, value=MAYBE)
class OldClustermapChanged(ServerRequest):
    """As ClustermapChanged, in the form that releases before 6.5 sent."""

    revision: int = u32("rev of the map")


@message(ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION, key=MAYBE, value=MAYBE, cas=MAYBE)
class ServerReply(ServerResponse):
    """A client's answer; the status says whether it could do anything with it."""
