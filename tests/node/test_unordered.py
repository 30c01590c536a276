"""Replies in any order, for clients that have agreed on it: what waits for the disk holds nothing else up."""

import pytest

from penstock.node import Node
from penstock.node.session.parked_requests import MOST_PARKED
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Hello, Noop, SeqnoPersistence, Set, pack_features
from tests.node.wire_client import connected


@pytest.fixture
def durable(tmp_path):
    with Node.running(vbuckets=4, data_dir=tmp_path) as node:
        yield node


def test_a_request_that_waits_is_overtaken(durable):
    with connected(durable) as client:
        client.ask(Hello(value=pack_features([Feature.UNORDERED_EXECUTION])))
        client.send(SeqnoPersistence(seqno=1, opaque=1), Noop(opaque=2))
        assert client.receive().opaque == 2
        client.send(Set(key=b"k", opaque=3))
        assert [client.receive().opaque for _ in range(2)] == [3, 1]


def test_without_that_it_is_not(durable):
    with connected(durable) as client, connected(durable) as other:
        client.send(SeqnoPersistence(seqno=1, opaque=1), Noop(opaque=2))
        other.set(b"k")
        assert [client.receive().opaque for _ in range(2)] == [1, 2]


def test_only_so_many_wait_at_once(durable):
    with connected(durable) as client, connected(durable) as other:
        client.ask(Hello(value=pack_features([Feature.UNORDERED_EXECUTION])))
        client.send(*[SeqnoPersistence(seqno=1)] * MOST_PARKED, Noop())
        while int(other.stats()["ep_persistence_waiters"]) < MOST_PARKED:
            other.status(Noop())
        assert int(other.stats()["ep_requests_waiting"]) > 0
        other.set(b"k")
        answers = [client.receive() for _ in range(MOST_PARKED + 1)]
        assert answers[0].opcode == Opcode.SEQNO_PERSISTENCE
        assert {answer.specific for answer in answers} == {Status.SUCCESS}


def test_a_client_that_goes_away_waits_for_nothing(durable):
    with connected(durable) as other:
        with connected(durable) as client:
            client.ask(Hello(value=pack_features([Feature.UNORDERED_EXECUTION])))
            client.send(*[SeqnoPersistence(seqno=1)] * 5)
            while int(other.stats()["ep_persistence_waiters"]) < 5:
                other.status(Noop())
            client.hang_up()
        assert other.stats()["ep_persistence_waiters"] == "0"
