"""No peer can stop the node from serving other clients, or make it exceed its memory limits."""

import logging
import random
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import ConnectionClosed
from penstock.node import Node
from penstock.node.auth import Privilege
from penstock.node.server.connection_limits import WRITE_BUFFER_BYTES
from penstock.node.server.dispatch import choose_handlers
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import HEADER
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import Open
from penstock.wire.messages.kv import (
    Get,
    Noop,
    Stat,
    Version,
)
from tests.examples import scaled
from tests.node.conversations import FIRSTS, SEEDS
from tests.node.wire_client import connected
from tests.patience import PATIENCE


@pytest.fixture(scope="module")
def shared_node():
    with Node.running(vbuckets=4) as node:
        yield node


@pytest.fixture(autouse=True)
def check_log(caplog):
    """Check that the node has logged no internal error: invalid input is the peer's fault."""
    yield
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def send_and_check_health(node, data, step=None):
    """Send bytes in pieces of `step`, close the connection, and check that the node answers another client."""
    with connected(node) as client:
        try:
            for start in range(0, len(data), step or len(data) or 1):
                client.socket.sendall(data[start : start + (step or len(data))])
            client.disconnect()
        except (ConnectionResetError, BrokenPipeError):
            pass
    with connected(node) as other:
        assert other.status(Noop()) == Status.SUCCESS


FUZZ = settings(max_examples=scaled(150), suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(data=st.binary(max_size=300))
def test_node_survives_any_bytes(shared_node, data):
    send_and_check_health(shared_node, data)


@FUZZ
@given(
    magic=st.sampled_from([0x08, 0x18, 0x80, 0x80, 0x80, 0x81, 0x82, 0x83]),
    opcode=st.one_of(
        st.integers(0, 255),
        st.sampled_from(sorted({shape[2] for shape in choose_handlers(Dialect.DCP, frozenset(Privilege), json=False)})),
    ),
    lengths=st.tuples(st.integers(0, 300), st.sampled_from([0, 4, 8, 16, 20, 31, 32, 40, 48]), st.integers(0, 400)),
    datatype=st.sampled_from([0, 0, 0, 1, 2, 4, 255]),
    vbucket=st.integers(0, 5),
    body=st.binary(min_size=1, max_size=60),
    first=st.sampled_from([None, Open(key=b"copy"), *(messages[0] for messages in FIRSTS.values())]),
)
def test_node_survives_any_header(shared_node, magic, opcode, lengths, datatype, vbucket, body, first):
    key, extras, rest = lengths
    total = max(key + extras + rest - 20, 0)
    body = (body * (total // len(body) + 1))[:total]
    header = HEADER.pack(magic, opcode, key, extras, datatype, vbucket, len(body), 7, 0)
    send_and_check_health(shared_node, (b"" if first is None else first.encode()) + header + body + SEEDS[0])


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("seed", range(20))
def test_node_survives_changed_conversations(shared_node, seed, dialect):
    chance = random.Random(seed)
    first, *others = [message.encode() for message in FIRSTS[dialect]]
    frames = chance.choices([*SEEDS, *others * 5], k=60)
    data = bytearray(b"".join((first, *frames)))
    for _ in range(chance.randrange(6)):
        position = chance.randrange(len(data))
        data[position] = chance.randrange(256)
    send_and_check_health(shared_node, bytes(data[: chance.randrange(len(data))]), chance.choice([None, 1, 7, 100]))


def send_until_error(client, data):
    while True:
        client.socket.sendall(data)


def test_node_stops_reading_from_a_peer_that_does_not_read(shared_node):
    """The client requests gigabytes: the node fills its buffers and stops reading."""
    value = bytes(1 << 20)
    request = Get(key=b"big").encode()
    with connected(shared_node) as other, connected(shared_node, receive_buffer=4096) as client:
        other.set(b"big", value)
        client.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            send_until_error(client, request * 1000)
        stats = other.stats()
        assert int(stats["ep_bytes_unsent"]) < WRITE_BUFFER_BYTES + (4 << 20)
        assert int(stats["ep_requests_waiting"]) > 0
        client.socket.settimeout(PATIENCE)
        for _ in range(20):
            assert client.receive().value == value
    with connected(shared_node) as other:
        while int(other.stats()["ep_requests_waiting"]):
            other.status(Noop())


@pytest.mark.long
def test_consumer_that_does_not_read_holds_only_a_buffer(shared_node):
    with connected(shared_node) as writer, connected(shared_node, receive_buffer=4096) as consumer:
        for number in range(60):
            writer.set(b"large %d" % number, bytes(1 << 20), vbucket=1)
        consumer.open("slow").stream(1)
        assert consumer.message().end_seqno == 60
        stats = writer.stats()
        assert int(stats["ep_bytes_unsent"]) < WRITE_BUFFER_BYTES + (4 << 20)
        assert int(stats["ep_dcp_items_remaining"]) > 30
        assert [consumer.message().by_seqno for _ in range(60)] == list(range(1, 61))


def test_vanished_consumer_leaves_no_stream(shared_node):
    with connected(shared_node) as writer:
        for number in range(20):
            writer.set(b"large %d" % number, bytes(1 << 20), vbucket=2)
        for _ in range(3):
            with connected(shared_node) as consumer:
                consumer.open("vanishing").stream(2)
                consumer.receive()
        with connected(shared_node) as consumer:
            consumer.open("vanishing").stream(2, end=20)
            assert len(list(consumer.changes())) == 21
        while int(writer.stats()["ep_dcp_producer_count"]):
            writer.status(Noop())
        assert writer.stats()["ep_bytes_unsent"] == "0"


@pytest.mark.long
def test_long_read_does_not_delay_other_connections(shared_node):
    """The replies are ten megabytes; another connection has its turns between them."""
    with connected(shared_node) as other, connected(shared_node, receive_buffer=4096) as requesting:
        requesting.send(*[Stat(key=b"vbucket-seqno")] * 5000, Noop())
        assert len(requesting.socket.recv(1, socket.MSG_PEEK)) == 1
        for _ in range(20):
            assert other.status(Noop()) == Status.SUCCESS
        assert int(other.stats()["ep_requests_waiting"]) > 0
        ends = 0
        while (frame := requesting.receive()).opcode != Opcode.NOOP:
            ends += not frame.key
        assert ends == 5000


def test_internal_error_is_reported_and_ends_only_its_connection(node, client, caplog, monkeypatch):
    def broken(connection, frame):
        raise ConnectionClosed("this cannot be")

    handlers = choose_handlers(None, frozenset(Privilege), json=False, consumes=False)
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
