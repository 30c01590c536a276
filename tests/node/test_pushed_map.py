"""A cluster map from outside: the node serves it everywhere, never goes back, and keeps it over a restart."""

import json
from dataclasses import replace
from typing import Any

import pytest

from penstock.node import Node
from penstock.wire.codec.constants import Feature, VbucketState
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.cluster import OldestSetClusterConfig, OldSetClusterConfig, SetClusterConfig
from penstock.wire.messages.kv import (
    Append,
    Delete,
    DelVbucket,
    DelWithMeta,
    Get,
    GetClusterConfig,
    GetMeta,
    Hello,
    Set,
    SetVbucket,
    SetWithMeta,
    Touch,
    pack_features,
)
from penstock.wire.messages.subdoc import SubdocLookup
from tests.node.http.web_client import WebClient
from tests.node.wire_client import connected

EPOCH = 2  # above the epoch of the node's own maps


def make_map(revision, epoch=EPOCH, owner=0, name="beer"):
    return {
        "rev": revision,
        "revEpoch": epoch,
        "name": name,
        "uuid": "u",
        "nodeLocator": "vbucket",
        "nodesExt": [{"services": {"kv": 1}, "hostname": "$HOST", "thisNode": True}],
        "vBucketServerMap": {
            "hashAlgorithm": "CRC",
            "numReplicas": 0,
            "serverList": ["$HOST:1"],
            "vBucketMap": [[owner]] * 4,
        },
    }


def push(client, document, *, key=b"beer", epoch=None, revision=None):
    text = json.dumps(document).encode()
    epoch = document["revEpoch"] if epoch is None else epoch
    revision = document["rev"] if revision is None else revision
    return client.status(SetClusterConfig(key=key, epoch=epoch, revision=revision, value=text))


def get_map(client):
    return json.loads(client.ask(GetClusterConfig()).value)


@pytest.fixture
def node():
    with Node.running(["beer", "wine"], vbuckets=4) as node:
        yield node


@pytest.fixture
def client(node):
    with connected(node, "beer") as client:
        yield client


def test_clients_get_the_pushed_map(node, client):
    with connected(node, "wine") as wine:
        before = get_map(wine)
        assert push(client, make_map(1)) == Status.SUCCESS
        assert get_map(client) == make_map(1)
        assert get_map(wine) == before
        refused = client.ask(Get(key=b"k", vbucket=9))
        assert (refused.specific, json.loads(refused.value)) == (Status.NOT_MY_VBUCKET, make_map(1))
        known = client.ask(GetClusterConfig(epoch=EPOCH, revision=1))
        assert (known.specific, known.value) == (Status.SUCCESS, b"")


def test_change_of_a_vbucket_leaves_the_pushed_map(client):
    push(client, make_map(1))
    client.ask(SetVbucket(vbucket=1, state=VbucketState.DEAD))
    assert get_map(client) == make_map(1)


def test_clients_that_agreed_on_pushes_get_the_map(node, client):
    with connected(node, "beer") as other:
        other.ask(Hello(value=pack_features([Feature.DUPLEX, Feature.CLUSTERMAP_CHANGE_NOTIFICATION])))
        push(client, make_map(7))
        pushed: Any = decode_frame(other.receive())
        assert (pushed.key, pushed.epoch, pushed.revision) == (b"beer", EPOCH, 7)
        assert json.loads(pushed.value) == make_map(7)
        push(client, make_map(8, epoch=EPOCH + 1))
        pushed = decode_frame(other.receive())
        assert (pushed.epoch, pushed.revision) == (EPOCH + 1, 8)


def test_http_documents_and_streams_have_the_pushed_map(node, client):
    web = WebClient(node)
    push(client, make_map(3))
    terse = web.get_json("/pools/default/b/beer")
    assert (terse["rev"], terse["vBucketServerMap"]["serverList"]) == (3, ["127.0.0.1:1"])
    full = web.get_json("/pools/default/buckets/beer")
    assert (full["rev"], full["revEpoch"], full["vBucketServerMap"]["numReplicas"]) == (3, EPOCH, 0)


def test_map_never_goes_back(client):
    own = get_map(client)
    stale = make_map(own["rev"] - 1, epoch=own["revEpoch"])
    assert push(client, stale) == Status.KEY_EEXISTS
    assert push(client, make_map(own["rev"] + 1, epoch=own["revEpoch"])) == Status.SUCCESS
    assert push(client, make_map(5)) == Status.SUCCESS
    assert push(client, make_map(5)) == Status.SUCCESS  # the same map once more changes nothing
    assert push(client, make_map(5, owner=-1)) == Status.KEY_EEXISTS
    assert push(client, make_map(4)) == Status.KEY_EEXISTS
    assert push(client, make_map(own["rev"] + 9, epoch=own["revEpoch"])) == Status.KEY_EEXISTS
    assert get_map(client) == make_map(5)


