"""Streaming responses: the node sends a document again whenever it changes."""

import asyncio
import socket
import time

import pytest

from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.node.auth.verifier import MIN_ITERATIONS
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import SetVbucket
from tests.node.http.web_client import WebClient, open_connection, read_to_end
from tests.node.watch import run
from tests.node.wire_client import connected
from tests.patience import PATIENCE

STREAMS = ["/pools/default/bs/beer", "/pools/default/bucketsStreaming/beer"]


def on_loop(node, coroutine):
    return asyncio.run_coroutine_threadsafe(coroutine, node.loop).result(PATIENCE)


def get_place(document, vbucket):
    return document["vBucketServerMap"]["vBucketMap"][vbucket]


@pytest.mark.parametrize("path", STREAMS)
def test_stream_sends_a_document_at_once_and_after_each_change(node, web, path):
    with web.stream(path) as stream, connected(node, "beer") as client:
        first = stream.next()
        assert (first["name"], get_place(first, 5)) == ("beer", [0])
        seen = [first["rev"]]
        for state, expected in ((VbucketState.REPLICA, [-1]), (VbucketState.ACTIVE, [0])):
            assert client.status(SetVbucket(vbucket=5, state=state)) == Status.SUCCESS
            document = stream.next()
            assert get_place(document, 5) == expected
            seen.append(document["rev"])
        assert seen == sorted(set(seen))


def test_many_changes_at_once_send_the_newest_document(node, web):
    with web.stream(STREAMS[0]) as stream, connected(node, "beer") as client:
        stream.next()
        client.send(*(SetVbucket(vbucket=vbucket, state=VbucketState.DEAD) for vbucket in range(16)))
        while get_place(document := stream.next(), 15) != [-1]:
            continue
        assert document["vBucketServerMap"]["vBucketMap"] == [[-1]] * 16


@pytest.mark.parametrize("path", STREAMS)
def test_changed_collections_are_sent(web, path):
    with web.stream(path) as stream:
        assert stream.next()["collectionsManifestUid"] == "0"
        assert web.post("/pools/default/buckets/beer/scopes", name="cellar").status == 200
        assert stream.next()["collectionsManifestUid"] == "1"


def test_deleted_bucket_ends_its_streams(node, web):
    with web.stream(STREAMS[0]) as stream, web.stream("/pools/default/bs/default") as other:
        stream.next()
        other.next()
        assert web.delete("/pools/default/buckets/beer").status == 200
        with pytest.raises(EOFError):
            stream.next()
        assert web.post("/pools/default/buckets/default/scopes", name="cellar").status == 200
        assert other.next()["collectionsManifestUid"] == "1"


@pytest.mark.parametrize("path", STREAMS)
def test_removed_user_ends_their_streams(tmp_path, path):
    users = tmp_path / "users.json"
    with change_users(users) as accounts:
        for name in ("alice", "root"):
            accounts[name] = make_account(User.from_texts(name, ["admin"]), "secret", MIN_ITERATIONS)
    with (
        Node.running(["beer"], vbuckets=1, users=users) as node,
        WebClient(node, ("alice", "secret")).stream(path) as stream,
    ):
        stream.next()
        with change_users(users) as accounts:
            del accounts["alice"]
        run(node, node.reload)
        root = WebClient(node, ("root", "secret"))
        assert root.post("/pools/default/buckets/beer/scopes", name="new").status == 200
        with pytest.raises(EOFError):
            stream.next()


def test_stream_of_a_client_that_leaves_is_forgotten(node, web):
    for path in STREAMS:
        with web.stream(path) as stream:
            stream.next()
            assert len(node.http.state.streams) == 1
        until = time.monotonic() + PATIENCE
        while node.http.state.streams and time.monotonic() < until:
            web.get_json("/pools")
        assert not node.http.state.streams


def test_stream_of_a_client_that_leaves_with_pipelined_requests_is_forgotten(node):
    """The client sends more requests than the node queues. They can never be answered: the stream does not end."""
    request = b"GET /pools/default/bs/beer HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with open_connection(node, request) as connection:
        text = b""
        while b"\n\n\n\n" not in text:
            text += connection.recv(1 << 16)
        connection.sendall(request * 10_000)
        connection.shutdown(socket.SHUT_WR)
        assert read_to_end(connection).endswith(b"0\r\n\r\n")
    assert not node.http.state.streams


def test_node_stops_with_open_streams():
    with Node.running(["beer"], vbuckets=16) as node:
        web = WebClient(node)
        streams = [web.stream(STREAMS[0]) for _ in range(3)]
        opened = [stream.__enter__() for stream in streams]
        for stream in opened:
            stream.next()
        on_loop(node, node.buckets.create(BucketSpec(name="wine", vbuckets=1)))
    for stream in opened:
        with pytest.raises(EOFError):
            stream.next()
    for stream in streams:
        stream.__exit__(None, None, None)
    assert not node.http.state.streams


def test_client_that_does_not_read_gets_the_newest_document_later(node):
    request = b"GET /pools/default/bs/beer HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with open_connection(node, request) as connection, connected(node, "beer") as client:
        assert connection.recv(1)
        for number in range(300):
            state = VbucketState.DEAD if number % 2 else VbucketState.ACTIVE
            client.ask(SetVbucket(vbucket=0, state=state))
        assert client.status(SetVbucket(vbucket=1, state=VbucketState.DEAD)) == Status.SUCCESS
        text = b""
        while b"[[-1],[-1],[0]" not in text:
            piece = connection.recv(1 << 16)
            assert piece
            text += piece
    # The node serves other clients afterwards.
    assert WebClient(node).get_json("/pools/default/b/beer")["name"] == "beer"


def test_http_1_0_client_gets_a_stream(node):
    request = b"GET /pools/default/bs/beer HTTP/1.0\r\n\r\n"
    with open_connection(node, request) as connection:
        text = b""
        while b"\n\n\n\n" not in text:
            text += connection.recv(1 << 16)
        assert text.startswith(b"HTTP/1.1 200")
        assert b'"name":"beer"' in text
        on_loop(node, node.buckets.delete("beer"))
        assert read_to_end(connection) == b""
