"""Every frame that the five specifications of the protocol family draw byte by byte, and its correction.

The ids count the diagrams of a document: 000 is the UPR transport specification, 001 the UPR draft. 002 is the page of
the snapshot marker, 003 the page of the mutation in the collections prototype, 004 TAP. An erratum is a letter for the
document and a number; `test_seeds` describes it. The hexadecimal is spaced as in tests/golden.
"""

from typing import NamedTuple

from penstock.wire.codec.constants import MAX_SEQNO, Dialect
from penstock.wire.codec.layout import Message
from penstock.wire.messages import dcp, tap, upr, upr_draft
from penstock.wire.messages.kv import pack_failover_log


class Seed(NamedTuple):
    """A diagram.

    Attributes:
        corrected: the frame that Penstock sends.
        drawn: the frame as it is printed, if the two differ.
        why: the reason for accepting or refusing the frame as drawn.
        refused: part of the error, if the drawn frame is refused.
    """

    id: str
    dialect: Dialect
    title: str
    message: Message
    corrected: str
    errata: str
    drawn: str | None = None
    why: str = ""
    refused: str = ""


SEEDS = [
    Seed(
        "000-01",
        Dialect.UPR,
        "failover log, request",
        upr.UprGetFailoverLog(opaque=0xDEADBEEF),
        "80510000 00000000 00000000 deadbeef 0000000000000000",
        "A1",
    ),
    Seed(
        "000-02",
        Dialect.UPR,
        "failover log, reply of four entries",
        upr.UprFailoverLogReply(
            opaque=0xDEADBEEF,
            value=pack_failover_log(
                [(0xFEEDDECA, 0x5432), (0xDECAFE, 0x1343214), (0xFEEDFACE, 4), (0xDEADBEEF, 0x6524)]
            ),
        ),
        "81510000 00000000 00000040 deadbeef 0000000000000000 00000000feeddeca 0000000000005432 0000000000decafe "
        "0000000001343214 00000000feedface 0000000000000004 00000000deadbeef 0000000000006524",
        "A1 A9",
    ),
    Seed(
        "000-03",
        Dialect.UPR,
        "stream request from the middle of a branch",
        upr.UprStreamReq(
            opaque=0xDEADBEEF, key=b"vbstream-0", start_seqno=0xFFEEDD, end_seqno=MAX_SEQNO, vbuuid=0xFEEDDECA
        ),
        "8050000a 28000000 00000032 deadbeef 0000000000000000 00000000 00000000 0000000000ffeedd ffffffffffffffff "
        "00000000feeddeca 0000000000000000 766273747265616d2d30",
        "A1 A16",
    ),
    Seed(
        "000-04",
        Dialect.UPR,
        "stream refused: roll back to 0",
        upr.UprStreamReply(opaque=0xDEADBEEF, status=35, rollback_seqno=0),
        "81500000 08000023 00000008 deadbeef 0000000000000000 0000000000000000",
        "A1 A2",
    ),
    Seed(
        "000-05",
        Dialect.UPR,
        "stream request from 0",
        upr.UprStreamReq(opaque=0xDEADBEEF, key=b"vbstream-0", start_seqno=0, end_seqno=MAX_SEQNO, vbuuid=0xFEEDDECA),
        "8050000a 28000000 00000032 deadbeef 0000000000000000 00000000 00000000 0000000000000000 ffffffffffffffff "
        "00000000feeddeca 0000000000000000 766273747265616d2d30",
        "A1 A16",
    ),
    Seed(
        "000-06",
        Dialect.UPR,
        "stream accepted",
        upr.UprStreamReply(opaque=0xDEADBEEF),
        "81500000 00000000 00000000 deadbeef 0000000000000000",
        "A1 A3 A4",
    ),
    Seed(
        "000-07",
        Dialect.UPR,
        "stream start",
        upr.UprStreamStart(opaque=0xDEADBEEF),
        "80520000 00000000 00000000 deadbeef 0000000000000000",
        "A1 A10",
    ),
    Seed(
        "000-08",
        Dialect.UPR,
        "stream end, everything sent",
        upr.UprStreamEnd(opaque=0xDEADBEEF, reason=0),
        "80530000 04000000 00000004 deadbeef 0000000000000000 00000000",
        "A1 A7 A8",
    ),
    Seed(
        "000-09",
        Dialect.UPR,
        "snapshot start",
        upr.UprSnapshotStart(opaque=0xDEADBEEF),
        "80540000 00000000 00000000 deadbeef 0000000000000000",
        "A1 A10",
    ),
    Seed(
        "000-10",
        Dialect.UPR,
        "snapshot end",
        upr.UprSnapshotEnd(opaque=0xDEADBEEF),
        "80550000 00000000 00000000 deadbeef 0000000000000000",
        "A1 A10",
    ),
    Seed(
        "000-11",
        Dialect.UPR,
        "mutation",
        upr.UprMutation(opaque=0xDEADBEEF, cas=1, key=b"hello", value=b"world", by_seqno=0),
        "80560005 1c000000 00000026 deadbeef 0000000000000001 0000000000000000 0000000000000000 00000000 00000000 "
        "00000000 68656c6c6f 776f726c64",
        "A1 A6 A14",
        drawn="80560005 1c000000 00000027 deadbeef 0000000000000001 0000000000000000 0000000000000000 00000000 "
        "00000000 00000000 68656c6c6f 776f726c64",
        why="extras and key have lengths that fit; the value is the rest, one byte less than declared",
    ),
    Seed(
        "000-12",
        Dialect.UPR,
        "deletion",
        upr.UprDeletion(opaque=0xDEADBEEF, cas=1, key=b"hello", by_seqno=0),
        "80570005 10000000 00000015 deadbeef 0000000000000001 0000000000000000 0000000000000000 68656c6c6f",
        "A1 A13 A14",
    ),
    Seed(
        "000-13",
        Dialect.UPR,
        "expiration",
        upr.UprExpiration(opaque=0xDEADBEEF, cas=1, key=b"hello", by_seqno=0),
        "80580005 10000000 00000015 deadbeef 0000000000000001 0000000000000000 0000000000000000 68656c6c6f",
        "A1 A13 A14",
    ),
    Seed(
        "000-14",
        Dialect.UPR,
        "flush",
        upr.UprFlush(opaque=0xDEADBEEF),
        "80590000 00000000 00000000 deadbeef 0000000000000000",
        "A1 A12",
    ),
    Seed(
        "000-15",
        Dialect.UPR,
        "the vbucket shall be dead",
        upr.UprSetVbucketState(opaque=0xDEADBEEF, state=4),
        "805a0000 01000000 00000001 deadbeef 0000000000000000 04",
        "A1 A5 A11",
    ),
    Seed(
        "001-01",
        Dialect.UPR_DRAFT,
        "header alone, a request of kind 0",
        upr_draft.DraftNoRequest(opaque=10),
        "80010000 00000000 00000000 0000000a 0000000000000000",
        "B1 B2 B12",
    ),
    Seed(
        "001-02",
        Dialect.UPR_DRAFT,
        "stream request",
        upr_draft.DraftStreamReq(
            opaque=45,
            key=b"replication_12",
            vbucket=12,
            start_seqno=0,
            end_seqno=MAX_SEQNO,
            vbuuid=0x3C58A,
            high_seqno=2680,
        ),
        "8001000e 2001000c 0000002e 0000002d 0000000000000000 0000000000000000 ffffffffffffffff 000000000003c58a "
        "0000000000000a78 7265706c69636174696f6e5f3132",
        "B1 B2 B4 B5",
        drawn="8001000e 2801000c 00000036 0000002d 0000000000000000 0000000000000000 ffffffffffffffff "
        "000000000003c58a 0000000000000a78 7265706c69636174696f6e5f3132",
        why="with 40 bytes of extras the key would end 8 bytes behind the frame; with 32 it ends where the frame does",
    ),
    Seed(
        "001-03",
        Dialect.UPR_DRAFT,
        "stream accepted",
        upr_draft.DraftOk(opaque=45, vbucket=12),
        "81020000 0001000c 00000000 0000002d 0000000000000000",
        "B1 B2",
    ),
    Seed(
        "001-04",
        Dialect.UPR_DRAFT,
        "stream refused: not my vbucket",
        upr_draft.DraftFailoverLog(opaque=45, vbucket=12),
        "81020000 0002000c 00000000 0000002d 0000000000000000",
        "B1 B2 B8",
    ),
    Seed(
        "001-05",
        Dialect.UPR_DRAFT,
        "stream refused: roll back",
        upr_draft.DraftRollback(opaque=45, vbucket=12, rollback_seqno=0x45A8),
        "81020000 0003000c 00000008 0000002d 0000000000000000 00000000000045a8",
        "B1 B2 B6",
        drawn="81020000 0003000c 00000000 0000002d 0000000000000000 00000000000045a8",
        why="no extras and no key are declared, so what is there is the value: 8 bytes, as a rollback needs",
    ),
    Seed(
        "001-06",
        Dialect.UPR_DRAFT,
        "failover log, request",
        upr_draft.DraftGetFailoverLog(opaque=45, vbucket=12),
        "80010000 0002000c 00000000 0000002d 0000000000000000",
        "B1 B2",
    ),
    Seed(
        "001-07",
        Dialect.UPR_DRAFT,
        "failover log, reply of two entries",
        upr_draft.DraftFailoverLog(opaque=45, value=pack_failover_log([(3570, 0xF294), (0x7B43, 0x9321)]), vbucket=12),
        "81020000 0002000c 00000020 0000002d 0000000000000000 0000000000000df2 000000000000f294 0000000000007b43 "
        "0000000000009321",
        "B1 B2 B7 B8",
        drawn="81020000 0002000c 00000000 0000002d 0000000000000000 0000000000000df2 000000000000f294 "
        "0000000000007b43 0000000000009321",
        why="no extras and no key are declared, so what is there is the value: two entries of 16 bytes",
    ),
    Seed(
        "001-08",
        Dialect.UPR_DRAFT,
        "stream start",
        upr_draft.DraftStreamStart(opaque=45, vbucket=12),
        "81030000 0000000c 00000000 0000002d 0000000000000000",
        "B1 B2 B3 B11",
    ),
    Seed(
        "001-09",
        Dialect.UPR_DRAFT,
        "snapshot start",
        upr_draft.DraftSnapshotStart(opaque=45, vbucket=12),
        "81040000 0001000c 00000000 0000002d 0000000000000000",
        "B1 B2 B3",
    ),
    Seed(
        "001-10",
        Dialect.UPR_DRAFT,
        "snapshot end",
        upr_draft.DraftSnapshotEnd(opaque=45, vbucket=12),
        "81040000 0002000c 00000000 0000002d 0000000000000000",
        "B1 B2 B3",
    ),
    Seed(
        "001-11",
        Dialect.UPR_DRAFT,
        "mutation",
        upr_draft.DraftMutation(
            opaque=45, cas=165, key=b"mykey", value=b"myvalue", vbucket=12, by_seqno=2251, rev_seqno=3
        ),
        "81040005 1c03000c 00000028 0000002d 00000000000000a5 00000000000008cb 0000000000000003 00000000 00000000 "
        "00000000 6d796b6579 6d7976616c7565",
        "B1 B2 B3 B9",
        drawn="81040005 2403000c 00000030 0000002d 00000000000000a5 00000000000008cb 0000000000000003 00000000 "
        "00000000 00000000 6d796b6579 6d7976616c7565",
        why="36 bytes of extras and the key do not fit, and the draft has only one form, of 28",
    ),
    Seed(
        "001-12",
        Dialect.UPR_DRAFT,
        "deletion",
        upr_draft.DraftDeletion(opaque=45, cas=165, key=b"mykey", vbucket=12, by_seqno=2251, rev_seqno=3),
        "81040005 1c04000c 00000021 0000002d 00000000000000a5 00000000000008cb 0000000000000003 00000000 00000000 "
        "00000000 6d796b6579",
        "B1 B2 B3 B10",
        drawn="81040005 2404000c 00000029 0000002d 00000000000000a5 00000000000008cb 0000000000000003 00000000 "
        "00000000 00000000 6d796b6579",
        why="36 bytes of extras and the key do not fit, and the draft has only one form, of 28",
    ),
    Seed(
        "001-13",
        Dialect.UPR_DRAFT,
        "expiration",
        upr_draft.DraftExpiration(opaque=45, cas=165, key=b"mykey", vbucket=12, by_seqno=2251, rev_seqno=3),
        "81040005 1c05000c 00000021 0000002d 00000000000000a5 00000000000008cb 0000000000000003 00000000 00000000 "
        "00000000 6d796b6579",
        "B1 B2 B3 B10",
        drawn="81040005 2405000c 00000029 0000002d 00000000000000a5 00000000000008cb 0000000000000003 00000000 "
        "00000000 00000000 6d796b6579",
        why="36 bytes of extras and the key do not fit, and the draft has only one form, of 28",
    ),
    Seed(
        "001-14",
        Dialect.UPR_DRAFT,
        "flush",
        upr_draft.DraftFlush(opaque=45, vbucket=12),
        "81040000 0006000c 00000000 0000002d 0000000000000000",
        "B1 B2 B3 B11",
    ),
    Seed(
        "001-15",
        Dialect.UPR_DRAFT,
        "stream end, everything sent",
        upr_draft.DraftStreamEnd(opaque=45, vbucket=12),
        "81050000 0001000c 00000000 0000002d 0000000000000000",
        "B1 B2 B3 B11 B13",
    ),
    Seed(
        "001-16",
        Dialect.UPR_DRAFT,
        "stream end, state changed",
        upr_draft.DraftStateChanged(opaque=45, vbucket=12),
        "81050000 0002000c 00000000 0000002d 0000000000000000",
        "B1 B2 B3 B11 B13",
    ),
    Seed(
        "002-01",
        Dialect.DCP,
        "snapshot marker V1, from memory",
        dcp.SnapshotMarker(opaque=0xDEADBEEF, start_seqno=0, end_seqno=8, flags=1),
        "80560000 14000000 00000014 deadbeef 0000000000000000 0000000000000000 0000000000000008 00000001",
        "C1 C2",
        drawn="80560000 14000000 00000000 deadbeef 0000000000000000 0000000000000000 0000000000000008 00000001",
        why="of the two forms only V1 has 20 bytes in all",
    ),
    Seed(
        "002-02",
        Dialect.DCP,
        "snapshot marker V2.0, from disk",
        dcp.SnapshotMarkerV2(
            opaque=0xDEADBEEF, start_seqno=1, end_seqno=8, flags=2, max_visible_seqno=8, high_completed_seqno=7
        ),
        "80560000 01000000 00000025 deadbeef 0000000000000000 00 0000000000000001 0000000000000008 00000002 "
        "0000000000000008 0000000000000007",
        "C3 C4 C5",
        drawn="80560000 14000000 00000000 deadbeef 0000000000000000 01 0000000000000001 0000000000000008 00000002 "
        "0000000000000008 0000000000000007",
        why="the lengths can be found, but the version drawn is the withdrawn V2.1: nothing says that 0 is meant",
        refused="version 1",
    ),
    Seed(
        "003-01",
        Dialect.DCP,
        "mutation of the collections prototype",
        dcp.PrototypeMutation(
            opaque=4624, key=b"c::hello", value=b"world", vbucket=528, by_seqno=4, rev_seqno=1, collection_length=1
        ),
        "80570008 20000210 0000002d 00001210 0000000000000000 0000000000000004 0000000000000001 00000000 00000000 "
        "00000000 0000 00 01 633a3a68656c6c6f 776f726c64",
        "D1 D2 D3 D4 D5 D6 D7 D8",
        drawn="80570005 1f000210 00000029 00001210 0000000000000000 0000000000000004 0000000000000001 00000000 "
        "00000000 00000000 0000 00 07 633a3a68656c6c6f 776f726c64",
        why="31 bytes of extras fit as well as 32, and the key's length is wrong too: two readings, both nonsense",
        refused="2 of the forms",
    ),
    Seed(
        "004-01",
        Dialect.TAP,
        "connect, without options",
        tap.TapConnect(key=b"node1", flags=0),
        "80400005 04000000 00000009 00000000 0000000000000000 00000000 6e6f646531",
        "E1 E8",
    ),
    Seed(
        "004-02",
        Dialect.TAP,
        "connect, only what changes from now on",
        tap.TapConnect(key=b"node1", value=tap.TapOptions(1, backfill=MAX_SEQNO).pack(), flags=1),
        "80400005 04000000 00000011 00000000 0000000000000000 00000001 6e6f646531 ffffffffffffffff",
        "E1",
    ),
    Seed(
        "004-03",
        Dialect.TAP,
        "connect for a dump",
        tap.TapConnect(key=b"node1", flags=2),
        "80400005 04000000 00000009 00000000 0000000000000000 00000002 6e6f646531",
        "E1",
    ),
    Seed(
        "004-04",
        Dialect.TAP,
        "connect for three vbuckets",
        tap.TapConnect(key=b"node1", value=tap.TapOptions(4, vbuckets=(0, 1, 2)).pack(), flags=4),
        "80400005 04000000 00000011 00000000 0000000000000000 00000004 6e6f646531 0003000000010002",
        "E1 E8",
    ),
    Seed(
        "004-05",
        Dialect.TAP,
        "connect to take three vbuckets over",
        tap.TapConnect(key=b"node1", value=tap.TapOptions(12, vbuckets=(0, 1, 2)).pack(), flags=12),
        "80400005 04000000 00000011 00000000 0000000000000000 0000000c 6e6f646531 0003000000010002",
        "E1 E8",
    ),
    Seed(
        "004-06",
        Dialect.TAP,
        "connect with acknowledgements",
        tap.TapConnect(key=b"node1", flags=16),
        "80400005 04000000 00000009 00000000 0000000000000000 00000010 6e6f646531",
        "E1 E8",
    ),
    Seed(
        "004-07",
        Dialect.TAP,
        "connect for the keys only",
        tap.TapConnect(key=b"node1", flags=32),
        "80400005 04000000 00000009 00000000 0000000000000000 00000020 6e6f646531",
        "E1 E8",
    ),
    Seed(
        "004-08",
        Dialect.TAP,
        "connect with four options, two of which bring data",
        tap.TapConnect(key=b"node1", value=tap.TapOptions(53, backfill=5, vbuckets=(0, 1, 2, 3, 4)).pack(), flags=53),
        "80400005 04000000 0000001d 00000000 0000000000000000 00000035 6e6f646531 "
        "0000000000000005000500000001000200030004",
        "E1",
    ),
    Seed(
        "004-09",
        Dialect.TAP,
        "mutation",
        tap.TapMutation(cas=3, key=b"mykey", value=b"value", vbucket=102),
        "80410005 10000066 0000001a 00000000 0000000000000003 0000 0000 ff 00 0000 00000000 00000000 6d796b6579 "
        "76616c7565",
        "E6 E7",
    ),
    Seed(
        "004-10",
        Dialect.TAP,
        "deletion",
        tap.TapDelete(key=b"mykey", vbucket=102),
        "80420005 08000066 0000000d 00000000 0000000000000000 0000 0000 ff 00 0000 6d796b6579",
        "E6 E7",
    ),
    Seed(
        "004-11",
        Dialect.TAP,
        "flush",
        tap.TapFlush(),
        "80430000 08000000 00000008 00000000 0000000000000000 0000 0000 ff 00 0000",
        "E6 E7",
    ),
    Seed(
        "004-12",
        Dialect.TAP,
        "opaque, a command that nobody knows",
        tap.TapOpaqueMessage(vbucket=1023, engine_private=b"\xff\xff\xff\xff"),
        "80440000 080003ff 0000000c 00000000 0000000000000000 0004 0000 ff 00 0000 ffffffff",
        "E3 E5 E6 E7",
    ),
    Seed(
        "004-13",
        Dialect.TAP,
        "the vbucket shall be pending",
        tap.TapVbucketSet(opaque=57, vbucket=56, engine_private=b"\x00\x00\x00\x03", tap_flags=1),
        "80450000 08000038 0000000c 00000039 0000000000000000 0004 0001 ff 00 0000 00000003",
        "E2 E4 E5 E6 E7",
    ),
]
