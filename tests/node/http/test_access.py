"""Rights of users to read and change things over HTTP and HTTPS."""

import ssl
from datetime import UTC, datetime

import pytest

from penstock.node import Node
from penstock.node.auth.certificates import make_certificates
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import SelectBucket
from tests.node.http.web_client import WebClient, as_user
from tests.node.test_login import log_in
from tests.node.wire_client import connected

BUCKETS = "/pools/default/buckets"

PATHS = [
    "/pools/default",
    BUCKETS,
    f"{BUCKETS}/beer",
    "/pools/default/bs/beer",
    "/whoami",
    "/pools/default/nodeServices",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("login", [None, ("root", "wrong"), ("nobody", "root's"), ("", ""), ("root", "root's" * 1000)])
def test_request_without_the_password_is_refused(guarded, path, login):
    answer = WebClient(guarded, login).get(path)
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"].startswith("Basic ")
    assert b"beer" not in answer.body


@pytest.mark.parametrize(
    "authorization", ["Basic", "Basic !", "Basic cm9vdA==", "Basic /w==", "Basic \xe9", "Bearer cm9vdDpyb290J3M=", ""]
)
def test_invalid_authorization_is_refused(guarded, authorization):
    assert WebClient(guarded).get("/pools/default", headers={"Authorization": authorization}).status == 401


def test_open_pages_need_no_login(guarded):
    assert WebClient(guarded).get_json("/pools")["implementationVersion"]
    assert WebClient(guarded).get_json("/")["name"] == "penstock"


def test_unauthenticated_client_sees_no_names(guarded):
    pools = WebClient(guarded).get_json("/pools")
    assert not pools["isAdminCreds"]
    assert pools["pools"][0]["uri"] == "/pools/default"
    assert guarded.uuid not in str(pools)
    assert "version" not in WebClient(guarded).get_json("/")
    for path in ("/versions", "/pools/default", "/pools/nodes", "/pools/default/nodeServices", "/whoami"):
        assert WebClient(guarded).get(path).status in (401, 404)


def test_only_administrators_see_that_they_are_administrators(guarded):
    assert as_user(guarded, "root").get_json("/pools")["isAdminCreds"]
    reader = as_user(guarded, "reader").get_json("/pools")
    assert not reader["isAdminCreds"]
    assert reader["uuid"] == guarded.uuid


def test_users_see_their_own_buckets(guarded):
    root, reader = as_user(guarded, "root"), as_user(guarded, "reader")
    assert [bucket["name"] for bucket in root.get_json(BUCKETS)] == ["beer", "wine"]
    assert [bucket["name"] for bucket in reader.get_json(BUCKETS)] == ["beer"]
    assert [bucket["bucketName"] for bucket in reader.get_json("/pools/default")["bucketNames"]] == ["beer"]
    with connected(guarded) as client:
        assert log_in(client, "root") == Status.SUCCESS
        for bucket, count in (("beer", 2), ("wine", 3)):
            assert client.status(SelectBucket(key=bucket.encode())) == Status.SUCCESS
            for number in range(count):
                assert client.set(b"%d" % number).specific == Status.SUCCESS
    for web, items in ((root, 5), (reader, 2)):
        assert web.get_json("/pools/default")["nodes"][0]["interestingStats"] == {"curr_items": items}
    assert reader.get_json("/pools/default/b/beer")["name"] == "beer"
    for path in (f"{BUCKETS}/wine", "/pools/default/b/wine", f"{BUCKETS}/wine/scopes", f"{BUCKETS}/water"):
        answer = reader.get(path)
        assert (answer.status, answer.body) == (404, b"Requested resource not found.\n")
    assert reader.get_json("/whoami") == {
        "id": "reader",
        "domain": "local",
        "roles": [{"role": "data_reader", "target": "beer"}],
    }


CHANGES = [
    ("POST", BUCKETS, {"name": "water"}),
    ("POST", f"{BUCKETS}/beer", {"maxTTL": "5"}),
    ("DELETE", f"{BUCKETS}/beer", None),
    ("POST", f"{BUCKETS}/beer/controller/doFlush", {}),
    ("POST", f"{BUCKETS}/beer/scopes", {"name": "cellar"}),
    ("DELETE", f"{BUCKETS}/beer/scopes/_default", None),
    ("POST", f"{BUCKETS}/beer/scopes/_default/collections", {"name": "red"}),
    ("PATCH", f"{BUCKETS}/beer/scopes/_default/collections/_default", {"maxTTL": "5"}),
    ("DELETE", f"{BUCKETS}/beer/scopes/_default/collections/_default", None),
]


@pytest.mark.parametrize(("method", "path", "form"), CHANGES)
@pytest.mark.parametrize("name", ["reader", "follower"])
def test_users_without_admin_cannot_change_buckets(guarded, name, method, path, form):
    answer = as_user(guarded, name).ask(method, path, form)
    assert answer.status == 403
    assert answer.json["permissions"]
    assert list(guarded.buckets) == ["beer", "wine"]
    assert guarded.buckets["beer"].store.manifests.current.uid == 0


@pytest.mark.parametrize(("method", "path", "form"), CHANGES[:6])
def test_administrators_can_change_buckets(guarded, method, path, form):
    assert as_user(guarded, "root").ask(method, path, form).status != 403


def test_statistics_need_a_privilege(guarded):
    assert as_user(guarded, "reader").get(f"{BUCKETS}/beer/stats").status == 403
    assert as_user(guarded, "follower").get(f"{BUCKETS}/beer/stats").status == 200


# A node without users


def test_optional_login_is_still_checked(node):
    assert WebClient(node, ("Administrator", "password")).get_json("/whoami")["id"] == "Administrator"
    assert WebClient(node, ("Administrator", "guess")).get("/whoami").status == 401


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:8091", "127.0.0.1.evil.example"])
def test_foreign_host_name_is_refused(node, web, host):
    assert web.get("/pools/default", headers={"Host": host}).status == 403
    assert web.ask("POST", BUCKETS, {"name": "wine"}, headers={"Host": host}).status == 403
    known = WebClient(node, ("Administrator", "password"))
    assert known.ask("POST", BUCKETS, {"name": "wine"}, headers={"Host": host}).status == 403
    assert "wine" not in node.buckets


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "file://"])
def test_pages_of_other_sites_cannot_change_anything(node, web, origin):
    answer = web.ask("POST", BUCKETS, {"name": "wine"}, headers={"Origin": origin})
    assert answer.status == 403
    assert "wine" not in node.buckets


