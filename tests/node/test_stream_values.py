"""Values in streams: extended attributes, compression, and agreed datatypes."""

import asyncio
from contextlib import closing
from typing import Any

import pytest

from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.store.documents.conflict import Meta
from penstock.wire.codec.constants import Dialect, Feature
from penstock.wire.codec.flags import Datatype, OpenFlag, StreamFlag, TapConnectFlag
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import CloseStream, Control, DcpGetFailoverLog, Mutation, Open, StreamReq
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.messages.kv import Noop, SelectBucket
from penstock.wire.messages.tap import TapConnect, TapMutation, TapOptions
from penstock.wire.messages.upr import UprMutation, UprStreamReq
from penstock.wire.values.snappy import deflate, inflate
from tests.node.upr_client import UprClient
from tests.node.watch import run
from tests.node.wire_client import connected
from tests.patience import PATIENCE

S, F = Status, OpenFlag
J, Z, X = Datatype.JSON, Datatype.SNAPPY, Datatype.XATTR
BODY = b'{"a":"' + b"a" * 200 + b'"}'
BOTH = pack_xattrs({"_sync": b"1", "user": b"2"})
SYSTEM = pack_xattrs({"_sync": b"1"})
STORED = [(BODY, J), (BOTH + BODY, X | J), (deflate(BODY), Z | J), (deflate(BOTH + BODY), X | Z | J)]
"""Values of the documents 0 to 3; the tombstone after them has both attributes."""


@pytest.fixture
def filled_node(node):
    def store_documents():
        served = node.buckets["default"]
        vbucket = served.store.vbuckets[0]
        for number, (value, datatype) in enumerate(STORED):
            vbucket.set(b"\0%d" % number, value, datatype=int(datatype))
        meta = Meta(cas=1, rev_seqno=1, flags=0, expiry=0, datatype=int(X), deleted=True)
        vbucket.incoming.store_with_meta(Event.DELETION, b"\0gone", BOTH, meta)
        served.notify()

    run(node, store_documents)
    return node


SEEN = [
    ("no features", (), 0, [(BODY, J)] * 4, (b"", 0)),
    ("compression", (Feature.SNAPPY,), 0, [(BODY, J), (BODY, J), (BODY, Z | J), (BODY, Z | J)], (b"", 0)),
    (
        "attributes",
        (Feature.XATTR,),
        F.INCLUDE_XATTRS,
        [(BODY, J), (BOTH + BODY, X | J), (BODY, J), (BOTH + BODY, X | J)],
        (SYSTEM, X),
    ),
    (
        "attributes, also deleted ones, and compression",
        (Feature.XATTR, Feature.SNAPPY),
        F.INCLUDE_XATTRS | F.INCLUDE_DELETED_USER_XATTRS,
        [(BODY, J), (BOTH + BODY, X | J), (BODY, Z | J), (BOTH + BODY, X | Z | J)],
        (BOTH, X),
    ),
    ("only keys", (), F.NO_VALUE, [(b"", 0)] * 4, (b"", 0)),
    (
        "keys and attributes",
        (Feature.XATTR,),
        F.NO_VALUE | F.INCLUDE_XATTRS,
        [(b"", 0), (BOTH, X), (b"", 0), (BOTH, X)],
        (SYSTEM, X),
    ),
    (
        "keys with the datatypes of the stored values",
        (Feature.SNAPPY,),
        F.NO_VALUE_WITH_UNDERLYING_DATATYPE,
        [(b"", J), (b"", X | J), (b"", Z | J), (b"", X | Z | J)],
        (b"", X),
    ),
]


def inflate_value(value, datatype):
    return inflate(value) if datatype & Z and value else value


@pytest.mark.parametrize(
    ("features", "flags", "documents", "tombstone"),
    [pytest.param(*row, id=name) for name, *row in SEEN],
)
def test_values_have_the_agreed_form(filled_node, features, flags, documents, tombstone):
    with connected(filled_node) as consumer:
        consumer.hello(*features).open(flags=F.PRODUCER | flags).control("enable_noop", "true")
        consumer.stream(flags=StreamFlag.TO_LATEST)
        _, *changes = consumer.changes()
        found = [(inflate_value(each.value, each.datatype), each.datatype) for each in changes]
        assert found == [*documents, tombstone]


