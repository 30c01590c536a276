"""The numbers of the protocol family. Sources: kv_engine docs/BinaryProtocol.md and docs/dcp, memcached headers."""

from __future__ import annotations

from enum import IntEnum, IntFlag, StrEnum


class Dialect(StrEnum):
    """The protocols of change streams. Key-value commands are the same beside each of them."""

    TAP = "tap"
    UPR_DRAFT = "upr-draft"
    UPR = "upr"
    DCP = "dcp"


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
    INCREMENT = 0x05
    DECREMENT = 0x06
    QUIT = 0x07
    FLUSH = 0x08
    GETQ = 0x09
    NOOP = 0x0A
    VERSION = 0x0B
    GETK = 0x0C
    GETKQ = 0x0D
    APPEND = 0x0E
    PREPEND = 0x0F
    STAT = 0x10
    SETQ = 0x11
    ADDQ = 0x12
    REPLACEQ = 0x13
    DELETEQ = 0x14
    INCREMENTQ = 0x15
    DECREMENTQ = 0x16
    QUITQ = 0x17
    FLUSHQ = 0x18
    APPENDQ = 0x19
    PREPENDQ = 0x1A
    VERBOSITY = 0x1B
    TOUCH = 0x1C
    GAT = 0x1D
    GATQ = 0x1E
    HELLO = 0x1F
    SASL_LIST_MECHS = 0x20
    SASL_AUTH = 0x21
    SASL_STEP = 0x22
    SET_VBUCKET = 0x3D
    GET_VBUCKET = 0x3E
    DEL_VBUCKET = 0x3F
    TAP_CONNECT = 0x40
    TAP_MUTATION = 0x41
    TAP_DELETE = 0x42
    TAP_FLUSH = 0x43
    TAP_OPAQUE = 0x44
    TAP_VBUCKET_SET = 0x45
    TAP_CHECKPOINT_START = 0x46
    TAP_CHECKPOINT_END = 0x47
    GET_ALL_VB_SEQNOS = 0x48
    DCP_OPEN = 0x50
    DCP_ADD_STREAM = 0x51
    DCP_CLOSE_STREAM = 0x52
    DCP_STREAM_REQ = 0x53
    DCP_GET_FAILOVER_LOG = 0x54
    DCP_STREAM_END = 0x55
    DCP_SNAPSHOT_MARKER = 0x56
    DCP_MUTATION = 0x57
    DCP_DELETION = 0x58
    DCP_EXPIRATION = 0x59
    DCP_FLUSH = 0x5A
    DCP_SET_VBUCKET_STATE = 0x5B
    DCP_NOOP = 0x5C
    DCP_BUFFER_ACK = 0x5D
    DCP_CONTROL = 0x5E
    DCP_SYSTEM_EVENT = 0x5F
    DCP_PREPARE = 0x60
    DCP_SEQNO_ACKNOWLEDGED = 0x61
    DCP_COMMIT = 0x62
    DCP_ABORT = 0x63
    DCP_SEQNO_ADVANCED = 0x64
    DCP_OSO_SNAPSHOT = 0x65
    DCP_CACHE_TRANSFER = 0x66
    DCP_CACHE_TRANSFER_END = 0x67
    STOP_PERSISTENCE = 0x80
    START_PERSISTENCE = 0x81
    SET_PARAM = 0x82
    GET_REPLICA = 0x83
    LIST_BUCKETS = 0x87
    SELECT_BUCKET = 0x89
    OBSERVE_SEQNO = 0x91
    OBSERVE = 0x92
    EVICT_KEY = 0x93
    GET_LOCKED = 0x94
    UNLOCK = 0x95
    GET_FAILOVER_LOG = 0x96
    LAST_CLOSED_CHECKPOINT = 0x97
    DEREGISTER_TAP_CLIENT = 0x9E
    RESET_REPLICATION_CHAIN = 0x9F
    GET_META = 0xA0
    GETQ_META = 0xA1
    SET_WITH_META = 0xA2
    SETQ_WITH_META = 0xA3
    ADD_WITH_META = 0xA4
    ADDQ_WITH_META = 0xA5
    DEL_WITH_META = 0xA8
    DELQ_WITH_META = 0xA9
    CREATE_CHECKPOINT = 0xAA
    CHANGE_VB_FILTER = 0xB0
    CHECKPOINT_PERSISTENCE = 0xB1
    COMPACT_DB = 0xB3
    GET_CLUSTER_CONFIG = 0xB5
    GET_RANDOM_KEY = 0xB6
    SEQNO_PERSISTENCE = 0xB7
    GET_KEYS = 0xB8
    COLLECTIONS_SET_MANIFEST = 0xB9
    COLLECTIONS_GET_MANIFEST = 0xBA
    COLLECTIONS_GET_ID = 0xBB
    COLLECTIONS_GET_SCOPE_ID = 0xBC
    SUBDOC_GET = 0xC5
    SUBDOC_EXISTS = 0xC6
    SUBDOC_DICT_ADD = 0xC7
    SUBDOC_DICT_UPSERT = 0xC8
    SUBDOC_DELETE = 0xC9
    SUBDOC_REPLACE = 0xCA
    SUBDOC_ARRAY_PUSH_LAST = 0xCB
    SUBDOC_ARRAY_PUSH_FIRST = 0xCC
    SUBDOC_ARRAY_INSERT = 0xCD
    SUBDOC_ARRAY_ADD_UNIQUE = 0xCE
    SUBDOC_COUNTER = 0xCF
    SUBDOC_MULTI_LOOKUP = 0xD0
    SUBDOC_MULTI_MUTATION = 0xD1
    SUBDOC_GET_COUNT = 0xD2
    SUBDOC_REPLACE_BODY_WITH_XATTR = 0xD3
    CLOSE_PRODUCER = 0xF0
    GET_ERROR_MAP = 0xFE


