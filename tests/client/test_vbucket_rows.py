"""The table of a bucket's vbuckets: owners, replicas, lags and faults."""

import pytest

from penstock.client.cluster.replica_choice import NodeReport
from penstock.client.cluster.vbucket_rows import find_strays, make_vbucket_rows
from penstock.client.replication.map_layout import MapLayout, MapNode
from penstock.wire.codec.constants import VbucketState

ACTIVE, REPLICA, DEAD = VbucketState.ACTIVE, VbucketState.REPLICA, VbucketState.DEAD
NODES = tuple(MapNode((name, 11210), {"kv": 11210}) for name in "abc")


def make_row(chain, *states):
    """Return the row of vbucket 0. A state is None where the node does not have it, "away" where no node answers."""
    reports = [
        None if state == "away" else NodeReport({} if state is None else {0: state}, {0: 10 - at}, {0: 5}, {0: 250})
        for at, state in enumerate(states)
    ]
    (row,) = make_vbucket_rows("beer", MapLayout(NODES, (chain,)), reports)
    return row


def test_row_names_the_nodes_and_the_changes_that_replicas_lack():
    row = make_row((0, 1, 2), ACTIVE, REPLICA, REPLICA)
    assert (row.bucket, row.vbucket) == ("beer", 0)
    assert (row.owner, row.replicas, row.state) == ("a:11210", ("b:11210", "c:11210"), "ok")
    assert row.lag == {"b:11210": 1, "c:11210": 2}
    assert row.age == {"b:11210": 0.25, "c:11210": 0.25}


def make_copy_row(whole_seqnos, ages):
    reports = [NodeReport({0: ACTIVE}, {0: 10}), NodeReport({0: REPLICA}, {0: 10}, whole_seqnos, ages)]
    (row,) = make_vbucket_rows("beer", MapLayout(NODES[:2], ((0, 1),)), reports)
    return row


def test_copy_without_a_stream_is_a_fault():
    row = make_copy_row({0: 10}, {})
    assert (row.age, row.state) == ({}, "no stream has reached the replica at b:11210 since that node's start")


def test_copy_of_another_server_has_no_age_and_no_fault():
    row = make_copy_row({}, {})
    assert (row.age, row.state) == ({}, "ok")


def test_active_vbuckets_of_others_are_strays():
    layout = MapLayout(NODES, ((0, 1), (1, 0), (-1, -1)))
    reports = [
        NodeReport({0: ACTIVE, 1: ACTIVE}, {}),
        NodeReport({0: REPLICA, 1: ACTIVE}, {}),
        NodeReport({2: ACTIVE}, {}),
    ]
    assert find_strays(layout, reports) == [{1}, set(), {2}]


FAULTS = {
    "no owner": ((-1, 1), DEAD, REPLICA, None),
    "active at b:11210 too": ((0, 1), ACTIVE, ACTIVE, None),
    "active at c:11210": ((0, 1), DEAD, REPLICA, ACTIVE),
    "owner does not answer": ((0, 1), "away", REPLICA, None),
    "not active at its owner": ((0, 1), DEAD, REPLICA, None),
    "no node for a replica": ((0, -1), ACTIVE, None, None),
    "replica at b:11210 does not answer": ((0, 1), ACTIVE, "away", None),
    "no replica at b:11210": ((0, 1), ACTIVE, None, None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_worst_fault_is_named(fault):
    chain, *states = FAULTS[fault]
    assert make_row(chain, *states).state == fault
