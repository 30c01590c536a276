"""Durable writes, and other framing extras of requests."""

import pytest

from penstock.node import Node
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.wire.codec.constants import DurabilityLevel
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.frame_info import Durability, RequestInfos, pack_request_infos
from penstock.wire.messages.kv import Add, Append, Count, Delete, Get, Noop, Set
from tests.node.wire_client import connected

L, S = DurabilityLevel, Status
LEVELS = list(L)


def make_framing(level, timeout_ms=None):
    return pack_request_infos(RequestInfos(durability=Durability(level, timeout_ms)))


@pytest.fixture
def durable(tmp_path):
    with Node.running(vbuckets=4, data_dir=tmp_path) as node, connected(node) as client:
        yield client


@pytest.mark.parametrize("level", LEVELS)
def test_bucket_on_disk_supports_every_level(durable, level):
    assert durable.status(Set(key=b"k", value=b"1", framing=make_framing(level))) == S.SUCCESS
    if level > L.MAJORITY:
        stats = durable.stats("vbucket-seqno 0")
        assert stats["vb_0:last_persisted_seqno"] == stats["vb_0:high_seqno"] == "1"


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
        (bytes((0x13, 1, 0, 0)), S.EINVAL),
        (bytes((0x13, 1, 0xFF, 0xFF)), S.EINVAL),
        (bytes((0x12, 1, 0)), S.EINVAL),
        (bytes((0x11, 1, 0x11, 1)), S.EINVAL),
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
