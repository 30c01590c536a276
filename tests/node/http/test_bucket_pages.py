"""HTTP requests that create, change, flush and delete buckets."""

import pytest

from penstock.node import Node
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import GetClusterConfig
from penstock.wire.messages.observe import StartPersistence, StopPersistence
from tests.node.http.web_client import WebClient
from tests.node.wire_client import connected

BUCKETS = "/pools/default/buckets"


def test_form_of_a_client_creates_a_bucket(node, web):
    form = {
        "name": "wine",
        "bucketType": "membase",
        "ramQuotaMB": "256",
        "replicaNumber": "1",
        "flushEnabled": "1",
        "conflictResolutionType": "lww",
        "maxTTL": "3600",
        "compressionMode": "active",
        "evictionPolicy": "valueOnly",
        "durabilityMinLevel": "none",
        "storageBackend": "magma",
        "replicaIndex": "0",
        "numVBuckets": "64",
        "historyRetentionCollectionDefault": "true",
        "historyRetentionSeconds": "60",
        "of a later release": "anything",
    }
    answer = web.post(BUCKETS, **form)
    assert (answer.status, answer.body) == (202, b"")
    document = web.get_json(answer.headers["location"])
    assert (document["bucketType"], document["storageBackend"]) == ("membase", "magma")
    assert document["conflictResolutionType"] == "lww"
    assert (document["authType"], document["saslPassword"]) == ("sasl", ""), "cbtransfer 2.5.1 reads them"
    assert document["quota"]["rawRAM"] == 256 << 20
    assert (document["replicaNumber"], document["maxTTL"], document["historyRetentionSeconds"]) == (1, 3600, 60)
    assert document["vBucketServerMap"]["vBucketMap"] == [[0, -1]] * 64
    with connected(node, "wine") as client:
        assert client.set(b"k", b"v", vbucket=63).specific == Status.SUCCESS


def test_bucket_with_history_has_it_in_new_collections(node, web):
    sizes = {"historyRetentionSeconds": "60", "historyRetentionBytes": "2147483648"}
    assert web.post(BUCKETS, name="wine", storageBackend="magma", **sizes).status == 202
    document = web.get_json(f"{BUCKETS}/wine")
    shown = {name: document[name] for name in document if name.startswith("history")}
    assert shown == {
        "historyRetentionSeconds": 60,
        "historyRetentionBytes": 2147483648,
        "historyRetentionCollectionDefault": True,
    }
    assert "nonDedupedHistory" in document["bucketCapabilities"]
    scopes = f"{BUCKETS}/wine/scopes"
    manifest = web.get_json(scopes)
    assert (manifest["uid"], manifest["scopes"][0]["collections"][0]["history"]) == ("1", True)
    assert web.post(f"{scopes}/_default/collections", name="new").status == 200
    assert web.post(f"{scopes}/_default/collections", name="other", history="false").status == 200
    assert web.post(f"{BUCKETS}/wine", historyRetentionCollectionDefault="false").status == 200
    assert web.post(f"{scopes}/_default/collections", name="later").status == 200
    found = {one["name"]: one["history"] for one in web.get_json(scopes)["scopes"][0]["collections"]}
    assert found == {"_default": True, "new": True, "other": False, "later": False}
    assert web.post(f"{BUCKETS}/wine", historyRetentionSeconds="0", historyRetentionBytes="0").status == 200
    assert not node.buckets["wine"].store.settings.keeps_history


def test_limit_in_bytes_alone_keeps_history(node, web):
    assert web.post(BUCKETS, name="wine", storageBackend="magma", historyRetentionBytes="2147483648").status == 202
    assert node.buckets["wine"].store.settings.keeps_history


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("historyRetentionSeconds", "-1", "Value must be an integer between 0 and 18446744073709551615, inclusive"),
        (
            "historyRetentionBytes",
            "2147483647",
            "Value must be an integer between 2147483648 and 18446744073709551615, inclusive",
        ),
        ("historyRetentionCollectionDefault", "1", "Value must be true or false"),
    ],
)
def test_invalid_history_is_refused_as_ns_server_does(web, field, value, error):
    answer = web.post(BUCKETS, name="wine", storageBackend="magma", **{field: value})
    assert (answer.status, answer.json["errors"]) == (400, {field: error})


