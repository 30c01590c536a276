"""Scopes and collections that a user can see, in each command and document that shows names."""

import json
from contextlib import contextmanager

import pytest

from penstock.node import Node
from penstock.node.auth import ANONYMOUS, User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.node.buckets.visible_manifest import filter_manifest
from penstock.store.definition.manifest import DEFAULT_MANIFEST
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.collections import GetCollectionId, GetManifest, GetScopeId
from penstock.wire.messages.kv import (
    Get,
    GetCollectionSeqnos,
    GetKeys,
    GetRandomKey,
    Hello,
    SelectBucket,
    Stat,
    pack_features,
)
from penstock.wire.values.collection_key import pack_collection_id
from tests.node.http.web_client import WebClient
from tests.node.test_login import ITERATIONS, log_in
from tests.node.wire_client import connected

MANIFEST = (
    DEFAULT_MANIFEST.with_scope("beers")
    .with_collection("beers", "ales")
    .with_collection("beers", "lagers")
    .with_scope("wines")
    .with_collection("wines", "reds")
    .with_scope("empty")
)
ALL = {"_default": ["_default"], "beers": ["ales", "lagers"], "wines": ["reds"], "empty": []}
ALES, LAGERS, REDS = (MANIFEST.find(*path).id for path in (("beers", "ales"), ("beers", "lagers"), ("wines", "reds")))
WINES = MANIFEST.find_scope("wines").id

ROWS = [
    (["admin"], ALL),
    (["data_reader[*]"], ALL),
    (["data_reader[default]"], ALL),
    (["data_writer[default]"], ALL),
    (["data_dcp_reader[default]"], ALL),
    (["replication_target[default]"], ALL),
    (["data_reader[other]"], {}),
    ([], {}),
    (["data_reader[default:beers]"], {"beers": ["ales", "lagers"]}),
    (["data_writer[default:empty]"], {"empty": []}),
    (["data_reader[default:beers:ales]"], {"beers": ["ales"]}),
    (["data_reader[default:beers:none]"], {}),
    (["data_reader[default:none]"], {}),
    (["data_reader[default:_default]"], {"_default": ["_default"]}),
    (["data_dcp_reader[default:beers:lagers]", "data_writer[default:wines]"], {"beers": ["lagers"], "wines": ["reds"]}),
    (["data_reader[other]", "data_writer[default:wines:reds]"], {"wines": ["reds"]}),
    (["data_reader[default:beers:ales]", "data_reader[default:beers]"], {"beers": ["ales", "lagers"]}),
]


def list_names(manifest):
    return {scope.name: [collection.name for collection in scope.collections] for scope in manifest.scopes}


@pytest.mark.parametrize(("roles", "expected"), ROWS, ids=[" ".join(row[0]) or "none" for row in ROWS])
def test_user_sees_the_collections_of_the_roles(roles, expected):
    seen = filter_manifest(MANIFEST, User.from_texts("alice", roles), "default")
    assert list_names(seen) == expected
    assert seen.uid == MANIFEST.uid
    assert all(seen.find(scope, one) == MANIFEST.find(scope, one) for scope, ones in expected.items() for one in ones)


def test_open_node_shows_all_collections_and_login_is_required_otherwise():
    assert filter_manifest(MANIFEST, ANONYMOUS, "default") is MANIFEST
    assert list_names(filter_manifest(MANIFEST, None, "default")) == {}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """Run a node with a document in each collection; `alice` can read and stream one collection."""
    path = tmp_path_factory.mktemp("users") / "users.json"
    with change_users(path) as accounts:
        for name, roles in {"root": ["admin"], "alice": ["data_dcp_reader[default:beers:ales]"]}.items():
            accounts[name] = make_account(User.from_texts(name, roles), f"{name}'s", ITERATIONS)
    with Node.running(["default", "other"], vbuckets=4, users=path, allow_plain=True) as node:
        with log_in_as(node, "root") as root:
            node.loop.call_soon_threadsafe(node.buckets["default"].change_manifest, MANIFEST)
            while json.loads(root.ask(GetManifest()).value)["uid"] != f"{MANIFEST.uid:x}":
                continue
            for number in (0, ALES, LAGERS, REDS):
                assert root.set(make_key(number)).specific == Status.SUCCESS
        yield node


def make_key(number):
    return pack_collection_id(number) + b"k"


@contextmanager
def log_in_as(node, name):
    with connected(node) as client:
        client.ask(Hello(value=pack_features([Feature.COLLECTIONS, Feature.XERROR])))
        assert log_in(client, name) == Status.SUCCESS
        assert client.status(SelectBucket(key=b"default")) == Status.SUCCESS
        yield client


HIDDEN = ("lagers", "wines", "reds", "empty", "_default")

