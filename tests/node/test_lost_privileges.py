"""Streams end when their user loses the privilege for them."""

from dataclasses import replace

import pytest

from penstock import connect
from penstock.errors import AccessDenied
from penstock.node import Node
from penstock.node.auth import User, users_file
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.node.session import connection_registry
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.frame import join_frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status, StreamEndReason
from penstock.wire.messages.dcp import StreamEnd
from penstock.wire.messages.kv import Noop, SelectBucket
from tests.client.peer import in_loop
from tests.node.http.web_client import WebClient
from tests.node.manifests import (
    ALE,
    ALES,
    BEERS,
    DEFAULT,
    LAGER,
    LAGERS,
    make_beers,
    make_collection_filter,
    make_filter_value,
    make_key,
    set_scopes,
)
from tests.node.test_login import ITERATIONS, log_in
from tests.node.wire_client import connected

ALL, SCOPE, ALE_ROLE = (
    "data_dcp_reader[default]",
    "data_dcp_reader[default:beers]",
    "data_dcp_reader[default:beers:ales]",
)

ROWS = [
    ("whole bucket, role for a scope left", b"", [SCOPE], True),
    ("whole bucket, role for a collection added", b"", [ALL, ALE_ROLE], False),
    ("scope, role for a collection left", make_filter_value(scope=f"{BEERS:x}"), [ALE_ROLE], True),
    ("scope, role for the scope left", make_filter_value(scope=f"{BEERS:x}"), [SCOPE], False),
    ("collections, role for one left", make_collection_filter(ALES, LAGERS), [ALE_ROLE], True),
    ("collection, role for it left", make_collection_filter(ALES), [ALE_ROLE], False),
    ("collection, role for reads left", make_collection_filter(ALES), ["data_reader[default]"], True),
    ("collection, role for another bucket left", make_collection_filter(ALES), ["data_dcp_reader[other]"], True),
    ("collection, user deleted", make_collection_filter(ALES), None, True),
]


