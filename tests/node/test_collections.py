"""Binary commands for scopes and collections: set, look up, use, drop."""

import json
from typing import Any

import pytest

from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.wire.codec.constants import Feature, VbucketState
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.collections import GetCollectionId, GetManifest, GetScopeId, SetManifest
from penstock.wire.messages.kv import (
    GetAllVbSeqnos,
    GetCollectionSeqnos,
    Hello,
    SelectBucket,
    SetVbucket,
    Stat,
    pack_features,
    unpack_vb_seqnos,
)
from tests.node.brewery import ALES, LAGERS, MANIFEST, prefix_key, remove_collection, set_manifest
from tests.node.test_login import ITERATIONS, log_in
from tests.node.watch import run
from tests.node.wire_client import connected

S = Status
BEERS = 8  # ids of the manifest below


def test_set_manifest_is_answered_when_all_vbuckets_have_it():
    with Node.running(vbuckets=1024) as node, connected(node) as client, connected(node) as other:
        for one in (client, other):
            one.hello(Feature.COLLECTIONS)
        client.send(SetManifest(value=json.dumps(MANIFEST).encode()), GetCollectionSeqnos(collection_id=ALES))
        while json.loads(other.ask(GetManifest()).value) != MANIFEST:
            pass
        assert other.set(prefix_key(ALES, b"k"), vbucket=1023).specific == S.SUCCESS
        assert client.receive().specific == S.SUCCESS
        seqnos = unpack_vb_seqnos(client.receive().value)
        assert sorted(seqnos) == list(range(1024))
        assert min(seqnos.values()) == 2  # the document may have been stored before or after the answer
        seqnos = unpack_vb_seqnos(client.ask(GetCollectionSeqnos(collection_id=ALES)).value)
        assert {number: seqno for number, seqno in seqnos.items() if seqno != 2} == {1023: 4}


@pytest.mark.parametrize("disabled", ["before", "meanwhile"])
def test_dropped_collection_is_erased_without_the_expiry_pager(disabled):
    with Node.running(vbuckets=1) as node, connected(node) as client:
        client.hello(Feature.COLLECTIONS)
        assert set_manifest(client, MANIFEST) == S.SUCCESS
        store, maintenance = node.buckets["default"].store, node.buckets["default"].maintenance
        vbucket, pages = store.vbuckets[0], run(node, lambda: maintenance.pager_runs)

        def drop_many():  # more documents than one slice erases
            for number in range(20_000):
                vbucket.set(prefix_key(ALES, b"%d" % number), b"")
            vbucket.set(prefix_key(LAGERS, b"over"), b"", expiry=1_000_000_000)
            if disabled == "before":
                maintenance.set_pager(enabled=False)
            store.rollout.set_manifest(store.manifests.current.without_collection("beers", "ales"))
            maintenance.roll_out()
            assert vbucket.collections.eraser.is_due
            maintenance.set_pager(enabled=False)

        run(node, drop_many)
        while run(node, lambda: vbucket.collections.eraser.is_due or maintenance.next_pager_run is not None):
            pass
        assert run(node, lambda: (vbucket.changes.items, maintenance.pager_runs)) == (1, pages)
        run(node, lambda: maintenance.set_pager(seconds=0.001, enabled=True))
        while run(node, lambda: vbucket.changes.items or maintenance.pager_runs == pages):
            pass


def test_new_bucket_has_the_default_collection(client):
    manifest = json.loads(client.ask(GetManifest()).value)
    assert manifest == {"uid": "0", "scopes": MANIFEST["scopes"][:1]}


def test_get_manifest_returns_the_manifest_that_was_set(modern, client):
    assert json.loads(modern.ask(GetManifest()).value) == MANIFEST
    assert json.loads(client.ask(GetManifest()).value) == MANIFEST


@pytest.mark.parametrize("as_key", [False, True])
@pytest.mark.parametrize(
    ("path", "found"),
    [(b"beers.ales", ALES), (b"beers.lagers", LAGERS), (b".", 0), (b"._default", 0), (b"_default._default", 0)],
)
def test_get_collection_id_finds_a_path(modern, path, found, as_key):
    reply: Any = decode_frame(modern.ask(GetCollectionId(key=path) if as_key else GetCollectionId(value=path)))
    assert (reply.manifest_uid, reply.collection_id) == (1, found)


