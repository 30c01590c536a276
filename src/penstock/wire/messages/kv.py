"""The key-value commands and the commands about a whole connection or bucket.

Source: kv_engine docs/BinaryProtocol.md; HELLO: docs/protocol/hello.md; OBSERVE_SEQNO and SEQNO_PERSISTENCE:
their own pages. The quiet forms share the layout of the loud ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct, iter_unpack
from typing import NamedTuple

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.layout import MAYBE, PRESENT, Request, Response, message, u8, u16, u32, u64
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status

_READING = (
    *(Opcode.GET, Opcode.GETQ, Opcode.GETK, Opcode.GETKQ, Opcode.GAT, Opcode.GATQ, Opcode.GET_LOCKED),
    *(Opcode.GET_REPLICA, Opcode.GET_RANDOM_KEY),
)
_STORING = (
    *(Opcode.SET, Opcode.SETQ, Opcode.REPLACE, Opcode.REPLACEQ, Opcode.ADD, Opcode.ADDQ, Opcode.DELETE, Opcode.DELETEQ),
    *(Opcode.APPEND, Opcode.APPENDQ, Opcode.PREPEND, Opcode.PREPENDQ),
    *(Opcode.SET_WITH_META, Opcode.SETQ_WITH_META, Opcode.ADD_WITH_META, Opcode.ADDQ_WITH_META),
    *(Opcode.DEL_WITH_META, Opcode.DELQ_WITH_META),
)


@message(Opcode.GET, Opcode.GETQ, Opcode.GETK, Opcode.GETKQ, key=PRESENT)
class Get(Request):
    """Read a document. GETK answers with the key; the quiet forms say nothing of a miss."""


@message(Opcode.GET_REPLICA, key=PRESENT)
class GetReplica(Request):
    """Read a document from a vbucket that is a replica."""


@message(Opcode.GET_RANDOM_KEY, extras=(0, 4, 5))
class GetRandomKey(Request):
    """Read a document, whichever. Answered as GETK is."""

    collection_id: int | None = u32("of this collection; missing: of the default one", default=None)
    include_xattrs: int | None = u8("1: its extended attributes too, in front of the value", default=None)


@message(Opcode.GET_KEYS, key=PRESENT)
class GetKeys(Request):
    """The keys of a vbucket in their order. key: where to begin. Answered with the length, u16, and the key of each."""

    count: int | None = u32("how many at most; missing: 1000", default=None)


@message(Opcode.GAT, Opcode.GATQ, key=PRESENT)
class GetAndTouch(Request):
    """Read a document and give it another expiry. GATQ says nothing of a miss."""

    expiry: int = u32("as of Set")


@message(Opcode.TOUCH, key=PRESENT)
class Touch(Request):
    """Give a document another expiry."""

    expiry: int = u32("as of Set")


@message(Opcode.GET_LOCKED, key=PRESENT)
class GetLocked(Request):
    """Read a document and lock it: until then it changes only with the cas that is answered, and that ends the lock."""

    lock_time: int | None = u32("seconds; 0, above 30, or missing: 15", default=None)


@message(Opcode.UNLOCK, key=PRESENT, cas=PRESENT)
class Unlock(Request):
    """End the lock of GET_LOCKED with the cas that it gave."""


@message(*_READING, key=MAYBE, value=MAYBE, cas=MAYBE)
class GetReply(Response):
    """The document: its value, and with GETK its key. cas: 2^64-1 while it is locked, for all but who locks it."""

    flags: int = u32("the client's own 4 bytes", default=0)


@message(*_READING, key=MAYBE, value=MAYBE, cas=MAYBE)
class NoDocument(Response):
    """A GET's reply with a status other than SUCCESS. value: what the server has to say of it, as text or JSON."""

    def fault(self) -> str | None:
        return None if self.status else "extras of 0 bytes, expected 4 with status SUCCESS"


