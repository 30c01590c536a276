"""The key-value commands, and the commands about a whole connection or bucket.

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
    """Read a document. GETK answers with the key; the quiet forms do not answer a miss."""


@message(Opcode.GET_REPLICA, key=PRESENT)
class GetReplica(Request):
    """Read a document from a vbucket that is a replica."""


@message(Opcode.GET_RANDOM_KEY, extras=(0, 4, 5))
class GetRandomKey(Request):
    """Read a random document. Answered as GETK is."""

    collection_id: int | None = u32("the document's collection; missing: the default one", default=None)
    include_xattrs: int | None = u8("1: the value begins with the document's extended attributes", default=None)


@message(Opcode.GET_KEYS, key=PRESENT)
class GetKeys(Request):
    """List the keys of a vbucket in order, from the given key on. Answered with a length u16 and a key for each."""

    count: int | None = u32("number of keys, at most; missing: 1000", default=None)


@message(Opcode.GAT, Opcode.GATQ, key=PRESENT)
class GetAndTouch(Request):
    """Read a document and set its expiry. GATQ does not answer a miss."""

    expiry: int = u32("as of Set")


@message(Opcode.TOUCH, key=PRESENT)
class Touch(Request):
    """Set the expiry of a document."""

    expiry: int = u32("as of Set")


@message(Opcode.GET_LOCKED, key=PRESENT)
class GetLocked(Request):
    """Read a document and lock it. Until the lock ends, only a request with the returned cas changes the document.

    Such a change ends the lock.
    """

    lock_time: int | None = u32("seconds; 0, above 30, or missing: 15", default=None)


@message(Opcode.UNLOCK, key=PRESENT, cas=PRESENT)
class Unlock(Request):
    """End the lock of GET_LOCKED, with the cas that GET_LOCKED returned."""


@message(*_READING, key=MAYBE, value=MAYBE, cas=MAYBE)
class GetReply(Response):
    """The document: its value, and with GETK its key. While it is locked, other clients get the cas 2^64-1."""

    flags: int = u32("the client's own 4 bytes", default=0)


@message(*_READING, key=MAYBE, value=MAYBE, cas=MAYBE)
class NoDocument(Response):
    """A GET's reply with a status other than SUCCESS. The value is an explanation, as text or JSON."""

    def fault(self) -> str | None:
        """Return the fault of a SUCCESS without extras, None otherwise."""
        return None if self.status else "extras of 0 bytes, expected 4 with status SUCCESS"


@message(Opcode.SET, Opcode.SETQ, Opcode.REPLACE, Opcode.REPLACEQ, key=PRESENT, value=MAYBE, cas=MAYBE)
class Set(Request):
    """Store a document; with a cas, only over that version. REPLACE stores only over an existing document."""

    flags: int = u32("the client's own 4 bytes, returned as they came", default=0)
    expiry: int = u32("0: never; up to 30 days: seconds from now; above: epoch seconds", default=0)


@message(Opcode.ADD, Opcode.ADDQ, key=PRESENT, value=MAYBE)
class Add(Set):
    """Store a document that does not exist yet."""


@message(Opcode.DELETE, Opcode.DELETEQ, key=PRESENT, cas=MAYBE)
class Delete(Request):
    """Remove a document; with a cas, only that version."""


@message(Opcode.APPEND, Opcode.APPENDQ, Opcode.PREPEND, Opcode.PREPENDQ, key=PRESENT, value=MAYBE, cas=MAYBE)
class Append(Request):
    """Add bytes at the end of a document's value, or with PREPEND at its start; with a cas, only to that version."""


@message(*_STORING, cas=MAYBE, value=MAYBE)
class StoreReply(Response):
    """The document was stored or removed if the status is SUCCESS; cas is then its new one."""

    vbuuid: int | None = u64("branch of the history, with MUTATION_SEQNO only", default=None)
    seqno: int | None = u64("by_seqno of this change, with MUTATION_SEQNO only", default=None)


@message(Opcode.INCREMENT, Opcode.INCREMENTQ, Opcode.DECREMENT, Opcode.DECREMENTQ, key=PRESENT)
class Count(Request):
    """Add to the decimal number in a document's value, or subtract from it. A missing document is created.

    After 2^64-1 the number continues at 0; it never falls below 0.
    """

    delta: int = u64("the number to add or subtract")
    initial: int = u64("the number of a new document", default=0)
    expiry: int = u32("expiry of a new document, as of Set; 2^32-1: create none", default=0)


