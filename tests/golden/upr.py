"""UPR as it was first written down. Its opcodes mean other things in DCP."""

from penstock.wire.codec.layout import Message
from penstock.wire.messages import kv, upr

ROWS: list[tuple[str, Message, str]] = [
    (
        "stream request",
        upr.UprStreamReq(
            vbucket=5,
            opaque=2,
            key=b"group",
            start_seqno=0xFFEEDD,
            end_seqno=2**64 - 1,
            vbuuid=0xFEEDDECA,
            high_seqno=0x5432,
        ),
        "80500005 28000005 0000002d 00000002 0000000000000000 00000000 00000000 0000000000ffeedd ffffffffffffffff"
        "00000000feeddeca 0000000000005432 67726f7570",
    ),
    (
        "stream accepted",
        upr.UprStreamReply(opaque=2),
        "81500000 00000000 00000000 00000002 0000000000000000",
    ),
    (
        "stream refused: the branch is not known",
        upr.UprStreamReply(opaque=2, status=1),
        "81500000 00000001 00000000 00000002 0000000000000000",
    ),
    (
        "stream refused: roll back",
        upr.UprStreamReply(opaque=2, status=0x23, rollback_seqno=0x45A8),
        "81500000 08000023 00000008 00000002 0000000000000000 00000000000045a8",
    ),
    (
        "stream refused: roll back, as DCP says it",
        upr.UprStreamReply(opaque=2, status=0x23, value=(0x45A8).to_bytes(8, "big")),
        "81500000 00000023 00000008 00000002 0000000000000000 00000000000045a8",
    ),
    (
        "get failover log",
        upr.UprGetFailoverLog(vbucket=5, opaque=2),
        "80510000 00000005 00000000 00000002 0000000000000000",
    ),
    (
        "failover log",
        upr.UprFailoverLogReply(opaque=2, value=kv.pack_failover_log([(0xFEEDDECA, 0x5432), (0xDECAFE, 0)])),
        "81510000 00000000 00000020 00000002 0000000000000000"
        "00000000feeddeca 0000000000005432 0000000000decafe 0000000000000000",
    ),
    (
        "stream start",
        upr.UprStreamStart(vbucket=5, opaque=2),
        "80520000 00000005 00000000 00000002 0000000000000000",
    ),
    (
        "stream end, state changed",
        upr.UprStreamEnd(vbucket=5, opaque=2, reason=1),
        "80530000 04000005 00000004 00000002 0000000000000000 00000001",
    ),
    (
        "snapshot start",
        upr.UprSnapshotStart(vbucket=5, opaque=2),
        "80540000 00000005 00000000 00000002 0000000000000000",
    ),
    (
        "snapshot end",
        upr.UprSnapshotEnd(vbucket=5, opaque=2),
        "80550000 00000005 00000000 00000002 0000000000000000",
    ),
    (
        "mutation",
        upr.UprMutation(
            vbucket=0x210,
            opaque=2,
            cas=9,
            datatype=1,
            key=b"hello",
            value=b"world",
            by_seqno=4,
            rev_seqno=1,
            flags=0x02000006,
            expiry=0x65000000,
            lock_time=7,
        ),
        "80560005 1c010210 00000026 00000002 0000000000000009 0000000000000004 0000000000000001"
        "02000006 65000000 00000007 68656c6c6f 776f726c64",
    ),
    (
        "deletion",
        upr.UprDeletion(vbucket=0x210, opaque=2, cas=10, key=b"hello", by_seqno=5, rev_seqno=2),
        "80570005 10000210 00000015 00000002 000000000000000a 0000000000000005 0000000000000002 68656c6c6f",
    ),
    (
        "expiration",
        upr.UprExpiration(vbucket=0x210, opaque=2, cas=11, key=b"hello", by_seqno=6, rev_seqno=3),
        "80580005 10000210 00000015 00000002 000000000000000b 0000000000000006 0000000000000003 68656c6c6f",
    ),
    (
        "flush",
        upr.UprFlush(vbucket=5, opaque=2),
        "80590000 00000005 00000000 00000002 0000000000000000",
    ),
    (
        "the vbucket shall be pending",
        upr.UprSetVbucketState(vbucket=5, opaque=2, state=3),
        "805a0000 01000005 00000001 00000002 0000000000000000 03",
    ),
]