@pytest.mark.parametrize("kind", [{"storageBackend": "couchstore"}, {"bucketType": "ephemeral"}])
def test_history_needs_a_backend_that_has_it(web, kind):
    answer = web.post(BUCKETS, name="wine", historyRetentionSeconds="60", **kind)
    error = "History Retention can only used with Magma"
    assert (answer.status, answer.json["errors"]) == (400, {"historyRetentionSeconds": error})
    assert web.post(BUCKETS, name="wine", **kind).status == 202
    assert not [name for name in web.get_json(f"{BUCKETS}/wine") if name.startswith("history")]


def test_name_alone_creates_a_bucket(web):
    assert web.post(BUCKETS, name="wine").status == 202
    assert len(web.get_json(f"{BUCKETS}/wine")["vBucketServerMap"]["vBucketMap"]) == 16  # as in beer


@pytest.mark.parametrize("kind", ["ephemeral", "memcached"])
def test_form_creates_buckets_of_every_type(node, web, kind):
    assert web.post(BUCKETS, name="wine", bucketType=kind, ramQuota="100").status == 202
    document = web.get_json(f"{BUCKETS}/wine")
    assert document["bucketType"] == kind
    assert document["nodeLocator"] == ("ketama" if kind == "memcached" else "vbucket")
    assert ("vBucketServerMap" in document) is (kind == "ephemeral")
    with connected(node, "wine") as client:
        assert client.set(b"k", b"v").specific == Status.SUCCESS


WRONG = [
    ({}, "name"),
    ({"name": ""}, "name"),
    ({"name": "with space"}, "name"),
    ({"name": "../../etc"}, "name"),
    ({"name": "~wine"}, "name"),
    ({"name": "x" * 101}, "name"),
    ({"name": "beer"}, "name"),
    ({"name": "wine", "bucketType": "sasl"}, "bucketType"),
    ({"name": "wine", "ramQuotaMB": "-1"}, "ramQuotaMB"),
    ({"name": "wine", "ramQuotaMB": "much"}, "ramQuotaMB"),
    ({"name": "wine", "ramQuota": "9" * 30}, "ramQuota"),
    ({"name": "wine", "replicaNumber": "4"}, "replicaNumber"),
    ({"name": "wine", "flushEnabled": "yes"}, "flushEnabled"),
    ({"name": "wine", "conflictResolutionType": "custom"}, "conflictResolutionType"),
    ({"name": "wine", "maxTTL": str(2**31)}, "maxTTL"),
    ({"name": "wine", "maxTTL": "\u0661"}, "maxTTL"),
    ({"name": "wine", "numVBuckets": "100"}, "numVBuckets"),
    ({"name": "wine", "numVBuckets": "0"}, "numVBuckets"),
    ({"name": "wine", "durabilityMinLevel": "majority"}, "durabilityMinLevel"),
    ({"name": "wine", "compressionMode": "zip"}, "compressionMode"),
]


@pytest.mark.parametrize(("form", "field"), WRONG)
def test_invalid_bucket_forms_are_refused(node, web, form, field):
    answer = web.post(BUCKETS, **form)
    assert answer.status == 400
    assert list(answer.json["errors"]) == [field]
    assert answer.json["errors"][field]
    assert list(node.buckets) == ["default", "beer"]


def test_all_wrong_fields_are_reported_together(web):
    answer = web.post(BUCKETS, name="wine", maxTTL="x", flushEnabled="x")
    assert set(answer.json["errors"]) == {"maxTTL", "flushEnabled"}


