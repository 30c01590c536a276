"""STAT connections: the connections of the node in their order, with the programs behind them."""

import json

import pytest

from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Hello, SelectBucket, Stat
from tests.node.test_login import ITERATIONS, log_in
from tests.node.wire_client import connected


@pytest.fixture
def node():
    with Node.running(["beer", "wine"], 4) as node:
        yield node


def read_connections(client, argument=""):
    found = client.stats(f"connections {argument}".strip())
    assert all(name == str(json.loads(value)["socket"]) for name, value in found.items())
    return [json.loads(value) for value in found.values()]


def test_connections_are_listed_by_age_with_their_programs(node):
    with connected(node, "beer") as first, connected(node, "wine") as second, connected(node):
        first.ask(Hello(key=b'{"a":"mover/1","i":"ab/1"}'))
        second.hello(Feature.XERROR)
        second.ask(Hello(key=b"plain"))
        one, two, three = read_connections(first)
        assert one["socket"] < two["socket"] < three["socket"]
        assert (one["agent_name"], one["connection_id"], one["bucket"]) == ("mover/1", "ab/1", "beer")
        assert (two["agent_name"], two["bucket"], two["type"]) == ("plain", "wine", "normal")
        assert "agent_name" not in three
        host, port = first.socket.getsockname()
        assert one["peername"] == f"{host}:{port}"
        assert (one["protocol"], three["bucket"], "user" in one) == ("memcached", None, False)
        assert read_connections(second, "self") == read_connections(second, two["socket"]) == [two]


def test_stream_connections_have_their_side(node):
    with connected(node, "beer") as client, connected(node, "beer") as consumer:
        consumer.open("consumer")
        assert [one["type"] for one in read_connections(client)] == ["normal", "producer"]


def test_user_without_settings_sees_the_own_connection(tmp_path):
    path = tmp_path / "users.json"
    with change_users(path) as accounts:
        for name, roles in {"root": ["admin"], "alice": ["data_reader[beer]", "external_stats_reader"]}.items():
            accounts[name] = make_account(User.from_texts(name, roles), f"{name}'s", ITERATIONS)
    with (
        Node.running(["beer"], 4, users=path, allow_plain=True) as node,
        connected(node) as root,
        connected(node) as alice,
    ):
        for client, name in ((root, "root"), (alice, "alice")):
            assert log_in(client, name) == Status.SUCCESS
            assert client.status(SelectBucket(key=b"beer")) == Status.SUCCESS
        assert [one["user"] for one in read_connections(root)] == [{"name": "root"}, {"name": "alice"}]
        (own,) = read_connections(alice)
        assert own["user"] == {"name": "alice"}
        assert alice.status(Stat(key=b"connections 1")) == Status.EACCESS


def test_numbers_are_not_used_again(node):
    with connected(node, "beer") as client:
        with connected(node, "beer"):
            last = read_connections(client)[-1]["socket"]
        with connected(node, "beer") as other:
            assert read_connections(other)[-1]["socket"] == last + 1


@pytest.mark.parametrize("key", [b'{"a":1,"i":[]}', b"{}", b"", b'{"i":7}'])
def test_agent_without_a_name_has_none(node, key):
    with connected(node, "beer") as client:
        client.ask(Hello(key=key))
        (found,) = read_connections(client)
        assert not found.keys() & {"agent_name", "connection_id"}


@pytest.mark.parametrize("key", [b'{"a":', b'{"a":"\xff"}', b'{"a":' + b"[" * 2000])
def test_malformed_json_is_a_name(node, key):
    with connected(node, "beer") as client:
        client.ask(Hello(key=key))
        (found,) = read_connections(client)
        assert found["agent_name"] == key.decode("utf-8", "replace")[:250]


@pytest.mark.parametrize("argument", ["x", "-1", "1" * 21, "\u0661"])
def test_argument_is_a_number_or_self(node, argument):
    with connected(node, "beer") as client:
        assert client.status(Stat(key=f"connections {argument}".encode())) == Status.EINVAL


def test_unknown_number_has_no_connection(node):
    with connected(node, "beer") as client:
        assert read_connections(client, "9" * 20) == []
