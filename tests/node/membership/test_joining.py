"""Nodes that join a cluster, change it together, and leave it."""

import ssl
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from penstock.errors import AccessDenied, StoreDamaged, UsageError
from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.certificates import make_certificates
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users, read_users
from penstock.node.cluster.topology import NodePlace
from penstock.node.membership.member_links import AGREEMENT_PATH
from penstock.node.membership.node_messages import (
    PROOF_HEADER,
    FlushRequest,
    JoinRequest,
    NodeMessage,
    encode_message,
    sign,
)
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.collections import SetManifest
from penstock.wire.messages.kv import Set
from tests.node.http.web_client import WebClient
from tests.node.manifests import ALE, DEFAULT, make_beers, set_scopes
from tests.node.membership.clusters import BUCKETS, VBUCKETS, list_names, open_member, run_cluster
from tests.node.membership.member_process import wait_for
from tests.node.wire_client import connected
from tests.ports import free_ports

USERS = "/settings/rbac/users/local"
ROOT = ("root", "root's")


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def pair(stack):
    return stack.enter_context(run_cluster(stack, 2))


def read_map(web, bucket="beer"):
    return web.get_json(f"/pools/default/b/{bucket}")


def test_joined_node_has_the_buckets_and_owns_no_vbuckets(pair):
    maps = [read_map(web) for web in pair]
    assert maps[0]["uuid"] == maps[1]["uuid"]
    for found in maps:
        assert [node["services"]["kv"] for node in found["nodesExt"]] == [web.node.kv_port for web in pair]
        assert {tuple(place) for place in found["vBucketServerMap"]["vBucketMap"]} == {(0,)}
    assert [node.get("thisNode", False) for node in maps[1]["nodesExt"]] == [False, True]
    pools = [web.get_json("/pools/default") for web in pair]
    for pool in pools:
        assert [node["clusterMembership"] for node in pool["nodes"]] == ["active", "inactiveAdded"]
        assert [node["status"] for node in pool["nodes"]] == ["healthy", "healthy"]
    assert len({web.get_json("/pools")["uuid"] for web in pair}) == 1


def test_bucket_is_created_changed_and_deleted_on_all_nodes(pair):
    first, second = pair
    assert second.post(BUCKETS, name="wine", ramQuota=100).status == 202
    assert list_names(first) == list_names(second) == {"beer", "wine"}
    found = [read_map(web, "wine") for web in pair]
    assert found[0]["vBucketServerMap"] == found[1]["vBucketServerMap"]
    half = VBUCKETS // 2
    assert found[0]["vBucketServerMap"]["vBucketMap"] == [[0]] * half + [[1]] * half
    assert first.post(f"{BUCKETS}/wine", maxTTL=60).status == 200
    assert second.get_json(f"{BUCKETS}/wine")["maxTTL"] == 60
    assert first.post(BUCKETS, name="wine", ramQuota=100).status == 400
    assert first.delete(f"{BUCKETS}/wine").status == 200
    assert list_names(first) == list_names(second) == {"beer"}


def test_bucket_that_is_created_again_is_another_bucket(pair):
    first, second = pair
    uuids = []
    for _ in range(2):
        assert first.post(BUCKETS, name="wine", ramQuota=100).status == 202
        uuids.append(read_map(second, "wine")["uuid"])
        assert second.delete(f"{BUCKETS}/wine").status == 200
    assert uuids[0] != uuids[1]


def test_collections_change_on_all_nodes(pair):
    first, second = pair
    scopes = f"{BUCKETS}/beer/scopes"
    assert second.post(scopes, name="cellar").json == {"uid": "1"}
    assert first.post(f"{scopes}/cellar/collections", name="ales").json == {"uid": "2"}
    assert first.get_json(scopes) == second.get_json(scopes)
    assert second.post(scopes, name="cellar").status == 400
    assert first.delete(f"{scopes}/nowhere").status == 404
    assert second.delete(f"{scopes}/cellar").json == {"uid": "3"}
    assert [scope["name"] for scope in first.get_json(scopes)["scopes"]] == ["_default"]


