"""Whatever a peer does, the node goes on serving the others, and holds no more of it than it has to."""

import logging
import random
import socket
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import ConnectionClosed
from penstock.node import Node
from penstock.node.connection import WRITE_BUFFER_BYTES
from penstock.node.dispatch import handlers_for
from penstock.node.login import Privilege
from penstock.wire.collections import GetCollectionId, GetManifest, SetManifest
from penstock.wire.constants import (
    MAX_SEQNO,
    Dialect,
    DocFlag,
    DurabilityLevel,
    Feature,
    Opcode,
    OpenFlag,
    PathFlag,
    Status,
)
from penstock.wire.dcp import BufferAck, CloseStream, Control, Open, StreamReq
from penstock.wire.frame import HEADER
from penstock.wire.frame_info import Durability, RequestInfos, pack_request_infos
from penstock.wire.kv import (
    Add,
    Append,
    Count,
    Delete,
    DelWithNmeta,
    Flush,
    Get,
    GetClusterConfig,
    GetKeys,
    GetLocked,
    GetMeta,
    GetRandomKey,
    GetReplica,
    Hello,
    Noop,
    ObserveSeqno,
    SelectBucket,
    Set,
    SetWithMeta,
    Stat,
    Unlock,
    Version,
    pack_features,
)
from penstock.wire.layout import Message
from penstock.wire.login import SaslAuth, SaslStep
from penstock.wire.observe import CompactDb
from penstock.wire.session import GetErrorMap, ListBuckets
from penstock.wire.snappy import deflate
from penstock.wire.subdoc import (
    LookupSpec,
    MultiLookup,
    MultiMutation,
    MutationSpec,
    SubdocLookup,
    SubdocMutation,
    pack_lookup_specs,
    pack_mutation_specs,
)
from penstock.wire.tap import TapConnect
from penstock.wire.upr import UprGetFailoverLog, UprStreamReq
from penstock.wire.upr_draft import DraftGetFailoverLog, DraftNoRequest, DraftStreamReq
from tests.node.wire_client import SECONDS, connected

ASK: dict[str, Any] = {"start_seqno": 0, "end_seqno": MAX_SEQNO, "vbuuid": 0, "snap_start": 0, "snap_end": 0}
META: dict[str, Any] = {"key": b"key", "flags": 0, "rev_seqno": 9, "new_cas": 9}
MANIFEST = b'{"uid":"1","scopes":[{"name":"_default","uid":"0","collections":[{"name":"_default","uid":"0"}]}]}'
CHANGES = [
    MutationSpec(Opcode.SUBDOC_DICT_UPSERT, PathFlag.XATTR | PathFlag.EXPAND_MACROS, b"x", b'"${Mutation.CAS}"'),
    MutationSpec(Opcode.SUBDOC_ARRAY_PUSH_LAST, PathFlag.MKDIR_P, b"list", b"1,2"),
]
SEEDS = [
    message if isinstance(message, bytes) else message.encode()
    for message in (
        *(Get(key=b"key"), Set(key=b"key", value=b"value"), Add(key=b"key"), Delete(key=b"key"), Noop(), Version()),
        *(Stat(key=b"failovers 1"), Hello(value=b"\0\4"), SelectBucket(key=b"default"), ObserveSeqno(value=bytes(8))),
        *(Count(key=b"key", delta=1), Append(key=b"key", value=b"1"), GetLocked(key=b"key"), Unlock(key=b"key", cas=1)),
        *(GetMeta(key=b"key"), SetWithMeta(**META, expiry=0), DelWithNmeta(**META, delete_time=0, options=0, nmeta=0)),
        *(Open(key=b"fuzz", flags=OpenFlag.PRODUCER), Control(key=b"connection_buffer_size", value=b"1000")),
        *(StreamReq(**ASK), CloseStream(), BufferAck(nbytes=100)),
        *(StreamReq(**ASK, value=b'{"collections":["0","9"],"sid":2,"purge_seqno":"1"}'), Get(key=b"\0key")),
        *(GetManifest(), GetCollectionId(value=b"beers.ales"), SetManifest(value=MANIFEST), GetErrorMap(version=2)),
        *(SaslAuth(key=b"PLAIN", value=b"\0u\0p"), SaslAuth(key=b"SCRAM-SHA1", value=b"n,,n=u,r=x"), ListBuckets()),
        *(SaslStep(key=b"SCRAM-SHA1", value=b"c=biws,r=xy,p=AAAA"), GetRandomKey(), GetKeys(key=b"k")),
        *(GetClusterConfig(epoch=1, revision=1), GetReplica(key=b"key"), CompactDb(), Flush()),
        SubdocLookup.at(b"a.b[0]", key=b"key"),
        SubdocMutation.at(b"a.b", b'{"c":1}', key=b"key", flags=PathFlag.MKDIR_P, doc_flags=DocFlag.MKDOC).encode(
            Opcode.SUBDOC_DICT_UPSERT
        ),
        MultiLookup(key=b"key", value=pack_lookup_specs([LookupSpec(Opcode.SUBDOC_GET, PathFlag.XATTR, b"$document")])),
        MultiMutation(key=b"key", value=pack_mutation_specs(CHANGES), doc_flags=DocFlag.MKDOC),
        Set(key=b"key", value=deflate(b"{}"), datatype=3),
        Set(key=b"key", framing=pack_request_infos(RequestInfos(durability=Durability(DurabilityLevel.MAJORITY)))),
        Hello(value=pack_features(range(0x27))),
        Hello(value=pack_features([Feature.COLLECTIONS, Feature.SNAPPY, Feature.XATTR, Feature.JSON])),
    )
]
FIRSTS: dict[Dialect, list[Message]] = {
    Dialect.TAP: [TapConnect(), TapConnect(flags=0, key=b"fuzz")],
    Dialect.UPR_DRAFT: [DraftGetFailoverLog(), DraftStreamReq(start_seqno=0, end_seqno=9), DraftNoRequest()],
    Dialect.UPR: [UprGetFailoverLog(), UprStreamReq(start_seqno=0, end_seqno=9, key=b"group")],
    Dialect.DCP: [Open(key=b"fuzz", flags=OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES), StreamReq(**ASK)],
}
"""What a conversation in each dialect begins with, and how it may go on."""


