"""The cluster map on a connection: asked for, pushed, and with NOT_MY_VBUCKET."""

import json
from typing import Any

import pytest

from penstock.node import Node
from penstock.wire.codec.constants import Feature, VbucketState
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode, ServerOpcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Get, GetClusterConfig, Hello, Noop, SelectBucket, SetVbucket, pack_features
from tests.node.wire_client import connected

F = Feature


def hello(client, *features):
    assert client.status(Hello(value=pack_features(features))) == Status.SUCCESS


def config(client, **known):
    frame = client.ask(GetClusterConfig(**known))
    assert frame.specific == Status.SUCCESS
    return json.loads(frame.value) if frame.value else None


@pytest.fixture
def beer():
    with Node.running(["beer", "wine"], vbuckets=4) as node:
        yield node


def test_without_a_bucket_it_is_that_of_the_nodes(beer):
    with connected(beer) as client:
        said = config(client)
        assert said["nodesExt"][0]["services"]["kv"] == beer.kv_port
        assert said.keys().isdisjoint({"name", "vBucketServerMap"})
        assert client.status(SelectBucket(key=b"wine")) == Status.SUCCESS
        assert config(client)["name"] == "wine"


def test_nothing_is_sent_to_who_has_it(beer):
    with connected(beer, "beer") as client:
        said = config(client)
        assert config(client, epoch=said["revEpoch"], revision=said["rev"]) is None
        assert config(client, epoch=said["revEpoch"], revision=said["rev"] - 1) == said
        assert config(client, epoch=2**64 - 1, revision=2**64 - 1) == said  # -1: it has none
        client.ask(SetVbucket(state=VbucketState.REPLICA, vbucket=1))
        newer = config(client, epoch=said["revEpoch"], revision=said["rev"])
        assert newer["rev"] > said["rev"]
        assert newer["vBucketServerMap"]["vBucketMap"] == [[0], [-1], [0], [0]]


def test_a_change_is_pushed(beer):
    with connected(beer, "beer") as client, connected(beer, "beer") as other, connected(beer, "wine") as wine:
        hello(client, F.DUPLEX, F.CLUSTERMAP_CHANGE_NOTIFICATION)
        hello(wine, F.DUPLEX, F.CLUSTERMAP_CHANGE_NOTIFICATION)
        other.ask(SetVbucket(state=VbucketState.DEAD, vbucket=3))
        frame = client.receive()
        assert (frame.magic, frame.opcode) == (Magic.SERVER_REQUEST, ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION)
        pushed: Any = decode_frame(frame)
        said = json.loads(pushed.value)
        assert (pushed.key, pushed.epoch, pushed.revision) == (b"beer", said["revEpoch"], said["rev"])
        assert said["vBucketServerMap"]["vBucketMap"][3] == [-1]
        client.send(Noop())
        assert client.receive().magic == Magic.RESPONSE  # once
        assert wine.status(Noop()) == Status.SUCCESS
        assert not wine.frames


@pytest.mark.parametrize("kind", [F.CLUSTERMAP_CHANGE_NOTIFICATION, F.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF])
def test_a_change_is_pushed_behind_a_large_reply(beer, kind):
    with connected(beer, "beer", receive_buffer=4096) as client, connected(beer, "beer") as other:
        hello(client, F.DUPLEX, kind)
        client.set(b"k", bytes(18 << 20))
        client.send(Get(key=b"k"))
        while not any(connection.bytes_unsent for connection in beer.connections.open_connections):
            assert other.status(Noop()) == Status.SUCCESS
        for vbucket in 2, 3:
            other.ask(SetVbucket(state=VbucketState.DEAD, vbucket=vbucket))
        rev = config(other)["rev"]
        assert client.receive().opcode == Opcode.GET
        pushed: Any = decode_frame(client.receive())
        assert pushed.revision == rev
        client.send(Noop())
        assert client.receive().opcode == Opcode.NOOP  # once


def test_in_brief_it_is_its_revision_alone(beer):
    with connected(beer) as client, connected(beer, "beer") as other:
        hello(client, F.DUPLEX, F.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF, F.CLUSTERMAP_CHANGE_NOTIFICATION)
        client.ask(SelectBucket(key=b"beer"))
        other.ask(SetVbucket(state=VbucketState.DEAD, vbucket=3))
        pushed: Any = decode_frame(client.receive())
        assert (pushed.value, pushed.revision) == (b"", config(client)["rev"])


def test_an_answer_to_a_push_is_taken(beer):
    with connected(beer, "beer") as client:
        hello(client, F.DUPLEX)
        client.send(bytes((Magic.SERVER_RESPONSE, ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION)) + bytes(22))
        assert client.status(Noop()) == Status.SUCCESS


def test_who_has_the_map_is_told_once(beer):
    with connected(beer, "beer") as client, connected(beer, "beer") as other:
        hello(client, F.DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP)
        first, second = (client.get(b"k", vbucket=9) for _ in range(2))
        assert (first.specific, second.specific) == (Status.NOT_MY_VBUCKET, Status.NOT_MY_VBUCKET)
        assert json.loads(first.value)["name"] == "beer"
        assert second.value == b""
        other.ask(SetVbucket(state=VbucketState.DEAD, vbucket=3))
        assert json.loads(client.ask(Get(key=b"k", vbucket=3)).value)["vBucketServerMap"]["vBucketMap"][3] == [-1]
