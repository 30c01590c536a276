"""Requests of every kind: first requests of each dialect, and requests that are valid at any time."""

from typing import Any

from penstock.wire.codec.constants import MAX_SEQNO, Dialect, DurabilityLevel, Feature
from penstock.wire.codec.flags import DocFlag, OpenFlag, PathFlag
from penstock.wire.codec.layout import Message
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.cluster import GetErrorMap, ListBuckets
from penstock.wire.messages.collections import GetCollectionId, GetManifest, SetManifest
from penstock.wire.messages.dcp import BufferAck, CloseStream, Control, Open, StreamReq
from penstock.wire.messages.frame_info import Durability, RequestInfos, pack_request_infos
from penstock.wire.messages.kv import (
    Add,
    Append,
    Count,
    Delete,
    DelWithNmeta,
    Flush,
    Get,
    GetClusterConfig,
    GetKeys,
    GetLocked,
    GetMeta,
    GetRandomKey,
    GetReplica,
    Hello,
    Noop,
    ObserveSeqno,
    SelectBucket,
    Set,
    SetWithMeta,
    Stat,
    Unlock,
    Version,
    pack_features,
)
from penstock.wire.messages.observe import CompactDb
from penstock.wire.messages.sasl import SaslAuth, SaslStep
from penstock.wire.messages.subdoc import (
    LookupSpec,
    MultiLookup,
    MultiMutation,
    MutationSpec,
    SubdocLookup,
    SubdocMutation,
    pack_lookup_specs,
    pack_mutation_specs,
)
from penstock.wire.messages.tap import TapConnect
from penstock.wire.messages.upr import UprGetFailoverLog, UprStreamReq
from penstock.wire.messages.upr_draft import DraftGetFailoverLog, DraftNoRequest, DraftStreamReq
from penstock.wire.values.snappy import deflate

ASK: dict[str, Any] = {"start_seqno": 0, "end_seqno": MAX_SEQNO, "vbuuid": 0, "snap_start": 0, "snap_end": 0}
META: dict[str, Any] = {"key": b"key", "flags": 0, "rev_seqno": 9, "new_cas": 9}
MANIFEST = b'{"uid":"1","scopes":[{"name":"_default","uid":"0","collections":[{"name":"_default","uid":"0"}]}]}'
CHANGES = [
    MutationSpec(Opcode.SUBDOC_DICT_UPSERT, PathFlag.XATTR | PathFlag.EXPAND_MACROS, b"x", b'"${Mutation.CAS}"'),
    MutationSpec(Opcode.SUBDOC_ARRAY_PUSH_LAST, PathFlag.MKDIR_P, b"list", b"1,2"),
]
SEEDS: list[bytes] = [
    message if isinstance(message, bytes) else message.encode()
    for message in (
        *(Get(key=b"key"), Set(key=b"key", value=b"value"), Add(key=b"key"), Delete(key=b"key"), Noop(), Version()),
        *(Stat(key=b"failovers 1"), Hello(value=b"\0\4"), SelectBucket(key=b"default"), ObserveSeqno(value=bytes(8))),
        *(Count(key=b"key", delta=1), Append(key=b"key", value=b"1"), GetLocked(key=b"key"), Unlock(key=b"key", cas=1)),
        *(GetMeta(key=b"key"), SetWithMeta(**META, expiry=0), DelWithNmeta(**META, delete_time=0, options=0, nmeta=0)),
        *(Open(key=b"fuzz", flags=OpenFlag.PRODUCER), Control(key=b"connection_buffer_size", value=b"1000")),
        *(StreamReq(**ASK), CloseStream(), BufferAck(nbytes=100)),
        *(StreamReq(**ASK, value=b'{"collections":["0","9"],"sid":2,"purge_seqno":"1"}'), Get(key=b"\0key")),
        *(GetManifest(), GetCollectionId(value=b"beers.ales"), SetManifest(value=MANIFEST), GetErrorMap(version=2)),
        *(SaslAuth(key=b"PLAIN", value=b"\0u\0p"), SaslAuth(key=b"SCRAM-SHA1", value=b"n,,n=u,r=x"), ListBuckets()),
        *(SaslStep(key=b"SCRAM-SHA1", value=b"c=biws,r=xy,p=AAAA"), GetRandomKey(), GetKeys(key=b"k")),
        *(GetClusterConfig(epoch=1, revision=1), GetReplica(key=b"key"), CompactDb(), Flush()),
        SubdocLookup.for_path(b"a.b[0]", key=b"key"),
        SubdocMutation.for_path(b"a.b", b'{"c":1}', key=b"key", flags=PathFlag.MKDIR_P, doc_flags=DocFlag.MKDOC).encode(
            Opcode.SUBDOC_DICT_UPSERT
        ),
        MultiLookup(key=b"key", value=pack_lookup_specs([LookupSpec(Opcode.SUBDOC_GET, PathFlag.XATTR, b"$document")])),
        MultiMutation(key=b"key", value=pack_mutation_specs(CHANGES), doc_flags=DocFlag.MKDOC),
        Set(key=b"key", value=deflate(b"{}"), datatype=3),
        Set(key=b"key", framing=pack_request_infos(RequestInfos(durability=Durability(DurabilityLevel.MAJORITY)))),
        Hello(value=pack_features(range(0x27))),
        Hello(value=pack_features([Feature.COLLECTIONS, Feature.SNAPPY, Feature.XATTR, Feature.JSON])),
    )
]
FIRSTS: dict[Dialect, list[Message]] = {
    Dialect.TAP: [TapConnect(), TapConnect(flags=0, key=b"fuzz")],
    Dialect.UPR_DRAFT: [DraftGetFailoverLog(), DraftStreamReq(start_seqno=0, end_seqno=9), DraftNoRequest()],
    Dialect.UPR: [UprGetFailoverLog(), UprStreamReq(start_seqno=0, end_seqno=9, key=b"group")],
    Dialect.DCP: [Open(key=b"fuzz", flags=OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES), StreamReq(**ASK)],
}
"""First requests of each dialect, with requests that may follow."""

DOCUMENTS: list[Message] = [
    *(Set(key=b"key", value=b'{"a":{"b":[1,2]}}', datatype=1), Set(key=b"k", value=b"1"), Delete(key=b"gone")),
    SetManifest(value=MANIFEST),
]
"""Requests that fill a bucket with documents for other requests."""
