"""Reads from replicas, of random keys, and of keys in order."""

import pytest

from penstock.wire.codec.constants import Feature, VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.messages.kv import (
    GetKeys,
    GetRandomKey,
    GetReplica,
    Hello,
    Set,
    SetVbucket,
    SetWithMeta,
    pack_features,
    unpack_key_list,
)
from tests.node.brewery import ALES, LAGERS, prefix_key
from tests.node.wire_client import connected

S = Status


def test_get_replica_reads_replicas(client):
    client.set(b"k", b"v", flags=7, vbucket=2)
    assert client.status(GetReplica(key=b"k", vbucket=2)) == S.NOT_MY_VBUCKET
    client.ask(SetVbucket(state=VbucketState.REPLICA, vbucket=2))
    assert client.get(b"k", vbucket=2).specific == S.NOT_MY_VBUCKET
    found = client.ask(GetReplica(key=b"k", vbucket=2))
    assert (found.specific, found.value, found.extras) == (S.SUCCESS, b"v", b"\0\0\0\7")
    assert client.status(GetReplica(key=b"nothing", vbucket=2)) == S.KEY_ENOENT


def test_get_random_key_returns_a_document(client):
    assert client.status(GetRandomKey()) == S.KEY_ENOENT
    stored = {b"k%d" % number: b"v%d" % number for number in range(50)}
    for number, (key, value) in enumerate(stored.items()):
        client.set(key, value, flags=9, vbucket=number % 4)
    client.delete(b"k0")
    seen: set[bytes] = set()
    while len(seen) < 5:
        found = client.ask(GetRandomKey())
        assert (found.specific, found.value, found.extras) == (S.SUCCESS, stored[found.key], b"\0\0\0\t")
        seen.add(found.key)
    assert b"k0" not in seen
    assert client.status(GetRandomKey(collection_id=8)) == S.EINVAL


def test_get_random_key_reads_one_collection(modern):
    modern.set(b"\0of the default one", b"v")
    modern.set(prefix_key(ALES, b"k"), b"v", vbucket=5)
    assert modern.ask(GetRandomKey(collection_id=ALES)).key == prefix_key(ALES, b"k")
    assert modern.ask(GetRandomKey()).key == b"\0of the default one"
    assert modern.status(GetRandomKey(collection_id=LAGERS)) == S.KEY_ENOENT
    assert modern.status(GetRandomKey(collection_id=77)) == S.UNKNOWN_COLLECTION


def test_get_random_key_can_return_extended_attributes(node):
    features = (Feature.XATTR, Feature.JSON, Feature.SNAPPY_EVERYWHERE, Feature.GET_RANDOM_KEY_INCLUDE_XATTR)
    value, datatype = pack_xattrs({"a": b"1"}, b"{}"), Datatype.XATTR | Datatype.JSON
    with connected(node) as client:
        client.ask(Hello(value=pack_features(features)))
        stored = SetWithMeta(key=b"x", value=value, datatype=datatype, flags=1, expiry=0, rev_seqno=1, new_cas=7)
        assert client.status(stored) == S.SUCCESS
        whole = client.ask(GetRandomKey(collection_id=0, include_xattrs=1))
        assert (whole.value, whole.datatype) == (value, datatype)
        body = client.ask(GetRandomKey())
        assert (body.value, body.datatype) == (b"{}", Datatype.JSON)


def test_get_keys_lists_keys_in_order(client):
    for number in (3, 1, 2, 5, 4):
        client.ask(Set(key=b"k%d" % number))
    client.delete(b"k2")
    keys = unpack_key_list(client.ask(GetKeys(key=b"k")).value)
    assert list(keys) == [b"k1", b"k3", b"k4", b"k5"]
    assert list(unpack_key_list(client.ask(GetKeys(key=b"k3", count=2)).value)) == [b"k3", b"k4"]


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (GetKeys(key=b"z"), S.KEY_ENOENT),
        (GetKeys(key=b"a", count=0), S.ERANGE),
        (GetKeys(key=b"a", count=10_001), S.ERANGE),
        (GetKeys(key=b"a", vbucket=99), S.NOT_MY_VBUCKET),
        (Frame(0x80, Opcode.GET_KEYS), S.EINVAL),
    ],
)
def test_get_keys_without_a_match_is_refused(client, message, status):
    client.set(b"k")
    assert client.status(message) == status


def test_get_keys_lists_one_collection(modern):
    for collection in (0, ALES, LAGERS):
        modern.set(prefix_key(collection, b"k"))
    assert list(unpack_key_list(modern.ask(GetKeys(key=prefix_key(ALES, b"a"))).value)) == [prefix_key(ALES, b"k")]