DCP_OPCODES = range(0x50, 0x68)
"""The opcodes of change streams, which mean other things in UPR."""

TAP_OPCODES = range(0x40, 0x48)

QUIET_OPCODES = frozenset(
    (
        *(Opcode.GETQ, Opcode.GETKQ, Opcode.GATQ, Opcode.GETQ_META, Opcode.QUITQ, Opcode.FLUSHQ),
        *(Opcode.SETQ, Opcode.ADDQ, Opcode.REPLACEQ, Opcode.DELETEQ, Opcode.APPENDQ, Opcode.PREPENDQ),
        *(Opcode.INCREMENTQ, Opcode.DECREMENTQ),
        *(Opcode.SETQ_WITH_META, Opcode.ADDQ_WITH_META, Opcode.DELQ_WITH_META),
    )
)
"""Commands that are not answered where they succeed; those that read, where they find nothing."""


class UprOpcode(IntEnum):
    """The change-stream opcodes of UPR as it was first written down. Source: UPR transport specification."""

    UPR_STREAM_REQ = 0x50
    UPR_GET_FAILOVER_LOG = 0x51
    UPR_STREAM_START = 0x52
    UPR_STREAM_END = 0x53
    UPR_SNAPSHOT_START = 0x54
    UPR_SNAPSHOT_END = 0x55
    UPR_MUTATION = 0x56
    UPR_DELETION = 0x57
    UPR_EXPIRATION = 0x58
    UPR_FLUSH = 0x59
    UPR_SET_VBUCKET_STATE = 0x5A


class DraftCode(IntEnum):
    """The messages of the UPR draft: the opcode in the high byte, in the low one the kind, which stands in byte 5.

    Source: UPR protocol draft, "Messages" and "Streams". DRAFT_MALFORMED is this project's: the draft has no status
    for a request that cannot be understood.
    """

    DRAFT_NO_REQUEST = 0x0100
    DRAFT_STREAM_REQ = 0x0101
    DRAFT_GET_FAILOVER_LOG = 0x0102
    DRAFT_OK = 0x0201
    DRAFT_NOT_MY_VBUCKET = 0x0202
    DRAFT_ROLLBACK = 0x0203
    DRAFT_MALFORMED = 0x0204
    DRAFT_STREAM_START = 0x0300
    DRAFT_SNAPSHOT_START = 0x0401
    DRAFT_SNAPSHOT_END = 0x0402
    DRAFT_MUTATION = 0x0403
    DRAFT_DELETION = 0x0404
    DRAFT_EXPIRATION = 0x0405
    DRAFT_FLUSH = 0x0406
    DRAFT_STREAM_END_OK = 0x0501
    DRAFT_STREAM_END_STATE_CHANGED = 0x0502


