"""HTTP documents that clients read, with the fields that they require."""

import json
import re
from contextlib import ExitStack

import pytest

from penstock.node import Node
from penstock.node.http.http_app import PAGES
from penstock.wire.codec.constants import VbucketState
from penstock.wire.messages.kv import GetClusterConfig, SetVbucket
from tests.node.balanced_nodes import run_nodes
from tests.node.http.web_client import WebClient
from tests.node.wire_client import connected

RELEASE = re.compile(r"7\.6\.0-\d+-enterprise")


def test_older_clients_find_a_bucket_from_pools(node, web):
    pools = web.get_json("/pools")
    assert RELEASE.fullmatch(pools["implementationVersion"])
    assert pools["isAdminCreds"]  # without users, every client is an administrator
    (pool,) = pools["pools"]
    assert pool["name"] == "default"
    document = web.get_json(pool["uri"])
    buckets = web.get_json(document["buckets"]["uri"])
    assert [bucket["name"] for bucket in buckets] == ["default", "beer"]
    bucket = web.get_json(buckets[1]["uri"])
    assert bucket["name"] == "beer"
    (found,) = bucket["nodes"]
    assert found["hostname"] == found["configuredHostname"] == f"127.0.0.1:{node.http_port}"
    assert found["ports"]["direct"] == node.kv_port
    assert RELEASE.fullmatch(found["version"])
    assert int(found["uptime"]) >= 0
    assert isinstance(found["uptime"], str)
    assert (found["status"], found["clusterMembership"], found["thisNode"]) == ("healthy", "active", True)
    assert bucket["vBucketServerMap"]["serverList"] == [f"127.0.0.1:{node.kv_port}"]
    assert bucket["vBucketServerMap"]["vBucketMap"] == [[0]] * 16
    assert "cccp" in bucket["bucketCapabilities"]
    assert bucket["streamingUri"].startswith("/pools/default/bucketsStreaming/beer")


def test_bucket_document_has_all_fields(node, web):
    with connected(node, "beer") as client:
        for number in range(3):
            client.set(b"key-%d" % number, b"v")
    document = web.get_json("/pools/default/buckets/beer")
    assert (document["bucketType"], document["storageBackend"]) == ("membase", "couchstore")
    assert document["nodeLocator"] == "vbucket"
    assert document["uuid"] == node.buckets["beer"].uuid
    assert document["ddocs"]["uri"].endswith("/beer/ddocs")
    assert document["basicStats"]["itemCount"] == 3
    assert document["basicStats"]["memUsed"] > 0
    assert document["quota"]["ram"] == document["quota"]["rawRAM"] >= 100 << 20
    assert (document["replicaNumber"], document["maxTTL"], document["conflictResolutionType"]) == (0, 0, "seqno")
    assert int(document["collectionsManifestUid"], 16) == 0
    assert document["controllers"]["flush"] == "/pools/default/buckets/beer/controller/doFlush"
    assert web.get_json("/pools/default/buckets") == [web.get_json("/pools/default/buckets/default"), document]


@pytest.mark.parametrize("path", ["/pools/default/b/beer", "/pools/default/bs/beer"])
def test_terse_map_equals_the_map_of_the_data_port(node, web, path):
    with connected(node, "beer") as client:
        known_map = client.ask(GetClusterConfig()).value
    if path.endswith("b/beer"):
        text = web.get(path).body
        assert b'"rev":' in text
        document = json.loads(text)
    else:
        with web.stream(path) as stream:
            document = stream.next()
    assert document == json.loads(known_map.replace(b"$HOST", b"127.0.0.1"))
    (place,) = document["nodesExt"]
    assert place["services"] == {"kv": node.kv_port, "mgmt": node.http_port}
    assert place["thisNode"] is True


def test_nodes_page_lists_this_node(node, web):
    services = web.get_json("/pools/default/nodeServices")
    assert services["nodesExt"] == [
        {
            "services": {"kv": node.kv_port, "mgmt": node.http_port},
            "thisNode": True,
        }
    ]
    assert services["rev"] > 0
    (found,) = web.get_json("/pools/nodes")["nodes"]
    assert found["hostname"] == f"127.0.0.1:{node.http_port}"


def test_whoami_and_root_describe_user_and_node(web):
    assert web.get_json("/")["pools"] == "/pools"
    assert web.get_json("/whoami")["roles"] == [{"role": "admin", "target": "*"}]


def test_bucket_statistics_are_samples(node, web):
    with connected(node, "beer") as client:
        client.set(b"k", b"v")
        client.get(b"k")
    samples = web.get_json("/pools/default/buckets/beer/stats")["op"]["samples"]
    assert samples["curr_items"] == [1]
    assert samples["cmd_get"] == [1]


@pytest.mark.parametrize(
    ("host", "shown"), [("localhost", "localhost"), ("127.0.0.1:5", "127.0.0.1"), ("[::1]:8091", "::1")]
)
def test_map_has_the_requested_host(node, web, host, shown):
    document = web.get("/pools/default/b/beer", headers={"Host": host}).json
    assert "hostname" not in document["nodesExt"][0]
    joined = f"[{shown}]" if ":" in shown else shown
    assert document["vBucketServerMap"]["serverList"] == [f"{joined}:{node.kv_port}"]