@message(Opcode.INCREMENT, Opcode.INCREMENTQ, Opcode.DECREMENT, Opcode.DECREMENTQ, cas=MAYBE, value=MAYBE)
class CountReply(StoreReply):
    """With status SUCCESS the value is the new number, u64, and cas is the document's new one."""


# Documents with their metadata: they replicate a bucket to another bucket that has writers of its own (XDCR)


@message(Opcode.GET_META, Opcode.GETQ_META, key=PRESENT)
class GetMeta(Request):
    """Ask for a document's metadata, or for those of its tombstone. GETQ_META does not answer a miss."""

    version: int | None = u8("1; 2: the reply has the datatype too", default=None)


@message(Opcode.GET_META, Opcode.GETQ_META, cas=MAYBE)
class MetaReply(Response):
    """A document's metadata; its cas is in the header, 2^64-1 while the document is locked."""

    deleted: int = u32("1: this is a tombstone")
    flags: int = u32("the client's own 4 bytes")
    expiry: int = u32("epoch seconds, 0: never; of a tombstone its time of deletion")
    rev_seqno: int = u64("how many times the document changed")
    value_datatype: int | None = u8("a Datatype, with version 2", default=None)


@message(Opcode.GET_META, Opcode.GETQ_META, key=MAYBE, value=MAYBE, cas=MAYBE)
class NoMeta(NoDocument):
    """As NoDocument, of GET_META."""

    def fault(self) -> str | None:
        """Return the fault of a SUCCESS without extras, None otherwise."""
        return None if self.status else "extras of 0 bytes, expected 20 or 21 with status SUCCESS"


_SETTING_META = (Opcode.SET_WITH_META, Opcode.SETQ_WITH_META, Opcode.ADD_WITH_META, Opcode.ADDQ_WITH_META)
_DELETING_META = (Opcode.DEL_WITH_META, Opcode.DELQ_WITH_META)


@message(*_SETTING_META, key=PRESENT, value=MAYBE, cas=MAYBE)
class SetWithMeta(Request):
    """Store a document with the metadata of its original, unless the existing version wins the conflict.

    The header's cas is as of Set: the existing document must have it. ADD_WITH_META stores only if no document exists.
    """

    flags: int = u32("the client's own 4 bytes")
    expiry: int = u32("epoch seconds, 0: never")
    rev_seqno: int = u64("how many times the document has changed")
    new_cas: int = u64("the document's cas")
    options: int | None = u32("a WithMetaFlag", default=None)


@message(*_SETTING_META, key=PRESENT, value=MAYBE, cas=MAYBE)
class SetWithNmeta(SetWithMeta):
    """As SetWithMeta, with extended metadata after the value, which are ignored."""

    options: int = u32("a WithMetaFlag")
    nmeta: int = u16("bytes of extended meta data at the end of the value")


@message(*_SETTING_META, key=PRESENT, value=MAYBE, cas=MAYBE)
class OldSetWithNmeta(Request):
    """As SetWithMeta, with extended metadata after the value and no options."""

    flags: int = u32("the client's own 4 bytes")
    expiry: int = u32("epoch seconds, 0: never")
    rev_seqno: int = u64("how many times the document has changed")
    new_cas: int = u64("the document's cas")
    nmeta: int = u16("bytes of extended meta data at the end of the value")


@message(*_DELETING_META, key=PRESENT, value=MAYBE, cas=MAYBE)
class DelWithMeta(Request):
    """Remove a document with the metadata of its original's deletion, unless the existing version wins the conflict.

    The header's cas is as of Set. The value has extended attributes (datatype XATTR), or is empty.
    """

    flags: int = u32("the client's own 4 bytes")
    delete_time: int = u32("epoch seconds; 0: now")
    rev_seqno: int = u64("how many times the document has changed, this change included")
    new_cas: int = u64("the tombstone's")
    options: int | None = u32("a WithMetaFlag", default=None)


@message(*_DELETING_META, key=PRESENT, value=MAYBE, cas=MAYBE)
class DelWithNmeta(DelWithMeta):
    """As DelWithMeta, with extended metadata after the value, which are ignored."""

    options: int = u32("a WithMetaFlag")
    nmeta: int = u16("bytes of extended meta data at the end of the value")