class Status(IntEnum):
    """Bytes 6-7 of a response. Source: BinaryProtocol.md, "Response status"; memcached mcbp/protocol/status.h."""

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
    DCP_STREAM_NOT_FOUND = 0x0A
    OPAQUE_NO_MATCH = 0x0B
    WOULD_THROTTLE = 0x0C
    CONFIG_ONLY = 0x0D
    NOT_LOCKED = 0x0E
    CAS_VALUE_INVALID = 0x0F
    AUTH_STALE = 0x1F
    AUTH_ERROR = 0x20
    AUTH_CONTINUE = 0x21
    ERANGE = 0x22
    ROLLBACK = 0x23
    EACCESS = 0x24
    NOT_INITIALIZED = 0x25
    ENCRYPTION_KEY_NOT_AVAILABLE = 0x26
    CHECKSUM_MISMATCH = 0x27
    EXPIRY_OVERFLOW = 0x28
    LOCK_EXPIRY_OVERFLOW = 0x29
    RATE_LIMITED_NETWORK_INGRESS = 0x30
    RATE_LIMITED_NETWORK_EGRESS = 0x31
    RATE_LIMITED_MAX_CONNECTIONS = 0x32
    RATE_LIMITED_MAX_COMMANDS = 0x33
    BUCKET_SIZE_LIMIT_EXCEEDED = 0x35
    BUCKET_RESIDENT_RATIO_TOO_LOW = 0x36
    BUCKET_DATA_SIZE_TOO_BIG = 0x37
    BUCKET_DISK_SPACE_TOO_LOW = 0x38
    BUCKET_PAUSED = 0x50
    CANCELLED = 0x51
    UNKNOWN_FRAME_INFO = 0x80
    UNKNOWN_COMMAND = 0x81
    ENOMEM = 0x82
    NOT_SUPPORTED = 0x83
    EINTERNAL = 0x84
    EBUSY = 0x85
    ETMPFAIL = 0x86
    XATTR_EINVAL = 0x87
    UNKNOWN_COLLECTION = 0x88
    CANNOT_APPLY_COLLECTIONS_MANIFEST = 0x8A
    UNKNOWN_SCOPE = 0x8C
    DCP_STREAMID_INVALID = 0x8D
    DURABILITY_INVALID_LEVEL = 0xA0
    DURABILITY_IMPOSSIBLE = 0xA1
    SYNC_WRITE_IN_PROGRESS = 0xA2
    SYNC_WRITE_AMBIGUOUS = 0xA3
    SYNC_WRITE_RECOMMIT_IN_PROGRESS = 0xA4
    RANGE_SCAN_CANCELLED = 0xA5
    RANGE_SCAN_MORE = 0xA6
    RANGE_SCAN_COMPLETE = 0xA7
    VBUUID_NOT_EQUAL = 0xA8
    SUBDOC_PATH_ENOENT = 0xC0
    SUBDOC_PATH_MISMATCH = 0xC1
    SUBDOC_PATH_EINVAL = 0xC2
    SUBDOC_PATH_E2BIG = 0xC3
    SUBDOC_DOC_E2DEEP = 0xC4
    SUBDOC_VALUE_CANTINSERT = 0xC5
    SUBDOC_DOC_NOTJSON = 0xC6
    SUBDOC_NUM_ERANGE = 0xC7
    SUBDOC_DELTA_EINVAL = 0xC8
    SUBDOC_PATH_EEXISTS = 0xC9
    SUBDOC_VALUE_ETOODEEP = 0xCA
    SUBDOC_INVALID_COMBO = 0xCB
    SUBDOC_MULTI_PATH_FAILURE = 0xCC
    SUBDOC_SUCCESS_DELETED = 0xCD
    SUBDOC_XATTR_INVALID_FLAG_COMBO = 0xCE
    SUBDOC_XATTR_INVALID_KEY_COMBO = 0xCF
    SUBDOC_XATTR_UNKNOWN_MACRO = 0xD0
    SUBDOC_XATTR_UNKNOWN_VATTR = 0xD1
    SUBDOC_XATTR_CANT_MODIFY_VATTR = 0xD2
    SUBDOC_MULTI_PATH_FAILURE_DELETED = 0xD3
    SUBDOC_INVALID_XATTR_ORDER = 0xD4
    SUBDOC_XATTR_UNKNOWN_VATTR_MACRO = 0xD5
    SUBDOC_CAN_ONLY_REVIVE_DELETED_DOCUMENTS = 0xD6
    SUBDOC_DELETED_DOCUMENT_CANT_HAVE_VALUE = 0xD7
    SUBDOC_NOT_BINARY = 0xD8


class Datatype(IntFlag):
    """What a value is made of. Source: BinaryProtocol.md, "Data types"."""

    RAW = 0
    JSON = 0x01
    SNAPPY = 0x02
    XATTR = 0x04


