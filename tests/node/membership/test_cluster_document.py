"""The document of a cluster, and the messages that carry it: garbage is refused as such."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import AuthenticationFailed, BucketNotServed, RemoteProtocolError, UsageError
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
    after = DOCUMENT.without_node("b")
    assert after.members == ("a",)
    with pytest.raises(UsageError, match="was removed"):
        after.with_node(NODES[1])


def test_removed_owner_leaves_its_vbuckets_to_the_others():
    assert list(DOCUMENT.make_bucket_topology("a", "beer").list_owned(16)) == list(range(8))
    assert list(DOCUMENT.without_node("b").make_bucket_topology("a", "beer").list_owned(16)) == list(range(16))


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
