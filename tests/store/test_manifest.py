"""Manifests: their changes, the checks of received ones, and the events between two of them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CannotApplyManifest, InvalidArguments, UnknownCollection, UnknownScope
from penstock.store.definition.bucket_settings import MAX_TTL
from penstock.store.definition.manifest import (
    DEFAULT_MANIFEST,
    MAX_COLLECTIONS,
    MAX_SCOPES,
    Collection,
    Manifest,
    Scope,
)
from penstock.store.definition.manifest_changes import ManifestChange, compare_manifests, make_event_subjects
from penstock.store.definition.manifest_json import manifest_from_dict, manifest_to_dict, pack_manifest, unpack_manifest
from penstock.wire.codec.constants import SystemEventKind
from penstock.wire.messages import system_event

NAMES = ["_default", "inventory", "h%tel", "a-b", "0"]


def change_manifest(manifest: Manifest, kind: str, scope: str, name: str, ttl: int | None) -> Manifest:
    if kind == "scope":
        return manifest.with_scope(scope)
    if kind == "no scope":
        return manifest.without_scope(scope)
    if kind == "collection":
        return manifest.with_collection(scope, name, ttl, history=bool(ttl))
    if kind == "no collection":
        return manifest.without_collection(scope, name)
    return manifest.with_max_ttl(scope, name, ttl)


@st.composite
def manifests(draw: st.DrawFn, start: Manifest = DEFAULT_MANIFEST) -> Manifest:
    """Draw a manifest that results from some changes; invalid changes are left out."""
    manifest = start
    for _ in range(draw(st.integers(0, 12))):
        scope, name = draw(st.sampled_from(NAMES)), draw(st.sampled_from(NAMES))
        ttl = draw(st.none() | st.integers(0, 3))
        kind = draw(st.sampled_from(["scope", "no scope", "collection", "no collection", "ttl"]))
        try:
            manifest = change_manifest(manifest, kind, scope, name, ttl)
        except (InvalidArguments, UnknownScope, UnknownCollection):
            continue
    return manifest


def apply_changes(manifest: Manifest, changes: list[ManifestChange]) -> tuple[dict[int, str], dict[int, Collection]]:
    """Apply events one by one as a consumer does, check that each is valid, and return the scopes and collections."""
    scopes = {scope.id: scope.name for scope in manifest.scopes}
    collections = dict(manifest.collections)
    for kind, subject in changes:
        if isinstance(subject, Scope):
            if kind is SystemEventKind.SCOPE_CREATE:
                assert subject.id not in scopes
                scopes[subject.id] = subject.name
            else:
                assert all(collection.scope_id != subject.id for collection in collections.values())
                del scopes[subject.id]
        elif kind is SystemEventKind.COLLECTION_END:
            del collections[subject.id]
        else:
            assert (subject.id in collections) == (kind is SystemEventKind.COLLECTION_MODIFY)
            assert subject.scope_id in scopes
            collections[subject.id] = subject
    return scopes, collections


def test_default_manifest_has_the_json_that_clients_expect() -> None:
    expected = {
        "uid": "0",
        "scopes": [{"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]}],
    }
    assert json.loads(pack_manifest(DEFAULT_MANIFEST)) == expected
    assert DEFAULT_MANIFEST.find("_default", "_default") == Collection(0, 0, "_default")


def test_a_change_returns_a_new_manifest_and_never_reuses_ids() -> None:
    first = DEFAULT_MANIFEST.with_scope("s").with_collection("s", "c", 30, history=True)
    assert (first.uid, first.find("s", "c")) == (2, Collection(9, 8, "c", 30, True))
    again = first.without_scope("s").with_scope("s").with_collection("s", "c")
    assert (again.find_scope("s").id, again.find("s", "c").id) == (10, 11)
    assert first.collections[9].name == "c"
    assert json.loads(pack_manifest(first))["scopes"][1] == {
        "name": "s",
        "uid": "8",
        "collections": [{"name": "c", "uid": "9", "maxTTL": 30, "history": True}],
    }


def test_next_ids_survive_a_drop_and_a_restart() -> None:
    manifest = DEFAULT_MANIFEST.with_collection("_default", "c").without_collection("_default", "c")
    again = manifest_from_dict(json.loads(json.dumps(manifest_to_dict(manifest))))
    assert again == manifest
    assert again.with_collection("_default", "c").find("_default", "c").id == 9
    assert unpack_manifest(pack_manifest(manifest)).next_id == 8


def test_missing_names_are_refused_with_the_manifest_uid() -> None:
    manifest = DEFAULT_MANIFEST.with_scope("s")
    for missing, error in ((("t", "c"), UnknownScope), (("s", "c"), UnknownCollection)):
        with pytest.raises(error) as raised:
            manifest.find(*missing)
        assert raised.value.body == b'{"manifest_uid":"1"}'


@pytest.mark.parametrize("name", ["", "_a", "%a", "a.b", "a b", "a\n", "ä", "_default", "a" * 252])
def test_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidArguments, match="name"):
        DEFAULT_MANIFEST.with_scope(name)
    with pytest.raises(InvalidArguments, match="name"):
        DEFAULT_MANIFEST.with_collection("_default", name)


def test_names_and_time_limits_up_to_their_maximum_are_accepted() -> None:
    manifest = DEFAULT_MANIFEST.with_collection("_default", "a" * 251, MAX_TTL)
    assert unpack_manifest(pack_manifest(manifest)) == manifest
    for ttl in (-1, MAX_TTL + 1):
        with pytest.raises(InvalidArguments, match="maxTTL"):
            manifest.with_max_ttl("_default", "a" * 251, ttl)


def test_manifest_above_the_maximum_size_is_refused() -> None:
    inside = tuple(Collection(8 + n, 0, f"c{n}") for n in range(MAX_COLLECTIONS))
    full = Manifest(1, (Scope(0, "_default", inside),), 8 + MAX_COLLECTIONS)
    with pytest.raises(InvalidArguments, match="no more"):
        full.with_collection("_default", "one")
    many = Manifest(1, (*DEFAULT_MANIFEST.scopes, *(Scope(8 + n, f"s{n}") for n in range(MAX_SCOPES - 1))), 9999)
    with pytest.raises(InvalidArguments, match="no more"):
        many.with_scope("one")


def test_default_scope_stays_and_a_dropped_default_collection_does_not_return() -> None:
    with pytest.raises(InvalidArguments, match="default scope"):
        DEFAULT_MANIFEST.without_scope("_default")
    without = DEFAULT_MANIFEST.without_collection("_default", "_default")
    assert 0 not in without.collections
    with pytest.raises(InvalidArguments):
        without.with_collection("_default", "_default")
    with pytest.raises(CannotApplyManifest):
        without.accept_successor(Manifest(5, DEFAULT_MANIFEST.scopes))


@given(manifests())
def test_manifest_survives_a_json_round_trip(manifest: Manifest) -> None:
    again = unpack_manifest(pack_manifest(manifest))
    assert (again.uid, again.scopes) == (manifest.uid, manifest.scopes)
    assert manifest.accept_successor(again) == manifest
    assert manifest_from_dict(json.loads(json.dumps(manifest_to_dict(manifest)))) == manifest


@given(st.data())
def test_changes_lead_from_one_manifest_to_the_other(data: st.DataObject) -> None:
    old = data.draw(manifests())
    new = data.draw(manifests(old))
    scopes, collections = apply_changes(old, compare_manifests(old, new))
    assert scopes == {scope.id: scope.name for scope in new.scopes}
    assert collections == dict(new.collections)
    assert old.accept_successor(new).next_id == new.next_id


@given(st.data())
def test_only_the_last_event_has_the_new_uid(data: st.DataObject) -> None:
    old = data.draw(manifests())
    new = data.draw(manifests(old))
    events = make_event_subjects(compare_manifests(old, new), old.uid, new.uid)
    assert [subject.manifest_uid for _, subject in events] == [old.uid] * (len(events) - 1) + [new.uid] * bool(events)
    for kind, subject in events:
        packed = system_event.pack_system_event(kind, subject, as_table=True)
        assert system_event.unpack_system_event(kind, packed.version, packed.key, packed.value) == subject


def test_dropping_a_scope_ends_its_collections_first() -> None:
    old = DEFAULT_MANIFEST.with_scope("s").with_collection("s", "c")
    events = make_event_subjects(compare_manifests(old, old.without_scope("s")), 2, 3)
    assert events == [
        (SystemEventKind.COLLECTION_END, system_event.DroppedCollection(2, 8, 9)),
        (SystemEventKind.SCOPE_DROP, system_event.DroppedScope(3, 8)),
    ]


def test_received_manifest_must_be_a_successor() -> None:
    here = DEFAULT_MANIFEST.with_scope("s").with_collection("s", "c")
    with pytest.raises(CannotApplyManifest, match="after"):
        here.accept_successor(Manifest(1, here.scopes))
    with pytest.raises(CannotApplyManifest):
        here.accept_successor(Manifest(2, here.without_scope("s").scopes))
    default, scope = here.scopes
    for renamed in (
        Scope(8, "t", scope.collections),
        Scope(8, "s", (Collection(9, 8, "d"),)),
    ):
        with pytest.raises(CannotApplyManifest, match="cannot be"):
            here.accept_successor(Manifest(3, (default, renamed)))
    with pytest.raises(CannotApplyManifest, match="scope of collection 9"):
        here.accept_successor(Manifest(3, (Scope(0, "_default", (Collection(9, 0, "c"),)),)))


def pack_test_manifest(**changed: object) -> bytes:
    scope = {"name": "s", "uid": "8", "collections": [{"name": "c", "uid": "9"}]}
    default = {"name": "_default", "uid": "0", "collections": []}
    return json.dumps({"uid": "1", "scopes": [default, scope], **changed}).encode()


def pack_with_collection(**changed: object) -> bytes:
    scope = {"name": "_default", "uid": "0", "collections": [{"name": "c", "uid": "9", **changed}]}
    return pack_test_manifest(scopes=[scope])


def test_missing_and_unknown_members_are_accepted() -> None:
    assert unpack_manifest(pack_test_manifest()).collections == {9: Collection(9, 8, "c")}
    assert unpack_manifest(pack_with_collection(metered=True, maxTTL=0)).collections[9].max_ttl == 0


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        pack_test_manifest(uid=1),
        pack_test_manifest(uid=""),
        pack_test_manifest(uid="0x1"),
        pack_test_manifest(uid="1" * 17),
        pack_test_manifest(scopes={}),
        pack_test_manifest(scopes=[]),
        pack_test_manifest(scopes=[None]),
        pack_test_manifest(scopes=[{"name": "_default", "uid": "8", "collections": []}]),
        pack_test_manifest(scopes=[{"name": "s", "uid": "0", "collections": []}]),
        pack_test_manifest(scopes=[{"name": "_default", "uid": "0", "collections": []}] * 2),
        pack_test_manifest(scopes=[{"name": "_default", "uid": "0"}]),
        pack_with_collection(uid="7"),
        pack_with_collection(uid="0"),
        pack_with_collection(uid="100000000"),
        pack_with_collection(name="_x"),
        pack_with_collection(name=None),
        pack_with_collection(maxTTL=-1),
        pack_with_collection(maxTTL=2**31),
        pack_with_collection(maxTTL=1.5),
        pack_with_collection(maxTTL=True),
        pack_with_collection(maxTTL=None),
        pack_with_collection(history=1),
    ],
)
def test_invalid_manifest_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidArguments):
        unpack_manifest(text)


MEMBERS = st.sampled_from(["uid", "scopes", "name", "collections", "maxTTL", "history"])


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(MEMBERS, inner),
    )
)
def test_any_other_json_is_refused_in_one_short_sentence(value: object) -> None:
    with pytest.raises(InvalidArguments) as raised:
        unpack_manifest(json.dumps(value).encode())
    assert len(str(raised.value)) < 500