@message(Opcode.SET, Opcode.SETQ, Opcode.REPLACE, Opcode.REPLACEQ, key=PRESENT, value=MAYBE, cas=MAYBE)
class Set(Request):
    """Store a document; with a cas, only over that version. REPLACE stores only over a document."""

    flags: int = u32("the client's own 4 bytes, returned as they came", default=0)
    expiry: int = u32("0: never; up to 30 days: seconds from now; above: epoch seconds", default=0)


@message(Opcode.ADD, Opcode.ADDQ, key=PRESENT, value=MAYBE)
class Add(Set):
    """Store a document where there is none."""


@message(Opcode.DELETE, Opcode.DELETEQ, key=PRESENT, cas=MAYBE)
class Delete(Request):
    """Remove a document; with a cas, only that version."""


@message(Opcode.APPEND, Opcode.APPENDQ, Opcode.PREPEND, Opcode.PREPENDQ, key=PRESENT, value=MAYBE, cas=MAYBE)
class Append(Request):
    """Put something behind, or in front of, the value of a document; with a cas, only of that version."""


@message(*_STORING, cas=MAYBE, value=MAYBE)
class StoreReply(Response):
    """Stored or removed, as the status says; cas is the document's new one."""

    vbuuid: int | None = u64("branch of the history, with MUTATION_SEQNO only", default=None)
    seqno: int | None = u64("by_seqno of this change, with MUTATION_SEQNO only", default=None)


@message(Opcode.INCREMENT, Opcode.INCREMENTQ, Opcode.DECREMENT, Opcode.DECREMENTQ, key=PRESENT)
class Count(Request):
    """Add to the decimal number that a document's value is, or take away from it; where there is none, make one.

    Behind 2^64-1 comes 0; below 0 nothing does.
    """

    delta: int = u64("how much")
    initial: int = u64("the number of a new document", default=0)
    expiry: int = u32("as of Set, of a new document; 2^32-1: make none", default=0)


@message(Opcode.INCREMENT, Opcode.INCREMENTQ, Opcode.DECREMENT, Opcode.DECREMENTQ, cas=MAYBE, value=MAYBE)
class CountReply(StoreReply):
    """value: the number as it is now, u64, with status SUCCESS; cas is the document's new one."""


# Documents with their meta data: what keeps a bucket like another that is written to as well


@message(Opcode.GET_META, Opcode.GETQ_META, key=PRESENT)
class GetMeta(Request):
    """Ask for a document's meta data, or those of its tombstone. GETQ_META says nothing of a miss."""

    version: int | None = u8("1; 2: the datatype is wanted too", default=None)


@message(Opcode.GET_META, Opcode.GETQ_META, cas=MAYBE)
class MetaReply(Response):
    """A document's meta data; cas is in the header, 2^64-1 while the document is locked."""

    deleted: int = u32("1: this is a tombstone")
    flags: int = u32("the client's own 4 bytes")
    expiry: int = u32("epoch seconds, 0: never; of a tombstone when it was made")
    rev_seqno: int = u64("how many times the document changed")
    value_datatype: int | None = u8("a Datatype, with version 2", default=None)


@message(Opcode.GET_META, Opcode.GETQ_META, key=MAYBE, value=MAYBE, cas=MAYBE)
class NoMeta(NoDocument):
    """As NoDocument, of GET_META."""

    def fault(self) -> str | None:
        return None if self.status else "extras of 0 bytes, expected 20 or 21 with status SUCCESS"


_SETTING_META = (Opcode.SET_WITH_META, Opcode.SETQ_WITH_META, Opcode.ADD_WITH_META, Opcode.ADDQ_WITH_META)
_DELETING_META = (Opcode.DEL_WITH_META, Opcode.DELQ_WITH_META)


