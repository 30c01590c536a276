"""Numbers of the protocol family other than opcodes, statuses and flags: dialects, features, kinds, limits.

Sources: kv_engine docs/BinaryProtocol.md and docs/dcp, memcached headers.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class Dialect(StrEnum):
    """The protocols of change streams. Key-value commands are the same beside each of them."""

    TAP = "tap"
    UPR_DRAFT = "upr-draft"
    UPR = "upr"
    DCP = "dcp"


class KeyState(IntEnum):
    """Persistence of a document, in OBSERVE. Source: memcached protocol_binary.h, protocol_binary_observe_key_state.

    A document is NOT_FOUND also after its deletion is on disk.
    """

    NOT_PERSISTED = 0x00
    PERSISTED = 0x01
    NOT_FOUND = 0x80
    LOGICALLY_DELETED = 0x81


class ParamType(IntEnum):
    """The subsystem of a parameter in SET_PARAM. Source: kv_engine, memcacheConstants.py, ENGINE_PARAM_*.

    REPLICATION was TAP in ep-engine 2.x and 3.x.
    """

    FLUSH = 1
    REPLICATION = 2
    CHECKPOINT = 3
    DCP = 4
    VBUCKET = 5
    CONFIG = 6


class Feature(IntEnum):
    """Features that HELLO negotiates; the node grants those it supports. Source: memcached mcbp/protocol/feature.h."""

    DATATYPE = 0x01
    TLS = 0x02
    TCP_NODELAY = 0x03
    MUTATION_SEQNO = 0x04
    TCP_DELAY = 0x05
    XATTR = 0x06
    XERROR = 0x07
    SELECT_BUCKET = 0x08
    SNAPPY = 0x0A
    JSON = 0x0B
    DUPLEX = 0x0C
    CLUSTERMAP_CHANGE_NOTIFICATION = 0x0D
    UNORDERED_EXECUTION = 0x0E
    TRACING = 0x0F
    ALT_REQUEST = 0x10
    SYNC_REPLICATION = 0x11
    COLLECTIONS = 0x12
    SNAPPY_EVERYWHERE = 0x13
    PRESERVE_TTL = 0x14
    VATTR = 0x15
    SUBDOC_CREATE_AS_DELETED = 0x17
    SUBDOC_DOCUMENT_MACRO_SUPPORT = 0x18
    SUBDOC_REPLACE_BODY_WITH_XATTR = 0x19
    REPORT_UNIT_USAGE = 0x1A
    NON_BLOCKING_THROTTLING = 0x1B
    SUBDOC_REPLICA_READ = 0x1C
    GET_CLUSTER_CONFIG_WITH_KNOWN_VERSION = 0x1D
    DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP = 0x1E
    CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF = 0x1F
    SUBDOC_ALLOWS_ACCESSING_MULTIPLE_XATTR_KEYS = 0x20
    SUBDOC_BINARY_XATTR = 0x21
    RANGE_SCAN_INCLUDE_XATTR = 0x22
    SUBDOC_REPLICA_READ_ON_DELETED = 0x23
    GET_RANDOM_KEY_INCLUDE_XATTR = 0x24
    MUTATE_WITH_META = 0x25
    DCP_SKIP_DELETES_IN_INITIAL_BACKFILL = 0x26


class FrameInfoId(IntEnum):
    """The elements of a request's framing extras. Source: BinaryProtocol.md, "Frame info"."""

    BARRIER = 0
    DURABILITY = 1
    STREAM_ID = 2
    IMPERSONATE = 4
    PRESERVE_TTL = 5
    EXTRA_PRIVILEGE = 6
    TOKEN_AUTH = 7


class ResponseFrameInfo(IntEnum):
    """The elements of a response's framing extras. Source: BinaryProtocol.md, "Frame info"."""

    SERVER_DURATION = 0
    READ_UNITS = 1
    WRITE_UNITS = 2
    THROTTLE_DURATION = 3


class DurabilityLevel(IntEnum):
    """The copies that a write must reach before it is answered. Source: BinaryProtocol.md, "Durability requirement"."""

    MAJORITY = 1
    MAJORITY_AND_PERSIST_ON_MASTER = 2
    PERSIST_TO_MAJORITY = 3


class SystemEventKind(IntEnum):
    """Kinds of SYSTEM_EVENT. Source: docs/dcp, commands/system_event.md."""

    COLLECTION_BEGIN = 0
    COLLECTION_END = 1
    SCOPE_CREATE = 3
    SCOPE_DROP = 4
    COLLECTION_MODIFY = 5


class TapOpaque(IntEnum):
    """The commands of TAP_OPAQUE. Source: ep-engine command_ids.h; 4 meant another thing in 1.8."""

    ENABLE_AUTO_NACK = 0
    INITIAL_VBUCKET_STREAM = 1
    ENABLE_CHECKPOINT_SYNC = 2
    OPEN_CHECKPOINT = 3
    COMPLETE_VB_FILTER_CHANGE = 4
    STOP_ONLINEUPDATE = 5
    REVERT_ONLINEUPDATE = 6
    CLOSE_TAP_STREAM = 7
    CLOSE_BACKFILL = 8


class VbucketState(IntEnum):
    """States of a vbucket. Source: BinaryProtocol.md, "Set VBucket"."""

    ACTIVE = 1
    REPLICA = 2
    PENDING = 3
    DEAD = 4


MAX_SEQNO = 2**64 - 1
"""As an end of a stream: the stream never ends."""

LONGEST_RELATIVE = 30 * 24 * 60 * 60
"""The greatest expiry in requests that counts seconds from now; a greater one is Unix time."""

MAX_KEY = 250
"""Bytes of a key."""

MAX_VALUE = 20 * 1024 * 1024
"""Bytes of a value."""

MAX_FRAME = 30 * 1024 * 1024
"""Bytes of a frame that a peer may send; a longer one ends the connection before it is read."""
