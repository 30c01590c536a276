"""Owners of vbuckets that have none: the node with most changes, else the one with the fewest vbuckets."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.cluster.balance_moves import choose_owners
from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.replication.map_layout import MapLayout, MapNode

NODES = tuple(MapNode((name, 11210), {"kv": 11210}) for name in "abc")


@given(st.lists(st.integers(-1, 2), min_size=1, max_size=12), st.data())
def test_changes_are_found_and_empty_vbuckets_are_spread(owners, data):
    seqnos = [
        data.draw(st.dictionaries(st.integers(0, len(owners) - 1), st.integers(1, 9)), label=node.address)
        for node in NODES
    ]
    found = choose_owners(MapLayout(NODES, tuple((owner, -1) for owner in owners)), seqnos)
    assert {*found} == {vbucket for vbucket, owner in enumerate(owners) if owner == NO_NODE}
    for vbucket, owner in found.items():
        assert seqnos[owner].get(vbucket, 0) == max(each.get(vbucket, 0) for each in seqnos)


@given(st.integers(1, 40))
def test_empty_vbuckets_are_spread_evenly(count):
    counts = Counter(choose_owners(MapLayout(NODES, ((NO_NODE,),) * count), [{}, {}, {}]).values())
    assert max(counts.values()) - min(counts.get(node, 0) for node in range(3)) <= 1