@message(*_DELETING_META, key=PRESENT, value=MAYBE, cas=MAYBE)
class OldDelWithNmeta(Request):
    """As DelWithMeta, with extended metadata after the value and no options."""

    flags: int = u32("the client's own 4 bytes")
    delete_time: int = u32("epoch seconds; 0: now")
    rev_seqno: int = u64("how many times the document has changed, this change included")
    new_cas: int = u64("the tombstone's")
    nmeta: int = u16("bytes of extended meta data at the end of the value")


# Commands about a connection or a bucket


@message(Opcode.NOOP)
class Noop(Request):
    """Answered after all requests before it. Clients send it as a barrier after quiet commands."""


@message(Opcode.VERSION)
class Version(Request):
    """Answered with the version as text, `x.y.z`."""


@message(Opcode.QUIT, Opcode.QUITQ)
class Quit(Request):
    """Close the connection. Answered first, unless quiet."""


@message(Opcode.STAT, key=MAYBE, value=MAYBE)
class Stat(Request):
    """Ask for a group of statistics. Answered with one reply for each, key and value as text, then an empty one."""


@message(Opcode.HELLO, key=MAYBE, value=MAYBE)
class Hello(Request):
    """Negotiate features. The key is the agent's name, the value the requested features, u16 each.

    It replaces the features of an earlier HELLO.
    """


@message(Opcode.SELECT_BUCKET, key=PRESENT)
class SelectBucket(Request):
    """Select a bucket for the connection. The key is the bucket's name."""


@message(Opcode.GET_CLUSTER_CONFIG)
class GetClusterConfig(Request):
    """Answered with the bucket's map of vbuckets to nodes, as JSON; with no map if the client's is as new."""

    epoch: int | None = u64("revEpoch of the map that the client has", default=None)
    revision: int | None = u64("rev of that map", default=None)


@message(Opcode.SET_VBUCKET, value=MAYBE, cas=MAYBE)
class SetVbucket(Request):
    """Set the state of a vbucket, and create it if it does not exist. The value is its topology, as JSON, or empty."""

    state: int = u8("a VbucketState")


@message(Opcode.SET_VBUCKET, cas=MAYBE)
class OldSetVbucket(Request):
    """As SetVbucket, in the form that releases before 6.5 accepted."""

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
    """Delete the vbucket and its contents. The value is `async=0` for a reply after the deletion, or empty."""


@message(Opcode.FLUSH, Opcode.FLUSHQ)
class Flush(Request):
    """Delete every document of the bucket. FLUSHQ answers only an error."""

    delay: int | None = u32("seconds before the deletion", default=None)


@message(Opcode.CLOSE_PRODUCER, key=PRESENT)
class CloseProducer(Request):
    """End the change-stream connections of this name to the selected bucket. The key is the name.

    This command is Penstock's own: in the protocol family only TAP has such a command. Answered with KEY_ENOENT if no
    connection has the name.
    """


@message(Opcode.GET_ALL_VB_SEQNOS)
class GetAllVbSeqnos(Request):
    """Answered with the high seqno of each vbucket: vbucket u16, seqno u64."""

    state: int | None = u32("only vbuckets in this VbucketState; 0: all but dead ones", default=None)


@message(Opcode.GET_ALL_VB_SEQNOS)
class GetCollectionSeqnos(Request):
    """As GetAllVbSeqnos, of one collection; vbuckets without the collection are left out."""

    state: int = u32("only vbuckets in this VbucketState; 0: all but dead ones", default=0)
    collection_id: int = u32("the collection; 0: the default one", default=0)


@message(Opcode.SEQNO_PERSISTENCE)
class SeqnoPersistence(Request):
    """Wait until the vbucket is on disk up to a seqno."""

    seqno: int = u64("answered once everything up to here is on disk", default=0)


@message(Opcode.OBSERVE_SEQNO, value=PRESENT)
class ObserveSeqno(Request):
    """Ask for the persisted and current seqno of a vbucket. The value is the vbuuid that the client knows, u64."""


@message(Opcode.GET_FAILOVER_LOG)
class GetFailoverLog(Request):
    """Ask for the failover log of a vbucket on a connection without streams."""


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
    """A reply without extras: its key and value hold the whole answer."""