def test_map_of_the_nodes_is_replaced_with_an_empty_name(node, client):
    document = {"rev": 1, "revEpoch": EPOCH, "nodesExt": []}
    before = get_map(client)
    assert push(client, document, key=b"") == Status.SUCCESS
    assert get_map(client) == before
    with connected(node) as other:
        assert get_map(other) == document


REFUSED = [
    ("a missing bucket", SetClusterConfig(key=b"ale", epoch=2, revision=1, value=b"{}"), Status.KEY_ENOENT),
    ("a name that is not UTF-8", SetClusterConfig(key=b"\xff", epoch=2, revision=1, value=b"{}"), Status.KEY_ENOENT),
    ("revision 0", SetClusterConfig(key=b"beer", epoch=2, revision=0, value=b"{}"), Status.EINVAL),
    ("revision -1", SetClusterConfig(key=b"beer", epoch=2, revision=2**64 - 1, value=b"{}"), Status.EINVAL),
    ("epoch -1", SetClusterConfig(key=b"beer", epoch=2**64 - 1, revision=9, value=b"{}"), Status.KEY_EEXISTS),
    ("no epoch", OldSetClusterConfig(key=b"beer", revision=1, value=b"{}"), Status.EINVAL),
    ("no version", OldestSetClusterConfig(value=b"{}"), Status.EINVAL),
    ("no JSON", SetClusterConfig(key=b"beer", epoch=2, revision=1, value=b"{"), Status.EINVAL),
    ("no object", SetClusterConfig(key=b"beer", epoch=2, revision=1, value=b"[1]"), Status.EINVAL),
    ("not a number", SetClusterConfig(key=b"beer", epoch=2, revision=1, value=b'{"a":NaN}'), Status.EINVAL),
    ("deep JSON", SetClusterConfig(key=b"beer", epoch=2, revision=1, value=b'{"a":' + b"[" * 9999), Status.EINVAL),
    ("long JSON", SetClusterConfig(key=b"beer", epoch=2, revision=1, value=b"{" + b" " * (4 << 20)), Status.EINVAL),
    ("no map", Frame(Magic.REQUEST, Opcode.SET_CLUSTER_CONFIG, extras=bytes(16)), Status.EINVAL),
    ("no revision", Frame(Magic.REQUEST, Opcode.SET_CLUSTER_CONFIG, value=b"{}"), Status.EINVAL),
]


@pytest.mark.parametrize(("case", "message", "status"), REFUSED, ids=[row[0] for row in REFUSED])
def test_invalid_maps_are_refused(client, case, message, status):
    before = get_map(client)
    assert client.status(message) == status
    assert get_map(client) == before


@pytest.mark.parametrize("options", [{}, {"kind": "ephemeral"}])
def test_pushed_map_survives_a_restart(tmp_path, options):
    def running():
        return Node.running(["other"], vbuckets=4, data_dir=tmp_path)

    bucket = {"bucketType": options.get("kind", "couchbase"), "numVBuckets": "4", "ramQuotaMB": "100"}
    with running() as node:
        assert WebClient(node).post("/pools/default/buckets", name="beer", **bucket).status == 202
        with connected(node, "beer") as client:
            assert push(client, make_map(1)) == Status.SUCCESS
            assert push(client, make_map(2)) == Status.SUCCESS
    with running() as node, connected(node, "beer") as client:
        assert get_map(client) == make_map(2)
        assert push(client, make_map(1)) == Status.KEY_EEXISTS


def list_vbuckets(node):
    return [vbucket.history.state for vbucket in node.buckets["beer"].store.vbuckets]


def test_vbuckets_of_a_pushed_map_and_replicas_survive_a_restart(tmp_path):
    active, replica = VbucketState.ACTIVE, VbucketState.REPLICA
    with Node.running(["beer"], vbuckets=4, data_dir=tmp_path) as node, connected(node, "beer") as client:
        push(client, make_map(1))
        client.ask(SetVbucket(vbucket=0, state=replica))
        client.ask(DelVbucket(vbucket=1))
    with Node.running(["beer"], vbuckets=4, data_dir=tmp_path) as node, connected(node, "beer") as client:
        assert list_vbuckets(node) == [replica, None, active, active]
        client.ask(SetVbucket(vbucket=0, state=active))
    with Node.running(["beer"], vbuckets=4, data_dir=tmp_path) as node:
        assert list_vbuckets(node) == [active, None, active, active]


def make_shared_map(revision, chains, this=0):
    """Return a map of two nodes, of which the one with the number `this` receives it."""
    document = make_map(revision)
    document["nodesExt"] = [
        {"services": {"kv": kv}, "hostname": "a", **({"thisNode": True} if at == this else {})}
        for at, kv in enumerate((1, 2))
    ]
    document["vBucketServerMap"] |= {"numReplicas": 1, "serverList": ["a:1", "a:2"], "vBucketMap": chains}
    return document


