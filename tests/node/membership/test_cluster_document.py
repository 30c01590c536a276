"""The document of a cluster, and the messages that carry it: garbage is refused as such."""

import zlib
from base64 import b64encode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import AuthenticationFailed, BucketNotServed, KeyExists, RemoteProtocolError, UsageError
from penstock.node.agreement.agreement_messages import Ask, Known
from penstock.node.agreement.revisions import Revision
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.node.membership.cluster_document import ClusterDocument, ClusterNode, ClusterUsers
from penstock.node.membership.node_messages import (
    NodeMessage,
    NodeReply,
    encode_message,
    sign,
    verify_reply,
    verify_request,
)
from penstock.node.membership.vbucket_map import MapRevision
from penstock.store.definition.manifest import DEFAULT_MANIFEST

SECRET = "5ec2e7" * 8
NODES = tuple(ClusterNode(id=name, host="127.0.0.1", kv=port, mgmt=port + 1) for name, port in (("a", 1), ("b", 3)))
ACCOUNT = make_account(User.from_texts("root", ["admin"]), "secret", 4096)
DOCUMENT = (
    ClusterDocument(uuid="0" * 32, nodes=NODES)
    .with_bucket(BucketSpec(name="beer", vbuckets=16, uuid="b" * 32), DEFAULT_MANIFEST.with_scope("cellar"))
    .with_users(ClusterUsers.from_accounts({"root": ACCOUNT}, b"s" * 32))
)


def make_revision(content):
    return Revision(1, ("a", "b"), {}, content)


def test_document_is_the_same_after_a_round_trip():
    text = msgspec.json.encode(make_revision(DOCUMENT.to_content()))
    again = ClusterDocument.from_revision(msgspec.json.decode(text, type=Revision))
    assert again == DOCUMENT
    assert again.users is not None
    assert again.users.read_accounts() == ({"root": ACCOUNT}, b"s" * 32)
    assert again.get_bucket("beer").read_manifest() == DEFAULT_MANIFEST.with_scope("cellar")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def list_places(content, way=()):
    """Yield the way to each value of a JSON document."""
    yield way
    members = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for name, value in members:
        yield from list_places(value, (*way, name))


CONTENT = msgspec.json.decode(msgspec.json.encode(DOCUMENT.to_content()))
PLACES = list(list_places(CONTENT))[1:]


@given(st.sampled_from(PLACES), JSON)
def test_damaged_document_is_refused_or_can_be_used(way, value):
    content = msgspec.json.decode(msgspec.json.encode(CONTENT))
    inside = content
    for name in way[:-1]:
        inside = inside[name]
    inside[way[-1]] = value
    try:
        document = ClusterDocument.from_revision(make_revision(content))
    except RemoteProtocolError:
        return
    for bucket in document.buckets:
        assert bucket.spec.name == bucket.name
        assert document.make_bucket_topology(document.nodes[0].id, bucket.name).places
    if document.users is not None:
        document.users.read_accounts()


def test_document_has_a_limit():
    content = DOCUMENT.with_spec(BucketSpec(name="beer", vbuckets=16)).to_content()
    assert content["buckets"][0]["properties"] == {"kind": "couchbase"}
    accounts = {f"user{number}": ACCOUNT for number in range(2000)}
    with pytest.raises(UsageError, match="the limit is"):
        DOCUMENT.with_users(ClusterUsers.from_accounts(accounts, b"s" * 32)).to_content()


def test_node_that_was_removed_is_not_added_again():
    after = DOCUMENT.with_map("beer", [("a",)] * 16).without_node("b")
    assert after.members == ("a",)
    with pytest.raises(UsageError, match="was removed"):
        after.with_node(NODES[1])


# Maps

C = ClusterNode(id="c", host="127.0.0.1", kv=5, mgmt=6)
WIDER = DOCUMENT.with_node(C)
IDS = st.sampled_from(["a", "b", "c"])
CHAINS = st.integers(1, 4).flatmap(
    lambda copies: st.lists(
        st.lists(st.none() | IDS, min_size=copies, max_size=copies)
        .filter(lambda chain: all(chain.count(node) < 2 for node in "abc"))
        .map(tuple),
        min_size=16,
        max_size=16,
    )
)


@given(CHAINS)
def test_map_is_the_same_after_a_round_trip(chains):
    after = WIDER.with_map("beer", chains)
    text = msgspec.json.encode(make_revision(after.to_content()))
    again = ClusterDocument.from_revision(msgspec.json.decode(text, type=Revision))
    assert again == after
    assert list(again.get_bucket("beer").read_chains()) == chains
    topology = again.make_bucket_topology("b", "beer")
    numbers = {"a": 0, "b": 1, "c": 2, None: -1}
    assert topology.chains == tuple(tuple(numbers[node] for node in chain) for chain in chains)
    assert list(topology.list_owned(16)) == [vbucket for vbucket, chain in enumerate(chains) if chain[0] == "b"]
    placed = {node for chain in chains for node in chain} - {None}
    assert {node for node in "abc" if again.has_vbuckets(node)} == placed


def test_largest_map_is_small():
    nodes = tuple(ClusterNode(id=f"{number:016x}", host="h", kv=number + 1) for number in range(32))
    document = ClusterDocument(uuid="0" * 32, nodes=nodes).with_bucket(BucketSpec(name="beer", vbuckets=1024))
    ids = [node.id for node in nodes]
    chains = [tuple(ids[(vbucket * 7 + copy * (vbucket % 5 + 1)) % 32] for copy in range(4)) for vbucket in range(1024)]
    before = len(msgspec.json.encode(document.to_content()))
    assert len(msgspec.json.encode(document.with_map("beer", chains).to_content())) - before < 7000