def test_flush_deletes_the_documents_on_all_nodes(pair):
    first, second = pair
    assert first.post(BUCKETS, name="wine", ramQuota=100, flushEnabled=1).status == 202
    for web, vbucket in ((first, 0), (second, VBUCKETS - 1)):
        with connected(web.node, "wine") as client:
            assert client.status(Set(key=b"k", value=b"v", vbucket=vbucket)) == Status.SUCCESS
    assert first.post(f"{BUCKETS}/wine/controller/doFlush").status == 200
    assert [web.get_json(f"{BUCKETS}/wine")["basicStats"]["itemCount"] for web in pair] == [0, 0]


def send_message(web, state, request):
    """Send a message that a listener could have recorded: it has a valid proof."""
    text = encode_message(NodeMessage("recorded", state.node, "nonce", request))
    return web.ask("POST", AGREEMENT_PATH, body=text, headers={PROOF_HEADER: sign(state.secret, text)})


def test_recorded_flush_and_join_change_nothing(pair):
    first, second = pair
    assert first.post(BUCKETS, name="wine", ramQuota=100, flushEnabled=1).status == 202
    assert first.post(f"{BUCKETS}/wine/controller/doFlush").status == 200
    member = second.node.cluster.member
    document = member.state.document
    bucket, known = document.get_bucket("wine"), document.nodes[0]
    with connected(second.node, "wine") as client:
        assert client.status(Set(key=b"k", value=b"v", vbucket=VBUCKETS - 1)) == Status.SUCCESS
    uuid = bucket.properties["uuid"]
    for flush in ((uuid, bucket.flushes), (uuid, bucket.flushes + 1), ("another", 1)):
        assert send_message(second, member.state, FlushRequest("wine", *flush)).status == 503
    assert second.get_json(f"{BUCKETS}/wine")["basicStats"]["itemCount"] == 1
    assert send_message(second, member.state, JoinRequest(replace(known, host="127.0.0.9"))).status == 200
    assert member.state.document.find_node(known.id) == known
    assert first.post(f"{BUCKETS}/wine/controller/doFlush").status == 200
    assert second.get_json(f"{BUCKETS}/wine")["basicStats"]["itemCount"] == 0


def test_collections_of_the_key_value_port_change_on_all_nodes(pair):
    first, second = pair
    with connected(second.node, "beer") as client:
        set_scopes(client, 1, DEFAULT, make_beers(ALE))
        refused = client.status(SetManifest(value=b'{"uid": "0", "scopes": []}'))
    scopes = f"{BUCKETS}/beer/scopes"
    assert refused != Status.SUCCESS
    assert first.get_json(scopes) == second.get_json(scopes)
    assert len(first.get_json(scopes)["scopes"]) == 2


def test_buckets_of_the_first_node_keep_their_documents_and_collections(stack):
    first = WebClient(stack.enter_context(Node.running(["beer"], vbuckets=VBUCKETS)))
    with connected(first.node, "beer") as client:
        assert client.status(Set(key=b"k", value=b"v")) == Status.SUCCESS
    first.post(f"{BUCKETS}/beer/scopes", name="cellar")
    uuid = read_map(first)["uuid"]
    second = stack.enter_context(open_member(first))
    assert read_map(first)["uuid"] == read_map(second)["uuid"] == uuid
    assert first.get_json(f"{BUCKETS}/beer")["basicStats"]["itemCount"] == 1
    assert [scope["name"] for scope in second.get_json(f"{BUCKETS}/beer/scopes")["scopes"]] == ["_default", "cellar"]


def test_three_nodes_survive_the_loss_of_one(stack):
    nodes = stack.enter_context(run_cluster(stack, 2, change_timeout=60.0))
    with open_member(nodes[0], change_timeout=60.0) as third:
        assert third.post(BUCKETS, name="wine", ramQuota=100).status == 202
    assert nodes[1].post(BUCKETS, name="cider", ramQuota=100).status == 202
    assert list_names(nodes[0]) == list_names(nodes[1]) == {"beer", "wine", "cider"}


def test_minority_changes_nothing_and_reports_why(stack):
    nodes = stack.enter_context(run_cluster(stack, 1, change_timeout=2.0))
    with open_member(nodes[0]):
        pass
    refused = nodes[0].post(BUCKETS, name="wine", ramQuota=100)
    assert refused.status == 503
    assert b"expected at least 2" in refused.body
    assert list_names(nodes[0]) == {"beer"}
    assert nodes[0].post(f"{BUCKETS}/beer/scopes", name="cellar").status == 503


