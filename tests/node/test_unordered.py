"""Unordered execution: requests that wait for the disk do not delay other requests."""

import pytest

from penstock.node import Node
from penstock.node.session.parked_requests import MAX_PARKED
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Hello, Noop, SeqnoPersistence, Set, pack_features
from tests.node.wire_client import connected


@pytest.fixture
def durable_node(tmp_path):
    with Node.running(vbuckets=4, data_dir=tmp_path) as node:
        yield node


def test_other_requests_overtake_a_parked_one(durable_node):
    with connected(durable_node) as client:
        client.ask(Hello(value=pack_features([Feature.UNORDERED_EXECUTION])))
        client.send(SeqnoPersistence(seqno=1, opaque=1), Noop(opaque=2))
        assert client.receive().opaque == 2
        client.send(Set(key=b"k", opaque=3))
        assert [client.receive().opaque for _ in range(2)] == [3, 1]


def test_ordered_connection_keeps_the_order(durable_node):
    with connected(durable_node) as client, connected(durable_node) as other:
        client.send(SeqnoPersistence(seqno=1, opaque=1), Noop(opaque=2))
        other.set(b"k")
        assert [client.receive().opaque for _ in range(2)] == [1, 2]


def test_parked_requests_are_limited(durable_node):
    with connected(durable_node) as client, connected(durable_node) as other:
        client.ask(Hello(value=pack_features([Feature.UNORDERED_EXECUTION])))
        client.send(*[SeqnoPersistence(seqno=1)] * MAX_PARKED, Noop())
        while int(other.stats()["ep_persistence_waiters"]) < MAX_PARKED:
            other.status(Noop())
        assert int(other.stats()["ep_requests_waiting"]) > 0
        other.set(b"k")
        answers = [client.receive() for _ in range(MAX_PARKED + 1)]
        assert answers[0].opcode == Opcode.SEQNO_PERSISTENCE
        assert {answer.specific for answer in answers} == {Status.SUCCESS}


def test_disconnected_client_leaves_no_parked_request(durable_node):
    with connected(durable_node) as other:
        with connected(durable_node) as client:
            client.ask(Hello(value=pack_features([Feature.UNORDERED_EXECUTION])))
            client.send(*[SeqnoPersistence(seqno=1)] * 5)
            while int(other.stats()["ep_persistence_waiters"]) < 5:
                other.status(Noop())
            client.disconnect()
        assert other.stats()["ep_persistence_waiters"] == "0"
