"""Key-value commands, and those about a whole connection or bucket."""

from typing import Any

from penstock.wire.codec.layout import Message
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages import kv

Row = tuple[str, Message, str]

COMMANDS: list[Row] = [
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
        "get cluster config, if it is newer",
        kv.GetClusterConfig(opaque=2, epoch=1, revision=2**64 - 1),
        "80b50000 10000000 00000010 00000002 0000000000000000 0000000000000001 ffffffffffffffff",
    ),
    (
        "get from a replica",
        kv.GetReplica(vbucket=7, opaque=9, key=b"hello"),
        "80830005 00000007 00000005 00000009 0000000000000000 68656c6c6f",
    ),
    (
        "any document",
        kv.GetRandomKey(opaque=9),
        "80b60000 00000000 00000000 00000009 0000000000000000",
    ),
    (
        "any document of a collection",
        kv.GetRandomKey(opaque=9, collection_id=0x1234),
        "80b60000 04000000 00000004 00000009 0000000000000000 00001234",
    ),
    (
        "any document of a collection, with its extended attributes",
        kv.GetRandomKey(opaque=9, collection_id=8, include_xattrs=1),
        "80b60000 05000000 00000005 00000009 0000000000000000 00000008 01",
    ),
    (
        "any document, reply",
        kv.GetReply(opaque=9, cas=1, key=b"\x08k", value=b"v", flags=2),
        "81b60002 04000000 00000007 00000009 0000000000000001 00000002 086b 76",
    ),
    (
        "keys",
        kv.GetKeys(vbucket=7, opaque=9, key=b"a"),
        "80b80001 00000007 00000001 00000009 0000000000000000 61",
    ),
    (
        "two keys",
        kv.GetKeys(vbucket=7, opaque=9, key=b"a", count=2),
        "80b80001 04000007 00000005 00000009 0000000000000000 00000002 61",
    ),
    (
        "two keys, reply",
        kv.Reply(opaque=9, value=kv.pack_key_list([b"ab", b"c"])),
        "81b80000 00000000 00000007 00000009 0000000000000000 0002 6162 0001 63",
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
        "get all vbucket seqnos of a collection, those that are active",
        kv.GetCollectionSeqnos(opaque=2, state=1, collection_id=0x555),
        "80480000 08000000 00000008 00000002 0000000000000000 00000001 00000555",
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
        "get, no such document",
        kv.NoDocument(opaque=9, status=1, value=b"Not found"),
        "81000000 00000001 00000009 00000009 0000000000000000 4e6f7420666f756e64",
    ),
    (
        "get and touch",
        kv.GetAndTouch(vbucket=7, opaque=9, key=b"hello", expiry=3600),
        "801d0005 04000007 00000009 00000009 0000000000000000 00000e10 68656c6c6f",
    ),
    (
        "get and touch, quiet",
        kv.GetAndTouch(key=b"k", expiry=0),
        "801e0001 04000000 00000005 00000000 0000000000000000 00000000 6b",
    ),
    (
        "touch",
        kv.Touch(vbucket=7, opaque=9, key=b"hello", expiry=3600),
        "801c0005 04000007 00000009 00000009 0000000000000000 00000e10 68656c6c6f",
    ),
    (
        "flush",
        kv.Flush(opaque=2),
        "80080000 00000000 00000000 00000002 0000000000000000",
    ),
    (
        "flush in a minute",
        kv.Flush(opaque=2, delay=60),
        "80080000 04000000 00000004 00000002 0000000000000000 0000003c",
    ),
    (
        "flush, quiet",
        kv.Flush(opaque=2),
        "80180000 00000000 00000000 00000002 0000000000000000",
    ),
    (
        "flush in a minute, quiet",
        kv.Flush(opaque=2, delay=60),
        "80180000 04000000 00000004 00000002 0000000000000000 0000003c",
    ),
    (
        "set vbucket",
        kv.SetVbucket(vbucket=7, opaque=2, state=3),
        "803d0000 01000007 00000001 00000002 0000000000000000 03",
    ),
    (
        "set vbucket, with its topology",
        kv.SetVbucket(vbucket=7, opaque=2, datatype=1, value=b"{}", state=1),
        "803d0000 01010007 00000003 00000002 0000000000000000 01 7b7d",
    ),
    (
        "set vbucket before 6.5",
        kv.OldSetVbucket(vbucket=7, opaque=2, state=2),
        "803d0000 04000007 00000004 00000002 0000000000000000 00000002",
    ),
    (
        "set vbucket, the state as value",
        kv.OldestSetVbucket(vbucket=7, opaque=2, state=4),
        "803d0000 00000007 00000004 00000002 0000000000000000 00000004",
    ),
    (
        "get vbucket",
        kv.GetVbucket(vbucket=7, opaque=2),
        "803e0000 00000007 00000000 00000002 0000000000000000",
    ),
    (
        "vbucket state",
        kv.Reply(opaque=2, value=b"\0\0\0\1"),
        "813e0000 00000000 00000004 00000002 0000000000000000 00000001",
    ),
    (
        "delete vbucket",
        kv.DelVbucket(vbucket=7, opaque=2),
        "803f0000 00000007 00000000 00000002 0000000000000000",
    ),
    (
        "delete vbucket and wait",
        kv.DelVbucket(vbucket=7, opaque=2, value=b"async=0"),
        "803f0000 00000007 00000007 00000002 0000000000000000 6173796e633d30",
    ),
    (
        "close a producer",
        kv.CloseProducer(opaque=2, key=b"bookstream"),
        "80f0000a 00000000 0000000a 00000002 0000000000000000 626f6f6b73747265616d",
    ),
    (
        "get locked",
        kv.GetLocked(vbucket=7, opaque=9, key=b"hello"),
        "80940005 00000007 00000005 00000009 0000000000000000 68656c6c6f",
    ),
    (
        "get locked, for so long",
        kv.GetLocked(vbucket=7, opaque=9, key=b"hello", lock_time=30),
        "80940005 04000007 00000009 00000009 0000000000000000 0000001e 68656c6c6f",
    ),
    (
        "get locked, reply",
        kv.GetReply(opaque=9, cas=42, flags=1, value=b"world"),
        "81940000 04000000 00000009 00000009 000000000000002a 00000001 776f726c64",
    ),
    (
        "get locked, locked already",
        kv.NoDocument(opaque=9, status=0x86),
        "81940000 00000086 00000000 00000009 0000000000000000",
    ),
    (
        "unlock",
        kv.Unlock(vbucket=7, opaque=9, cas=42, key=b"hello"),
        "80950005 00000007 00000005 00000009 000000000000002a 68656c6c6f",
    ),
    (
        "unlocked",
        kv.Reply(opaque=9),
        "81950000 00000000 00000000 00000009 0000000000000000",
    ),
    (
        "counted",
        kv.CountReply(opaque=9, cas=42, value=(11).to_bytes(8, "big")),
        "81050000 00000000 00000008 00000009 000000000000002a 000000000000000b",
    ),
    (
        "counted, with the place in the history",
        kv.CountReply(opaque=9, cas=42, vbuuid=0xBABE_DEADBEEF, seqno=3, value=(2**64 - 1).to_bytes(8, "big")),
        "81160000 10000000 00000018 00000009 000000000000002a 0000babedeadbeef 0000000000000003 ffffffffffffffff",
    ),
    (
        "not counted: it is no number",
        kv.CountReply(opaque=9, status=6, value=b"Non-numeric"),
        "81060000 00000006 0000000b 00000009 0000000000000000 4e6f6e2d6e756d65726963",
    ),
    (
        "appended",
        kv.StoreReply(opaque=9, cas=42),
        "810e0000 00000000 00000000 00000009 000000000000002a",
    ),
    (
        "stored with meta data, with the place in the history",
        kv.StoreReply(opaque=9, cas=42, vbuuid=1, seqno=2),
        "81a20000 10000000 00000010 00000009 000000000000002a 0000000000000001 0000000000000002",
    ),
    (
        "meta data of a tombstone",
        kv.MetaReply(opaque=9, cas=42, deleted=1, flags=0, expiry=0x5F5E1000, rev_seqno=7),
        "81a00000 14000000 00000014 00000009 000000000000002a 00000001 00000000 5f5e1000 0000000000000007",
    ),
    (
        "meta data of a document, with its datatype",
        kv.MetaReply(opaque=9, cas=42, deleted=0, flags=0xDEADBEEF, expiry=0, rev_seqno=7, value_datatype=5),
        "81a00000 15000000 00000015 00000009 000000000000002a 00000000 deadbeef 00000000 0000000000000007 05",
    ),
    (
        "no meta data",
        kv.NoMeta(opaque=9, status=1),
        "81a00000 00000001 00000000 00000009 0000000000000000",
    ),
]