class KeyState(IntEnum):
    """How far a document has got, in OBSERVE. Source: memcached protocol_binary.h, protocol_binary_observe_key_state.

    NOT_FOUND is also what was deleted, once that is on disk.
    """

    NOT_PERSISTED = 0x00
    PERSISTED = 0x01
    NOT_FOUND = 0x80
    LOGICALLY_DELETED = 0x81


class ParamType(IntEnum):
    """What a parameter of SET_PARAM belongs to. Source: kv_engine, memcacheConstants.py, ENGINE_PARAM_*.

    REPLICATION was TAP in ep-engine 2.x and 3.x.
    """

    FLUSH = 1
    REPLICATION = 2
    CHECKPOINT = 3
    DCP = 4
    VBUCKET = 5
    CONFIG = 6


class Feature(IntEnum):
    """What HELLO negotiates. Source: memcached mcbp/protocol/feature.h. The node grants those that it keeps."""

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


class WithMetaFlag(IntFlag):
    """Options of SET_WITH_META, ADD_WITH_META and DEL_WITH_META. Source: kv_engine docs/BinaryProtocol.md."""

    FORCE_WITH_META = 0x01
    FORCE_ACCEPT = 0x02
    REGENERATE_CAS = 0x04
    SKIP_CONFLICT_RESOLUTION = 0x08
    IS_EXPIRATION = 0x10


class ServerOpcode(IntEnum):
    """What a server asks of its own accord (magic 0x82). Source: memcached mcbp/protocol/opcode.h, ServerOpcode."""

    CLUSTERMAP_CHANGE_NOTIFICATION = 0x01
    AUTHENTICATE = 0x02
    ACTIVE_EXTERNAL_USERS = 0x03
    GET_AUTHORIZATION = 0x04


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
    """How far a write must have got before it is answered. Source: BinaryProtocol.md, "Durability requirement"."""

    MAJORITY = 1
    MAJORITY_AND_PERSIST_ON_MASTER = 2
    PERSIST_TO_MAJORITY = 3


class PathFlag(IntFlag):
    """Of one path in a sub-document command. Source: memcached docs, SubDocument API."""

    MKDIR_P = 0x01
    XATTR = 0x04
    EXPAND_MACROS = 0x10
    BINARY = 0x20


class DocFlag(IntFlag):
    """Of the document in a sub-document command. Source: memcached docs, SubDocument API."""

    MKDOC = 0x01
    ADD = 0x02
    ACCESS_DELETED = 0x04
    CREATE_AS_DELETED = 0x08
    REVIVE = 0x10
    REPLICA_READ = 0x20


class OpenFlag(IntFlag):
    """DCP OPEN. Source: docs/dcp, commands/open-connection.md."""

    PRODUCER = 0x001
    NOTIFIER = 0x002
    INCLUDE_XATTRS = 0x004
    NO_VALUE = 0x008
    INCLUDE_DELETE_TIMES = 0x020
    NO_VALUE_WITH_UNDERLYING_DATATYPE = 0x040
    INCLUDE_DELETED_USER_XATTRS = 0x100
    SKIP_DELETES_IN_INITIAL_BACKFILL = 0x200


class StreamFlag(IntFlag):
    """DCP STREAM_REQ. Source: docs/dcp, commands/stream-request.md."""

    TAKEOVER = 0x001
    DISK_ONLY = 0x002
    TO_LATEST = 0x004
    ACTIVE_VB_ONLY = 0x010
    STRICT_VBUUID = 0x020
    FROM_LATEST = 0x040
    IGNORE_PURGED_TOMBSTONES = 0x080
    CACHE_TRANSFER = 0x100


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


class UprEndReason(IntEnum):
    """STREAM_END of UPR. Source: UPR transport specification, "Stream End"."""

    OK = 0
    STATE_CHANGED = 1


class OsoFlag(IntFlag):
    """OSO_SNAPSHOT. Source: docs/dcp, commands/oso_snapshot.md."""

    START = 0x01
    END = 0x02


class SystemEventKind(IntEnum):
    """SYSTEM_EVENT. Source: docs/dcp, commands/system_event.md."""

    COLLECTION_BEGIN = 0
    COLLECTION_END = 1
    SCOPE_CREATE = 3
    SCOPE_DROP = 4
    COLLECTION_MODIFY = 5


class TapConnectFlag(IntFlag):
    """TAP_CONNECT; the data that some of them bring stands in the value, lowest flag first. Source: TAP, "Flags"."""

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
    """What a TAP message says of itself. Source: memcached protocol_binary.h, TAP_FLAG_*."""

    ACK = 0x0001
    NO_VALUE = 0x0002
    NETWORK_BYTE_ORDER = 0x0004


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