@pytest.mark.parametrize(("path", "found"), [(b"beers", BEERS), (b"beers.any", BEERS), (b"_default", 0), (b"", 0)])
def test_get_scope_id_finds_a_scope(modern, path, found):
    reply: Any = decode_frame(modern.ask(GetScopeId(value=path)))
    assert (reply.manifest_uid, reply.scope_id) == (1, found)


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (GetCollectionId(value=b"beers.porters"), S.UNKNOWN_COLLECTION),
        (GetCollectionId(value=b"wines.ales"), S.UNKNOWN_SCOPE),
        (GetScopeId(value=b"wines"), S.UNKNOWN_SCOPE),
        (GetCollectionId(value=b"beers"), S.EINVAL),
        (GetCollectionId(value=b"a.b.c"), S.EINVAL),
        (GetCollectionId(value=b"x" * 600 + b".y"), S.EINVAL),
        (SetManifest(value=b"{"), S.EINVAL),
        (SetManifest(value=json.dumps({**MANIFEST, "uid": "0"}).encode()), S.CANNOT_APPLY_COLLECTIONS_MANIFEST),
    ],
)
def test_invalid_requests_are_refused(modern, message, status):
    reply = modern.ask(message)
    assert reply.specific == status
    if status in (S.UNKNOWN_COLLECTION, S.UNKNOWN_SCOPE):
        assert json.loads(reply.value)["manifest_uid"] == "1"


def test_collections_have_separate_documents(modern, client):
    for collection in (0, ALES, LAGERS):
        assert modern.set(prefix_key(collection, b"k"), b"of %d" % collection).specific == S.SUCCESS
    for collection in (0, ALES, LAGERS):
        assert modern.get(prefix_key(collection, b"k")).value == b"of %d" % collection
    assert client.get(b"k").value == b"of 0"
    client.delete(b"k")
    assert modern.get(prefix_key(0, b"k")).specific == S.KEY_ENOENT
    assert modern.get(prefix_key(ALES, b"k")).value == b"of 9"


@pytest.mark.parametrize(
    ("key", "status"),
    [
        (prefix_key(11, b"k"), S.UNKNOWN_COLLECTION),
        (prefix_key(11, b""), S.EINVAL),
        (prefix_key(11, b"k" * 247), S.EINVAL),
        (prefix_key(1, b"k"), S.EINVAL),
        (prefix_key(7, b"k"), S.EINVAL),
        (b"\x80", S.EINVAL),
        (b"\x80\x00k", S.EINVAL),
        (b"\x00", S.EINVAL),
        (b"\x00" + b"k" * 250, S.KEY_ENOENT),
        (b"\x00" + b"k" * 251, S.EINVAL),
        (prefix_key(ALES, b"k" * 246), S.KEY_ENOENT),
        (prefix_key(ALES, b"k" * 247), S.EINVAL),
    ],
)
def test_key_lengths_are_limited(modern, key, status):
    reply = modern.get(key)
    assert reply.specific == status
    if status == S.UNKNOWN_COLLECTION:
        assert json.loads(reply.value)["manifest_uid"] == "1"
    assert modern.set(key).specific == (S.SUCCESS if status == S.KEY_ENOENT else status)


def test_dropped_collection_is_unknown_at_once(modern):
    modern.set(prefix_key(ALES, b"k"), b"v")
    modern.set(prefix_key(LAGERS, b"k"), b"v")
    assert set_manifest(modern, remove_collection(MANIFEST, "ales")) == S.SUCCESS
    assert modern.get(prefix_key(ALES, b"k")).specific == S.UNKNOWN_COLLECTION
    assert modern.get(prefix_key(LAGERS, b"k")).value == b"v"
    while int(modern.stats()["curr_items"]) != 1:
        pass


def test_default_collection_can_be_dropped(modern, client):
    client.set(b"k", b"v")
    assert set_manifest(modern, remove_collection(MANIFEST, "_default")) == S.SUCCESS
    assert client.get(b"k").specific == S.UNKNOWN_COLLECTION
    assert client.set(b"k").specific == S.UNKNOWN_COLLECTION


