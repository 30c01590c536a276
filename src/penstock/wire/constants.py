"""The numbers of the protocol family. Sources: kv_engine docs/BinaryProtocol.md and docs/dcp, memcached headers."""

from __future__ import annotations

from enum import IntEnum, IntFlag


class Magic(IntEnum):
    """First byte of every frame. Source: BinaryProtocol.md, "Packet structure"."""

    ALT_REQUEST = 0x08
    ALT_RESPONSE = 0x18
    REQUEST = 0x80
    RESPONSE = 0x81
    SERVER_REQUEST = 0x82
    SERVER_RESPONSE = 0x83


class Opcode(IntEnum):
    """Second byte: key-value commands below 0x50 and from 0x80 on, change streams from 0x50 to 0x67."""

    GET = 0x00
    SET = 0x01
    ADD = 0x02
    REPLACE = 0x03
    DELETE = 0x04
    QUIT = 0x07
    GETQ = 0x09
    NOOP = 0x0A
    VERSION = 0x0B
    GETK = 0x0C
    GETKQ = 0x0D
    STAT = 0x10
    SETQ = 0x11
    ADDQ = 0x12
    REPLACEQ = 0x13
    DELETEQ = 0x14
    QUITQ = 0x17
    HELLO = 0x1F
    GET_ALL_VB_SEQNOS = 0x48
    DCP_OPEN = 0x50
    DCP_CLOSE_STREAM = 0x52
    DCP_STREAM_REQ = 0x53
    DCP_GET_FAILOVER_LOG = 0x54
    DCP_STREAM_END = 0x55
    DCP_SNAPSHOT_MARKER = 0x56
    DCP_MUTATION = 0x57
    DCP_DELETION = 0x58
    DCP_EXPIRATION = 0x59
    DCP_NOOP = 0x5C
    DCP_BUFFER_ACK = 0x5D
    DCP_CONTROL = 0x5E
    SELECT_BUCKET = 0x89
    OBSERVE_SEQNO = 0x91
    GET_FAILOVER_LOG = 0x96
    GET_CLUSTER_CONFIG = 0xB5
    SEQNO_PERSISTENCE = 0xB7


class Status(IntEnum):
    """Bytes 6-7 of a response. Source: BinaryProtocol.md, "Response status"."""

    SUCCESS = 0x00
    KEY_ENOENT = 0x01
    KEY_EEXISTS = 0x02
    E2BIG = 0x03
    EINVAL = 0x04
    NOT_STORED = 0x05
    DELTA_BADVAL = 0x06
    NOT_MY_VBUCKET = 0x07
    NO_BUCKET = 0x08
    LOCKED = 0x09
    AUTH_ERROR = 0x20
    AUTH_CONTINUE = 0x21
    ERANGE = 0x22
    ROLLBACK = 0x23
    EACCESS = 0x24
    NOT_INITIALIZED = 0x25
    UNKNOWN_FRAME_INFO = 0x80
    UNKNOWN_COMMAND = 0x81
    ENOMEM = 0x82
    NOT_SUPPORTED = 0x83
    EINTERNAL = 0x84
    EBUSY = 0x85
    ETMPFAIL = 0x86


class Datatype(IntFlag):
    """What a value is made of. Source: BinaryProtocol.md, "Data types"."""

    RAW = 0
    JSON = 0x01
    SNAPPY = 0x02
    XATTR = 0x04


class Feature(IntEnum):
    """What HELLO negotiates. Only what this version grants is listed."""

    MUTATION_SEQNO = 0x04
    SELECT_BUCKET = 0x08


class OpenFlag(IntFlag):
    """DCP OPEN. Source: docs/dcp, commands/open-connection.md."""

    PRODUCER = 0x001
    NOTIFIER = 0x002
    INCLUDE_XATTRS = 0x004
    NO_VALUE = 0x008
    INCLUDE_DELETE_TIMES = 0x020


class StreamFlag(IntFlag):
    """DCP STREAM_REQ. Source: docs/dcp, commands/stream-request.md."""

    TAKEOVER = 0x001
    DISK_ONLY = 0x002
    TO_LATEST = 0x004
    ACTIVE_VB_ONLY = 0x010
    STRICT_VBUUID = 0x020
    FROM_LATEST = 0x040
    IGNORE_PURGED_TOMBSTONES = 0x080


class SnapshotFlag(IntFlag):
    """SNAPSHOT_MARKER. Source: docs/dcp, commands/snapshot-marker.md."""

    MEMORY = 0x01
    DISK = 0x02
    CHECKPOINT = 0x04
    ACK = 0x08
    HISTORY = 0x10
    MAY_CONTAIN_DUPLICATES = 0x20


class StreamEndReason(IntEnum):
    """STREAM_END. Source: docs/dcp, commands/stream-end.md."""

    OK = 0
    CLOSED = 1
    STATE_CHANGED = 2
    DISCONNECTED = 3
    TOO_SLOW = 4
    BACKFILL_FAIL = 5
    ROLLBACK = 6
    FILTER_EMPTY = 7
    LOST_PRIVILEGES = 8


class VbucketState(IntEnum):
    """Source: BinaryProtocol.md, "Set VBucket"."""

    ACTIVE = 1
    REPLICA = 2
    PENDING = 3
    DEAD = 4


MAX_SEQNO = 2**64 - 1
"""As an end of a stream: never ends."""

MAX_KEY = 250
"""Bytes of a key."""

MAX_VALUE = 20 * 1024 * 1024
"""Bytes of a value."""

MAX_FRAME = 30 * 1024 * 1024
"""Bytes of a frame that a peer may send; a longer one ends the connection before it is read."""
