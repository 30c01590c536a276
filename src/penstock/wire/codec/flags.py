"""Sets of bits in the fields of messages.

Sources: kv_engine docs/BinaryProtocol.md and docs/dcp, memcached headers.
"""

from __future__ import annotations

from enum import IntFlag


class Datatype(IntFlag):
    """Encodings and parts of a value. Source: BinaryProtocol.md, "Data types"."""

    RAW = 0
    JSON = 0x01
    SNAPPY = 0x02
    XATTR = 0x04


class WithMetaFlag(IntFlag):
    """Options of SET_WITH_META, ADD_WITH_META and DEL_WITH_META. Source: kv_engine docs/BinaryProtocol.md."""

    FORCE_WITH_META = 0x01
    FORCE_ACCEPT = 0x02
    REGENERATE_CAS = 0x04
    SKIP_CONFLICT_RESOLUTION = 0x08
    IS_EXPIRATION = 0x10


class PathFlag(IntFlag):
    """Flags of one path in a sub-document command. Source: memcached docs, SubDocument API."""

    MKDIR_P = 0x01
    XATTR = 0x04
    EXPAND_MACROS = 0x10
    BINARY = 0x20


class DocFlag(IntFlag):
    """Flags of the document in a sub-document command. Source: memcached docs, SubDocument API."""

    MKDOC = 0x01
    ADD = 0x02
    ACCESS_DELETED = 0x04
    CREATE_AS_DELETED = 0x08
    REVIVE = 0x10
    REPLICA_READ = 0x20


class OpenFlag(IntFlag):
    """Flags of DCP OPEN. Source: docs/dcp, commands/open-connection.md."""

    PRODUCER = 0x001
    NOTIFIER = 0x002
    INCLUDE_XATTRS = 0x004
    NO_VALUE = 0x008
    INCLUDE_DELETE_TIMES = 0x020
    NO_VALUE_WITH_UNDERLYING_DATATYPE = 0x040
    INCLUDE_DELETED_USER_XATTRS = 0x100
    SKIP_DELETES_IN_INITIAL_BACKFILL = 0x200


class StreamFlag(IntFlag):
    """Flags of DCP STREAM_REQ. Source: docs/dcp, commands/stream-request.md."""

    TAKEOVER = 0x001
    DISK_ONLY = 0x002
    TO_LATEST = 0x004
    ACTIVE_VB_ONLY = 0x010
    STRICT_VBUUID = 0x020
    FROM_LATEST = 0x040
    IGNORE_PURGED_TOMBSTONES = 0x080
    CACHE_TRANSFER = 0x100


class SnapshotFlag(IntFlag):
    """Flags of SNAPSHOT_MARKER. Source: docs/dcp, commands/snapshot-marker.md."""

    MEMORY = 0x01
    DISK = 0x02
    CHECKPOINT = 0x04
    ACK = 0x08
    HISTORY = 0x10
    MAY_CONTAIN_DUPLICATES = 0x20


class OsoFlag(IntFlag):
    """Flags of OSO_SNAPSHOT. Source: docs/dcp, commands/oso_snapshot.md."""

    START = 0x01
    END = 0x02


class TapConnectFlag(IntFlag):
    """Flags of TAP_CONNECT; the data of some of them stand in the value, lowest flag first. Source: TAP, "Flags"."""

    BACKFILL = 0x001
    DUMP = 0x002
    LIST_VBUCKETS = 0x004
    TAKEOVER_VBUCKETS = 0x008
    SUPPORT_ACK = 0x010
    REQUEST_KEYS_ONLY = 0x020
    CHECKPOINT = 0x040
    REGISTERED_CLIENT = 0x080
    FIX_FLAG_BYTEORDER = 0x100


class TapFlag(IntFlag):
    """Flags of a TAP message. Source: memcached protocol_binary.h, TAP_FLAG_*."""

    ACK = 0x0001
    NO_VALUE = 0x0002
    NETWORK_BYTE_ORDER = 0x0004
