"""DCP."""

from penstock.wire.codec.layout import Message
from penstock.wire.messages import dcp, kv
from penstock.wire.messages.dcp_values import CachedDocument, pack_cached_documents

ROWS: list[tuple[str, Message, str]] = [
    (
        "open as a producer",
        dcp.Open(opaque=1, key=b"bookstream", flags=1),
        "8050000a 08000000 00000012 00000001 0000000000000000 00000000 00000001 626f6f6b73747265616d",
    ),
    (
        "open as a consumer, which says its own name",
        dcp.Open(opaque=1, datatype=1, key=b"r", value=b"{}", flags=0x20),
        "80500001 08010000 0000000b 00000001 0000000000000000 00000000 00000020 72 7b7d",
    ),
    (
        "opened",
        dcp.DcpReply(opaque=1),
        "81500000 00000000 00000000 00000001 0000000000000000",
    ),
    (
        "close stream",
        dcp.CloseStream(vbucket=5, opaque=2),
        "80520000 00000005 00000000 00000002 0000000000000000",
    ),
    (
        "stream request",
        dcp.StreamReq(
            vbucket=5,
            opaque=2,
            flags=0x20,
            start_seqno=0xFFEEDD,
            end_seqno=2**64 - 1,
            vbuuid=0xFEEDDECA,
            snap_start=0xFFEED0,
            snap_end=0xFFEEDF,
        ),
        "80530000 30000005 00000030 00000002 0000000000000000 00000020 00000000 0000000000ffeedd ffffffffffffffff"
        "00000000feeddeca 0000000000ffeed0 0000000000ffeedf",
    ),
    (
        "stream request with a filter",
        dcp.StreamReq(opaque=2, datatype=1, start_seqno=0, end_seqno=0, value=b"{}"),
        "80530000 30010000 00000032 00000002 0000000000000000" + "00" * 48 + "7b7d",
    ),
    (
        "stream accepted, with the failover log",
        dcp.DcpReply(opaque=2, value=kv.pack_failover_log([(0xFEEDDECA, 0x5432), (0xDECAFE, 0)])),
        "81530000 00000000 00000020 00000002 0000000000000000"
        "00000000feeddeca 0000000000005432 0000000000decafe 0000000000000000",
    ),
    (
        "roll back first",
        dcp.DcpReply(opaque=2, status=0x23, value=dcp.pack_rollback(0x45A8)),
        "81530000 00000023 00000008 00000002 0000000000000000 00000000000045a8",
    ),
    (
        "get failover log",
        dcp.DcpGetFailoverLog(vbucket=5, opaque=2),
        "80540000 00000005 00000000 00000002 0000000000000000",
    ),
    (
        "failover log",
        dcp.DcpReply(opaque=2, value=kv.pack_failover_log([(2**64 - 1, 2**63)])),
        "81540000 00000000 00000010 00000002 0000000000000000 ffffffffffffffff 8000000000000000",
    ),
    (
        "stream end, closed",
        dcp.StreamEnd(vbucket=7, opaque=9, reason=1),
        "80550000 04000007 00000004 00000009 0000000000000000 00000001",
    ),
    (
        "snapshot marker",
        dcp.SnapshotMarker(vbucket=5, opaque=2, start_seqno=0, end_seqno=8, flags=1),
        "80560000 14000005 00000014 00000002 0000000000000000 0000000000000000 0000000000000008 00000001",
    ),
    (
        "snapshot marker, asking for an answer",
        dcp.SnapshotMarker(vbucket=5, opaque=2, start_seqno=2**63, end_seqno=2**64 - 1, flags=0x0A),
        "80560000 14000005 00000014 00000002 0000000000000000 8000000000000000 ffffffffffffffff 0000000a",
    ),
    (
        "mutation",
        dcp.Mutation(
            vbucket=0x210,
            opaque=0x1210,
            cas=0x0102030405060708,
            datatype=1,
            key=b"hello",
            value=b"world",
            by_seqno=4,
            rev_seqno=1,
            flags=0x02000006,
            expiry=0x65000000,
        ),
        "80570005 1f010210 00000029 00001210 0102030405060708 0000000000000004 0000000000000001"
        "02000006 65000000 00000000 0000 00 68656c6c6f 776f726c64",
    ),
    (
        "mutation, all fields at their highest, empty value, binary key",
        dcp.Mutation(
            vbucket=0xFFFF,
            opaque=0xFFFFFFFF,
            cas=2**64 - 1,
            datatype=7,
            key=b"\xff\x00",
            by_seqno=2**64 - 1,
            rev_seqno=2**64 - 1,
            flags=0xFFFFFFFF,
            expiry=0xFFFFFFFF,
            lock_time=0xFFFFFFFF,
            nru=0xFF,
        ),
        "80570002 1f07ffff 00000021 ffffffff ffffffffffffffff ffffffffffffffff ffffffffffffffff"
        "ffffffff ffffffff ffffffff 0000 ff ff00",
    ),
    (
        "deletion",
        dcp.Deletion(vbucket=0x210, opaque=0x1210, cas=5, key=b"hello", by_seqno=5, rev_seqno=2),
        "80580005 12000210 00000017 00001210 0000000000000005 0000000000000005 0000000000000002 0000 68656c6c6f",
    ),
    (
        "deletion that keeps extended attributes",
        dcp.Deletion(vbucket=1, opaque=2, cas=5, datatype=4, key=b"k", value=b"\x00\x00\x00\x00", by_seqno=9),
        "80580001 12040001 00000017 00000002 0000000000000005 0000000000000009 0000000000000000 0000 6b 00000000",
    ),
    (
        "stream noop",
        dcp.DcpNoop(opaque=10_000_001),
        "805c0000 00000000 00000000 00989681 0000000000000000",
    ),
    (
        "stream noop, reply",
        dcp.DcpReply(opaque=10_000_001),
        "815c0000 00000000 00000000 00989681 0000000000000000",
    ),
    (
        "buffer acknowledgement",
        dcp.BufferAck(opaque=3, nbytes=0x1000),
        "805d0000 04000000 00000004 00000003 0000000000000000 00001000",
    ),
    (
        "buffer acknowledgement, answered all the same",
        dcp.DcpReply(opaque=3, status=4),
        "815d0000 00000004 00000000 00000003 0000000000000000",
    ),
    (
        "control",
        dcp.Control(opaque=4, key=b"enable_noop", value=b"true"),
        "805e000b 00000000 0000000f 00000004 0000000000000000 656e61626c655f6e6f6f70 74727565",
    ),
    (
        "control, refused",
        dcp.DcpReply(opaque=4, status=4),
        "815e0000 00000004 00000000 00000004 0000000000000000",
    ),
    (
        "add stream",
        dcp.AddStream(vbucket=5, opaque=2, flags=1),
        "80510000 04000005 00000004 00000002 0000000000000000 00000001",
    ),
    (
        "stream added",
        dcp.AddStreamReply(opaque=2, stream_opaque=0x1000),
        "81510000 04000000 00000004 00000002 0000000000000000 00001000",
    ),
    (
        "no stream added: not here",
        dcp.AddStreamReply(opaque=2, status=7),
        "81510000 00000007 00000000 00000002 0000000000000000",
    ),
    (
        "snapshot marker V2.0",
        dcp.SnapshotMarkerV2(
            vbucket=5, opaque=2, start_seqno=1, end_seqno=8, flags=2, max_visible_seqno=7, high_completed_seqno=6
        ),
        "80560000 01000005 00000025 00000002 0000000000000000 00"
        "0000000000000001 0000000000000008 00000002 0000000000000007 0000000000000006",
    ),
    (
        "snapshot marker V2.2 as first written down",
        dcp.SnapshotMarkerV2(
            vbucket=5,
            opaque=2,
            version=2,
            start_seqno=1,
            end_seqno=8,
            flags=2,
            max_visible_seqno=7,
            high_completed_seqno=6,
            purge_seqno=5,
        ),
        "80560000 01000005 0000002d 00000002 0000000000000000 02"
        "0000000000000001 0000000000000008 00000002 0000000000000007 0000000000000006 0000000000000005",
    ),
    (
        "snapshot marker V2.2",
        dcp.SnapshotMarkerV2(
            vbucket=5,
            opaque=2,
            version=2,
            start_seqno=1,
            end_seqno=8,
            flags=2,
            max_visible_seqno=7,
            high_completed_seqno=6,
            purge_seqno=5,
            high_prepared_seqno=2**64 - 1,
        ),
        "80560000 01000005 00000035 00000002 0000000000000000 02"
        "0000000000000001 0000000000000008 00000002 0000000000000007 0000000000000006 0000000000000005"
        "ffffffffffffffff",
    ),
    (
        "snapshot marker of stream 13",
        dcp.SnapshotMarker(vbucket=5, opaque=2, start_seqno=1, end_seqno=8, flags=1, framing=b"\x22\x00\x0d"),
        "08560300 14000005 00000017 00000002 0000000000000000 22000d 0000000000000001 0000000000000008 00000001",
    ),
    (
        "mutation of the collections prototype",
        dcp.PrototypeMutation(
            vbucket=7, opaque=9, key=b"beer::ale", value=b"v", by_seqno=4, rev_seqno=1, nru=2, collection_length=4
        ),
        "80570009 20000007 0000002a 00000009 0000000000000000 0000000000000004 0000000000000001"
        "00000000 00000000 00000000 0000 02 04 626565723a3a616c65 76",
    ),
    (
        "deletion with its time",
        dcp.DeletionV2(
            vbucket=0x210, opaque=0x1210, cas=5, key=b"hello", by_seqno=5, rev_seqno=2, delete_time=0x65000000
        ),
        "80580005 15000210 0000001a 00001210 0000000000000005 0000000000000005 0000000000000002 65000000 00 68656c6c6f",
    ),
    (
        "expiration",
        dcp.Expiration(
            vbucket=0x210, opaque=0x1210, cas=5, key=b"hello", by_seqno=5, rev_seqno=2, delete_time=0x65000000
        ),
        "80590005 14000210 00000019 00001210 0000000000000005 0000000000000005 0000000000000002 65000000 68656c6c6f",
    ),
    (
        "expiration before 6.5",
        dcp.OldExpiration(vbucket=0x210, opaque=0x1210, cas=5, key=b"hello", by_seqno=5, rev_seqno=2),
        "80590005 12000210 00000017 00001210 0000000000000005 0000000000000005 0000000000000002 0000 68656c6c6f",
    ),
    (
        "stream flush",
        dcp.DcpFlush(vbucket=5, opaque=2),
        "805a0000 00000005 00000000 00000002 0000000000000000",
    ),
    (
        "the vbucket shall be pending",
        dcp.SetVbucketState(vbucket=5, opaque=2, state=3),
        "805b0000 01000005 00000001 00000002 0000000000000000 03",
    ),
    (
        "it is",
        dcp.DcpReply(opaque=2),
        "815b0000 00000000 00000000 00000002 0000000000000000",
    ),
    (
        "a collection begins",
        dcp.SystemEvent(
            vbucket=5,
            opaque=2,
            key=b"beer",
            value=bytes.fromhex("0000000000000005 00000008 00000009"),
            by_seqno=4,
            event=0,
        ),
        "805f0004 0d000005 00000021 00000002 0000000000000000 0000000000000004 00000000 00 62656572"
        "0000000000000005 00000008 00000009",
    ),
    (
        "a collection ends",
        dcp.SystemEvent(
            vbucket=5, opaque=2, value=bytes.fromhex("0000000000000005 00000008 00000009"), by_seqno=4, event=1
        ),
        "805f0000 0d000005 0000001d 00000002 0000000000000000 0000000000000004 00000001 00"
        "0000000000000005 00000008 00000009",
    ),
    (
        "prepare",
        dcp.Prepare(
            vbucket=5,
            opaque=2,
            cas=9,
            datatype=1,
            key=b"hello",
            value=b"world",
            by_seqno=4,
            rev_seqno=1,
            flags=0x02000006,
            expiry=0x65000000,
            nru=2,
            durability=3,
        ),
        "80600005 1f010005 00000029 00000002 0000000000000009 0000000000000004 0000000000000001"
        "02000006 65000000 00000000 02 00 03 68656c6c6f 776f726c64",
    ),
    (
        "prepare of a deletion",
        dcp.Prepare(vbucket=5, opaque=2, cas=9, key=b"hello", by_seqno=4, deleted=1),
        "80600005 1f000005 00000024 00000002 0000000000000009 0000000000000004 0000000000000000"
        "00000000 00000000 00000000 00 01 01 68656c6c6f",
    ),
    (
        "prepares acknowledged",
        dcp.SeqnoAcknowledged(vbucket=5, opaque=2, prepared_seqno=4),
        "80610000 08000005 00000008 00000002 0000000000000000 0000000000000004",
    ),
    (
        "commit",
        dcp.Commit(vbucket=5, opaque=2, key=b"hello", prepared_seqno=4, by_seqno=6),
        "80620005 10000005 00000015 00000002 0000000000000000 0000000000000004 0000000000000006 68656c6c6f",
    ),
    (
        "abort",
        dcp.Abort(vbucket=5, opaque=2, key=b"hello", prepared_seqno=0, by_seqno=6),
        "80630005 10000005 00000015 00000002 0000000000000000 0000000000000000 0000000000000006 68656c6c6f",
    ),
    (
        "seqno advanced",
        dcp.SeqnoAdvanced(vbucket=5, opaque=2, by_seqno=2**63),
        "80640000 08000005 00000008 00000002 0000000000000000 8000000000000000",
    ),
    (
        "out-of-order snapshot begins",
        dcp.OsoSnapshot(vbucket=5, opaque=2, flags=1),
        "80650000 04000005 00000004 00000002 0000000000000000 00000001",
    ),
    (
        "cache transfer of one key",
        dcp.CacheTransfer(
            vbucket=5,
            opaque=2,
            value=pack_cached_documents([CachedDocument(b"\0k", cas=1, by_seqno=2, rev_seqno=3, datatype=1)]),
        ),
        "80660000 00000005 0000002a 00000002 0000000000000000 0000000000000001 0000000000000002 0000000000000003"
        "00000000 00000000 00000000 0002 01 00 006b",
    ),
    (
        "cache transfer ends",
        dcp.CacheTransferEnd(vbucket=5, opaque=2),
        "80670000 00000005 00000000 00000002 0000000000000000",
    ),
]