@message(*_SETTING_META, key=PRESENT, value=MAYBE, cas=MAYBE)
class SetWithMeta(Request):
    """Store a document with the meta data that it has elsewhere, unless the version here is the newer one.

    cas: in the header, as of Set, what the document here must have. ADD_WITH_META stores only where there is none.
    """

    flags: int = u32("the client's own 4 bytes")
    expiry: int = u32("epoch seconds, 0: never")
    rev_seqno: int = u64("how many times the document has changed")
    new_cas: int = u64("the document's")
    options: int | None = u32("a WithMetaFlag", default=None)


@message(*_SETTING_META, key=PRESENT, value=MAYBE, cas=MAYBE)
class SetWithNmeta(SetWithMeta):
    """As SetWithMeta, with extended meta data behind the value, which are passed over."""

    options: int = u32("a WithMetaFlag")
    nmeta: int = u16("bytes of extended meta data at the end of the value")


@message(*_SETTING_META, key=PRESENT, value=MAYBE, cas=MAYBE)
class OldSetWithNmeta(Request):
    """As SetWithMeta, with extended meta data behind the value and no options."""

    flags: int = u32("the client's own 4 bytes")
    expiry: int = u32("epoch seconds, 0: never")
    rev_seqno: int = u64("how many times the document has changed")
    new_cas: int = u64("the document's")
    nmeta: int = u16("bytes of extended meta data at the end of the value")


@message(*_DELETING_META, key=PRESENT, value=MAYBE, cas=MAYBE)
class DelWithMeta(Request):
    """Remove a document with the meta data that its deletion has elsewhere, unless the version here is the newer one.

    cas: in the header, as of Set. value: extended attributes (datatype XATTR), or empty.
    """

    flags: int = u32("the client's own 4 bytes")
    delete_time: int = u32("epoch seconds; 0: now")
    rev_seqno: int = u64("how many times the document has changed, this change included")
    new_cas: int = u64("the tombstone's")
    options: int | None = u32("a WithMetaFlag", default=None)


@message(*_DELETING_META, key=PRESENT, value=MAYBE, cas=MAYBE)
class DelWithNmeta(DelWithMeta):
    """As DelWithMeta, with extended meta data behind the value, which are passed over."""

    options: int = u32("a WithMetaFlag")
    nmeta: int = u16("bytes of extended meta data at the end of the value")


@message(*_DELETING_META, key=PRESENT, value=MAYBE, cas=MAYBE)
class OldDelWithNmeta(Request):
    """As DelWithMeta, with extended meta data behind the value and no options."""

    flags: int = u32("the client's own 4 bytes")
    delete_time: int = u32("epoch seconds; 0: now")
    rev_seqno: int = u64("how many times the document has changed, this change included")
    new_cas: int = u64("the tombstone's")
    nmeta: int = u16("bytes of extended meta data at the end of the value")


# Commands about a connection or a bucket


@message(Opcode.NOOP)
class Noop(Request):
    """Answered after everything before it: the barrier behind quiet commands."""


@message(Opcode.VERSION)
class Version(Request):
    """Answered with the version as text, `x.y.z`."""


@message(Opcode.QUIT, Opcode.QUITQ)
class Quit(Request):
    """Answered, unless quiet, and the connection closes."""


@message(Opcode.STAT, key=MAYBE, value=MAYBE)
class Stat(Request):
    """A group of statistics: one reply for each, key and value as text, then an empty one."""


@message(Opcode.HELLO, key=MAYBE, value=MAYBE)
class Hello(Request):
    """key: the agent's name; value: the features it wants, u16 each. Replaces what an earlier one switched on."""


@message(Opcode.SELECT_BUCKET, key=PRESENT)
class SelectBucket(Request):
    """key: the bucket's name."""


@message(Opcode.GET_CLUSTER_CONFIG)
class GetClusterConfig(Request):
    """Answered with the bucket's map of vbuckets to nodes, as JSON; with nothing if the asker's is as new."""

    epoch: int | None = u64("revEpoch of the map that the asker has", default=None)
    revision: int | None = u64("rev of that map", default=None)


