"""Durable writes, and other framing extras of requests."""

import json
import time

import pytest

from penstock.node import Node
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.wire.codec.constants import DurabilityLevel, Feature, VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.frame_info import Durability, RequestInfos, pack_request_infos
from penstock.wire.messages.kv import Add, Append, Count, Delete, Get, GetLocked, Noop, Set, SetVbucket, Touch
from tests.node.wire_client import connected
from tests.patience import PATIENCE

L, S = DurabilityLevel, Status
LEVELS = list(L)


def make_framing(level, timeout_ms=None):
    return pack_request_infos(RequestInfos(durability=Durability(level, timeout_ms)))


def wait_until(condition):
    """Wait until a request has the expected reply."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline


@pytest.fixture
def durable(tmp_path):
    with Node.running(vbuckets=4, data_dir=tmp_path) as node, connected(node) as client:
        yield client


@pytest.mark.parametrize("level", LEVELS)
def test_bucket_on_disk_supports_every_level(durable, level):
    assert durable.status(Set(key=b"k", value=b"1", framing=make_framing(level))) == S.SUCCESS
    stats = durable.stats("vbucket-seqno 0")
    names = ("high_seqno", "high_prepared_seqno", "high_completed_seqno", "max_visible_seqno")
    assert [stats[f"vb_0:{name}"] for name in names] == ["2", "1", "1", "2"]
    if level > L.MAJORITY:
        assert int(stats["vb_0:last_persisted_seqno"]) >= 1


def test_every_change_can_be_durable(durable):
    durable_framing = make_framing(L.PERSIST_TO_MAJORITY, 5000)
    for message in (
        Add(key=b"k", value=b"1", framing=durable_framing),
        Count(key=b"k", delta=1, framing=durable_framing),
        Append(key=b"k", value=b"1", framing=durable_framing),
        Set(key=b"k", value=b"1", framing=durable_framing),
        Delete(key=b"k", framing=durable_framing),
    ):
        assert durable.status(message) == S.SUCCESS, message


def set_topology(client, *chain, state=VbucketState.ACTIVE):
    client.hello(Feature.JSON)
    topology = json.dumps({"topology": [chain]}).encode()
    request = SetVbucket(state=state, value=topology, datatype=Datatype.JSON)
    assert client.status(request) == S.SUCCESS


@pytest.fixture
def replicated(node, client):
    """The node as the active node of a chain whose replica never acknowledges."""
    node.buckets["default"].spec = BucketSpec(name="default", replicas=1)
    assert client.status(Set(key=b"k", value=b"old")) == S.SUCCESS
    set_topology(client, "a", "b")
    return node


def test_undecided_write_is_hidden_and_refuses_others(replicated, client):
    with connected(replicated) as writer:
        writer.send(Set(key=b"k", value=b"new", framing=make_framing(L.MAJORITY, 65_000)))
        wait_until(lambda: client.stats("vbucket-seqno 0")["vb_0:high_seqno"] == "2")
        assert client.get(b"k").value == b"old"
        stats = client.stats("durability-monitor 0")
        assert (stats["vb_0:num_tracked"], stats["vb_0:replication_chain_0"]) == ("1", '["a", "b"]')
        for message in (
            Set(key=b"k", value=b"x"),
            Delete(key=b"k"),
            Touch(key=b"k", expiry=5),
            GetLocked(key=b"k"),
            Set(key=b"k", value=b"x", framing=make_framing(L.MAJORITY)),
        ):
            assert client.status(message) == S.SYNC_WRITE_IN_PROGRESS, message
        assert client.status(Set(key=b"other")) == S.SUCCESS
        set_topology(client, "a")
        assert writer.receive().specific == S.SUCCESS
    assert client.get(b"k").value == b"new"
    assert client.status(Set(key=b"k", value=b"x")) == S.SUCCESS


def test_write_without_a_majority_in_time_is_aborted(replicated, client):
    with connected(replicated) as writer:
        assert writer.status(Set(key=b"k", value=b"new", framing=make_framing(L.MAJORITY, 1))) == S.SYNC_WRITE_AMBIGUOUS
    assert client.get(b"k").value == b"old"
    assert client.status(Set(key=b"k", value=b"x")) == S.SUCCESS
    assert client.stats("vbucket-seqno 0")["vb_0:high_completed_seqno"] == "2"


def test_write_goes_on_without_its_client(replicated, client):
    with connected(replicated) as writer:
        writer.send(Set(key=b"k", value=b"new", framing=make_framing(L.MAJORITY, 65_000)))
        wait_until(lambda: client.stats("vbucket-seqno 0")["vb_0:high_seqno"] == "2")
    set_topology(client, "a")
    wait_until(lambda: client.get(b"k").value == b"new")


def test_new_state_ends_the_wait(replicated, client):
    with connected(replicated) as writer:
        writer.send(Set(key=b"k", value=b"new", framing=make_framing(L.MAJORITY, 65_000)))
        wait_until(lambda: client.stats("vbucket-seqno 0")["vb_0:high_seqno"] == "2")
        set_topology(client, "b", "a", state=VbucketState.REPLICA)
        assert writer.receive().specific == S.SYNC_WRITE_AMBIGUOUS
    set_topology(client, "a", "b")
    assert client.get(b"k").specific == S.SYNC_WRITE_RECOMMIT_IN_PROGRESS
    set_topology(client, "a")
    wait_until(lambda: client.get(b"k").specific == S.SUCCESS)
    assert client.get(b"k").value == b"new"


def test_topology_without_a_majority_is_refused(replicated, client):
    set_topology(client, "a", None)
    reply = client.ask(Set(key=b"k", framing=make_framing(L.MAJORITY)))
    assert reply.specific == S.DURABILITY_IMPOSSIBLE
    assert b"no majority of the nodes in the replication chain [a, no replica]" in reply.value


def test_undecided_write_waits_for_its_chain_after_a_restart(tmp_path):
    with Node.running(vbuckets=4, data_dir=tmp_path) as node, connected(node) as client, connected(node) as writer:
        set_topology(client, "a", "b")
        writer.send(Set(key=b"k", value=b"new", framing=make_framing(L.MAJORITY, 65_000)))
        wait_until(lambda: client.stats("vbucket-seqno 0")["vb_0:high_seqno"] == "1")
    with Node.running(vbuckets=4, data_dir=tmp_path) as node, connected(node) as client:
        assert client.stats("durability-monitor 0")["vb_0:replication_chain_0"] == '["a", "b"]'
        assert client.get(b"k").specific == S.SYNC_WRITE_RECOMMIT_IN_PROGRESS
        set_topology(client, "a")
        wait_until(lambda: client.get(b"k").specific == S.SUCCESS)
        assert client.get(b"k").value == b"new"


def test_token_of_a_durable_write_names_the_commit(client):
    client.hello(Feature.MUTATION_SEQNO)
    for message, seqno in (
        (Set(key=b"k", value=b"1", framing=make_framing(L.MAJORITY)), 2),
        (Count(key=b"k", delta=1, framing=make_framing(L.MAJORITY)), 4),
        (Delete(key=b"k", framing=make_framing(L.MAJORITY)), 6),
    ):
        reply = client.ask(message)
        assert reply.specific == S.SUCCESS
        assert int.from_bytes(reply.extras[8:], "big") == seqno


@pytest.mark.parametrize(
    "message", [Get(key=b"k", framing=make_framing(L.MAJORITY)), Noop(framing=make_framing(L.MAJORITY))]
)
def test_other_commands_refuse_durability(durable, message):
    assert durable.status(message) == S.EINVAL


IN_MEMORY = [
    ("couchbase", [S.SUCCESS, S.SUCCESS, S.SUCCESS]),
    ("ephemeral", [S.SUCCESS, S.DURABILITY_INVALID_LEVEL, S.DURABILITY_INVALID_LEVEL]),
]


@pytest.mark.parametrize(("kind", "expected"), IN_MEMORY)
def test_bucket_type_decides_the_levels_in_memory(node, client, kind, expected):
    node.buckets["default"].spec = BucketSpec(name="default", kind=kind)
    assert [client.status(Set(key=b"k", framing=make_framing(level))) for level in LEVELS] == expected


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        ({"replicas": 1}, S.DURABILITY_IMPOSSIBLE),
        ({"replicas": 2}, S.DURABILITY_IMPOSSIBLE),
        ({"replicas": 3}, S.DURABILITY_INVALID_LEVEL),
        ({"kind": "memcached"}, S.NOT_SUPPORTED),
    ],
)
def test_unsupported_levels_are_refused(node, client, spec, status):
    node.buckets["default"].spec = BucketSpec(name="default", **spec)
    assert client.status(Set(key=b"refused", framing=make_framing(L.MAJORITY))) == status
    assert client.get(b"refused").specific == S.KEY_ENOENT


@pytest.mark.parametrize(
    ("infos", "status"),
    [
        (bytes((0x11, 0)), S.DURABILITY_INVALID_LEVEL),
        (bytes((0x13, 1, 0, 0)), S.DURABILITY_INVALID_LEVEL),
        (bytes((0x13, 1, 0xFF, 0xFF)), S.DURABILITY_INVALID_LEVEL),
        (bytes((0x12, 1, 0)), S.EINVAL),
        (bytes((0x11, 1, 0x11, 1)), S.SUCCESS),  # Couchbase's SDKs repeat it with their request
        (bytes((0x15, 1)), S.EINVAL),
        (bytes((0xE0,)), S.UNKNOWN_FRAME_INFO),
        (pack_request_infos(RequestInfos(impersonate="root")), S.EACCESS),
        (pack_request_infos(RequestInfos(token_id=1)), S.EACCESS),
        (pack_request_infos(RequestInfos(barrier=True)), S.SUCCESS),
    ],
)
def test_durability_framing_extras_are_checked(client, infos, status):
    assert client.status(Set(key=b"k", framing=infos)) == status
    assert client.status(Noop()) == S.SUCCESS