META: dict[str, Any] = {"flags": 0xDEADBEEF, "rev_seqno": 7, "new_cas": 0x1122334455667788}
SETTING, DELETING = {**META, "expiry": 0x5F5E1000}, {**META, "delete_time": 0x5F5E1000}
META_BYTES = "deadbeef 5f5e1000 0000000000000007 1122334455667788"

UNDER_SEVERAL: list[tuple[str, tuple[Opcode, ...], Message, str]] = [
    (
        "",
        (Opcode.INCREMENT, Opcode.INCREMENTQ, Opcode.DECREMENT, Opcode.DECREMENTQ),
        kv.Count(vbucket=7, opaque=9, key=b"hello", delta=1, initial=0x2A, expiry=0xFFFFFFFF),
        "0005 14000007 00000019 00000009 00000000000000000000000000000001 000000000000002a ffffffff 68656c6c6f",
    ),
    (
        "",
        (Opcode.APPEND, Opcode.APPENDQ, Opcode.PREPEND, Opcode.PREPENDQ),
        kv.Append(vbucket=7, opaque=9, cas=42, key=b"hello", value=b"world"),
        "0005 00000007 0000000a 00000009 000000000000002a 68656c6c6f 776f726c64",
    ),
    (
        "",
        (Opcode.GET_META, Opcode.GETQ_META),
        kv.GetMeta(vbucket=7, opaque=9, key=b"hello"),
        "0005 00000007 00000005 00000009 0000000000000000 68656c6c6f",
    ),
    (
        "version 2",
        (Opcode.GET_META, Opcode.GETQ_META),
        kv.GetMeta(vbucket=7, opaque=9, key=b"hello", version=2),
        "0005 01000007 00000006 00000009 0000000000000000 02 68656c6c6f",
    ),
    (
        "",
        (Opcode.SET_WITH_META, Opcode.SETQ_WITH_META, Opcode.ADD_WITH_META, Opcode.ADDQ_WITH_META),
        kv.SetWithMeta(vbucket=7, opaque=9, key=b"hello", value=b"world", **SETTING),
        f"0005 18000007 00000022 00000009 0000000000000000 {META_BYTES} 68656c6c6f 776f726c64",
    ),
    (
        "with options",
        (Opcode.SET_WITH_META, Opcode.SETQ_WITH_META, Opcode.ADD_WITH_META, Opcode.ADDQ_WITH_META),
        kv.SetWithMeta(vbucket=7, opaque=9, cas=42, key=b"hello", value=b"world", options=2, **SETTING),
        f"0005 1c000007 00000026 00000009 000000000000002a {META_BYTES} 00000002 68656c6c6f 776f726c64",
    ),
    (
        "with extended meta data",
        (Opcode.SET_WITH_META, Opcode.SETQ_WITH_META, Opcode.ADD_WITH_META, Opcode.ADDQ_WITH_META),
        kv.OldSetWithNmeta(vbucket=7, opaque=9, key=b"hello", value=b"world\1\1\0", nmeta=3, **SETTING),
        f"0005 1a000007 00000027 00000009 0000000000000000 {META_BYTES} 0003 68656c6c6f 776f726c64 010100",
    ),
    (
        "with options and extended meta data",
        (Opcode.SET_WITH_META, Opcode.SETQ_WITH_META, Opcode.ADD_WITH_META, Opcode.ADDQ_WITH_META),
        kv.SetWithNmeta(vbucket=7, opaque=9, key=b"hello", value=b"world\1", options=12, nmeta=1, **SETTING),
        f"0005 1e000007 00000029 00000009 0000000000000000 {META_BYTES} 0000000c 0001 68656c6c6f 776f726c64 01",
    ),
    (
        "",
        (Opcode.DEL_WITH_META, Opcode.DELQ_WITH_META),
        kv.DelWithMeta(vbucket=7, opaque=9, key=b"hello", **DELETING),
        f"0005 18000007 0000001d 00000009 0000000000000000 {META_BYTES} 68656c6c6f",
    ),
    (
        "with options",
        (Opcode.DEL_WITH_META, Opcode.DELQ_WITH_META),
        kv.DelWithMeta(vbucket=7, opaque=9, cas=42, key=b"hello", options=0x10, **DELETING),
        f"0005 1c000007 00000021 00000009 000000000000002a {META_BYTES} 00000010 68656c6c6f",
    ),
    (
        "with extended meta data",
        (Opcode.DEL_WITH_META, Opcode.DELQ_WITH_META),
        kv.OldDelWithNmeta(vbucket=7, opaque=9, key=b"hello", value=b"\1", nmeta=1, **DELETING),
        f"0005 1a000007 00000020 00000009 0000000000000000 {META_BYTES} 0001 68656c6c6f 01",
    ),
    (
        "with options and extended meta data",
        (Opcode.DEL_WITH_META, Opcode.DELQ_WITH_META),
        kv.DelWithNmeta(vbucket=7, opaque=9, key=b"hello", value=b"\1", options=2, nmeta=1, **DELETING),
        f"0005 1e000007 00000024 00000009 0000000000000000 {META_BYTES} 00000002 0001 68656c6c6f 01",
    ),
]
"""Frames of several opcodes, without the opcode: (form, opcodes, message, the bytes after the opcode)."""

ROWS: list[Row] = [
    *COMMANDS,
    *(
        (f"{opcode.name} {form}".strip(), message, f"80{opcode:02x}{rest}")
        for form, opcodes, message, rest in UNDER_SEVERAL
        for opcode in opcodes
    ),
]