SAME_REPLIES = [
    ("collection id", GetCollectionId(value=b"beers.lagers"), GetCollectionId(value=b"beers.none")),
    ("collection id in a scope", GetCollectionId(value=b"wines.reds"), GetCollectionId(value=b"none.none")),
    ("default collection", GetCollectionId(value=b"_default._default"), GetCollectionId(value=b"none._default")),
    ("scope id", GetScopeId(value=b"wines"), GetScopeId(value=b"none")),
    ("get", Get(key=make_key(LAGERS)), Get(key=make_key(99))),
    ("random key", GetRandomKey(collection_id=REDS), GetRandomKey(collection_id=99)),
    ("keys", GetKeys(key=make_key(REDS)), GetKeys(key=make_key(99))),
    ("seqnos", GetCollectionSeqnos(collection_id=REDS), GetCollectionSeqnos(collection_id=99)),
    ("stat collections", Stat(key=b"collections beers.lagers"), Stat(key=b"collections beers.none")),
    ("stat collections-byid", Stat(key=b"collections-byid 0x%x" % REDS), Stat(key=b"collections-byid 0x99")),
    ("stat scopes", Stat(key=b"scopes wines"), Stat(key=b"scopes none")),
    ("stat scopes-byid", Stat(key=b"scopes-byid 0x%x" % WINES), Stat(key=b"scopes-byid 0x99")),
    ("stat key", Stat(key=b"key k 0 beers.lagers"), Stat(key=b"key k 0 beers.none")),
    ("stat key-byid", Stat(key=b"key-byid k 0 0x%x" % REDS), Stat(key=b"key-byid k 0 0x99")),
]


@pytest.mark.parametrize(("hidden", "unknown"), [row[1:] for row in SAME_REPLIES], ids=[row[0] for row in SAME_REPLIES])
def test_invisible_collections_are_unknown(guarded, hidden, unknown):
    with log_in_as(guarded, "alice") as alice:
        first, second = alice.ask(hidden), alice.ask(unknown)
    assert first.specific in (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE)
    assert (first.specific, first.value) == (second.specific, second.value)


@pytest.mark.parametrize("requested", [{"collections": ["%x"]}, {"scope": "%x"}], ids=["collections", "scope"])
def test_stream_of_an_invisible_collection_is_unknown(guarded, requested):
    hidden = json.dumps(requested) % (WINES if "scope" in requested else REDS)
    unknown = json.dumps(requested) % 0x99
    with log_in_as(guarded, "alice") as alice:
        alice.open("alice").control("enable_noop", "true")
        answers = [alice.stream(value=text.encode()) for text in (hidden, unknown)]
    assert answers[0].specific in (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE)
    assert (answers[0].specific, answers[0].value) == (answers[1].specific, answers[1].value)


@pytest.mark.parametrize(
    "group",
    ["collections", "collections-details", "scopes", "scopes-details", "collections-details 0", "dcp", "streams"],
)
def test_statistics_list_only_visible_collections(guarded, group):
    with log_in_as(guarded, "root") as root, log_in_as(guarded, "alice") as alice:
        root.open("all").stream(value=json.dumps({"collections": [f"{REDS:x}"]}).encode())
        shown = alice.stats(group)
    texts = [str(text) for pair in shown.items() for text in pair]
    assert not [text for text in texts for name in HIDDEN if name in text.split(":")]
    assert {"ales", "beers"} & set(shown.values()) or group in ("dcp", "streams")
    assert {value for name, value in shown.items() if name.endswith((":collections", ":scopes", ":items"))} <= {
        "0",
        "1",
    }


def test_filtered_manifest_keeps_the_uid(guarded):
    with log_in_as(guarded, "alice") as alice:
        manifest = json.loads(alice.ask(GetManifest()).value)
    over_http = WebClient(guarded, ("alice", "alice's")).get_json("/pools/default/buckets/default/scopes")
    whole = WebClient(guarded, ("root", "root's")).get_json("/pools/default/buckets/default/scopes")
    for document in (manifest, over_http):
        assert document["uid"] == whole["uid"] == f"{MANIFEST.uid:x}"
        assert [scope["name"] for scope in document["scopes"]] == ["beers"]
        assert [one["uid"] for one in document["scopes"][0]["collections"]] == [f"{ALES:x}"]
    assert [scope["name"] for scope in whole["scopes"]] == list(ALL)


def test_item_counts_cover_visible_collections(guarded):
    counts = [
        WebClient(guarded, (name, f"{name}'s")).get_json("/pools/default/buckets/default")["basicStats"]["itemCount"]
        for name in ("root", "alice")
    ]
    assert counts == [4, 1]


def test_node_item_counts_cover_visible_collections(guarded):
    found = {
        name: {page["nodes"][0]["interestingStats"]["curr_items"] for page in read_node_documents(guarded, name)}
        for name in ("root", "alice")
    }
    assert found == {"root": {4}, "alice": {1}}


def read_node_documents(node, user):
    """Yield each HTTP document that describes the node."""
    web = WebClient(node, (user, f"{user}'s"))
    yield from map(web.get_json, ("/pools/default", "/pools/nodes", "/pools/default/buckets/default"))
    yield from web.get_json("/pools/default/buckets")
    with web.stream("/pools/default/bucketsStreaming/default") as stream:
        yield stream.next()