def test_page_of_the_same_site_can_change_buckets(node, web):
    own = f"http://{node.host}:{node.http_port}"
    assert web.ask("POST", BUCKETS, {"name": "wine"}, headers={"Origin": own}).status == 202


# Passwords on the network


@pytest.fixture
def tls_setup(users, tmp_path):
    """Return the options of a node with TLS, and a client context that trusts its certificate."""
    made = make_certificates([], "reader", 2, datetime.now(UTC))
    for name, one in made.items():
        (tmp_path / f"{name}.pem").write_bytes(one.certificate)
        (tmp_path / f"{name}.key").write_bytes(one.key)
    options = {"users": users, "certificate": tmp_path / "server.pem", "key": tmp_path / "server.key", "tls_port": 0}
    return options, ssl.create_default_context(cafile=tmp_path / "ca.pem")


def test_client_certificate_logs_in(tls_setup, tmp_path):
    options, context = tls_setup
    with Node.running(["beer", "wine"], vbuckets=4, client_ca=tmp_path / "ca.pem", **options) as node:
        web = WebClient(node, port=node.https_port, context=context)
        assert web.get("/whoami").status == 401
        context.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")
        assert web.get_json("/whoami")["id"] == "reader"
        assert [bucket["name"] for bucket in web.get_json(BUCKETS)] == ["beer"]
        assert as_user(node, "root", port=node.https_port, context=context).get_json("/whoami")["id"] == "root"


def test_https_serves_pages(tls_setup):
    options, context = tls_setup
    with Node.running(["beer"], vbuckets=4, **options) as node:
        web = as_user(node, "root", port=node.https_port, context=context)
        (place,) = web.get_json("/pools/default/b/beer")["nodesExt"]
        assert place["services"] == {
            "kv": node.kv_port,
            "kvSSL": node.tls_port,
            "mgmt": node.http_port,
            "mgmtSSL": node.https_port,
        }
        with web.stream("/pools/default/bs/beer") as stream:
            stream.next()
            assert web.post(f"{BUCKETS}/beer/scopes", name="cellar").status == 200
            assert stream.next()["collectionsManifestUid"] == "1"


def test_password_over_plain_http_is_refused(tls_setup):
    options, context = tls_setup
    with Node.running(["beer"], vbuckets=4, host="0.0.0.0", **options) as node:
        node.host = "127.0.0.1"  # the address for this client: the node listens on all addresses
        answer = as_user(node, "root").get("/pools/default")
        assert answer.status == 403
        assert b"TLS" in answer.body
        assert WebClient(node).get("/pools/default").status == 401
        assert as_user(node, "root", port=node.https_port, context=context).get("/pools/default").status == 200
    with Node.running(["beer"], vbuckets=4, host="0.0.0.0", allow_plain=True, **options) as node:
        node.host = "127.0.0.1"
        assert as_user(node, "root").get("/pools/default").status == 200
