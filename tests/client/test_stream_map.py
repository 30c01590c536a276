"""The cluster map of a change stream."""

from penstock.client.connect.address import parse_address
from penstock.client.connect.cluster_map import ClusterMap
from penstock.client.streams.stream_map import StreamMap
from penstock.wire.codec.constants import Dialect

NODES = (("127.0.0.1", 11210), ("127.0.0.2", 11210))


def make_map(version: tuple[int, int], nodes: int, uuid: str = "a") -> ClusterMap:
    return ClusterMap(NODES[:nodes], (nodes - 1,) * 4, version=version, uuid=uuid)


def test_a_bucket_stays_clustered_while_one_node_is_left():
    """The node that is left may get replicas before its map of one node is replaced."""
    stream_map = StreamMap(parse_address("couchbase://127.0.0.1/beer?recreatedBucket=rollback"), 4, Dialect.DCP)
    found = []
    for each in (make_map((1, 1), 1), make_map((1, 2), 2), make_map((1, 3), 1), make_map((1, 4), 1, uuid="b")):
        stream_map.adopt(each)
        found.append(stream_map.is_clustered)
    assert found == [False, True, True, False]
