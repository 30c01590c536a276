"""TAP, and the commands beside it."""

from penstock.wire.codec.layout import Message
from penstock.wire.messages import tap

ROWS: list[tuple[str, Message, str]] = [
    (
        "connect without a name",
        tap.TapConnect(opaque=1),
        "80400000 00000000 00000000 00000001 0000000000000000",
    ),
    (
        "connect with every option that brings data",
        tap.TapConnect(
            key=b"node1",
            flags=0xC5,
            value=tap.TapOptions(
                0xC5, backfill=0x65000000, vbuckets=(1, 3), checkpoints=((1, 7),), closed_only=True
            ).pack(),
        ),
        "80400005 04000000 00000024 00000000 0000000000000000 000000c5 6e6f646531"
        "0000000065000000 0002 0001 0003 0001 0001 0000000000000007 01",
    ),
    (
        "connection refused",
        tap.TapReply(opaque=1, status=0x83, value=b"Not supported"),
        "81400000 00000083 0000000d 00000001 0000000000000000 4e6f7420737570706f72746564",
    ),
    (
        "mutation that asks for an answer",
        tap.TapMutation(
            vbucket=0x66,
            opaque=0x2A,
            cas=3,
            key=b"mykey",
            value=b"value",
            engine_private=bytes.fromhex("0000000000000007 02"),
            tap_flags=5,
            flags=0xDEADBEEF,
            expiry=60,
        ),
        "80410005 10000066 00000023 0000002a 0000000000000003 0009 0005 ff 00 0000 deadbeef 0000003c"
        "0000000000000007 02 6d796b6579 76616c7565",
    ),
    (
        "mutation of an engine without private data, keys only, a hop on",
        tap.TapMutation(vbucket=0x66, opaque=0x2B, key=b"mykey", tap_flags=2, ttl=0xFE),
        "80410005 10000066 00000015 0000002b 0000000000000000 0000 0002 fe 00 0000 00000000 00000000 6d796b6579",
    ),
    (
        "acknowledged",
        tap.TapReply(opaque=0x2A),
        "81410000 00000000 00000000 0000002a 0000000000000000",
    ),
    (
        "to be sent again",
        tap.TapReply(opaque=0x2A, status=0x86),
        "81410000 00000086 00000000 0000002a 0000000000000000",
    ),
    (
        "deletion",
        tap.TapDelete(vbucket=0x66, opaque=0x2C, cas=4, key=b"mykey", engine_private=(8).to_bytes(8, "big")),
        "80420005 08000066 00000015 0000002c 0000000000000004 0008 0000 ff 00 0000 0000000000000008 6d796b6579",
    ),
    (
        "flush",
        tap.TapFlush(opaque=0x2D),
        "80430000 08000000 00000008 0000002d 0000000000000000 0000 0000 ff 00 0000",
    ),
    (
        "opaque: the vbucket's backfill begins",
        tap.TapOpaqueMessage(vbucket=0x66, opaque=0x2E, engine_private=b"\0\0\0\1", tap_flags=1),
        "80440000 08000066 0000000c 0000002e 0000000000000000 0004 0001 ff 00 0000 00000001",
    ),
    (
        "the vbucket shall be active",
        tap.TapVbucketSet(vbucket=0x66, opaque=0x2F, engine_private=b"\0\0\0\1", tap_flags=1),
        "80450000 08000066 0000000c 0000002f 0000000000000000 0004 0001 ff 00 0000 00000001",
    ),
    (
        "a checkpoint begins",
        tap.TapCheckpointStart(
            vbucket=0x66,
            opaque=0x30,
            key=b"checkpoint_start",
            value=(5).to_bytes(8, "big"),
            engine_private=(9).to_bytes(8, "big"),
            tap_flags=1,
            flags=0,
            expiry=0,
        ),
        "80460010 10000066 00000030 00000030 0000000000000000 0008 0001 ff 00 0000 00000000 00000000"
        "0000000000000009 636865636b706f696e745f7374617274 0000000000000005",
    ),
    (
        "a checkpoint begins, as the documentation has it",
        tap.TapCheckpointStart(vbucket=0x66, opaque=0x30, engine_private=(5).to_bytes(8, "big")),
        "80460000 08000066 00000010 00000030 0000000000000000 0008 0000 ff 00 0000 0000000000000005",
    ),
    (
        "a checkpoint ends",
        tap.TapCheckpointEnd(
            vbucket=0x66, opaque=0x31, key=b"checkpoint_end", value=(5).to_bytes(8, "big"), flags=0, expiry=0
        ),
        "8047000e 10000066 00000026 00000031 0000000000000000 0000 0000 ff 00 0000 00000000 00000000"
        "636865636b706f696e745f656e64 0000000000000005",
    ),
    (
        "a checkpoint ends, as the documentation has it",
        tap.TapCheckpointEnd(vbucket=0x66, opaque=0x31, engine_private=(5).to_bytes(8, "big")),
        "80470000 08000066 00000010 00000031 0000000000000000 0008 0000 ff 00 0000 0000000000000005",
    ),
    (
        "last closed checkpoint, request",
        tap.LastClosedCheckpoint(vbucket=0x66, opaque=2),
        "80970000 00000066 00000000 00000002 0000000000000000",
    ),
    (
        "last closed checkpoint",
        tap.TapCommandReply(opaque=2, value=(5).to_bytes(8, "big")),
        "81970000 00000000 00000008 00000002 0000000000000000 0000000000000005",
    ),
    (
        "forget a registered client",
        tap.DeregisterTapClient(opaque=2, key=b"node1"),
        "809e0005 00000000 00000005 00000002 0000000000000000 6e6f646531",
    ),
    (
        "reset the replication chain",
        tap.ResetReplicationChain(opaque=2),
        "809f0000 00000000 00000000 00000002 0000000000000000",
    ),
    (
        "create a checkpoint",
        tap.CreateCheckpoint(vbucket=0x66, opaque=2),
        "80aa0000 00000066 00000000 00000002 0000000000000000",
    ),
    (
        "change the vbuckets of a stream",
        tap.ChangeVbFilter(opaque=2, key=b"node1", value=tap.pack_checkpoints([(1, 7), (3, 0)])),
        "80b00005 00000000 0000001b 00000002 0000000000000000 6e6f646531"
        "0002 0001 0000000000000007 0003 0000000000000000",
    ),
    (
        "a checkpoint shall be on disk",
        tap.CheckpointPersistence(vbucket=0x66, opaque=2, checkpoint_id=5),
        "80b10000 00000066 00000008 00000002 0000000000000000 0000000000000005",
    ),
]
