"""Frames written by hand from the protocol's layout tables: (what it is, message, the frame's bytes in hex).

The header is spaced as: magic opcode key-length, extras-length datatype vbucket/status, body length, opaque, cas.
Then come the extras field by field, key and value.
"""

from penstock.wire import dcp, kv
from penstock.wire.layout import Message

GOLDEN: list[tuple[str, Message, str]] = [
    (
        "get",
        kv.Get(vbucket=7, opaque=9, key=b"hello"),
        "80000005 00000007 00000005 00000009 0000000000000000 68656c6c6f",
    ),
    (
        "get, quiet, from the last vbucket",
        kv.Get(vbucket=1023, opaque=0xFFFFFFFF, key=b"k"),
        "80090001 000003ff 00000001 ffffffff 0000000000000000 6b",
    ),
    (
        "get with key",
        kv.Get(key=b"\x00\xff"),
        "800c0002 00000000 00000002 00000000 0000000000000000 00ff",
    ),
    (
        "get with key, quiet",
        kv.Get(key=b"k"),
        "800d0001 00000000 00000001 00000000 0000000000000000 6b",
    ),
    (
        "get reply",
        kv.GetReply(opaque=9, cas=1, flags=0xDEADBEEF, value=b"world"),
        "81000000 04000000 00000009 00000009 0000000000000001 deadbeef 776f726c64",
    ),
    (
        "get reply of an empty document",
        kv.GetReply(opaque=9, cas=2**64 - 1),
        "81000000 04000000 00000004 00000009 ffffffffffffffff 00000000",
    ),
    (
        "get with key, reply, JSON",
        kv.GetReply(opaque=9, cas=1, datatype=1, key=b"hello", value=b"{}"),
        "810c0005 04010000 0000000b 00000009 0000000000000001 00000000 68656c6c6f 7b7d",
    ),
    (
        "set",
        kv.Set(vbucket=7, opaque=9, key=b"hello", value=b"world", flags=0xDEADBEEF, expiry=3600),
        "80010005 08000007 00000012 00000009 0000000000000000 deadbeef 00000e10 68656c6c6f 776f726c64",
    ),
    (
        "set over one version, empty value",
        kv.Set(opaque=1, cas=42, key=b"k"),
        "80010001 08000000 00000009 00000001 000000000000002a 00000000 00000000 6b",
    ),
    (
        "set, quiet",
        kv.Set(key=b"k", value=b"v", flags=1),
        "80110001 08000000 0000000a 00000000 0000000000000000 00000001 00000000 6b 76",
    ),
    (
        "replace",
        kv.Set(key=b"k", value=b"v", expiry=2),
        "80030001 08000000 0000000a 00000000 0000000000000000 00000000 00000002 6b 76",
    ),
    (
        "replace, quiet",
        kv.Set(key=b"k", value=b"v"),
        "80130001 08000000 0000000a 00000000 0000000000000000 00000000 00000000 6b 76",
    ),
    (
        "add",
        kv.Add(vbucket=2, datatype=1, key=b"k", value=b"1", flags=3),
        "80020001 08010002 0000000a 00000000 0000000000000000 00000003 00000000 6b 31",
    ),
    (
        "add, quiet",
        kv.Add(key=b"k", value=b"v"),
        "80120001 08000000 0000000a 00000000 0000000000000000 00000000 00000000 6b 76",
    ),
    (
        "delete",
        kv.Delete(vbucket=7, opaque=9, cas=42, key=b"hello"),
        "80040005 00000007 00000005 00000009 000000000000002a 68656c6c6f",
    ),
    (
        "delete, quiet",
        kv.Delete(key=b"k"),
        "80140001 00000000 00000001 00000000 0000000000000000 6b",
    ),
    (
        "stored",
        kv.StoreReply(opaque=9, cas=42),
        "81010000 00000000 00000000 00000009 000000000000002a",
    ),
    (
        "deleted, with the place in the history",
        kv.StoreReply(opaque=9, cas=42, vbuuid=0xBABE_DEADBEEF, seqno=2**64 - 1),
        "81040000 10000000 00000010 00000009 000000000000002a 0000babedeadbeef ffffffffffffffff",
    ),
    (
        "not added: there is one, and the server says so in words",
        kv.StoreReply(opaque=9, status=2, value=b"exists"),
        "81020000 00000002 00000006 00000009 0000000000000000 657869737473",
    ),
    (
        "noop",
        kv.Noop(opaque=5),
        "800a0000 00000000 00000000 00000005 0000000000000000",
    ),
    (
        "noop, reply",
        kv.Reply(opaque=5),
        "810a0000 00000000 00000000 00000005 0000000000000000",
    ),
    (
        "version",
        kv.Version(opaque=5),
        "800b0000 00000000 00000000 00000005 0000000000000000",
    ),
    (
        "version, reply",
        kv.Reply(opaque=5, value=b"0.1.0"),
        "810b0000 00000000 00000005 00000005 0000000000000000 302e312e30",
    ),
    (
        "quit",
        kv.Quit(),
        "80070000 00000000 00000000 00000000 0000000000000000",
    ),
    (
        "quit, quiet",
        kv.Quit(),
        "80170000 00000000 00000000 00000000 0000000000000000",
    ),
    (
        "stat",
        kv.Stat(opaque=3),
        "80100000 00000000 00000000 00000003 0000000000000000",
    ),
    (
        "stat of a group",
        kv.Stat(opaque=3, key=b"failovers 7"),
        "8010000b 00000000 0000000b 00000003 0000000000000000 6661696c6f766572732037",
    ),
    (
        "stat, one reply",
        kv.Reply(opaque=3, key=b"vb_7:0:seq", value=b"0"),
        "8110000a 00000000 0000000b 00000003 0000000000000000 76625f373a303a736571 30",
    ),
    (
        "hello",
        kv.Hello(opaque=1, key=b"me", value=kv.pack_features([4, 8, 0x12])),
        "801f0002 00000000 00000008 00000001 0000000000000000 6d65 0004 0008 0012",
    ),
    (
        "hello, reply",
        kv.Reply(opaque=1, value=kv.pack_features([4])),
        "811f0000 00000000 00000002 00000001 0000000000000000 0004",
    ),
    (
        "select bucket",
        kv.SelectBucket(opaque=2, key=b"beer"),
        "80890004 00000000 00000004 00000002 0000000000000000 62656572",
    ),
    (
        "get cluster config",
        kv.GetClusterConfig(opaque=2),
        "80b50000 00000000 00000000 00000002 0000000000000000",
    ),
    (
        "cluster config",
        kv.Reply(opaque=2, datatype=1, value=b"{}"),
        "81b50000 00010000 00000002 00000002 0000000000000000 7b7d",
    ),
    (
        "get all vbucket seqnos",
        kv.GetAllVbSeqnos(opaque=2),
        "80480000 00000000 00000000 00000002 0000000000000000",
    ),
    (
        "get all vbucket seqnos of those that are active",
        kv.GetAllVbSeqnos(opaque=2, state=1),
        "80480000 04000000 00000004 00000002 0000000000000000 00000001",
    ),
    (
        "all vbucket seqnos",
        kv.Reply(opaque=2, value=kv.pack_vb_seqnos([(0, 5), (1023, 2**64 - 1)])),
        "81480000 00000000 00000014 00000002 0000000000000000 0000 0000000000000005 03ff ffffffffffffffff",
    ),
    (
        "seqno persistence",
        kv.SeqnoPersistence(vbucket=7, opaque=2, seqno=99),
        "80b70000 08000007 00000008 00000002 0000000000000000 0000000000000063",
    ),
    (
        "seqno persistence, not yet",
        kv.Reply(opaque=2, status=0x86),
        "81b70000 00000086 00000000 00000002 0000000000000000",
    ),
    (
        "observe seqno",
        kv.ObserveSeqno(vbucket=7, opaque=2, value=(0xFEEDDECA).to_bytes(8, "big")),
        "80910000 00000007 00000008 00000002 0000000000000000 00000000feeddeca",
    ),
    (
        "observed, in the current branch",
        kv.Reply(opaque=2, value=kv.Observed(7, 0xFEEDDECA, 3, 4).pack()),
        "81910000 00000000 0000001b 00000002 0000000000000000"
        "00 0007 00000000feeddeca 0000000000000003 0000000000000004",
    ),
    (
        "observed, from an older branch",
        kv.Reply(opaque=2, value=kv.Observed(7, 0xFEEDDECA, 3, 4, 0xDECAFE, 2).pack()),
        "81910000 00000000 0000002b 00000002 0000000000000000"
        "01 0007 00000000feeddeca 0000000000000003 0000000000000004 0000000000decafe 0000000000000002",
    ),
    (
        "get failover log on a plain connection",
        kv.GetFailoverLog(vbucket=7, opaque=2),
        "80960000 00000007 00000000 00000002 0000000000000000",
    ),
    (
        "failover log on a plain connection",
        kv.Reply(opaque=2, value=kv.pack_failover_log([(0xFEEDDECA, 0x5432)])),
        "81960000 00000000 00000010 00000002 0000000000000000 00000000feeddeca 0000000000005432",
    ),
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
        dcp.GetFailoverLog(vbucket=5, opaque=2),
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
]


def frame_of(hexadecimal: str) -> bytes:
    """Return the bytes of a row of GOLDEN."""
    return bytes.fromhex(hexadecimal)