def list_states(node):
    return node.call(lambda: [vbucket.history.state for vbucket in node.buckets["beer"].store.vbuckets])


A, R, P, D = VbucketState
KEPT = [[0, -1]] * 4
OTHERS = [[1, -1]] * 4
READ = (Get(key=b"k"), GetMeta(key=b"k"), Touch(key=b"k", expiry=0), SubdocLookup.for_path(b"p", key=b"k"))
WRITE = (
    Set(key=b"k", value=b"v"),
    Delete(key=b"k"),
    Append(key=b"k", value=b"v"),
    SetWithMeta(key=b"k", value=b"v", flags=0, expiry=0, rev_seqno=1, new_cas=1),
    DelWithMeta(key=b"k", flags=0, delete_time=0, rev_seqno=2, new_cas=2),
)


def list_refused(client, vbucket):
    """Return the requests that a vbucket refuses because it belongs to another node."""
    found = (client.ask(replace(request, vbucket=vbucket)).specific for request in (*READ, *WRITE))
    return [status == Status.NOT_MY_VBUCKET for status in found]


def test_map_ends_the_vbuckets_that_it_gives_to_another_node(node, client):
    client.status(SetVbucket(vbucket=2, state=R))
    assert push(client, make_shared_map(10, [[0, -1], [1, 0], [1, -1], [-1, -1]])) == Status.SUCCESS
    assert list_states(node) == [A, R, R, A]
    client.status(SetVbucket(vbucket=1, state=A))
    assert push(client, make_shared_map(11, [[0, -1], [1, -1], [1, -1], [-1, -1]])) == Status.SUCCESS
    assert list_states(node) == [A, D, R, A]
    assert [any(list_refused(client, vbucket)) for vbucket in range(4)] == [False, True, True, True]
    assert all(list_refused(client, 1) + list_refused(client, 3))


def test_vbucket_is_served_once_the_map_names_its_node(node, client):
    """An orchestrator makes a vbucket active before it publishes the map."""
    push(client, make_shared_map(10, OTHERS))
    assert client.status(SetVbucket(vbucket=2, state=A)) == Status.SUCCESS
    assert all(list_refused(client, 2))
    assert push(client, make_shared_map(10, OTHERS)) == Status.SUCCESS  # the same map takes nothing
    assert list_states(node) == [D, D, A, D]
    assert push(client, make_shared_map(11, KEPT)) == Status.SUCCESS
    assert not any(list_refused(client, 2))
    assert client.get(b"k", vbucket=0).specific == Status.NOT_MY_VBUCKET  # it is dead


def test_owners_end_at_the_next_map_and_not_at_an_older_one(node, client):
    assert push(client, make_shared_map(10, KEPT)) == Status.SUCCESS
    assert push(client, make_shared_map(9, OTHERS)) == Status.KEY_EEXISTS
    assert list_states(node) == [A] * 4
    assert push(client, make_shared_map(11, OTHERS)) == Status.SUCCESS
    assert list_states(node) == [D] * 4


@pytest.mark.parametrize(
    ("chains", "this", "states"),
    [
        ([[1, 0]] * 4, None, [A] * 4),
        ([[-1, -1]] * 4, 0, [A] * 4),
        ([[0, 1]] * 9, 0, [A] * 4),
        ([[0, 1]] * 2, 0, [A] * 4),
        ([], 0, [A] * 4),
        ([[7, 0]] * 4, 0, [A] * 4),
    ],
    ids=["no node is marked", "no owner", "more vbuckets", "fewer vbuckets", "no vbuckets", "unknown node"],
)
def test_map_that_gives_no_vbucket_to_another_node_ends_none(node, client, chains, this, states):
    assert push(client, make_shared_map(10, chains, this)) == Status.SUCCESS
    assert list_states(node) == states


def test_vbuckets_of_other_nodes_stay_refused_after_a_restart(tmp_path):
    def running():
        return Node.running(["beer"], vbuckets=4, data_dir=tmp_path)

    with running() as node, connected(node, "beer") as client:
        assert push(client, make_shared_map(10, [[0, 1], [1, 0], [1, -1], [-1, -1]])) == Status.SUCCESS
        assert client.status(SetVbucket(vbucket=1, state=A)) == Status.SUCCESS
        assert client.status(SetVbucket(vbucket=2, state=R)) == Status.SUCCESS
    with running() as node, connected(node, "beer") as client:
        assert list_states(node) == [A, R, R, A]
        assert [any(list_refused(client, vbucket)) for vbucket in range(4)] == [False, True, True, True]


def test_map_without_vbuckets_lets_clients_use_all(node, client):
    push(client, make_shared_map(10, [[-1, -1]] * 4))
    assert all(list_refused(client, 0))
    plain = make_map(11)
    del plain["vBucketServerMap"]
    push(client, plain)
    assert not any(list_refused(client, 0))