def test_members_are_members_again_after_a_restart(tmp_path):
    ports = free_ports(4)

    def run(number, **options):
        fixed = {"port": ports[2 * number], "http_port": ports[2 * number + 1]} if number < 2 else {}
        return Node.running(vbuckets=VBUCKETS, data_dir=tmp_path / str(number), change_timeout=60.0, **fixed, **options)

    with run(0) as first, run(1, join=f"http://127.0.0.1:{ports[1]}"):
        with run(2, join=f"http://127.0.0.1:{ports[3]}") as third:
            assert WebClient(third).post(BUCKETS, name="wine", ramQuota=100).status == 202
        names = [node["otpNode"] for node in WebClient(first).get_json("/pools/default")["nodes"]]
    with run(0) as first, run(1) as second:
        webs = [WebClient(first), WebClient(second)]
        assert [list_names(web) for web in webs] == [{"default", "wine"}] * 2
        assert webs[1].post(BUCKETS, name="cider", ramQuota=100).status == 202
        assert webs[0].delete(f"{BUCKETS}/wine").status == 200
        with run(2) as third:  # its ports are others than before
            webs.append(WebClient(third))
            assert webs[2].post(f"{BUCKETS}/cider/scopes", name="s").status == 200
            assert [list_names(web) for web in webs] == [{"default", "cider"}] * 3
            for web in webs:
                nodes = web.get_json("/pools/default")["nodes"]
                assert [node["otpNode"] for node in nodes] == names
                assert [scope["name"] for scope in web.get_json(f"{BUCKETS}/cider/scopes")["scopes"]][1:] == ["s"]


def test_member_that_is_started_with_the_same_options_does_not_join_again(stack, tmp_path):
    nodes = stack.enter_context(run_cluster(stack, 1, change_timeout=60.0))
    for _ in range(2):
        with open_member(nodes[0], data_dir=tmp_path) as second:
            assert list_names(second) == {"beer"}
            assert len(second.get_json("/pools/default")["nodes"]) == 2


# Leaving


def test_node_without_vbuckets_leaves(pair):
    first, second = pair
    assert first.post("/controller/ejectNode", otpNode=pair.names[1]).status == 200
    assert list_names(second) == set()
    assert len(first.get_json("/pools/default")["nodes"]) == len(second.get_json("/pools/default")["nodes"]) == 1
    assert second.post(BUCKETS, name="own", ramQuota=100).status == 202
    assert list_names(first) == {"beer"}
    assert first.post(BUCKETS, name="wine", ramQuota=100).status == 202


@pytest.mark.parametrize(
    ("number", "reason"), [(0, b"Cannot remove active server."), (None, b"Server does not exist.")]
)
def test_node_that_owns_vbuckets_or_is_unknown_cannot_be_removed(pair, number, reason):
    name = "ns_1@127.0.0.1" if number is None else pair.names[number]
    refused = pair[1].post("/controller/ejectNode", otpNode=name)
    assert (refused.status, refused.body.strip()) == (400, reason)


def test_removed_node_joins_again(pair):
    first, second = pair
    first.post("/controller/ejectNode", otpNode=pair.names[1])
    address = f"127.0.0.1:{first.node.http_port}"
    assert second.post("/node/controller/doJoinCluster", hostname=address).status == 200
    assert list_names(second) == {"beer"}
    assert first.post(BUCKETS, name="wine", ramQuota=100).status == 202
    assert list_names(second) == {"beer", "wine"}


# Over the paths of ns_server


def test_node_is_added_by_the_cluster(stack):
    first, second = (WebClient(stack.enter_context(Node.running(["beer"], vbuckets=VBUCKETS))) for _ in range(2))
    added = first.post("/controller/addNode", hostname=f"127.0.0.1:{second.node.http_port}", user="", password="")
    assert added.status == 200
    assert added.json["otpNode"] == first.get_json("/pools/default")["nodes"][1]["otpNode"]
    assert read_map(first)["uuid"] == read_map(second)["uuid"]


def test_node_joins_with_the_older_fields(stack):
    first, second = (WebClient(stack.enter_context(Node.running(["beer"], vbuckets=VBUCKETS))) for _ in range(2))
    answer = second.post(
        "/node/controller/doJoinCluster", clusterMemberHostIp="127.0.0.1", clusterMemberPort=first.node.http_port
    )
    assert answer.status == 200
    assert read_map(first)["uuid"] == read_map(second)["uuid"]


