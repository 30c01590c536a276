"""The map of an orchestrator is a change of the cluster: it holds on all members, and stays when nodes come and go."""

import json
from contextlib import ExitStack

import pytest

from penstock.node import Node
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.cluster import SetClusterConfig
from penstock.wire.messages.kv import Get, GetClusterConfig, Set, SetVbucket
from tests.node.http.web_client import WebClient
from tests.node.membership.clusters import BUCKETS, VBUCKETS, open_member, run_cluster
from tests.node.test_durability import wait_until
from tests.node.wire_client import connected


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def pair(stack):
    return stack.enter_context(run_cluster(stack, 2))


def read_map(node, bucket="beer"):
    with connected(node, bucket) as client:
        return json.loads(client.ask(GetClusterConfig()).value)


def read_rows(node):
    return read_map(node)["vBucketServerMap"]["vBucketMap"]


def make_map(node, rows, revision=None, nodes=()):
    """Return a map after the map of a node, with other rows; the nodes may be others."""
    document = read_map(node)
    epoch, number = revision or (max(2, document["revEpoch"]), document["rev"] + 1)
    servers = [f"127.0.0.1:{each.kv_port}" for each in nodes] or document["vBucketServerMap"]["serverList"]
    placed = {**document["vBucketServerMap"], "serverList": servers, "vBucketMap": rows}
    return {**document, "revEpoch": epoch, "rev": number, "vBucketServerMap": placed}


def push(node, document, key=b"beer"):
    text = json.dumps(document).encode()
    with connected(node, "beer") as client:
        return client.status(
            SetClusterConfig(key=key, epoch=document["revEpoch"], revision=document["rev"], value=text)
        )


ROWS = [[1, 0]] * 3 + [[0, -1]] * (VBUCKETS - 3)


def test_pushed_map_holds_on_all_members(pair):
    first, second = (web.node for web in pair)
    document = make_map(first, ROWS)
    assert push(first, document) == Status.SUCCESS
    assert push(second, document) == Status.SUCCESS  # an orchestrator sends it to each node
    maps = [read_map(node) for node in (first, second)]
    for found in maps:
        assert (found["revEpoch"], found["rev"]) == (2, document["rev"])
        assert found["vBucketServerMap"] == document["vBucketServerMap"] | {"numReplicas": 1}
    assert [node.get("thisNode", False) for node in maps[1]["nodesExt"]] == [False, True]
    with connected(first, "beer") as client:
        client.ask(SetVbucket(vbucket=0, state=VbucketState.DEAD))
        refused = client.ask(Get(key=b"k", vbucket=0))
        assert (refused.specific, json.loads(refused.value)) == (Status.NOT_MY_VBUCKET, maps[0])


def test_node_joins_and_leaves_after_a_push(pair, stack):
    first, second = (web.node for web in pair)
    assert push(first, make_map(first, ROWS)) == Status.SUCCESS
    before = read_map(first)
    third = stack.enter_context(open_member(pair[0])).node
    for node in (first, second, third):
        found = read_map(node)
        assert (found["revEpoch"], found["rev"]) > (before["revEpoch"], before["rev"])
        assert found["vBucketServerMap"]["vBucketMap"] == ROWS
        assert len(found["nodesExt"]) == len(found["vBucketServerMap"]["serverList"]) == 3
    assert push(third, make_map(third, [[0, 2]] * VBUCKETS)) == Status.SUCCESS
    assert pair[0].post("/controller/ejectNode", otpNode=pair.names[2]).status == 400  # it has replicas
    assert pair[0].post("/controller/ejectNode", otpNode=pair.names[1]).status == 200
    assert read_rows(first) == read_rows(third) == [[0, 1]] * VBUCKETS
    assert [node["clusterMembership"] for node in pair[0].get_json("/pools/default")["nodes"]] == ["active"] * 2


def test_shared_map_never_goes_back(pair):
    first, second = (web.node for web in pair)
    document = make_map(first, ROWS)
    assert push(first, document) == Status.SUCCESS
    number = document["rev"]
    for revision in ((2, number), (2, number - 1), (1, number + 9)):
        assert push(second, make_map(second, [[0]] * VBUCKETS, revision)) == Status.KEY_EEXISTS
    assert pair[1].post(f"{BUCKETS}/beer/scopes", name="cellar").status == 200
    assert read_map(first)["rev"] == number + 1
    assert push(second, document) == Status.KEY_EEXISTS
    assert read_rows(first) == read_rows(second) == ROWS