def test_existing_bucket_is_reported_in_the_words_that_clients_match(web):
    assert web.post(BUCKETS, name="beer").json["errors"]["name"] == "Bucket with given name already exists"


def test_form_changes_a_bucket(node, web):
    answer = web.post(f"{BUCKETS}/beer", ramQuotaMB="512", flushEnabled="0", maxTTL="5", bucketType="couchbase")
    assert answer.status == 200
    document = web.get_json(f"{BUCKETS}/beer")
    assert (document["quota"]["ram"], document["maxTTL"]) == (512 << 20, 5)
    assert "flush" not in document["controllers"]
    refused = web.post(f"{BUCKETS}/beer/controller/doFlush")
    assert refused.status == 400
    assert "Flush is disabled" in refused.json["errors"]["_"]


@pytest.mark.parametrize(
    "form", [{"bucketType": "memcached"}, {"numVBuckets": "32"}, {"storageBackend": "magma"}, {"name": "wine"}]
)
def test_fixed_fields_cannot_be_changed(web, form):
    answer = web.post(f"{BUCKETS}/beer", **form)
    assert answer.status == 400
    assert answer.json["errors"] == dict.fromkeys(form, "cannot be changed")


def test_eviction_policy_is_set_by_a_form(web):
    assert web.post(BUCKETS, name="wine", bucketType="ephemeral", evictionPolicy="nruEviction").status == 202
    assert web.get_json(f"{BUCKETS}/wine")["evictionPolicy"] == "nruEviction"
    assert web.post(f"{BUCKETS}/wine", evictionPolicy="noEviction").status == 200
    assert web.get_json(f"{BUCKETS}/wine")["evictionPolicy"] == "noEviction"
    refused = web.post(f"{BUCKETS}/wine", evictionPolicy="valueOnly")
    assert refused.status == 400
    assert refused.json["errors"]["evictionPolicy"].endswith("expected noEviction or nruEviction")
    assert web.post(BUCKETS, name="third", evictionPolicy="noEviction").status == 400


def test_flush_empties_a_bucket(node, web):
    with connected(node, "beer") as client:
        client.set(b"k", b"v")
        assert web.post(f"{BUCKETS}/beer/controller/doFlush").status == 200
        assert client.get(b"k").specific == Status.KEY_ENOENT


def test_delete_removes_a_bucket(node, web):
    with connected(node, "beer") as client:
        assert web.delete(f"{BUCKETS}/beer").status == 200
        assert client.ended()
    assert web.get(f"{BUCKETS}/beer").status == 404
    assert web.delete(f"{BUCKETS}/beer").status == 404
    assert web.post(BUCKETS, name="beer").status == 202


def test_created_buckets_survive_a_restart(tmp_path):
    with Node.running(["beer"], vbuckets=4, data_dir=tmp_path) as node:
        web = WebClient(node)
        assert web.post(BUCKETS, name="wine", numVBuckets="8", ramQuotaMB="100").status == 202
        assert web.post(f"{BUCKETS}/wine/controller/compactBucket").status == 200
        document = web.get_json(f"{BUCKETS}/wine")
        assert document["basicStats"]["diskUsed"] > 0
        with connected(node, "wine") as client:
            assert client.status(StopPersistence()) == Status.SUCCESS
            assert web.post(f"{BUCKETS}/wine/controller/compactBucket").status == 503
            assert client.status(StartPersistence()) == Status.SUCCESS
            client.set(b"k", b"v", vbucket=7)
    with Node.running(["beer"], vbuckets=4, data_dir=tmp_path) as node:
        again = WebClient(node).get_json(f"{BUCKETS}/wine")
        assert (again["uuid"], again["quota"]) == (document["uuid"], document["quota"])
        with connected(node, "wine") as client:
            assert client.get(b"k", vbucket=7).value == b"v"
            assert client.ask(GetClusterConfig()).specific == Status.SUCCESS
