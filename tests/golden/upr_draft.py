"""The UPR draft: the header's byte 5 is the kind, bytes 6-7 are the vbucket in both directions."""

from penstock.wire.codec.layout import Message
from penstock.wire.messages import kv
from penstock.wire.messages import upr_draft as draft

ROWS: list[tuple[str, Message, str]] = [
    (
        "a request of no kind",
        draft.DraftNoRequest(vbucket=5, opaque=2),
        "80010000 00000005 00000000 00000002 0000000000000000",
    ),
    (
        "stream request",
        draft.DraftStreamReq(
            vbucket=5,
            opaque=2,
            key=b"group",
            start_seqno=0xFFEEDD,
            end_seqno=2**64 - 1,
            vbuuid=0xFEEDDECA,
            high_seqno=0x5432,
        ),
        "80010005 20010005 00000025 00000002 0000000000000000 0000000000ffeedd ffffffffffffffff"
        "00000000feeddeca 0000000000005432 67726f7570",
    ),
    (
        "stream request with the extras that are printed",
        draft.DraftStreamReq(vbucket=5, opaque=2, key=b"group", start_seqno=1, end_seqno=2, reserved=0),
        "80010005 28010005 0000002d 00000002 0000000000000000 0000000000000001 0000000000000002"
        "0000000000000000 0000000000000000 0000000000000000 67726f7570",
    ),
    (
        "get failover log",
        draft.DraftGetFailoverLog(vbucket=5, opaque=2),
        "80010000 00020005 00000000 00000002 0000000000000000",
    ),
    (
        "stream accepted",
        draft.DraftOk(vbucket=5, opaque=2),
        "81020000 00010005 00000000 00000002 0000000000000000",
    ),
    (
        "not my vbucket",
        draft.DraftFailoverLog(vbucket=5, opaque=2),
        "81020000 00020005 00000000 00000002 0000000000000000",
    ),
    (
        "failover log",
        draft.DraftFailoverLog(vbucket=5, opaque=2, value=kv.pack_failover_log([(0xFEEDDECA, 0x5432)])),
        "81020000 00020005 00000010 00000002 0000000000000000 00000000feeddeca 0000000000005432",
    ),
    (
        "roll back",
        draft.DraftRollback(vbucket=5, opaque=2, rollback_seqno=0x45A8),
        "81020000 00030005 00000008 00000002 0000000000000000 00000000000045a8",
    ),
    (
        "malformed",
        draft.DraftMalformed(vbucket=5, opaque=2),
        "81020000 00040005 00000000 00000002 0000000000000000",
    ),
    (
        "stream start",
        draft.DraftStreamStart(vbucket=5, opaque=2),
        "81030000 00000005 00000000 00000002 0000000000000000",
    ),
    (
        "snapshot start",
        draft.DraftSnapshotStart(vbucket=5, opaque=2),
        "81040000 00010005 00000000 00000002 0000000000000000",
    ),
    (
        "snapshot end",
        draft.DraftSnapshotEnd(vbucket=5, opaque=2),
        "81040000 00020005 00000000 00000002 0000000000000000",
    ),
    (
        "mutation",
        draft.DraftMutation(
            vbucket=0x210,
            opaque=2,
            cas=9,
            key=b"hello",
            value=b"world",
            by_seqno=4,
            rev_seqno=1,
            flags=0x02000006,
            expiry=0x65000000,
            lock_time=7,
        ),
        "81040005 1c030210 00000026 00000002 0000000000000009 0000000000000004 0000000000000001"
        "02000006 65000000 00000007 68656c6c6f 776f726c64",
    ),
    (
        "deletion",
        draft.DraftDeletion(vbucket=0x210, opaque=2, cas=10, key=b"hello", by_seqno=5, rev_seqno=2),
        "81040005 1c040210 00000021 00000002 000000000000000a 0000000000000005 0000000000000002"
        "00000000 00000000 00000000 68656c6c6f",
    ),
    (
        "expiration",
        draft.DraftExpiration(vbucket=0x210, opaque=2, cas=11, key=b"hello", by_seqno=6, rev_seqno=3),
        "81040005 1c050210 00000021 00000002 000000000000000b 0000000000000006 0000000000000003"
        "00000000 00000000 00000000 68656c6c6f",
    ),
    (
        "flush",
        draft.DraftFlush(vbucket=5, opaque=2),
        "81040000 00060005 00000000 00000002 0000000000000000",
    ),
    (
        "stream end",
        draft.DraftStreamEnd(vbucket=5, opaque=2),
        "81050000 00010005 00000000 00000002 0000000000000000",
    ),
    (
        "stream end, state changed",
        draft.DraftStateChanged(vbucket=5, opaque=2),
        "81050000 00020005 00000000 00000002 0000000000000000",
    ),
]
