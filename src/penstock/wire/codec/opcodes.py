"""Magics and opcodes, by protocol.

Sources: kv_engine docs/BinaryProtocol.md and docs/dcp, memcached headers.
"""

from __future__ import annotations

from enum import IntEnum


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
    SET_CLUSTER_CONFIG = 0xB4
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
"""The opcodes of change streams, which have other meanings in UPR."""


TAP_OPCODES = range(0x40, 0x48)

QUIET_OPCODES: frozenset[int] = frozenset(
    map(
        int,
        (
            *(Opcode.GETQ, Opcode.GETKQ, Opcode.GATQ, Opcode.GETQ_META, Opcode.QUITQ, Opcode.FLUSHQ),
            *(Opcode.SETQ, Opcode.ADDQ, Opcode.REPLACEQ, Opcode.DELETEQ, Opcode.APPENDQ, Opcode.PREPENDQ),
            *(Opcode.INCREMENTQ, Opcode.DECREMENTQ),
            *(Opcode.SETQ_WITH_META, Opcode.ADDQ_WITH_META, Opcode.DELQ_WITH_META),
        ),
    )
)
"""Commands that are not answered if they succeed; those that read are not answered if they find nothing."""


class UprOpcode(IntEnum):
    """The change-stream opcodes of UPR in its first specification. Source: UPR transport specification."""

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
    """The messages of the UPR draft: the opcode in the high byte; in the low byte the kind, which stands in byte 5.

    Source: UPR protocol draft, "Messages" and "Streams". DRAFT_MALFORMED is Penstock's own: the draft has no status for
    a request that cannot be understood.
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


class ServerOpcode(IntEnum):
    """Requests of a server to its clients (magic 0x82). Source: memcached mcbp/protocol/opcode.h, ServerOpcode."""

    CLUSTERMAP_CHANGE_NOTIFICATION = 0x01
    AUTHENTICATE = 0x02
    ACTIVE_EXTERNAL_USERS = 0x03
    GET_AUTHORIZATION = 0x04
