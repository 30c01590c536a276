"""HTTP requests that create, change and drop scopes and collections."""

import threading

import pytest

from penstock.node import Node
from tests.node.http.web_client import WebClient
from tests.patience import PATIENCE

SCOPES = "/pools/default/buckets/beer/scopes"


def test_scopes_and_collections_are_created_and_dropped(node, web):
    assert web.get_json(SCOPES) == {
        "uid": "0",
        "scopes": [
            {
                "name": "_default",
                "uid": "0",
                "collections": [{"name": "_default", "uid": "0", "maxTTL": 0, "history": False}],
            }
        ],
    }
    assert web.post(SCOPES, name="cellar").json == {"uid": "1"}
    assert web.post(f"{SCOPES}/cellar/collections", name="red", maxTTL="60", history="true").json == {"uid": "2"}
    assert web.post(f"{SCOPES}/cellar/collections", name="white", maxTTL="-1").json == {"uid": "3"}
    cellar = web.get_json(SCOPES)["scopes"][1]
    assert cellar == {
        "name": "cellar",
        "uid": "8",
        "collections": [
            {"name": "red", "uid": "9", "maxTTL": 60, "history": True},
            {"name": "white", "uid": "a", "maxTTL": -1, "history": False},
        ],
    }
    assert web.get_json("/pools/default/b/beer")["collectionsManifestUid"] == "3"
    changed = web.ask("PATCH", f"{SCOPES}/cellar/collections/red", {"maxTTL": "0", "history": "0"})
    assert changed.status == 200
    assert web.get_json(SCOPES)["scopes"][1]["collections"][0] == {
        "name": "red",
        "uid": "9",
        "maxTTL": 0,
        "history": False,
    }
    unchanged = web.ask("PATCH", f"{SCOPES}/cellar/collections/red", {})
    assert unchanged.json == changed.json
    assert web.delete(f"{SCOPES}/cellar/collections/red").status == 200
    assert web.delete(f"{SCOPES}/cellar").status == 200
    assert [scope["name"] for scope in web.get_json(SCOPES)["scopes"]] == ["_default"]
    assert web.get_json("/pools/default/buckets/default/scopes")["uid"] == "0"


REFUSED = [
    ("POST", "", {"name": "cellar"}, 400, 'Scope with name "cellar" already exists'),
    ("POST", "", {"name": "_own"}, 400, "_own"),
    ("POST", "", {"name": "a" * 252}, 400, "aaa"),
    (
        "POST",
        "/cellar/collections",
        {"name": "red"},
        400,
        'Collection with name "red" in scope "cellar" already exists',
    ),
    ("POST", "/attic/collections", {"name": "red"}, 404, 'Scope with name "attic" is not found'),
    ("POST", "/cellar/collections", {"name": "$x"}, 400, "$x"),
    ("DELETE", "/attic", None, 404, 'Scope with name "attic" is not found'),
    ("DELETE", "/_default", None, 400, "default"),
    ("DELETE", "/cellar/collections/rose", None, 404, 'Collection with name "rose" in scope "cellar" is not found'),
    ("DELETE", "/attic/collections/red", None, 404, 'Scope with name "attic" is not found'),
    ("PATCH", "/cellar/collections/rose", {"maxTTL": "5"}, 404, 'Collection with name "rose"'),
    ("POST", "/@ensureManifest/xyz", {}, 400, "'xyz'"),
    ("POST", "/@ensureManifest/11111111111111111", {}, 400, "hexadecimal"),
]


@pytest.mark.parametrize(("method", "path", "form", "status", "why"), REFUSED)
def test_errors_have_the_words_that_clients_match(web, method, path, form, status, why):
    web.post(SCOPES, name="cellar")
    web.post(f"{SCOPES}/cellar/collections", name="red")
    answer = web.ask(method, f"{SCOPES}{path}", form)
    assert answer.status == status
    assert why in answer.json["errors"]["_"]
    assert web.get_json(SCOPES)["uid"] == "2"


FIELDS = [
    ("", {}, "name"),
    ("", {"name": "x", "colour": "red"}, "colour"),
    ("/cellar/collections", {"maxTTL": "5"}, "name"),
    ("/cellar/collections", {"name": "x", "maxTTL": "-2"}, "maxTTL"),
    ("/cellar/collections", {"name": "x", "maxTTL": "soon"}, "maxTTL"),
    ("/cellar/collections", {"name": "x", "maxTTL": str(2**31)}, "maxTTL"),
    ("/cellar/collections", {"name": "x", "history": "some"}, "history"),
]


@pytest.mark.parametrize(("path", "form", "field"), FIELDS)
def test_invalid_fields_are_refused(web, path, form, field):
    web.post(SCOPES, name="cellar")
    answer = web.post(f"{SCOPES}{path}", **form)
    assert answer.status == 400
    assert list(answer.json["errors"]) == [field]


def test_ensure_manifest_is_answered_when_the_manifest_is_set(web):
    assert web.post(f"{SCOPES}/@ensureManifest/0").status == 200
    found = []
    waiting = threading.Thread(target=lambda: found.append(web.post(f"{SCOPES}/@ensureManifest/2").status))
    waiting.start()
    web.post(SCOPES, name="cellar")
    web.post(f"{SCOPES}/cellar/collections", name="red")
    waiting.join(PATIENCE)
    assert found == [200]


def test_manifests_survive_a_restart(tmp_path):
    with Node.running(["beer"], vbuckets=4, data_dir=tmp_path) as node:
        web = WebClient(node)
        web.post(SCOPES, name="cellar")
        web.post(f"{SCOPES}/cellar/collections", name="red")
        before = web.get_json(SCOPES)
    with Node.running(["beer"], vbuckets=4, data_dir=tmp_path) as node:
        assert WebClient(node).get_json(SCOPES) == before
