"""Answers of a server that starts or stops, at each step of a client: which of them the client waits for."""

import asyncio

import pytest

from penstock import connect
from penstock.errors import (
    AccessDenied,
    AuthenticationFailed,
    BucketAccessDenied,
    BucketNotServed,
    InternalError,
    NoBucket,
    Unreachable,
)
from penstock.node import Node
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from tests.client.old_server import Answer, OldServer, Release, answer_cram_md5, reply
from tests.client.peer import in_loop
from tests.client.restarting import STAGES

CLOSED = b""
"""The server closes the connection instead of an answer."""

LOGIN: dict[int, Answer] = {
    Opcode.SASL_LIST_MECHS: b"CRAM-MD5 PLAIN",
    Opcode.SASL_AUTH: answer_cram_md5,
    Opcode.SASL_STEP: answer_cram_md5,
}


class StartingServer(OldServer):
    """A proxy in front of a node that closes all connections, and then refuses one request.

    Attributes:
        refused: the opcode to refuse; None after the refusal.
    """

    def __init__(self, node):
        super().__init__(node, Release(LOGIN), users={"u": "p"})
        self.refused = None

    def start_again(self, opcode, answer):
        """Close all connections. The next request with this opcode gets this status, or is CLOSED."""

        async def drop():
            self.refused, self._answer = opcode, answer
            for pair in self._pairs:
                pair.close()
            self._pairs.clear()

        self._thread.run(drop())

    def answer(self, frame):
        if frame.opcode != self.refused:
            return super().answer(frame)
        self.refused = None
        if self._answer != CLOSED:
            return reply(frame, self._answer)
        for pair in self._pairs:
            pair.close()
        return b""


@pytest.fixture(scope="module")
def node():
    with Node.running(["beer"], vbuckets=2) as node:
        yield node


@pytest.fixture(scope="module")
def server(node):
    with StartingServer(node) as server:
        yield server


def open_bucket(server):
    return connect(server.url(retrySeconds=60), username="u", password="p")


SET_UP = [
    Opcode.HELLO,
    Opcode.SASL_LIST_MECHS,
    Opcode.SASL_AUTH,
    Opcode.SASL_STEP,
    Opcode.SELECT_BUCKET,
    Opcode.GET_CLUSTER_CONFIG,
]
"""The steps of every connection."""

REQUESTS = [
    Opcode.DCP_OPEN,
    Opcode.DCP_CONTROL,
    Opcode.COLLECTIONS_GET_MANIFEST,
    Opcode.GET_ALL_VB_SEQNOS,
    Opcode.GET_FAILOVER_LOG,
    Opcode.DCP_STREAM_REQ,
]
"""Further steps of consumers."""

TEMPORARY = [Status.ETMPFAIL, CLOSED]
"""Answers that a client waits for at every step. Further statuses are in test_retry.py."""

BUCKET_MISSING = {
    (Opcode.SELECT_BUCKET, Status.KEY_ENOENT): BucketNotServed,
    (Opcode.SELECT_BUCKET, Status.EACCESS): BucketAccessDenied,
    (Opcode.SELECT_BUCKET, Status.NO_BUCKET): NoBucket,
    (Opcode.GET_CLUSTER_CONFIG, Status.NO_BUCKET): NoBucket,
}
"""Answers that end a first connection at once, and that a client waits for after that."""

LATER = {
    **{step: [Status.NOT_MY_VBUCKET] for step in (Opcode.GET_FAILOVER_LOG, Opcode.DCP_STREAM_REQ)},
    **{step: [Status.NO_BUCKET] for step in REQUESTS},
    Opcode.SELECT_BUCKET: [status for step, status in BUCKET_MISSING if step == Opcode.SELECT_BUCKET],
    Opcode.GET_CLUSTER_CONFIG: [Status.NO_BUCKET, Status.KEY_ENOENT],
}
"""Step -> further answers that a client waits for whose bucket was served before."""

FINAL = [
    (Opcode.SASL_AUTH, Status.AUTH_ERROR, AuthenticationFailed),
    (Opcode.SASL_STEP, Status.AUTH_ERROR, AuthenticationFailed),
    (Opcode.GET_CLUSTER_CONFIG, Status.EACCESS, AccessDenied),
    (Opcode.DCP_OPEN, Status.EACCESS, AccessDenied),
    (Opcode.DCP_STREAM_REQ, Status.EACCESS, AccessDenied),
    *((step, Status.EINTERNAL, InternalError) for step in (Opcode.SELECT_BUCKET, Opcode.DCP_STREAM_REQ)),
]
"""Answers that end any client."""


async def store(node, key):
    async with connect(node.url("beer")) as bucket:
        await bucket.upsert(key, b"v")


@pytest.mark.parametrize("step", [*SET_UP, *REQUESTS], ids=lambda step: step.name)
@in_loop
async def test_consumer_goes_on_after_a_temporary_answer(node, server, step):
    async with open_bucket(server) as bucket, await bucket.stream(start="now") as stream:
        changes = stream.changes()
        await store(node, "first")
        assert (await anext(changes)).key == b"first"
        for number, answer in enumerate([*TEMPORARY, *LATER.get(step, ())]):
            key = f"{step.name}-{number}"
            await asyncio.to_thread(server.start_again, step, answer)
            await store(node, key)
            assert (await anext(changes)).key == key.encode()
            assert sum(info.high_seqno for info in (await bucket.vbucket_infos()).values())
            assert server.refused is None, (step, answer)


@pytest.mark.parametrize("step", SET_UP, ids=lambda step: step.name)
@in_loop
async def test_first_connection_waits_for_a_temporary_answer(server, step):
    answers = [*TEMPORARY, Status.KEY_ENOENT] if step == Opcode.GET_CLUSTER_CONFIG else TEMPORARY
    for answer in answers:
        await asyncio.to_thread(server.start_again, step, answer)
        async with open_bucket(server) as bucket:
            await bucket.connect()
        assert server.refused is None, (step, answer)


@pytest.mark.parametrize(("step", "status"), BUCKET_MISSING)
@in_loop
async def test_missing_bucket_ends_a_first_connection(server, step, status):
    await asyncio.to_thread(server.start_again, step, status)
    with pytest.raises(BUCKET_MISSING[step, status]):
        await open_bucket(server).connect()


@pytest.mark.parametrize(("step", "status", "error"), FINAL)
@in_loop
async def test_permanent_answer_ends_a_consumer(node, server, step, status, error):
    async with open_bucket(server) as bucket, await bucket.stream(start="now") as stream:
        await store(node, "k")
        changes = stream.changes()
        await anext(changes)
        await asyncio.to_thread(server.start_again, step, status)
        await store(node, "k")
        with pytest.raises(error):
            await anext(changes)


@in_loop
async def test_map_that_does_not_arrive_is_named(node):
    found = r"no cluster map of it yet: the server is starting; .*vbucketCount=N"
    with OldServer(node, STAGES["map pending"]) as lone, pytest.raises(Unreachable, match=found):
        await connect(lone.url(retrySeconds=0.1)).connect()
