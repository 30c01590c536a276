"""The commands about a node, and the requests that a node sends to its clients."""

from penstock.wire.codec.layout import Message
from penstock.wire.messages import cluster

ROWS: list[tuple[str, Message, str]] = [
    (
        "verbosity",
        cluster.Verbosity(opaque=2, level=3),
        "801b0000 04000000 00000004 00000002 0000000000000000 00000003",
    ),
    (
        "list buckets",
        cluster.ListBuckets(opaque=2),
        "80870000 00000000 00000000 00000002 0000000000000000",
    ),
    (
        "the map of beer from an orchestrator",
        cluster.SetClusterConfig(opaque=2, epoch=1, revision=0x1234, key=b"beer", value=b"{}"),
        "80b40004 10000000 00000016 00000002 0000000000000000 0000000000000001 0000000000001234 62656572 7b7d",
    ),
    (
        "error map, version 2",
        cluster.GetErrorMap(opaque=2, version=2),
        "80fe0000 00000000 00000002 00000002 0000000000000000 0002",
    ),
    (
        "the map of beer, as the releases 6.5.0 to 7.0.1 want it",
        cluster.OldSetClusterConfig(opaque=2, revision=0x1234, key=b"beer", value=b"{}"),
        "80b40004 04000000 0000000a 00000002 0000000000000000 00001234 62656572 7b7d",
    ),
    (
        "the map of the bucket, as the releases before 6.5 want it",
        cluster.OldestSetClusterConfig(opaque=2, value=b"{}"),
        "80b40000 00000000 00000002 00000002 0000000000000000 7b7d",
    ),
    (
        "the map of beer is another",
        cluster.ClustermapChanged(opaque=1, epoch=1, revision=0x1234, key=b"beer", value=b"{}"),
        "82010004 10000000 00000016 00000001 0000000000000000 0000000000000001 0000000000001234 62656572 7b7d",
    ),
    (
        "the nodes are others, in brief",
        cluster.ClustermapChanged(epoch=2, revision=1),
        "82010000 10000000 00000010 00000000 0000000000000000 0000000000000002 0000000000000001",
    ),
    (
        "the map of beer is another, as it was said first",
        cluster.OldClustermapChanged(opaque=1, revision=0x1234, key=b"beer", value=b"{}"),
        "82010004 04000000 0000000a 00000001 0000000000000000 00001234 62656572 7b7d",
    ),
    (
        "understood",
        cluster.ServerReply(opaque=1),
        "83010000 00000000 00000000 00000001 0000000000000000",
    ),
    (
        "not understood",
        cluster.ServerReply(opaque=1, status=0x83),
        "83010000 00000083 00000000 00000001 0000000000000000",
    ),
]
