"""Maps for nodes that were away: the newest one, with the node marked wherever it stands."""

import pytest

from penstock.client.cluster.map_delivery import NodeMap, find_old_maps
from penstock.client.replication.map_layout import (
    PUSHED_EPOCH,
    MapLayout,
    MapNode,
    find_next_version,
    make_map_document,
    read_map_layout,
    read_own_node,
)
from penstock.node.cluster.own_map import dump_json
from penstock.node.cluster.pushed_map import PushedMap
from penstock.wire.codec.constants import VbucketState

NODES = tuple(MapNode((f"10.0.0.{at}", 11210), {"kv": 11210, "kvSSL": 11207, "mgmt": 8091}) for at in range(3))
OLD = MapLayout(NODES, ((0, 1), (1, 2), (2, 0)))
NEW = MapLayout(NODES[:2], ((0, 1), (1, -1), (0, 1)))


def receive(layout, revision, at, epoch=PUSHED_EPOCH, outside=None):
    endpoint = NODES[at].endpoint
    document = make_map_document({"name": "beer"}, layout, (epoch, revision), endpoint, outside)
    return NodeMap(("localhost", at), document)


def parse(document):
    return PushedMap.parse(document["revEpoch"], document["rev"], dump_json(document))


def test_node_that_was_failed_over_learns_that_it_owns_nothing():
    [delivery] = find_old_maps([receive(NEW, 7, 0), receive(OLD, 5, 2), receive(NEW, 7, 1)])
    assert delivery.dialled == ("localhost", 2)
    assert read_map_layout(delivery.document, ("h", 1)) == NEW
    assert read_own_node(delivery.document, ("h", 1)) == NODES[2]
    owned = parse(delivery.document).find_owned()
    assert owned is not None
    assert (set(owned.own), dict(owned.foreign)) == (set(), dict.fromkeys(range(3), VbucketState.DEAD))


def test_node_behind_the_others_gets_the_next_map_too():
    maps = [receive(NEW, 7, 0), receive(NEW, 6, 2, outside=NODES[2])]
    [delivery] = find_old_maps(maps)
    assert read_own_node(delivery.document, ("h", 1)) == NODES[2]
    assert find_next_version([delivery.document]) == find_next_version([maps[0].document])


def test_node_of_the_newest_map_learns_its_vbuckets():
    [delivery] = find_old_maps([receive(OLD, 5, 1), receive(NEW, 7, 0)])
    owned = parse(delivery.document).find_owned()
    assert owned is not None
    assert (set(owned.own), dict(owned.foreign)) == ({1}, dict.fromkeys((0, 2), VbucketState.REPLICA))


@pytest.mark.parametrize(
    "maps",
    [
        [],
        [receive(OLD, 9, 0, epoch=1), receive(NEW, 7, 1, epoch=1)],
        [receive(NEW, 7, 0), receive(OLD, 900, 2, epoch=1)],
        [receive(NEW, 7, 0), receive(NEW, 7, 1)],
        [receive(NEW, 7, 0), receive(NEW, 5, 2)],
    ],
    ids=["no node answers", "no orchestrator", "a node with its own map", "all have the newest", "no node is marked"],
)
def test_other_nodes_get_no_map(maps):
    assert find_old_maps(maps) == []