# Contents of values


class FailoverEntry(NamedTuple):
    """A branch of the history.

    Attributes:
        vbuuid: 1 to 2^64-1. A client without history sends 0.
        seqno: the branch begins after it.
    """

    vbuuid: int
    seqno: int


_FAILOVER_ENTRY = Struct(">QQ")
_VB_SEQNO = Struct(">HQ")
_KEY_LENGTH = Struct(">H")
_OBSERVED = Struct(">BHQQQ")
_OBSERVED_OLD = Struct(">BHQQQQQ")


def pack_failover_log(log: Iterable[tuple[int, int]]) -> bytes:
    """Return the value of a failover log, given (vbuuid, seqno), newest first."""
    return b"".join(_FAILOVER_ENTRY.pack(*entry) for entry in log)


def unpack_failover_log(value: bytes) -> tuple[FailoverEntry, ...]:
    """Return the entries of a failover log, newest first.

    Raises:
        RemoteProtocolError: the value has no entry, or a part of one.
    """
    if not value or len(value) % _FAILOVER_ENTRY.size:
        raise RemoteProtocolError(f"failover log of {len(value)} bytes, expected a multiple of {_FAILOVER_ENTRY.size}")
    return tuple(FailoverEntry(*entry) for entry in _FAILOVER_ENTRY.iter_unpack(value))


def pack_vb_seqnos(seqnos: Iterable[tuple[int, int]]) -> bytes:
    """Return the value of a reply to GET_ALL_VB_SEQNOS, given (vbucket, high seqno), in the order of vbuckets."""
    return b"".join(_VB_SEQNO.pack(*pair) for pair in seqnos)


def unpack_vb_seqnos(value: bytes) -> dict[int, int]:
    """Return high seqnos by vbucket. Raises RemoteProtocolError for a part of an entry."""
    if len(value) % _VB_SEQNO.size:
        raise RemoteProtocolError(f"vbucket seqnos of {len(value)} bytes, expected a multiple of {_VB_SEQNO.size}")
    return dict(_VB_SEQNO.iter_unpack(value))


def pack_features(features: Sequence[int]) -> bytes:
    """Return the value of a HELLO."""
    return b"".join(feature.to_bytes(2, "big") for feature in features)


def unpack_features(value: bytes) -> list[int]:
    """Return the features in a HELLO's value.

    Raises RemoteProtocolError (EINVAL, not fatal) for an odd number of bytes.
    """
    if len(value) % 2:
        raise RemoteProtocolError(f"HELLO: features in {len(value)} bytes, expected 2 each", fatal=False)
    return [feature for (feature,) in iter_unpack(">H", value)]


def pack_key_list(keys: Iterable[bytes]) -> bytes:
    """Return the value of a reply to GET_KEYS."""
    return b"".join(_KEY_LENGTH.pack(len(key)) + key for key in keys)


def unpack_key_list(value: bytes) -> list[bytes]:
    """Return the keys in a reply to GET_KEYS. Raises RemoteProtocolError (EINVAL, not fatal) for a part of a key."""
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
    """The answer to OBSERVE_SEQNO.

    Attributes:
        vbuuid: the current branch.
        persisted_seqno, current_seqno: the highest seqno on disk, and in memory.
        old_vbuuid: the client's branch, if another branch has replaced it; None otherwise.
        last_seqno_of_old: the last seqno of that branch, None otherwise.
    """

    vbucket: int
    vbuuid: int
    persisted_seqno: int
    current_seqno: int
    old_vbuuid: int | None = None
    last_seqno_of_old: int | None = None

    def pack(self) -> bytes:
        """Return the value of the reply."""
        if self.old_vbuuid is None:
            return _OBSERVED.pack(0, *self[:4])
        return _OBSERVED_OLD.pack(1, *self)


def unpack_observed(value: bytes) -> Observed:
    """Return a reply to OBSERVE_SEQNO. Raises RemoteProtocolError for a value of another length or format."""
    form = {(27, 0): _OBSERVED, (43, 1): _OBSERVED_OLD}.get((len(value), value[0] if value else 0))
    if form is None:
        raise RemoteProtocolError(f"OBSERVE_SEQNO reply of {len(value)} bytes", status=Status.EINVAL)
    return Observed(*form.unpack(value)[1:])
