"""Mutation tokens: the newest write of each vbucket, from a real node and from scripted peers."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import connect
from penstock.client.documents.document import compute_vbucket
from penstock.client.documents.mutation_tokens import MutationToken, NewestTokens
from penstock.errors import KeyExists, KeyNotFound, NotStored
from penstock.node import Node
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Delete, Get, Set, pack_features, unpack_features
from tests.client.peer import Script, in_loop, reply

VBUCKETS = 16


@pytest.fixture
def url():
    with Node.running(["beer"], vbuckets=VBUCKETS) as node:
        yield node.url("beer")


async def read_node_tokens(bucket):
    """Return the tokens that follow from the infos of every vbucket with changes."""
    infos = await bucket.vbucket_infos()
    return tuple(MutationToken(vb, info.vbuuid, info.high_seqno) for vb, info in infos.items() if info.high_seqno)


@in_loop
async def test_every_kind_of_write_has_a_token(url):
    async with connect(url) as bucket:
        assert bucket.tokens() == ()
        await bucket.upsert("k", b"one")
        (token,) = bucket.tokens()
        assert token == (compute_vbucket(b"k", VBUCKETS), token.vbuuid, 1)
        cas = await bucket.upsert("k", b"two")
        await bucket.replace("k", b"three", cas=cas)
        assert bucket.tokens() == await read_node_tokens(bucket)
        await bucket.remove("k")
        await bucket.insert("k", b"four")
        assert bucket.tokens() == await read_node_tokens(bucket) == (token._replace(seqno=5),)
        with pytest.raises(KeyExists):
            await bucket.insert("k", b"five")
        with pytest.raises(KeyNotFound):
            await bucket.remove("other")
        await bucket.get("k")
        assert bucket.tokens() == (token._replace(seqno=5),)


@in_loop
async def test_concurrent_writes_have_the_newest_tokens(url):
    async with connect(url) as bucket, connect(url) as other:
        documents = [(f"key {number}", b"value") for number in range(3000)]
        await asyncio.gather(*(bucket.upsert_many(documents[start::3]) for start in range(3)))
        assert bucket.tokens() == await read_node_tokens(bucket)
        assert len(bucket.tokens()) == VBUCKETS
        before = bucket.tokens()
        await other.remove_many(["nobody's", *(key for key, _ in documents[:2000])])
        assert bucket.tokens() == before
        assert other.tokens() == await read_node_tokens(bucket)


@in_loop
async def test_a_new_branch_has_tokens_of_its_own(url):
    async with connect(url) as bucket:
        for number in range(5):
            await bucket.upsert("k", b"%d" % number)
        before = bucket.tokens()
        await bucket.flush()
        assert bucket.tokens() == before
        await bucket.upsert("k", b"again")
        assert bucket.tokens() == await read_node_tokens(bucket) != before


def answer_writes(features, *tokens):
    """Answer as a node with these features; each write gets the next of these (status, vbuuid, seqno)."""
    left = [*tokens]

    def answer(peer, frame):
        if frame.opcode == Opcode.HELLO:
            assert Feature.MUTATION_SEQNO in unpack_features(frame.value)
            return reply(frame, value=pack_features(features))
        if frame.opcode in (Opcode.SET, Opcode.DELETE):
            status, *token = left.pop(0)
            if status:
                return reply(frame, status)
            return reply(frame, extras=b"".join(number.to_bytes(8) for number in token))
        return None

    return answer


@in_loop
async def test_node_without_collections_has_tokens():
    answer = answer_writes([Feature.MUTATION_SEQNO], (0, 7, 2**63), (0, 7, 2**64 - 1))
    async with Script(answer, vbuckets=1) as script, connect(script.url()) as bucket:
        await bucket.upsert("k", b"v")
        assert bucket.tokens() == ((0, 7, 2**63),)
        await bucket.remove("k")
        assert bucket.tokens() == ((0, 7, 2**64 - 1),)
        assert script.peers[0].requests[-1].key == b"k"


@in_loop
async def test_node_without_mutation_seqnos_has_no_tokens():
    async with Script(answer_writes([], (0,), (0,))) as script, connect(script.url()) as bucket:
        await bucket.upsert("k", b"v")
        await bucket.remove("k")
        assert bucket.tokens() == ()


@in_loop
async def test_writes_beside_a_refused_write_have_tokens():
    answer = answer_writes([Feature.MUTATION_SEQNO], (0, 7, 1), (Status.NOT_STORED,), (0, 7, 2))
    async with Script(answer, vbuckets=1) as script, connect(script.url()) as bucket:
        with pytest.raises(NotStored):
            await bucket.upsert_many([("a", b"v"), ("b", b"v"), ("c", b"v")])
        assert bucket.tokens() == ((0, 7, 2),)


def make_reply(vbucket, vbuuid, seqno, kind=Set, status=0):
    token = b"" if status else vbuuid.to_bytes(8) + seqno.to_bytes(8)
    return kind(vbucket=vbucket, key=b"k"), Frame(Magic.RESPONSE, Opcode.SET, status, extras=token)


@given(st.permutations([(vb, 9, seqno) for vb in (1, 5) for seqno in (1, 255, 256, 2**40)]), st.integers(1, 8))
def test_the_order_of_replies_on_a_branch_does_not_matter(tokens, step):
    found = NewestTokens()
    for start in range(0, len(tokens), step):
        pairs = [make_reply(*token) for token in tokens[start : start + step]]
        found.remember([request for request, _ in pairs], [frame for _, frame in pairs])
    assert found.list_newest() == ((1, 9, 2**40), (5, 9, 2**40))


def test_requests_that_wrote_nothing_have_no_token():
    found = NewestTokens()
    found.remember([], [])
    for kind, status in ((Get, 0), (Delete, Status.KEY_ENOENT)):
        request, frame = make_reply(3, 9, 1, kind, status)
        found.remember([request], [frame])
    assert found.list_newest() == ()