@message(Opcode.SET_VBUCKET, value=MAYBE, cas=MAYBE)
class SetVbucket(Request):
    """Give the vbucket a state, and create it where it is not there. value: its topology, as JSON, or empty."""

    state: int = u8("a VbucketState")


@message(Opcode.SET_VBUCKET, cas=MAYBE)
class OldSetVbucket(Request):
    """As SetVbucket, in the form that releases before 6.5 took."""

    state: int = u32("a VbucketState")


@message(Opcode.SET_VBUCKET, cas=MAYBE)
class OldestSetVbucket(Request):
    """As SetVbucket, in the form of the first releases."""

    state: int = u32("a VbucketState", within="value")


@message(Opcode.GET_VBUCKET, cas=MAYBE)
class GetVbucket(Request):
    """Answered with the vbucket's state, u32."""


@message(Opcode.DEL_VBUCKET, value=MAYBE, cas=MAYBE)
class DelVbucket(Request):
    """Delete the vbucket and all it holds. value: `async=0` to be answered when all of it is gone, or empty."""


@message(Opcode.FLUSH, Opcode.FLUSHQ)
class Flush(Request):
    """Delete every document of the bucket. Quietly: only an error is answered."""

    delay: int | None = u32("seconds until then", default=None)


@message(Opcode.CLOSE_PRODUCER, key=PRESENT)
class CloseProducer(Request):
    """End the change-stream connections of this name to the selected bucket. key: the name.

    This project's own: the family has a command for it in TAP only. Answered with KEY_ENOENT if there is none.
    """


@message(Opcode.GET_ALL_VB_SEQNOS)
class GetAllVbSeqnos(Request):
    """Answered with the high seqno of each vbucket: vbucket u16, seqno u64."""

    state: int | None = u32("only vbuckets in this VbucketState; 0: all that are alive", default=None)


@message(Opcode.GET_ALL_VB_SEQNOS)
class GetCollectionSeqnos(Request):
    """As GetAllVbSeqnos, of one collection; vbuckets that do not have it are left out."""

    state: int = u32("only vbuckets in this VbucketState; 0: all that are alive", default=0)
    collection_id: int = u32("the collection; 0: the default one", default=0)


@message(Opcode.SEQNO_PERSISTENCE)
class SeqnoPersistence(Request):
    """Wait until the vbucket is on disk up to a seqno."""

    seqno: int = u64("answered once everything up to here is on disk", default=0)


@message(Opcode.OBSERVE_SEQNO, value=PRESENT)
class ObserveSeqno(Request):
    """value: the vbuuid that the asker knows, u64."""


@message(Opcode.GET_FAILOVER_LOG)
class GetFailoverLog(Request):
    """The failover log of a vbucket on a connection that streams nothing."""


@message(
    *(Opcode.NOOP, Opcode.VERSION, Opcode.QUIT, Opcode.STAT, Opcode.HELLO, Opcode.SELECT_BUCKET),
    *(Opcode.GET_CLUSTER_CONFIG, Opcode.GET_ALL_VB_SEQNOS, Opcode.SEQNO_PERSISTENCE, Opcode.OBSERVE_SEQNO),
    *(Opcode.GET_FAILOVER_LOG, Opcode.SET_VBUCKET, Opcode.GET_VBUCKET),
    *(Opcode.DEL_VBUCKET, Opcode.FLUSH, Opcode.FLUSHQ, Opcode.TOUCH, Opcode.UNLOCK, Opcode.CLOSE_PRODUCER),
    *(Opcode.VERBOSITY, Opcode.LIST_BUCKETS, Opcode.GET_ERROR_MAP, Opcode.GET_KEYS),
    key=MAYBE,
    value=MAYBE,
    cas=MAYBE,
)
class Reply(Response):
    """A reply whose key and value say everything."""


# What stands in values


class FailoverEntry(NamedTuple):
    """A branch of the history, which begins behind `seqno`. vbuuid: 1 to 2^64-1; 0 is sent by who has no history."""

    vbuuid: int
    seqno: int


