"""HELLO: the features that this node supports, and the features that each of them needs.

Source: kv_engine docs/protocol/hello.md; daemon/protocol/mcbp/hello_packet_executor.cc.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.errors import InvalidArguments
from penstock.wire.codec.constants import Feature as F
from penstock.wire.codec.flags import Datatype

__all__ = ["SUPPORTED_FEATURES", "get_datatypes", "negotiate_features"]

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
