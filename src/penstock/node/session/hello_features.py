"""HELLO: the name of the client program, and the features that this node supports.

Source: kv_engine docs/protocol/hello.md; daemon/protocol/mcbp/hello_packet_executor.cc.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from penstock.errors import InvalidArguments, RemoteProtocolError
from penstock.wire.codec.constants import Feature as F
from penstock.wire.codec.flags import Datatype
from penstock.wire.values.peer_json import read_peer_json

_MAX_AGENT = 250  # characters of each part that are kept

SUPPORTED_FEATURES: Final = frozenset(
    {
        F.TCP_NODELAY,  # every connection of the node has it
        F.MUTATION_SEQNO,
        F.XATTR,
        F.XERROR,
        F.SELECT_BUCKET,
        F.SNAPPY,
        F.JSON,
        F.DUPLEX,
        F.CLUSTERMAP_CHANGE_NOTIFICATION,
        F.UNORDERED_EXECUTION,
        F.ALT_REQUEST,
        F.SYNC_REPLICATION,
        F.COLLECTIONS,
        F.SNAPPY_EVERYWHERE,
        F.PRESERVE_TTL,
        F.VATTR,
        F.SUBDOC_CREATE_AS_DELETED,
        F.SUBDOC_DOCUMENT_MACRO_SUPPORT,
        F.SUBDOC_REPLACE_BODY_WITH_XATTR,
        F.SUBDOC_REPLICA_READ,
        F.GET_CLUSTER_CONFIG_WITH_KNOWN_VERSION,
        F.DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP,
        F.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF,
        F.SUBDOC_ALLOWS_ACCESSING_MULTIPLE_XATTR_KEYS,
        F.SUBDOC_BINARY_XATTR,
        F.SUBDOC_REPLICA_READ_ON_DELETED,
        F.GET_RANDOM_KEY_INCLUDE_XATTR,
        F.DCP_SKIP_DELETES_IN_INITIAL_BACKFILL,
    }
)
"""The features of this node.

Left out: TLS, which no server agrees on; delayed sending; tracing, units and throttling, since the node does not
measure them; range scans; MUTATE_WITH_META.
"""

_NEEDS: Final = {
    F.CLUSTERMAP_CHANGE_NOTIFICATION: {F.DUPLEX},
    F.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF: {F.DUPLEX},
    F.VATTR: {F.XATTR},
    F.SUBDOC_DOCUMENT_MACRO_SUPPORT: {F.XATTR},
    F.RANGE_SCAN_INCLUDE_XATTR: {F.XATTR},
    F.GET_RANDOM_KEY_INCLUDE_XATTR: {F.XATTR, F.JSON, F.SNAPPY_EVERYWHERE},
}

_DATATYPES: Final = {
    F.JSON: Datatype.JSON,
    F.SNAPPY: Datatype.SNAPPY,
    F.SNAPPY_EVERYWHERE: Datatype.SNAPPY,
    F.XATTR: Datatype.XATTR,
}


class ClientAgent(NamedTuple):
    """The client program, as it names itself in the key of HELLO.

    Attributes:
        name: the name of the program; empty if it gives none.
        connection_id: the name that the program gives the connection; empty if it gives none.
    """

    name: str = ""
    connection_id: str = ""


def parse_agent(key: bytes) -> ClientAgent:
    """Return the client program of the key of HELLO: a JSON object with the members `a` and `i`, or a bare name."""
    if key.startswith(b"{"):
        try:
            document = read_peer_json(key, dict[str, Any], "HELLO")
        except RemoteProtocolError:
            document = {"a": key.decode("utf-8", "replace")}
    else:
        document = {"a": key.decode("utf-8", "replace")}
    return ClientAgent(*(text[:_MAX_AGENT] if isinstance(text := document.get(name), str) else "" for name in "ai"))


def negotiate_features(requested: Iterable[int]) -> list[int]:
    """Return the features that a client gets, in the order of its request and without duplicates.

    Args:
        requested: the features that the client requests. Unknown ones are skipped.

    Raises:
        InvalidArguments: a feature lacks another feature that it needs.
    """
    wanted = dict.fromkeys(requested)
    for feature, needed in _NEEDS.items():
        if feature in wanted and (missing := needed - wanted.keys()):
            raise InvalidArguments(f"HELLO: {feature.name} needs {', '.join(sorted(one.name for one in missing))}")
    return [feature for feature in wanted if feature in SUPPORTED_FEATURES]


def get_datatypes(features: Iterable[int]) -> int:
    """Return the Datatype bits that a connection with some features understands."""
    bits = 0
    for feature in features:
        bits |= int(_DATATYPES.get(F(feature), 0))
    return bits