_FAILOVER_ENTRY = Struct(">QQ")
_VB_SEQNO = Struct(">HQ")
_KEY_LENGTH = Struct(">H")
_OBSERVED = Struct(">BHQQQ")
_OBSERVED_OLD = Struct(">BHQQQQQ")


def pack_failover_log(log: Iterable[tuple[int, int]]) -> bytes:
    """log: (vbuuid, seqno), newest first."""
    return b"".join(_FAILOVER_ENTRY.pack(*entry) for entry in log)


def unpack_failover_log(value: bytes) -> tuple[FailoverEntry, ...]:
    """Return the entries, newest first. Raises RemoteProtocolError if there is none or a part of one."""
    if not value or len(value) % _FAILOVER_ENTRY.size:
        raise RemoteProtocolError(f"failover log of {len(value)} bytes, expected a multiple of {_FAILOVER_ENTRY.size}")
    return tuple(FailoverEntry(*entry) for entry in _FAILOVER_ENTRY.iter_unpack(value))


def pack_vb_seqnos(seqnos: Iterable[tuple[int, int]]) -> bytes:
    """seqnos: (vbucket, high seqno), in order of the vbuckets."""
    return b"".join(_VB_SEQNO.pack(*pair) for pair in seqnos)


def unpack_vb_seqnos(value: bytes) -> dict[int, int]:
    """Return high seqno by vbucket. Raises RemoteProtocolError for a part of an entry."""
    if len(value) % _VB_SEQNO.size:
        raise RemoteProtocolError(f"vbucket seqnos of {len(value)} bytes, expected a multiple of {_VB_SEQNO.size}")
    return dict(_VB_SEQNO.iter_unpack(value))


def pack_features(features: Sequence[int]) -> bytes:
    return b"".join(feature.to_bytes(2, "big") for feature in features)


def unpack_features(value: bytes) -> list[int]:
    """Raises RemoteProtocolError (EINVAL, not fatal) for an odd number of bytes."""
    if len(value) % 2:
        raise RemoteProtocolError(f"HELLO: features in {len(value)} bytes, expected 2 each", fatal=False)
    return [feature for (feature,) in iter_unpack(">H", value)]


def pack_key_list(keys: Iterable[bytes]) -> bytes:
    """Return the value of a reply to GET_KEYS."""
    return b"".join(_KEY_LENGTH.pack(len(key)) + key for key in keys)


def unpack_key_list(value: bytes) -> list[bytes]:
    """Raises RemoteProtocolError (EINVAL, not fatal) for a part of a key."""
    keys = []
    at = 0
    while at < len(value):
        key_at = at + _KEY_LENGTH.size
        at = key_at + int.from_bytes(value[at:key_at], "big")
        if at > len(value) or key_at > len(value):
            raise RemoteProtocolError(f"GET_KEYS: of {len(value)} bytes, the last key is a part of one", fatal=False)
        keys.append(value[key_at:at])
    return keys


class Observed(NamedTuple):
    """The answer to OBSERVE_SEQNO. The last two are None unless the asker's branch has been superseded."""

    vbucket: int
    vbuuid: int
    persisted_seqno: int
    current_seqno: int
    old_vbuuid: int | None = None
    last_seqno_of_old: int | None = None

    def pack(self) -> bytes:
        if self.old_vbuuid is None:
            return _OBSERVED.pack(0, *self[:4])
        return _OBSERVED_OLD.pack(1, *self)


def unpack_observed(value: bytes) -> Observed:
    """Raises RemoteProtocolError for a value of another length or format."""
    form = {(27, 0): _OBSERVED, (43, 1): _OBSERVED_OLD}.get((len(value), value[0] if value else 0))
    if form is None:
        raise RemoteProtocolError(f"OBSERVE_SEQNO reply of {len(value)} bytes", status=Status.EINVAL)
    return Observed(*form.unpack(value)[1:])
