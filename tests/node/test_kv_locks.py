"""Locks on documents: their effect for the client that holds the lock and for other clients."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.wire.codec.constants import MAX_KEY, VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import (
    Append,
    Count,
    Delete,
    Get,
    GetAndTouch,
    GetLocked,
    GetMeta,
    Noop,
    Set,
    SetVbucket,
    SetWithMeta,
    Touch,
    Unlock,
)
from tests.node.wire_client import connected, find_session

S = Status
LOCKED_CAS = 2**64 - 1
META: dict[str, Any] = {"flags": 0, "expiry": 0, "rev_seqno": 99, "new_cas": 99}


@pytest.fixture
def other(node):
    """Connect a second client, which gets the newer statuses."""
    with connected(node) as other:
        find_session(node, other).xerror = True
        yield other


def lock_document(client, **fields):
    reply = client.ask(GetLocked(**{"key": b"k", **fields}))
    assert reply.specific == S.SUCCESS
    return reply


def test_get_locked_returns_a_lock_cas(client, other):
    stored = client.set(b"k", b"v", flags=7)
    locked = lock_document(client)
    assert (locked.value, locked.extras, locked.key) == (b"v", b"\0\0\0\7", b"")
    assert stored.cas < locked.cas < LOCKED_CAS
    assert other.get(b"k").cas == LOCKED_CAS
    assert other.ask(GetMeta(key=b"k")).cas == LOCKED_CAS
    assert other.status(GetLocked(key=b"k")) == S.LOCKED
    assert client.status(Unlock(key=b"k", cas=locked.cas)) == S.SUCCESS
    assert other.get(b"k").cas == locked.cas
    assert lock_document(other).cas > locked.cas


WRITES = [
    (Opcode.SET, Set(key=b"k", value=b"new")),
    (Opcode.SETQ, Set(key=b"k", value=b"new")),
    (Opcode.REPLACE, Set(key=b"k", value=b"new")),
    (Opcode.REPLACEQ, Set(key=b"k", value=b"new")),
    (Opcode.DELETE, Delete(key=b"k")),
    (Opcode.DELETEQ, Delete(key=b"k")),
    (Opcode.APPEND, Append(key=b"k", value=b"1")),
    (Opcode.APPENDQ, Append(key=b"k", value=b"1")),
    (Opcode.PREPEND, Append(key=b"k", value=b"1")),
    (Opcode.SET_WITH_META, SetWithMeta(key=b"k", **META)),
    (Opcode.SETQ_WITH_META, SetWithMeta(key=b"k", **META)),
]
WITHOUT_CAS = [
    (Opcode.TOUCH, Touch(key=b"k", expiry=1)),
    (Opcode.GAT, GetAndTouch(key=b"k", expiry=1)),
    (Opcode.GATQ, GetAndTouch(key=b"k", expiry=1)),
    (Opcode.INCREMENT, Count(key=b"k", delta=1)),
    (Opcode.INCREMENTQ, Count(key=b"k", delta=1)),
    (Opcode.DECREMENT, Count(key=b"k", delta=1)),
]


@pytest.mark.parametrize(
    ("opcode", "message"), WRITES + WITHOUT_CAS, ids=[opcode.name for opcode, _ in WRITES + WITHOUT_CAS]
)
def test_locked_document_refuses_changes(client, other, opcode, message):
    client.set(b"k", b"5")
    lock_document(client)
    for each, status in ((client, S.KEY_EEXISTS), (other, S.LOCKED)):
        refused = each.ask(message.encode(opcode))
        assert (refused.specific, refused.cas, refused.extras, refused.value) == (status, 0, b"", b"")
    assert client.get(b"k").value == b"5"


@pytest.mark.parametrize(("opcode", "message"), WRITES, ids=[opcode.name for opcode, _ in WRITES])
def test_change_with_the_lock_cas_unlocks(client, other, opcode, message):
    client.set(b"k", b"5")
    client.send(replace(message, cas=lock_document(client).cas).encode(opcode), Noop())
    while (reply := client.receive()).opcode != Opcode.NOOP:
        assert reply.specific == S.SUCCESS
    assert other.get(b"k").value != b"5"
    assert other.get(b"k").cas != LOCKED_CAS
    assert other.set(b"k").specific == S.SUCCESS


def test_unlock_of_an_unlocked_document_is_refused(client, other):
    cas = client.set(b"k").cas
    for each, status in ((client, S.ETMPFAIL), (other, S.NOT_LOCKED)):
        assert each.status(Unlock(key=b"k", cas=cas)) == status
    lock_document(client)
    for each, status in ((client, S.ETMPFAIL), (other, S.LOCKED)):
        assert each.status(Unlock(key=b"k", cas=cas)) == status


REFUSED = [
    ("nothing to lock", GetLocked(key=b"nowhere"), S.KEY_ENOENT),
    ("nothing to unlock", Unlock(key=b"nowhere", cas=1), S.KEY_ENOENT),
    ("unlock without a cas", Frame(Magic.REQUEST, Opcode.UNLOCK, key=b"k"), S.EINVAL),
    ("unlock without a key", Frame(Magic.REQUEST, Opcode.UNLOCK, cas=1), S.EINVAL),
    ("lock with a cas", GetLocked(key=b"k", cas=1), S.EINVAL),
    ("lock with two bytes of extras", Frame(Magic.REQUEST, Opcode.GET_LOCKED, key=b"k", extras=b"\0\1"), S.EINVAL),
    ("lock of a long key", GetLocked(key=b"k" * (MAX_KEY + 1)), S.EINVAL),
    ("unlock of a long key", Unlock(key=b"k" * (MAX_KEY + 1), cas=1), S.EINVAL),
    ("lock in a missing vbucket", GetLocked(key=b"k", vbucket=16), S.NOT_MY_VBUCKET),
    ("unlock in a missing vbucket", Unlock(key=b"k", cas=1, vbucket=16), S.NOT_MY_VBUCKET),
    ("lock with a datatype", GetLocked(key=b"k", datatype=Datatype.JSON), S.EINVAL),
]


@pytest.mark.parametrize(("case", "message", "status"), REFUSED, ids=[row[0] for row in REFUSED])
def test_invalid_requests_are_refused(client, case, message, status):
    client.set(b"k", b"v")
    assert client.status(message) == status
    assert client.get(b"k").cas != LOCKED_CAS


@pytest.mark.parametrize("seconds", [0, 1, 30, 31, 2**32 - 1])
def test_every_lock_time_is_accepted(client, seconds):
    client.set(b"k", b"v")
    locked = lock_document(client, lock_time=seconds)
    assert client.status(Set(key=b"k")) == S.KEY_EEXISTS
    assert client.status(Set(key=b"k", cas=locked.cas)) == S.SUCCESS


def test_state_change_releases_locks(client):
    client.set(b"k", b"v", vbucket=3)
    lock_document(client, vbucket=3)
    for state in (VbucketState.REPLICA, VbucketState.ACTIVE):
        assert client.status(SetVbucket(vbucket=3, state=state)) == S.SUCCESS
    assert client.status(Set(key=b"k", vbucket=3)) == S.SUCCESS


def test_locks_are_not_streamed(client, consumer):
    client.set(b"k", b"v")
    stored = client.get(b"k").cas
    client.ask(Unlock(key=b"k", cas=lock_document(client).cas))
    consumer.stream(end=1)
    marker, mutation = consumer.changes()
    assert (marker.end_seqno, mutation.cas) == (1, stored)


def test_lock_is_counted_as_a_read(client):
    client.set(b"k", b"v")
    lock_document(client)
    client.ask(GetLocked(key=b"nowhere"))
    stats = client.stats()
    assert (stats["cmd_get"], stats["get_misses"]) == ("2", "1")
    client.ask(Get(key=b"k"))
