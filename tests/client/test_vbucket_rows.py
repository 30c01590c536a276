"""The table of a bucket's vbuckets: owners, replicas, lags and faults."""

import pytest

from penstock.client.cluster.replica_choice import NodeReport, parse_node_report
from penstock.client.cluster.vbucket_rows import find_strays, make_vbucket_rows
from penstock.client.connect.cluster_map import ClusterMap
from penstock.client.dashboard.chain_rows import CHAIN_GROUPS, make_chain_rows
from penstock.client.replication.map_layout import MapLayout, MapNode
from penstock.client.topology.node_reports import BucketReport, NodeStatsReport
from penstock.errors import RemoteProtocolError
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


# Rows from statistics

ENDPOINTS = tuple(node.endpoint for node in NODES)
MAP = ClusterMap(ENDPOINTS, (0,), replicas=((1,),))


def make_details(state, high_seqno, **more):
    named = {f"vb_0:{name}": str(value) for name, value in {"high_seqno": high_seqno, **more}.items()}
    return {"vb_0": state, "vb_0:num_items": "7", "other": "1", "vb_x:high_seqno": "2", **named}


def make_groups(details):
    return {group: details if group == "vbucket-details" else {} for group in CHAIN_GROUPS}


def make_rows_of(*groups):
    """Return the rows from the groups of the nodes; None: a node does not answer."""
    nodes = [NodeStatsReport(ENDPOINTS[at], at == 0, each) for at, each in enumerate(groups)]
    return make_chain_rows("beer", BucketReport(MAP, nodes))


def test_report_of_a_node_is_read_from_its_statistics():
    report = parse_node_report(make_details("replica", 9, whole_seqno=8, last_message_age_ms=20))
    assert report == NodeReport({0: REPLICA}, {0: 9}, {0: 8}, {0: 20})
    assert parse_node_report({"vb_0": "unheard of", "vb_99999": "active", "uptime": "1"}) == NodeReport({}, {})


@pytest.mark.parametrize("name", ["high_seqno", "whole_seqno", "last_message_age_ms"])
def test_malformed_number_is_an_error(name):
    with pytest.raises(RemoteProtocolError, match=f"statistic vb_0:{name} is 'many', expected a number"):
        parse_node_report({f"vb_0:{name}": "many"})


def test_rows_from_statistics_are_those_of_the_reports():
    copy = make_details("replica", 9, whole_seqno=9, last_message_age_ms=1500)
    rows = make_rows_of(make_groups(make_details("active", 10, whole_seqno=10)), make_groups(copy))
    assert rows is not None
    (row,) = rows
    assert (row.owner, row.replicas, row.lag, row.age, row.state) == (
        *("a:11210", ("b:11210",)),
        {"b:11210": 1},
        {"b:11210": 1.5},
        "ok",
    )
    rows = make_rows_of(None, make_groups(copy))
    assert rows is not None
    (row,) = rows
    assert (row.lag, row.age, row.state) == ({}, {"b:11210": 1.5}, "owner does not answer")


def test_there_are_no_rows_if_no_node_reports_states():
    assert make_rows_of(make_groups({}), None) is None