@pytest.fixture(scope="module")
def shared():
    with Node.running(vbuckets=4) as node:
        yield node


@pytest.fixture(autouse=True)
def no_internal_error(caplog):
    """Garbage is the peer's fault: whatever it is, no defect of ours may come to light."""
    yield
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def survives(node, data, step=None):
    """Send bytes, in pieces of `step`, say no more, and read to the end; then ask for the node's health."""
    with connected(node) as client:
        try:
            for start in range(0, len(data), step or len(data) or 1):
                client.socket.sendall(data[start : start + (step or len(data))])
            client.hang_up()
        except (ConnectionResetError, BrokenPipeError):
            pass
    with connected(node) as other:
        assert other.status(Noop()) == Status.SUCCESS


FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(data=st.binary(max_size=300))
def test_any_bytes(shared, data):
    survives(shared, data)


@FUZZ
@given(
    magic=st.sampled_from([0x08, 0x18, 0x80, 0x80, 0x80, 0x81, 0x82, 0x83]),
    opcode=st.one_of(
        st.integers(0, 255),
        st.sampled_from(sorted({shape[2] for shape in handlers_for(Dialect.DCP, frozenset(Privilege), json=False)})),
    ),
    lengths=st.tuples(st.integers(0, 300), st.sampled_from([0, 4, 8, 16, 20, 31, 32, 40, 48]), st.integers(0, 400)),
    datatype=st.sampled_from([0, 0, 0, 1, 2, 4, 255]),
    vbucket=st.integers(0, 5),
    body=st.binary(min_size=1, max_size=60),
    first=st.sampled_from([None, *(messages[0] for messages in FIRSTS.values())]),
)
def test_any_header(shared, magic, opcode, lengths, datatype, vbucket, body, first):
    key, extras, rest = lengths
    total = max(key + extras + rest - 20, 0)
    body = (body * (total // len(body) + 1))[:total]
    header = HEADER.pack(magic, opcode, key, extras, datatype, vbucket, len(body), 7, 0)
    survives(shared, (b"" if first is None else first.encode()) + header + body + SEEDS[0])


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("seed", range(20))
def test_changed_conversations(shared, seed, dialect):
    chance = random.Random(seed)
    first, *others = [message.encode() for message in FIRSTS[dialect]]
    frames = chance.choices([*SEEDS, *others * 5], k=60)
    data = bytearray(b"".join((first, *frames)))
    for _ in range(chance.randrange(6)):
        position = chance.randrange(len(data))
        data[position] = chance.randrange(256)
    survives(shared, bytes(data[: chance.randrange(len(data))]), chance.choice([None, 1, 7, 100]))


def flood(client, data):
    while True:
        client.socket.sendall(data)


def test_a_peer_that_does_not_read_is_not_read_from(shared):
    """It may ask for gigabytes: the node answers what fits into its buffers, and stops listening to it."""
    value = bytes(1 << 20)
    request = Get(key=b"big").encode()
    with connected(shared) as other, connected(shared, receive_buffer=4096) as client:
        other.set(b"big", value)
        client.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            flood(client, request * 1000)
        stats = other.stats()
        assert int(stats["ep_bytes_unsent"]) < WRITE_BUFFER_BYTES + (4 << 20)
        assert int(stats["ep_requests_waiting"]) > 0
        client.socket.settimeout(SECONDS)
        for _ in range(20):
            assert client.receive().value == value
    with connected(shared) as other:
        while int(other.stats()["ep_requests_waiting"]):
            other.status(Noop())


def test_a_consumer_that_does_not_read_holds_a_buffer_not_the_bucket(shared):
    with connected(shared) as writer, connected(shared, receive_buffer=4096) as consumer:
        for number in range(60):
            writer.set(b"large %d" % number, bytes(1 << 20), vbucket=1)
        consumer.open("slow").stream(1)
        assert consumer.message().end_seqno == 60
        stats = writer.stats()
        assert int(stats["ep_bytes_unsent"]) < WRITE_BUFFER_BYTES + (4 << 20)
        assert int(stats["ep_dcp_items_remaining"]) > 30
        assert [consumer.message().by_seqno for _ in range(60)] == list(range(1, 61))


def test_a_consumer_that_vanishes_in_the_middle_of_a_stream(shared):
    with connected(shared) as writer:
        for number in range(20):
            writer.set(b"large %d" % number, bytes(1 << 20), vbucket=2)
        for _ in range(3):
            with connected(shared) as consumer:
                consumer.open("vanishing").stream(2)
                consumer.receive()
        with connected(shared) as consumer:
            consumer.open("vanishing").stream(2, end=20)
            assert len(list(consumer.changes())) == 21
        while int(writer.stats()["ep_dcp_producer_count"]):
            writer.status(Noop())
        assert writer.stats()["ep_bytes_unsent"] == "0"


def test_a_read_full_of_requests_does_not_hold_up_the_others(shared):
    """Five thousand times all statistics are ten megabytes; another connection has its turns in between."""
    with connected(shared) as other, connected(shared, receive_buffer=4096) as greedy:
        greedy.send(*[Stat(key=b"vbucket-seqno")] * 5000, Noop())
        assert len(greedy.socket.recv(1, socket.MSG_PEEK)) == 1
        for _ in range(20):
            assert other.status(Noop()) == Status.SUCCESS
        assert int(other.stats()["ep_requests_waiting"]) > 0
        ends = 0
        while (frame := greedy.receive()).opcode != Opcode.NOOP:
            ends += not frame.key
        assert ends == 5000


def test_a_defect_of_ours_is_told_and_ends_only_that_connection(node, client, caplog, monkeypatch):
    def broken(connection, frame):
        raise ConnectionClosed("this cannot be")

    handlers = handlers_for(None, frozenset(Privilege), json=False)
    shape = next(shape for shape in handlers if shape[2] == Opcode.VERSION)
    monkeypatch.setitem(handlers, shape, broken)
    client.send(Noop(), Version(opaque=9), Noop())
    assert client.receive().opcode == Opcode.NOOP
    reply = client.receive()
    assert (reply.opcode, reply.opaque, reply.specific) == (Opcode.VERSION, 9, Status.EINTERNAL)
    assert client.ended()
    with connected(node) as other:
        assert other.status(Noop()) == Status.SUCCESS
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.name == "penstock.node"
    assert record.exc_info is not None
    caplog.clear()