STEPS = st.sampled_from(
    [
        lambda document: document.with_node(ClusterNode(id="b", host="127.0.0.1", kv=9, mgmt=10)),
        lambda document: document.with_node(C),
        lambda document: document.without_node("c"),
        lambda document: document.with_map("beer", [("a", "b")] * 16),
        lambda document: document.with_map("beer", [("b", None)] * 16, MapRevision(2, 7)),
        lambda document: document.with_spec(BucketSpec(name="beer", vbuckets=16, replicas=1)),
        lambda document: document.with_manifest("beer", DEFAULT_MANIFEST.with_scope("s")),
        lambda document: document.without_bucket("beer").with_bucket(BucketSpec(name="beer", vbuckets=16)),
        lambda document: document.with_users(ClusterUsers.from_accounts({}, b"s" * 32)),
    ]
)


@given(st.lists(STEPS, max_size=12))
def test_each_change_of_a_map_has_a_newer_revision(steps):
    document = DOCUMENT
    for step in steps:
        try:
            after = step(document)
        except (KeyExists, UsageError):
            continue
        maps = [each.make_bucket_topology("a", "beer") for each in (document, after)]
        shown = [each.get_bucket("beer") for each in (document, after)]
        assert maps[0].version is not None
        assert maps[1].version is not None
        assert maps[1].version >= maps[0].version
        assert (maps[1].version == maps[0].version) == (maps[0] == maps[1] and shown[0] == shown[1])
        assert after.newest_map >= document.newest_map
        document = after


def test_map_never_goes_back():
    first = DOCUMENT.with_map("beer", [("a",)] * 16, MapRevision(2, 7))
    assert first.with_map("beer", [("a",)] * 16, MapRevision(2, 7)) is first
    for revision in (MapRevision(2, 7), MapRevision(2, 6), MapRevision(1, 99)):
        with pytest.raises(KeyExists, match="above 2:7"):
            first.with_map("beer", [("b",)] * 16, revision)
    assert first.with_map("beer", [("b",)] * 16).get_bucket("beer").map.revision == MapRevision(2, 8)


@pytest.mark.parametrize(
    ("chains", "reason"),
    [
        ([("a",)] * 15, "15 vbuckets"),
        ([("x",)] * 16, "node x"),
        ([("a", "a")] * 16, "different nodes"),
        ([("a", *[None] * 4)] * 16, "1 to 4"),
        ([()] * 16, "1 to 4"),
    ],
)
def test_map_that_does_not_fit_is_refused(chains, reason):
    with pytest.raises(UsageError, match=reason):
        DOCUMENT.with_map("beer", chains)
    with pytest.raises(UsageError, match="revision"):
        DOCUMENT.with_map("beer", [("a",)] * 16, MapRevision(2, 2**62))


@pytest.mark.parametrize("chain", [("a", "b"), ("b",), ("a", None, "b")])
def test_node_with_vbuckets_or_replicas_stays(chain):
    placed = DOCUMENT.with_map("beer", [("a",)] * 15 + [chain])
    with pytest.raises(UsageError, match="active server"):
        placed.without_node("b")
    assert placed.with_map("beer", [("a",)] * 16).without_node("b").members == ("a",)


def test_compressed_garbage_is_bounded():
    bomb = b64encode(zlib.compress(bytes(10_000_000))).decode()
    content = msgspec.json.decode(msgspec.json.encode(CONTENT))
    content["buckets"][0]["map"]["places"] = bomb
    with pytest.raises(RemoteProtocolError, match="expected 16"):
        ClusterDocument.from_revision(make_revision(content))


@pytest.mark.parametrize(
    "change", [DOCUMENT.without_bucket, lambda name: DOCUMENT.with_manifest(name, DEFAULT_MANIFEST)]
)
def test_change_of_an_unknown_bucket_is_refused(change):
    with pytest.raises(BucketNotServed):
        change("wine")


# Messages

MESSAGE = NodeMessage("a", "b", "nonce", Ask(7))


def test_messages_are_the_same_after_a_round_trip():
    text = encode_message(MESSAGE)
    assert verify_request(SECRET, "b", text, sign(SECRET, text)) == MESSAGE
    answer = encode_message(NodeReply(Known(7)))
    assert verify_reply(SECRET, "nonce", answer, sign(SECRET, answer, "nonce")) == NodeReply(Known(7))


def test_message_for_another_node_is_refused():
    text = encode_message(MESSAGE)
    with pytest.raises(AuthenticationFailed, match="another node"):
        verify_request(SECRET, "c", text, sign(SECRET, text))


@pytest.mark.parametrize("proof", ["", "é", sign("00", encode_message(MESSAGE)), sign(SECRET, b"{}")])
def test_wrong_proof_is_refused(proof):
    with pytest.raises(AuthenticationFailed, match="secret"):
        verify_request(SECRET, "b", encode_message(MESSAGE), proof)


def test_reply_to_another_request_is_refused():
    answer = encode_message(NodeReply(Known(7)))
    with pytest.raises(AuthenticationFailed):
        verify_reply(SECRET, "nonce", answer, sign(SECRET, answer, "other"))


@given(st.binary(max_size=100) | JSON.map(msgspec.json.encode))
def test_garbage_with_a_proof_is_a_protocol_error(text):
    with pytest.raises(RemoteProtocolError):
        verify_request(SECRET, "b", text, sign(SECRET, text))
    with pytest.raises(RemoteProtocolError):
        verify_reply(SECRET, "n", text, sign(SECRET, text, "n"))
