"""The rebalance of a cluster over HTTP: vbuckets move, replicas are placed, nodes leave."""

from contextlib import ExitStack

import pytest

from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import SetVbucket
from tests.node.membership.clusters import BUCKETS, open_member, run_cluster
from tests.node.membership.member_process import wait_for
from tests.node.wire_client import connected

PROGRESS = "/pools/default/rebalanceProgress"
TASKS = "/pools/default/tasks"


@pytest.fixture
def nodes():
    with ExitStack() as stack:
        yield stack.enter_context(run_cluster(stack, 3))


def rebalance(web, known, *ejected):
    return web.post("/controller/rebalance", knownNodes=",".join(known), ejectedNodes=",".join(ejected))


def read_pool(web):
    pool = web.get_json("/pools/default")
    memberships = [node["clusterMembership"] for node in pool["nodes"]]
    return pool["balanced"], pool["rebalanceStatus"], memberships


def wait_until_ended(web):
    wait_for(lambda: web.get_json(PROGRESS)["status"] == "none", "the end of the rebalance")
    assert web.get_json(PROGRESS) == {"status": "none"}
    assert web.get_json(TASKS) == [{"type": "rebalance", "status": "notRunning", "statusIsStale": False}]


def read_map(web):
    return web.get_json("/pools/default/b/beer")["vBucketServerMap"]["vBucketMap"]


def test_rebalance_moves_vbuckets_places_replicas_and_ejects_a_node(nodes):
    first, second, third = nodes
    names = nodes.names
    with connected(first.node, "beer") as client:
        for vbucket in range(16):
            client.set(b"key%d" % vbucket, b"value", vbucket=vbucket)
    assert first.post(f"{BUCKETS}/beer", replicaNumber=1).status == 200
    assert read_pool(first) == (False, "none", ["active", "inactiveAdded", "inactiveAdded"])
    assert rebalance(first, names[:2]).json["mismatch"] == 1
    assert rebalance(first, names, *names).json["noKVNodesLeft"] == 1
    assert first.post("/controller/stopRebalance").status == 200

    assert rebalance(first, names).status == 200
    assert read_pool(second)[1] == "running"
    (task,) = first.get_json(TASKS)
    assert (task["status"], task["perNode"].keys()) == ("running", set(names))
    assert second.get_json(TASKS)[0]["status"] == second.get_json(PROGRESS)["status"] == "running"
    for refused in (rebalance(first, names), rebalance(second, names), second.post("/controller/stopRebalance")):
        assert (refused.status, b"rebalance" in refused.body) == (400, True)
    assert second.post("/controller/failOver", otpNode=names[2]).status == 503
    wait_until_ended(first)
    assert read_pool(second) == (True, "none", ["active"] * 3)
    assert sorted([row[0] for row in read_map(third)].count(node) for node in range(3)) == [5, 5, 6]

    assert rebalance(second, names, names[0], names[1]).status == 200  # the asked node leaves too
    wait_for(lambda: len(third.get_json("/pools/default")["nodes"]) == 1, "the nodes leave")
    assert read_pool(third) == (True, "none", ["active"])
    assert third.get_json(f"{BUCKETS}/beer")["basicStats"]["itemCount"] == 16


def test_stopped_rebalance_is_completed_by_the_next_one(nodes):
    first, names = nodes[0], nodes.names
    assert rebalance(first, names, names[1]).status == 200
    assert first.post("/controller/stopRebalance").status == 200
    wait_until_ended(first)
    assert read_pool(first)[0] is False
    assert len(read_pool(first)[2]) == 3  # no node has left
    assert rebalance(first, names).status == 200
    wait_until_ended(first)
    assert read_pool(first)[0] is True


def test_collections_can_be_created_during_a_rebalance(nodes):
    """Each one changes the revision of the map, but not the places of vbuckets."""
    first = nodes[0]
    created: set[str] = set()
    assert rebalance(first, nodes.names).status == 200
    while len(created) < 5 and first.get_json(PROGRESS)["status"] != "none":
        name = f"c{len(created)}"
        assert first.post(f"{BUCKETS}/beer/scopes/_default/collections", name=name).status == 200
        created.add(name)
    wait_until_ended(first)
    assert read_pool(first)[0] is True
    (scope,) = (each for each in nodes[2].get_json(f"{BUCKETS}/beer/scopes")["scopes"] if each["name"] == "_default")
    assert created
    assert created <= {each["name"] for each in scope["collections"]}


def test_failed_rebalance_states_the_reason():
    with ExitStack() as stack:
        nodes = stack.enter_context(run_cluster(stack, 2))
        with open_member(nodes[0]) as third:
            with connected(third.node, "beer") as client:
                assert client.status(SetVbucket(vbucket=3, state=VbucketState.ACTIVE)) == Status.SUCCESS
                client.set(b"stray", b"value", vbucket=3)
            assert rebalance(nodes[0], nodes.names).status == 200
            wait_for(lambda: nodes[0].get_json(PROGRESS)["status"] == "none", "the end of the rebalance")
            assert "vbucket 3 of the target" in nodes[0].get_json(PROGRESS)["errorMessage"]
            assert nodes[0].get_json(TASKS)[0]["errorMessage"] == nodes[0].get_json(PROGRESS)["errorMessage"]
