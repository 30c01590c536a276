"""The cluster map on a connection: as a reply, as a notification, and with NOT_MY_VBUCKET."""

import json
from typing import Any

import pytest

from penstock.node import Node
from penstock.wire.codec.constants import Feature, VbucketState
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode, ServerOpcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Get, GetClusterConfig, Hello, Noop, SelectBucket, SetVbucket, pack_features
from tests.node.watch import has_unsent_bytes
from tests.node.wire_client import connected

F = Feature


def request_features(client, *features):
    assert client.status(Hello(value=pack_features(features))) == Status.SUCCESS


def get_config(client, **known):
    frame = client.ask(GetClusterConfig(**known))
    assert frame.specific == Status.SUCCESS
    return json.loads(frame.value) if frame.value else None


@pytest.fixture
def beer():
    with Node.running(["beer", "wine"], vbuckets=4) as node:
        yield node


def test_connection_without_a_bucket_gets_the_map_of_the_nodes(beer):
    with connected(beer) as client:
        document = get_config(client)
        assert document["nodesExt"][0]["services"]["kv"] == beer.kv_port
        assert document.keys().isdisjoint({"name", "vBucketServerMap"})
        assert client.status(SelectBucket(key=b"wine")) == Status.SUCCESS
        assert get_config(client)["name"] == "wine"


def test_known_map_is_not_sent_again(beer):
    with connected(beer, "beer") as client:
        document = get_config(client)
        assert get_config(client, epoch=document["revEpoch"], revision=document["rev"]) is None
        assert get_config(client, epoch=document["revEpoch"], revision=document["rev"] - 1) == document
        assert get_config(client, epoch=2**64 - 1, revision=2**64 - 1) == document  # -1: the client has no map
        client.ask(SetVbucket(state=VbucketState.REPLICA, vbucket=1))
        newer = get_config(client, epoch=document["revEpoch"], revision=document["rev"])
        assert newer["rev"] > document["rev"]
        assert newer["vBucketServerMap"]["vBucketMap"] == [[0], [-1], [0], [0]]


def test_changed_map_is_pushed(beer):
    with connected(beer, "beer") as client, connected(beer, "beer") as other, connected(beer, "wine") as wine:
        request_features(client, F.DUPLEX, F.CLUSTERMAP_CHANGE_NOTIFICATION)
        request_features(wine, F.DUPLEX, F.CLUSTERMAP_CHANGE_NOTIFICATION)
        other.ask(SetVbucket(state=VbucketState.DEAD, vbucket=3))
        frame = client.receive()
        assert (frame.magic, frame.opcode) == (Magic.SERVER_REQUEST, ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION)
        pushed: Any = decode_frame(frame)
        document = json.loads(pushed.value)
        assert (pushed.key, pushed.epoch, pushed.revision) == (b"beer", document["revEpoch"], document["rev"])
        assert document["vBucketServerMap"]["vBucketMap"][3] == [-1]
        client.send(Noop())
        assert client.receive().magic == Magic.RESPONSE  # no second notification
        assert wine.status(Noop()) == Status.SUCCESS
        assert not wine.frames


@pytest.mark.parametrize("kind", [F.CLUSTERMAP_CHANGE_NOTIFICATION, F.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF])
def test_newest_map_is_pushed_behind_a_large_reply(beer, kind):
    with connected(beer, "beer", receive_buffer=4096) as client, connected(beer, "beer") as other:
        request_features(client, F.DUPLEX, kind)
        client.set(b"k", bytes(18 << 20))
        client.send(Get(key=b"k"))
        while not has_unsent_bytes(beer):
            assert other.status(Noop()) == Status.SUCCESS
        for vbucket in 2, 3:
            other.ask(SetVbucket(state=VbucketState.DEAD, vbucket=vbucket))
        rev = get_config(other)["rev"]
        assert client.receive().opcode == Opcode.GET
        pushed: Any = decode_frame(client.receive())
        assert pushed.revision == rev
        client.send(Noop())
        assert client.receive().opcode == Opcode.NOOP  # no second notification


def test_brief_notification_has_only_the_revision(beer):
    with connected(beer) as client, connected(beer, "beer") as other:
        request_features(client, F.DUPLEX, F.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF, F.CLUSTERMAP_CHANGE_NOTIFICATION)
        client.ask(SelectBucket(key=b"beer"))
        other.ask(SetVbucket(state=VbucketState.DEAD, vbucket=3))
        pushed: Any = decode_frame(client.receive())
        assert (pushed.value, pushed.revision) == (b"", get_config(client)["rev"])


def test_answer_to_a_notification_is_accepted(beer):
    with connected(beer, "beer") as client:
        request_features(client, F.DUPLEX)
        client.send(bytes((Magic.SERVER_RESPONSE, ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION)) + bytes(22))
        assert client.status(Noop()) == Status.SUCCESS


def test_deduplicated_map_is_sent_once_with_not_my_vbucket(beer):
    with connected(beer, "beer") as client, connected(beer, "beer") as other:
        request_features(client, F.DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP)
        first, second = (client.get(b"k", vbucket=9) for _ in range(2))
        assert (first.specific, second.specific) == (Status.NOT_MY_VBUCKET, Status.NOT_MY_VBUCKET)
        assert json.loads(first.value)["name"] == "beer"
        assert second.value == b""
        other.ask(SetVbucket(state=VbucketState.DEAD, vbucket=3))
        assert json.loads(client.ask(Get(key=b"k", vbucket=3)).value)["vBucketServerMap"]["vBucketMap"][3] == [-1]
