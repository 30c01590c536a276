"""The commands about storage."""

from penstock.wire.codec.layout import Message
from penstock.wire.messages import observe

ROWS: list[tuple[str, Message, str]] = [
    (
        "observe two documents",
        observe.Observe(opaque=2, value=observe.pack_keys([(7, b"hello"), (1023, b"k")])),
        "80920000 00000000 0000000e 00000002 0000000000000000 0007 0005 68656c6c6f 03ff 0001 6b",
    ),
    (
        "observed: on disk, and deleted but not on disk; 5 ms till then",
        observe.ObserveReply(
            opaque=2,
            cas=5 << 32,
            value=observe.pack_observed_keys([(7, b"hello", 0x01, 42), (1023, b"k", 0x81, 2**64 - 1)]),
        ),
        "81920000 00000000 00000020 00000002 0000000500000000 "
        "0007 0005 68656c6c6f 01 000000000000002a 03ff 0001 6b 81 ffffffffffffffff",
    ),
    (
        "observe, not my vbucket",
        observe.ObserveReply(opaque=2, status=7, value=b"{}"),
        "81920000 00000007 00000002 00000002 0000000000000000 7b7d",
    ),
    (
        "compact",
        observe.CompactDb(vbucket=7, opaque=2),
        "80b30000 18000007 00000018 00000002 0000000000000000 0000000000000000 0000000000000000 00 00 0000 00000000",
    ),
    (
        "compact, without the deletions from before 2017",
        observe.CompactDb(vbucket=7, opaque=2, purge_before_ts=0x5868_5400, purge_before_seqno=9, db_file_id=7),
        "80b30000 18000007 00000018 00000002 0000000000000000 0000000058685400 0000000000000009 00 00 0007 00000000",
    ),
    (
        "compacted",
        observe.StorageReply(opaque=2),
        "81b30000 00000000 00000000 00000002 0000000000000000",
    ),
    (
        "stop persistence",
        observe.StopPersistence(opaque=2),
        "80800000 00000000 00000000 00000002 0000000000000000",
    ),
    (
        "start persistence",
        observe.StartPersistence(opaque=2),
        "80810000 00000000 00000000 00000002 0000000000000000",
    ),
    (
        "set a parameter of the vbuckets",
        observe.SetParam(vbucket=7, opaque=2, type=5, key=b"max_cas", value=b"9"),
        "80820007 04000007 0000000c 00000002 0000000000000000 00000005 6d61785f636173 39",
    ),
    (
        "evict a document",
        observe.EvictKey(vbucket=7, opaque=2, key=b"hello"),
        "80930005 00000007 00000005 00000002 0000000000000000 68656c6c6f",
    ),
    (
        "compacted, with a text",
        observe.StorageReply(opaque=2, value=b"done"),
        "81b30000 00000000 00000004 00000002 0000000000000000 646f6e65",
    ),
]