@pytest.fixture
def users(tmp_path, monkeypatch):
    monkeypatch.setattr(users_file, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(connection_registry, "_CHECK_SECONDS", 0.02)
    path = tmp_path / "users.json"
    with change_users(path) as accounts:
        for name, roles in {"root": ["admin"], "alice": [ALL]}.items():
            accounts[name] = make_account(User.from_texts(name, roles), f"{name}'s", ITERATIONS)
    return path


@pytest.fixture
def node(users):
    with Node.running(["default", "other"], vbuckets=2, users=users, allow_plain=True) as node:
        with connected(node) as root:
            assert log_in(root.hello(Feature.COLLECTIONS), "root") == Status.SUCCESS
            assert root.status(SelectBucket(key=b"default")) == Status.SUCCESS
            set_scopes(root, 1, DEFAULT, make_beers(ALE, LAGER))
        yield node


def open_consumer(client, name="alice"):
    assert log_in(client.hello(Feature.COLLECTIONS), "alice") == Status.SUCCESS
    assert client.status(SelectBucket(key=b"default")) == Status.SUCCESS
    client.open(name).control("enable_noop", "true")
    return client


def skip_to_end(client):
    while (frame := client.receive()).opcode != Opcode.DCP_STREAM_END:
        continue
    end = decode_frame(frame)
    assert isinstance(end, StreamEnd)
    return end


@pytest.mark.parametrize(("value", "roles", "stream_ends"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_lost_privilege_ends_the_stream(node, users, value, roles, stream_ends):
    root = WebClient(node, ("root", "root's"))
    with connected(node) as client:
        assert open_consumer(client).stream(value=value).specific == Status.SUCCESS
        before = node.users.version
        if roles is None:
            assert root.delete("/settings/rbac/users/local/alice").status == 200
        else:
            with change_users(users) as accounts:
                accounts["alice"] = replace(accounts["alice"], user=User.from_texts("alice", roles))
        if stream_ends:
            assert skip_to_end(client).reason == StreamEndReason.LOST_PRIVILEGES
            assert client.stream(vbucket=1, value=value).specific in (
                Status.EACCESS,
                Status.UNKNOWN_COLLECTION,
                Status.UNKNOWN_SCOPE,
            )
            if roles is None:
                assert client.ended()
        else:
            while node.users.version == before:
                root.get_json("/whoami")
            assert client.stream(vbucket=1, value=value).specific == Status.SUCCESS


def test_nothing_is_sent_after_a_lost_privilege(node, users):
    """Stream ids make the frames longer than in the log, so that some wait for room in the window."""
    window = 4000
    with connected(node) as root, connected(node) as other, connected(node) as client:
        assert log_in(root.hello(Feature.COLLECTIONS), "root") == Status.SUCCESS
        assert root.status(SelectBucket(key=b"default")) == Status.SUCCESS
        for number in range(100):
            assert root.set(make_key(ALES, b"%d" % number)).specific == Status.SUCCESS
        open_consumer(client)
        assert client.control("connection_buffer_size", str(window)) == Status.SUCCESS
        assert client.control("enable_stream_id", "true") == Status.SUCCESS
        assert client.stream(value=make_filter_value(sid=1)).specific == Status.SUCCESS
        received = 0
        while received < window:
            received += len(join_frame(client.receive()))
        assert open_consumer(other, "other").stream().specific == Status.SUCCESS
        with change_users(users) as accounts:
            accounts["alice"] = replace(accounts["alice"], user=User.from_texts("alice", [ALE_ROLE]))
        assert skip_to_end(other).reason == StreamEndReason.LOST_PRIVILEGES  # both consumers have lost the role now
        assert client.status(Noop()) == Status.SUCCESS
        assert not client.frames  # the end of the stream waits for room too
        client.acknowledge(received)
        end = client.message()
        assert isinstance(end, StreamEnd), end
        assert end.reason == StreamEndReason.LOST_PRIVILEGES


def test_other_streams_of_the_connection_continue(node, users):
    with connected(node) as client:
        assert open_consumer(client).stream(0, value=make_collection_filter(ALES)).specific == Status.SUCCESS
        assert client.stream(1, value=make_collection_filter(LAGERS)).specific == Status.SUCCESS
        with change_users(users) as accounts:
            accounts["alice"] = replace(accounts["alice"], user=User.from_texts("alice", [ALE_ROLE]))
        end = skip_to_end(client)
        assert (end.vbucket, end.reason) == (1, StreamEndReason.LOST_PRIVILEGES)
        assert client.stream(0, value=make_collection_filter(ALES)).specific == Status.KEY_EEXISTS


def test_stream_hides_invisible_collections(node, users):
    with change_users(users) as accounts:
        accounts["alice"] = replace(accounts["alice"], user=User.from_texts("alice", [ALE_ROLE]))
    with connected(node) as client, connected(node) as root:
        assert open_consumer(client).stream(value=make_collection_filter(ALES)).specific == Status.SUCCESS
        assert log_in(root.hello(Feature.COLLECTIONS), "root") == Status.SUCCESS
        assert root.status(SelectBucket(key=b"default")) == Status.SUCCESS
        hidden = {"name": "hidden", "uid": "20", "collections": [{"name": "secret", "uid": "21"}]}
        set_scopes(root, 2, DEFAULT, make_beers(ALE, LAGER), hidden)
        set_scopes(root, 3, DEFAULT, make_beers(ALE))
        assert root.set(make_key(ALES, b"last")).specific == Status.SUCCESS
        frames = [client.receive()]
        while frames[-1].opcode != Opcode.DCP_MUTATION:
            frames.append(client.receive())
    keys = [frame.key for frame in frames if frame.opcode == Opcode.DCP_SYSTEM_EVENT]
    assert keys == [b"ales"]


def test_client_without_collections_loses_its_connection(node, users):
    """The only end reason of such a client is OK, which would look like a complete stream."""
    with connected(node) as client:
        assert log_in(client, "alice") == Status.SUCCESS
        assert client.status(SelectBucket(key=b"default")) == Status.SUCCESS
        assert client.open("alice").stream().specific == Status.SUCCESS
        with change_users(users) as accounts:
            accounts["alice"] = replace(accounts["alice"], user=User.from_texts("alice", ["data_reader[default]"]))
        assert client.ended()


@in_loop
async def test_client_reports_the_lost_privilege(node, users):
    url = f"couchbase://127.0.0.1:{node.kv_port}/default"
    async with connect(url, username="alice", password="alice's") as bucket:
        changes = bucket.changes()
        await anext(changes)  # a system event
        with change_users(users) as accounts:
            accounts["alice"] = replace(accounts["alice"], user=User.from_texts("alice", [ALE_ROLE]))
        with pytest.raises(AccessDenied, match="the user lost the privilege to stream it"):
            [change async for change in changes]
