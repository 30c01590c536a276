"""Which privileges each command needs: one table for a dialect, with a row for every command.

None: also before login; of these none says which buckets there are. An empty set: a login, but no privilege in
particular; LIST_BUCKETS and SELECT_BUCKET then go by `User.sees`. A privilege about documents is asked for with the
collection of the request's key; for a command without a key, such as DCP_OPEN, it is enough to have it somewhere in the
bucket (`User.may_somewhere`), and what is in the request is held to it.

Source: memcached daemon/mcbp_privileges.cc, with fewer privileges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.node.auth.roles import Privilege
from penstock.wire.codec.flags import OpenFlag
from penstock.wire.codec.layout import Code
from penstock.wire.codec.opcodes import DraftCode, Opcode, ServerOpcode, UprOpcode

__all__ = ["BEFORE_LOGIN", "Needs", "needed", "needed_to_open"]

Needs = frozenset[Privilege] | None

_LOGIN: frozenset[Privilege] = frozenset()
_READ = frozenset((Privilege.READ,))
_WRITE = frozenset((Privilege.WRITE,))
_READ_WRITE = _READ | _WRITE
_META_READ = frozenset((Privilege.META_READ,))
_META_WRITE = frozenset((Privilege.META_WRITE,))
_STREAM = frozenset((Privilege.STREAM,))
_REPLICATE = frozenset((Privilege.REPLICATE,))
_BUCKETS = frozenset((Privilege.MANAGE_BUCKETS,))
_SETTINGS = frozenset((Privilege.SETTINGS,))

_ROWS: tuple[tuple[Needs, str], ...] = (
    (None, "NOOP VERSION QUIT QUITQ HELLO SASL_LIST_MECHS SASL_AUTH SASL_STEP GET_ERROR_MAP"),
    (_LOGIN, "LIST_BUCKETS SELECT_BUCKET GET_CLUSTER_CONFIG COLLECTIONS_GET_MANIFEST"),
    (_LOGIN, "COLLECTIONS_GET_ID COLLECTIONS_GET_SCOPE_ID VERBOSITY"),
    (_READ, "GET GETQ GETK GETKQ GET_REPLICA GET_META GETQ_META GET_RANDOM_KEY GET_KEYS OBSERVE"),
    (_READ, "SUBDOC_GET SUBDOC_EXISTS SUBDOC_GET_COUNT SUBDOC_MULTI_LOOKUP"),
    (_WRITE, "SET SETQ ADD ADDQ REPLACE REPLACEQ APPEND APPENDQ PREPEND PREPENDQ DELETE DELETEQ TOUCH UNLOCK"),
    (_WRITE, "SUBDOC_DICT_ADD SUBDOC_DICT_UPSERT SUBDOC_DELETE SUBDOC_REPLACE SUBDOC_ARRAY_PUSH_LAST"),
    (_WRITE, "SUBDOC_ARRAY_PUSH_FIRST SUBDOC_ARRAY_INSERT SUBDOC_ARRAY_ADD_UNIQUE SUBDOC_MULTI_MUTATION"),
    (_WRITE, "SUBDOC_REPLACE_BODY_WITH_XATTR"),
    # These change a document and say what it was, or is.
    (_READ_WRITE, "INCREMENT INCREMENTQ DECREMENT DECREMENTQ GAT GATQ GET_LOCKED SUBDOC_COUNTER"),
    (_META_WRITE, "SET_WITH_META SETQ_WITH_META ADD_WITH_META ADDQ_WITH_META DEL_WITH_META DELQ_WITH_META"),
    (_META_READ, "GET_ALL_VB_SEQNOS GET_FAILOVER_LOG OBSERVE_SEQNO SEQNO_PERSISTENCE GET_VBUCKET"),
    (_META_READ, "LAST_CLOSED_CHECKPOINT CHECKPOINT_PERSISTENCE"),
    (frozenset((Privilege.SIMPLE_STATS,)), "STAT"),
    (frozenset((Privilege.MANAGE_COLLECTIONS,)), "COLLECTIONS_SET_MANIFEST"),
    (_BUCKETS, "FLUSH FLUSHQ COMPACT_DB STOP_PERSISTENCE START_PERSISTENCE SET_PARAM EVICT_KEY"),
    (_SETTINGS, "SET_VBUCKET DEL_VBUCKET CREATE_CHECKPOINT CLOSE_PRODUCER"),
    (_SETTINGS, "DEREGISTER_TAP_CLIENT RESET_REPLICATION_CHAIN CHANGE_VB_FILTER"),
    (_STREAM, "TAP_CONNECT DCP_OPEN DCP_STREAM_REQ DCP_CLOSE_STREAM DCP_GET_FAILOVER_LOG DCP_CONTROL"),
    (_STREAM, "DCP_BUFFER_ACK DCP_NOOP DCP_CACHE_TRANSFER DCP_CACHE_TRANSFER_END"),
    # What is sent to a node that takes changes.
    (_REPLICATE, "TAP_MUTATION TAP_DELETE TAP_FLUSH TAP_OPAQUE TAP_VBUCKET_SET"),
    (_REPLICATE, "TAP_CHECKPOINT_START TAP_CHECKPOINT_END"),
    (_REPLICATE, "DCP_ADD_STREAM DCP_STREAM_END DCP_SNAPSHOT_MARKER DCP_MUTATION DCP_DELETION DCP_EXPIRATION"),
    (_REPLICATE, "DCP_FLUSH DCP_SET_VBUCKET_STATE DCP_SYSTEM_EVENT DCP_PREPARE DCP_SEQNO_ACKNOWLEDGED"),
    (_REPLICATE, "DCP_COMMIT DCP_ABORT DCP_SEQNO_ADVANCED DCP_OSO_SNAPSHOT"),
)

_UPR_ROWS: tuple[tuple[Needs, str], ...] = (
    (_STREAM, "UPR_STREAM_REQ UPR_GET_FAILOVER_LOG"),
    (_REPLICATE, "UPR_STREAM_START UPR_STREAM_END UPR_SNAPSHOT_START UPR_SNAPSHOT_END UPR_MUTATION"),
    (_REPLICATE, "UPR_DELETION UPR_EXPIRATION UPR_FLUSH UPR_SET_VBUCKET_STATE"),
)


def _rows(rows: tuple[tuple[Needs, str], ...]) -> Iterator[tuple[str, Needs]]:
    for needs, names in rows:
        for name in names.split():
            yield name, needs


NEEDED: Mapping[Opcode, Needs] = {Opcode[name]: needs for name, needs in _rows(_ROWS)}
NEEDED_UPR: Mapping[UprOpcode, Needs] = {UprOpcode[name]: needs for name, needs in _rows(_UPR_ROWS)}

BEFORE_LOGIN = frozenset(opcode for opcode, needs in NEEDED.items() if needs is None)


def needed(code: Code) -> Needs:
    """Return what a command needs, by the enum that its dialect has for it: UPR gives DCP's opcodes other meanings.

    What a node cannot be asked at all needs a login, so that before it every other command is refused alike.
    """
    if isinstance(code, UprOpcode):
        return NEEDED_UPR[code]
    if isinstance(code, DraftCode):
        return _STREAM
    if isinstance(code, ServerOpcode):
        return _LOGIN
    return NEEDED[code]


def needed_to_open(flags: int) -> Privilege:
    """Return what DCP_OPEN needs, by its flags: who is not a producer here is sent changes, and stores them."""
    if flags & (OpenFlag.PRODUCER | OpenFlag.NOTIFIER):
        return Privilege.STREAM
    return Privilege.REPLICATE