def test_seqnos_of_collections_are_returned(modern, client):
    modern.set(prefix_key(ALES, b"k"), vbucket=3)
    client.set(b"k", vbucket=4)

    def seqnos(connection, message):
        return unpack_vb_seqnos(connection.ask(message).value)

    everything = seqnos(modern, GetAllVbSeqnos())
    assert (everything[3], everything[4], len(everything)) == (4, 4, 16)  # after three events each
    assert seqnos(modern, GetCollectionSeqnos(collection_id=ALES))[3] == 4
    assert seqnos(modern, GetCollectionSeqnos(collection_id=0))[4] == 4
    plain = seqnos(client, GetAllVbSeqnos())
    assert (plain[3], plain[4]) == (0, 4)
    assert modern.ask(GetCollectionSeqnos(collection_id=77)).specific == S.UNKNOWN_COLLECTION
    client.ask(SetVbucket(state=VbucketState.DEAD, vbucket=3))
    assert 3 not in seqnos(modern, GetAllVbSeqnos())


def test_role_can_cover_one_collection(tmp_path):
    path = tmp_path / "users.json"
    roles = ["data_reader[default:beers]", "data_writer[default:beers:ales]"]
    with change_users(path) as accounts:
        for name, some in {"root": ["admin"], "brewer": roles}.items():
            accounts[name] = make_account(User.from_texts(name, some), f"{name}'s", ITERATIONS)
    with Node.running(vbuckets=1, users=path) as node, connected(node) as root, connected(node) as brewer:
        for client, name in ((root, "root"), (brewer, "brewer")):
            client.ask(Hello(value=pack_features([Feature.COLLECTIONS])))
            assert log_in(client, name) == S.SUCCESS
        assert set_manifest(root, MANIFEST) == S.SUCCESS
        assert brewer.status(SelectBucket(key=b"default")) == S.SUCCESS
        assert set_manifest(brewer, remove_collection(MANIFEST, "ales")) == S.EACCESS
        statuses = [
            (brewer.get(prefix_key(number, b"k")).specific, brewer.set(prefix_key(number, b"k")).specific)
            for number in (0, ALES, LAGERS)
        ]
        unknown = (S.UNKNOWN_COLLECTION, S.UNKNOWN_COLLECTION)
        assert statuses == [unknown, (S.KEY_ENOENT, S.SUCCESS), (S.KEY_ENOENT, S.EACCESS)]
        assert brewer.status(GetCollectionId(value=b"beers.lagers")) == S.SUCCESS
        assert brewer.status(GetCollectionId(value=b".")) == brewer.status(GetCollectionId(value=b"none.none"))


def test_statistics_show_the_collections_of_a_user(tmp_path):
    path = tmp_path / "users.json"
    with change_users(path) as accounts:
        for name, some in {"root": ["admin"], "taster": ["data_dcp_reader[default:beers:ales]"]}.items():
            accounts[name] = make_account(User.from_texts(name, some), f"{name}'s", ITERATIONS)
    with Node.running(vbuckets=1, users=path) as node, connected(node) as root, connected(node) as taster:
        for client, name in ((root, "root"), (taster, "taster")):
            client.ask(Hello(value=pack_features([Feature.COLLECTIONS])))
            assert log_in(client, name) == S.SUCCESS
        assert set_manifest(root, MANIFEST) == S.SUCCESS
        for number in (0, ALES, LAGERS):
            root.set(prefix_key(number, b"k"))
        assert taster.status(SelectBucket(key=b"default")) == S.SUCCESS
        names = {text for name, text in taster.stats("collections").items() if name.endswith(":name")}
        assert names == {"ales"}
        scopes = taster.stats("scopes")
        assert {text for name, text in scopes.items() if name.endswith(":name")} == {"beers", "ales"}
        assert {text for name, text in scopes.items() if name.endswith((":items", ":collections"))} == {"1"}
        assert taster.stats("vbucket-seqno 0") == root.stats("vbucket-seqno 0")
        statuses = [taster.status(Stat(key=b"key k 0 " + path)) for path in (b"beers.lagers", b"_default._default")]
        assert statuses == [S.UNKNOWN_COLLECTION, S.UNKNOWN_SCOPE]
        assert taster.stats("key k 0 beers.ales")["key_vb_state"] == "active"
        assert {name for name in taster.stats("collections-details 0") if name.endswith(":name")} == {
            f"vb_0:0x{ALES:x}:name"
        }