@pytest.mark.parametrize(
    ("path", "form", "field"),
    [
        ("/controller/addNode", {}, "hostname"),
        ("/controller/addNode", {"hostname": "127.0.0.1:1:2"}, "_"),
        ("/controller/addNode", {"hostname": "127.0.0.1", "services": "n1ql"}, "services"),
        ("/node/controller/doJoinCluster", {}, "clusterMemberHostIp"),
        ("/node/controller/doJoinCluster", {"clusterMemberHostIp": "h", "clusterMemberPort": "x"}, "clusterMemberPort"),
        ("/controller/ejectNode", {}, "otpNode"),
    ],
)
def test_invalid_form_is_refused(stack, path, form, field):
    web = WebClient(stack.enter_context(Node.running(["beer"], vbuckets=4)))
    refused = web.ask("POST", path, form)
    assert refused.status == 400
    assert list(refused.json["errors"]) == [field]


# Refusals


def test_node_with_documents_cannot_join(stack):
    first, second = (WebClient(stack.enter_context(Node.running(["beer"], vbuckets=VBUCKETS))) for _ in range(2))
    with connected(second.node, "beer") as client:
        assert client.status(Set(key=b"k", value=b"v")) == Status.SUCCESS
    refused = first.post("/controller/addNode", hostname=f"127.0.0.1:{second.node.http_port}")
    assert refused.status == 400
    assert "has documents" in refused.json["errors"]["_"]
    assert second.get_json(f"{BUCKETS}/beer")["basicStats"]["itemCount"] == 1


def test_member_cannot_join_another_cluster(pair, stack):
    other = WebClient(stack.enter_context(Node.running(["wine"], vbuckets=VBUCKETS)))
    refused = pair[1].post("/node/controller/doJoinCluster", hostname=f"127.0.0.1:{other.node.http_port}")
    assert refused.status == 400
    assert "is a member" in refused.json["errors"]["_"]


def test_node_with_a_fixed_list_lets_no_node_join(stack):
    places = (NodePlace(host="127.0.0.1", kv=1), NodePlace(host="127.0.0.1", kv=2))
    fixed = WebClient(stack.enter_context(Node.running(["beer"], vbuckets=VBUCKETS, nodes=places)))
    with pytest.raises(UsageError, match="fixed list"), open_member(fixed):
        pass


def test_join_excludes_other_sources_of_buckets():
    with pytest.raises(UsageError, match="join with a bucket"), Node.running(["beer"], join="http://127.0.0.1:1"):
        pass


# Users


@pytest.fixture
def make_users(tmp_path):
    def make(number):
        path = tmp_path / f"users{number}.json"
        with change_users(path) as accounts:
            accounts["root"] = make_account(User.from_texts("root", ["admin"]), ROOT[1], 4096)
        return path

    return make


def test_users_change_on_all_nodes(stack, make_users):
    paths = [make_users(0), make_users(1)]
    first = WebClient(stack.enter_context(Node.running(["beer"], vbuckets=VBUCKETS, users=paths[0])), ROOT)
    second = stack.enter_context(open_member(first, ROOT, users=paths[1]))
    assert read_users(paths[0]) == read_users(paths[1])
    for path in paths:
        with pytest.raises(UsageError, match="change them over HTTP"), change_users(path):
            pass
    assert second.ask("PUT", f"{USERS}/alice", {"roles": "data_reader[*]", "password": "alice's"}).status == 200
    assert WebClient(first.node, ("alice", "alice's")).get_json("/whoami")["id"] == "alice"
    assert first.ask("PUT", f"{USERS}/alice", {"roles": "admin"}).status == 200
    assert WebClient(second.node, ("alice", "alice's")).get(USERS.removesuffix("/local")).status == 200
    assert first.delete(f"{USERS}/alice").status == 200
    assert WebClient(second.node, ("alice", "alice's")).get("/whoami").status == 401
    assert first.delete(f"{USERS}/alice").status == 404