@pytest.mark.parametrize(
    "path",
    [
        "/pools/default/buckets/wine",
        "/pools/default/b/wine",
        "/pools/default/bs/wine",
        "/pools/default/bucketsStreaming/wine",
        "/pools/default/buckets/wine/scopes",
        "/pools/default/buckets/wine/stats",
        "/pools/default/buckets/beer?bucket_uuid=0123",
        "/pools/default/buckets/%2e%2e",
        "/nowhere",
        "/pools/default/buckets/beer/nowhere",
    ],
)
def test_unknown_paths_are_not_found(web, path):
    answer = web.get(path)
    assert answer.status == 404
    assert answer.body.strip()
    assert b"Traceback" not in answer.body


LOOKUPS = [page.path for page in PAGES if page.method == "GET"]


@pytest.mark.parametrize("slashes", ["/", "//"])
@pytest.mark.parametrize("path", LOOKUPS)
def test_trailing_slash_is_ignored(node, web, path, slashes):
    """The Java SDK lists and creates buckets at `/pools/default/buckets/`, and follows no redirect."""
    here, names = f"127.0.0.1:{node.http_port}", {"scope": "_default", "collection": "_default", "name": "curr_items"}
    target = path.format(bucket="beer", node=here, user="Administrator", **names)
    answers = [web.ask("HEAD", target), web.ask("HEAD", target.rstrip("/") + slashes)]
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].headers["content-type"] == answers[1].headers["content-type"]  # figures differ in length


def test_trailing_slash_is_ignored_on_changes_and_unknown_paths(node, web):
    created = web.post("/pools/default/buckets/", name="wine", ramQuotaMB=100)
    assert (created.status, "wine" in node.buckets) == (202, True)
    assert web.get("/pools/default/buckets/?skipMap=true").status == 200
    assert web.get("/nowhere/").status == 404
    assert web.delete("/pools/default/buckets/wine/").status == 200


def test_cbtransfer_finds_its_statistics(node, web):
    with connected(node, "beer") as client:
        for number in range(3):
            client.set(b"key-%d" % number, b"v")
    here = f"127.0.0.1:{node.http_port}"
    bucket = web.get_json("/pools/default/buckets/beer")
    (server,) = web.get_json(bucket["stats"]["nodeStatsListURI"])["servers"]
    assert (server["hostname"], web.get_json(server["uri"])) == (here, server)
    assert web.get_json(server["stats"]["uri"])["op"]["samples"]["curr_items"] == [3]
    items = web.get_json(f"{bucket['stats']['uri']}/curr_items")
    assert items["nodeStats"] == {here: [3]}
    assert len(items["timestamp"]) == 1
    for path in ("stats/nothing", "nodes/10.0.0.9:8091", "nodes/10.0.0.9:8091/stats"):
        assert web.get(f"/pools/default/buckets/beer/{path}").status == 404


def test_quota_that_was_read_can_be_sent_back(web):
    path = "/pools/default/buckets/beer"
    megabytes = web.get_json(path)["quota"]["rawRAM"] >> 20
    assert web.post(path, ramQuotaMB=megabytes, maxTTL=5).status == 200
    assert web.get_json(path)["quota"]["rawRAM"] == megabytes << 20


@pytest.mark.parametrize("on_disk", [False, True])
def test_couchbase_bucket_has_the_persistence_capability(tmp_path, on_disk):
    """The Java SDK refuses PersistTo to a bucket without the capability `couchapi`."""
    with Node.running(["beer"], vbuckets=4, data_dir=tmp_path if on_disk else None) as node:
        web = WebClient(node)
        assert web.post("/pools/default/buckets", name="fast", bucketType="ephemeral").status == 202
        found = {bucket["name"]: bucket["bucketCapabilities"] for bucket in web.get_json("/pools/default/buckets")}
    assert found["beer"] == sorted([*found["fast"], "couchapi"])


def test_unsupported_methods_are_refused(web):
    assert web.ask("DELETE", "/pools").status == 405
    assert web.ask("PUT", "/pools/default/buckets/beer").status == 405


def test_head_has_no_body_and_ends_a_stream(web):
    for path in ("/pools", "/pools/default/bs/beer"):
        answer = web.ask("HEAD", path)
        assert (answer.status, answer.body) == (200, b"")


def test_inactive_vbucket_has_no_node_in_the_map(node, web):
    with connected(node, "beer") as client:
        client.ask(SetVbucket(vbucket=3, state=VbucketState.REPLICA))
    places = web.get_json("/pools/default/buckets/beer")["vBucketServerMap"]["vBucketMap"]
    assert places == [[0]] * 3 + [[-1]] + [[0]] * 12


def test_pages_show_the_nodes_and_the_uuid_of_an_orchestrators_map():
    with ExitStack() as stack:
        nodes = run_nodes(stack, 2)
        for own, node in enumerate(nodes):
            web = WebClient(node)
            document = web.get_json("/pools/default/buckets/beer")
            addresses = [f"127.0.0.1:{each.http_port}" for each in nodes]
            assert [found["hostname"] for found in document["nodes"]] == addresses
            assert [found.get("thisNode", False) for found in document["nodes"]] == [own == 0, own == 1]
            assert [found["ports"]["direct"] for found in document["nodes"]] == [each.kv_port for each in nodes]
            servers = web.get_json("/pools/default/buckets/beer/nodes")["servers"]
            assert [found["hostname"] for found in servers] == addresses
            assert (
                [web.get(found["stats"]["uri"]).status for found in servers] == [200, 404] if own == 0 else [404, 200]
            )
            uris = {WebClient(each).get_json("/pools/default/buckets")[0]["uri"] for each in nodes}
            assert len(uris) == 1
            assert web.get_json(*uris)["uuid"] == document["uuid"]