def test_values_can_be_compressed_for_the_stream(filled_node):
    with connected(filled_node) as consumer:
        consumer.hello(Feature.SNAPPY).open()
        assert consumer.control("force_value_compression", "true") == S.SUCCESS
        consumer.stream(flags=StreamFlag.TO_LATEST)
        _, *changes, tombstone = consumer.changes()
        assert [(inflate(each.value), each.datatype) for each in changes] == [(BODY, Z | J)] * 4
        assert (tombstone.value, tombstone.datatype) == (b"", 0)


def test_compression_needs_snappy(node):
    with connected(node) as consumer:
        consumer.open()
        assert consumer.control("force_value_compression", "true") == S.EINVAL
        consumer.hello(Feature.SNAPPY)
        for value in ("true", "false", "yes"):
            assert consumer.control("force_value_compression", value) == S.SUCCESS


def test_old_compression_setting_has_no_effect(filled_node):
    """Releases 4.5 to 5.1 accept the setting without SNAPPY, and send values as they are stored."""
    with connected(filled_node) as consumer:
        consumer.open()
        assert consumer.control("enable_value_compression", "true") == S.SUCCESS
        consumer.stream(flags=StreamFlag.TO_LATEST)
        _, *changes, _ = consumer.changes()
        assert {change.datatype & Z for change in changes} == {0}


def test_deleted_user_xattrs_need_their_flag(node):
    for flags, status in ((F.INCLUDE_XATTRS, S.EINVAL), (F.INCLUDE_XATTRS | 0x100, S.SUCCESS)):
        with connected(node) as consumer:
            consumer.open(flags=F.PRODUCER | flags)
            assert consumer.control("include_deleted_user_xattrs", "true") == status


def test_inflated_values_wait_for_the_window(filled_node):
    """Compressed values that are sent inflated: a frame is sent only if the window has room for its first byte."""
    with connected(filled_node) as client, connected(filled_node) as consumer:
        consumer.open()
        consumer.control("connection_buffer_size", "300")
        consumer.stream(flags=StreamFlag.TO_LATEST)
        values: list[Any] = []
        while len(values) < len(STORED):
            frame = consumer.receive()
            assert int(client.stats()["ep_dcp_unacked_bytes"]) < 300 + frame.size
            consumer.acknowledge(frame.size)
            if isinstance(message := decode_frame(frame), Mutation):
                values.append(message.value)
        assert values == [BODY] * 4


def test_upr_sends_plain_values(filled_node):
    with closing(UprClient(filled_node, Dialect.UPR)) as consumer:
        consumer.hello(Feature.SNAPPY, Feature.XATTR, Feature.JSON)
        consumer.send(UprStreamReq(start_seqno=0, end_seqno=5, opaque=1))
        mutations = [each for each in consumer.read_messages(3 + len(STORED)) if isinstance(each, UprMutation)]
        assert [(each.value, each.datatype) for each in mutations] == [(BODY, J)] * 4


def test_tap_sends_plain_values(filled_node):
    options = TapOptions(TapConnectFlag.DUMP)
    with connected(filled_node) as consumer:
        consumer.hello(Feature.SNAPPY, Feature.XATTR)
        consumer.send(TapConnect(flags=options.flags, value=options.pack()))
        values: list[Any] = []
        while len(values) < len(STORED):
            message = consumer.message()
            if isinstance(message, TapMutation):
                values.append((message.value, message.datatype))
        assert values == [(BODY, 0)] * 4


# Connections and buckets without streams


def test_unordered_execution_and_streams_exclude_each_other(node):
    with connected(node) as client:
        client.hello(Feature.UNORDERED_EXECUTION)
        requests = [
            Open(key=b"name", flags=F.PRODUCER),
            Control(key=b"enable_noop", value=b"true"),
            StreamReq(start_seqno=0, end_seqno=5),
            DcpGetFailoverLog(),
            CloseStream(),
        ]
        assert [client.status(request) for request in requests] == [S.NOT_SUPPORTED] * len(requests)
        assert client.status(Noop()) == S.SUCCESS


def test_plain_cache_refuses_streams(node):
    create = node.buckets.create(BucketSpec(name="cache", kind="memcached"))
    asyncio.run_coroutine_threadsafe(create, node.loop).result(PATIENCE)
    for request in (
        Open(key=b"name", flags=F.PRODUCER),
        UprStreamReq(start_seqno=0, end_seqno=5),
        TapConnect(flags=TapConnectFlag.DUMP),
    ):
        with connected(node, "cache") as client:
            assert client.status(request) == S.NOT_SUPPORTED
            assert client.status(SelectBucket(key=b"beer")) == S.SUCCESS