def test_bucket_that_is_created_again_has_a_newer_map(pair):
    versions = []
    for _ in range(2):
        assert pair[0].post(BUCKETS, name="wine", ramQuota=100).status == 202
        versions.append(read_map(pair[1].node, "wine")["rev"])
        assert pair[1].delete(f"{BUCKETS}/wine").status == 200
    assert versions[0] < versions[1]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [([[0]] * (VBUCKETS - 1), "too few vbuckets"), ([[0, 0]] * VBUCKETS, "twice"), ([[9]] * VBUCKETS, "no node")],
)
def test_map_that_does_not_fit_is_refused(pair, rows, reason):
    first = pair[0].node
    before = read_map(first)
    assert push(first, make_map(first, rows)) == Status.EINVAL, reason
    assert read_map(first) == before


def test_map_with_an_unknown_node_is_refused(pair, stack):
    first = pair[0].node
    other = stack.enter_context(Node.running(["beer"], vbuckets=VBUCKETS))
    nodes = [web.node for web in pair] + [other]
    assert push(first, make_map(first, [[2]] * VBUCKETS, nodes=nodes)) == Status.EINVAL
    assert push(first, make_map(first, [[1]] * VBUCKETS, nodes=nodes)) == Status.SUCCESS
    assert push(first, make_map(first, [[0]] * VBUCKETS), key=b"") == Status.NOT_SUPPORTED


def test_minority_takes_no_map(stack):
    nodes = stack.enter_context(run_cluster(stack, 1, change_timeout=2.0))
    with open_member(nodes[0]):
        pass
    first = nodes[0].node
    assert push(first, make_map(first, [[0, 1]] * VBUCKETS)) == Status.ETMPFAIL
    assert read_rows(first) == [[0]] * VBUCKETS


def test_shared_map_survives_a_restart(stack, tmp_path):
    nodes = stack.enter_context(run_cluster(stack, 1, change_timeout=60.0))
    first = nodes[0].node
    with open_member(nodes[0], data_dir=tmp_path) as second:
        assert push(first, make_map(first, ROWS)) == Status.SUCCESS
        with connected(second.node, "beer") as client:
            client.ask(SetVbucket(vbucket=0, state=VbucketState.ACTIVE))
            assert client.status(Set(key=b"k", value=b"v", vbucket=0)) == Status.SUCCESS
    with open_member(nodes[0], data_dir=tmp_path) as second:
        assert read_rows(second.node) == ROWS
        with connected(second.node, "beer") as client:
            assert client.get(b"k").value == b"v"


def test_node_that_was_away_gives_its_vbuckets_up(stack, tmp_path):
    nodes = stack.enter_context(run_cluster(stack, 2, change_timeout=60.0))
    first = nodes[0].node
    with open_member(nodes[0], data_dir=tmp_path) as third:
        assert push(first, make_map(first, [[2]] * VBUCKETS)) == Status.SUCCESS
        with connected(third.node, "beer") as client:
            for vbucket in range(VBUCKETS):
                assert client.status(SetVbucket(vbucket=vbucket, state=VbucketState.ACTIVE)) == Status.SUCCESS
    assert push(first, make_map(first, [[0]] * 5 + [[2]] * (VBUCKETS - 5))) == Status.SUCCESS
    with open_member(nodes[0], data_dir=tmp_path) as third, connected(third.node, "beer") as client:
        wait_until(lambda: read_rows(third.node)[0] == [0])
        states = client.stats("vbucket")
        found = [states.get(f"vb_{vbucket}") for vbucket in range(VBUCKETS)]
        assert found == ["dead"] * 5 + ["active"] * (VBUCKETS - 5)


def test_cluster_keeps_the_map_that_its_first_node_has(stack):
    first = stack.enter_context(Node.running(["beer"], vbuckets=VBUCKETS))
    own = make_map(first, [[0, -1], [-1, -1]] * (VBUCKETS // 2))
    own["vBucketServerMap"]["serverList"] = [f"$HOST:{first.kv_port}"]
    assert push(first, own) == Status.SUCCESS
    with open_member(WebClient(first)) as second:
        assert read_rows(second.node) == read_rows(first) == [[0, -1], [-1, -1]] * (VBUCKETS // 2)
        assert read_map(first)["revEpoch"] == 2
        assert read_map(first)["rev"] > own["rev"]


def test_node_with_vbuckets_elsewhere_forms_no_cluster(stack):
    first, other, third = (stack.enter_context(Node.running(["beer"], vbuckets=VBUCKETS)) for _ in range(3))
    document = make_map(first, [[0], [1]] * (VBUCKETS // 2), nodes=[first, other])
    assert push(first, document) == Status.SUCCESS
    refused = WebClient(first).post("/controller/addNode", hostname=f"127.0.0.1:{third.http_port}")
    assert refused.status == 400
    assert "expected members of the cluster" in refused.json["errors"]["_"]
    assert WebClient(first).get_json(BUCKETS)[0]["uuid"] == document["uuid"]