def test_join_needs_the_login_of_an_administrator(stack, make_users):
    first = WebClient(stack.enter_context(Node.running(["beer"], vbuckets=VBUCKETS, users=make_users(0))), ROOT)
    first.ask("PUT", f"{USERS}/alice", {"roles": "data_reader[*]", "password": "alice's"})
    for login in (("", ""), ("root", "wrong"), ("alice", "alice's")):
        with pytest.raises(AccessDenied, match="refuses the login"), open_member(first, login, users=make_users(1)):
            pass
    assert len(first.get_json("/pools/default")["nodes"]) == 1


def test_node_without_users_cannot_join_a_cluster_with_users(stack, make_users):
    first = WebClient(stack.enter_context(Node.running(["beer"], vbuckets=VBUCKETS, users=make_users(0))), ROOT)
    with pytest.raises(UsageError, match="this node has no users"), open_member(first, ROOT):
        pass


def test_members_exchange_messages_and_vbuckets_over_tls(stack, make_users, tmp_path):
    for name, one in make_certificates([], "reader", 2, datetime.now(UTC)).items():
        (tmp_path / f"{name}.pem").write_bytes(one.certificate)
        (tmp_path / f"{name}.key").write_bytes(one.key)
    tls = {"certificate": tmp_path / "server.pem", "key": tmp_path / "server.key", "tls_port": 0}
    tls["cluster_ca"] = tmp_path / "ca.pem"
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")

    def talk(node):
        return WebClient(node, ROOT, port=node.https_port, context=context)

    first = talk(stack.enter_context(Node.running(["beer"], vbuckets=VBUCKETS, users=make_users(0), **tls)))
    join = f"https://127.0.0.1:{first.node.https_port}"
    second = talk(stack.enter_context(Node.running(join=join, join_login=ROOT, users=make_users(1), **tls)))
    assert second.post(BUCKETS, name="wine", ramQuota=100, numVBuckets=16).status == 202
    assert list_names(first) == list_names(second) == {"beer", "wine"}
    known = ",".join(node["otpNode"] for node in first.get_json("/pools/default")["nodes"])
    assert first.get_json("/pools/default")["balanced"] is False
    assert first.post("/controller/rebalance", knownNodes=known, ejectedNodes="").status == 200
    wait_for(lambda: first.get_json("/pools/default")["rebalanceStatus"] == "none", "the rebalance")
    assert first.get_json("/pools/default")["balanced"] is True, first.get_json("/pools/default/tasks")
    with pytest.raises(Exception, match="certificate verify failed"):
        stack.enter_context(
            Node.running(join=join, join_login=ROOT, users=make_users(2), **{**tls, "cluster_ca": None})
        )


# Messages of members


@pytest.mark.parametrize("proof", ["", "00", "0" * 64])
def test_message_without_the_secret_is_refused(pair, proof):
    refused = pair[0].ask("POST", "/cluster/agreement", body=b"{}", headers={"x-penstock-proof": proof})
    assert refused.status == 403


def test_node_that_stands_alone_answers_no_messages(stack):
    web = WebClient(stack.enter_context(Node.running(["beer"], vbuckets=4)))
    assert web.ask("POST", "/cluster/agreement", body=b"{}").status == 404
    assert web.ask("POST", "/cluster/join", body=b"garbage").status == 400


# Files


def test_damaged_file_of_the_membership_stops_the_start(stack, tmp_path):
    nodes = stack.enter_context(run_cluster(stack, 1))
    with open_member(nodes[0], data_dir=tmp_path):
        pass
    path = tmp_path / "cluster.json"
    assert path.stat().st_mode & 0o077 == 0
    path.write_bytes(path.read_bytes().replace(b'"number": ', b'"number": 1'))
    with pytest.raises(StoreDamaged, match=r"cluster\.json"), Node.running(data_dir=tmp_path):
        pass


def test_node_that_was_removed_while_it_was_away_leaves_at_its_start(stack, tmp_path):
    nodes = stack.enter_context(run_cluster(stack, 2, change_timeout=60.0))
    with open_member(nodes[0], data_dir=tmp_path) as third:
        assert list_names(third) == {"beer"}
    assert nodes[0].post("/controller/ejectNode", otpNode=nodes.names[2]).status == 200
    with Node.running(data_dir=tmp_path) as third:
        assert list_names(WebClient(third)) == set()
        assert not (tmp_path / "cluster.json").exists()
