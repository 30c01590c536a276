"""A bucket on a real node (documents, statistics, vbucket infos), and on a node that stops or hangs."""

import asyncio

import pytest

from penstock import connect
from penstock.client.documents.document import Document, compute_vbucket
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.errors import (
    ConnectionClosed,
    KeyExists,
    KeyNotFound,
    NotSupported,
    OperationTimeout,
    RemoteProtocolError,
    TooBig,
    Unreachable,
    UsageError,
)
from penstock.node import Node
from penstock.wire.codec.constants import MAX_VALUE
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import FailoverEntry, pack_failover_log
from tests.client.peer import Script, in_loop, reply, stats_reply


@pytest.fixture(scope="module")
def node():
    with Node.running(["beer"], vbuckets=16) as node:
        yield node


@pytest.fixture
def url(node):
    return node.url("beer")


@in_loop
async def test_document_is_inserted_read_replaced_and_removed(url):
    async with connect(url) as bucket:
        assert bucket.vbuckets == 16
        with pytest.raises(KeyNotFound, match="no document 'life'"):
            await bucket.get("life")
        first = await bucket.insert("life", b"one", flags=7)
        assert (await bucket.get("life")) == (b"one", first, 7, 0)
        with pytest.raises(KeyExists, match=r"ADD b'life': KEY_EEXISTS"):
            await bucket.insert("life", b"two")
        second = await bucket.upsert(b"life", b"two")
        with pytest.raises(KeyExists):
            await bucket.replace("life", b"three", cas=first)
        third = await bucket.replace("life", b"three", cas=second, flags=9)
        assert (await bucket.get(b"life"))[:3] == (b"three", third, 9)
        with pytest.raises(KeyExists):
            await bucket.remove("life", cas=second)
        assert await bucket.remove("life", cas=third) > third
        with pytest.raises(KeyNotFound):
            await bucket.remove("life")
        with pytest.raises(KeyNotFound):
            await bucket.replace("life", b"four", cas=third)


@in_loop
async def test_results_for_many_documents_keep_their_order(url):
    keys = [f"many{number}" for number in range(1500)]
    async with connect(url) as bucket:
        written = await bucket.upsert_many((key, key.encode()) for key in keys)
        found = await bucket.get_many([*keys, "many-none"])
        assert found == [*map(Document, map(str.encode, keys), written), None]
        assert await bucket.remove_many([*keys, "many-none"]) == 1500
        assert not await bucket.get_many([])
        assert not await bucket.upsert_many([])
        assert await bucket.remove_many([]) == 0


@in_loop
async def test_concurrent_calls_share_one_connection(url):
    async with connect(url) as bucket:
        await asyncio.gather(*(bucket.upsert(f"same{number}", b"v") for number in range(50)))
        stats = await bucket.stats()
        assert stats["curr_connections"] == "1"


@pytest.mark.parametrize(
    ("call", "found"),
    [
        (lambda bucket: bucket.get(""), "key of 0 bytes, expected 1 to 250"),
        (lambda bucket: bucket.get("k" * 251), "key of 251 bytes, expected 1 to 250"),
        (lambda bucket: bucket.remove("\ud800"), "cannot be encoded in UTF-8"),
        (lambda bucket: bucket.upsert("k", bytes(MAX_VALUE + 1)), f"value of {MAX_VALUE + 1} bytes"),
        (lambda bucket: bucket.replace("k", b"", cas=0), "cas 0 to replace 'k'"),
        (lambda bucket: bucket.vbucket_infos([16]), "vbucket 16 of couchbase://127.0.0.1"),
        (lambda bucket: bucket.stream(vbuckets=[-1]), "vbucket -1"),
        (lambda bucket: bucket.stream("then"), "start is 'then', expected 'beginning', 'now', a time"),
        (lambda bucket: bucket.stream(stop="then"), "stop is 'then', expected None, 'now' or"),
    ],
)
@in_loop
async def test_wrong_usage_is_reported(url, call, found):
    async with connect(url) as bucket:
        with pytest.raises(UsageError, match=found):
            await call(bucket)


@in_loop
async def test_bucket_must_be_entered_before_requests(url):
    with pytest.raises(UsageError, match="async with connect"):
        await connect(url).get("k")


@in_loop
async def test_missing_bucket_is_reported_at_once(node):
    with pytest.raises(UsageError, match=f"no bucket 'wine' on couchbase://127.0.0.1:{node.kv_port}/wine"):
        async with connect(node.url("beer").replace("beer", "wine")):
            pass


@in_loop
async def test_statistics_are_read(url):
    async with connect(url) as bucket:
        assert (await bucket.stats())["ep_max_vbuckets"] == "16"
        assert "vb_15:uuid" in await bucket.stats("vbucket-seqno")
        with pytest.raises(KeyNotFound, match="nonsense"):
            await bucket.stats("nonsense")


@pytest.mark.parametrize("group", ["hash 99999", "failovers 16", "key k 16", "dcp-vbtakeover 16 name"])
@in_loop
async def test_statistics_of_an_impossible_vbucket_are_refused(url, group):
    async with connect(f"{url}?retrySeconds=86400") as bucket:
        with pytest.raises(UsageError, match=r"vbucket (99999|16) of .*, which has 16$"):
            await bucket.stats(group)


@in_loop
async def test_statistics_of_a_vbucket_that_may_return_are_retried(url):
    """The number in the group is a document's key, not a vbucket."""
    asked = []

    def once(peer, frame):
        if frame.opcode != Opcode.STAT:
            return None
        asked.append(frame.key)
        return reply(frame, Status.NOT_MY_VBUCKET) if len(asked) == 1 else stats_reply(frame, {"key_flags": 0})

    async with Script(once) as script, connect(script.url()) as bucket:
        assert await bucket.stats("key 99999 0") == {"key_flags": "0"}
    assert asked == [b"key 99999 0"] * 2


@in_loop
async def test_vbucket_infos_agree_with_seqnos_and_failover_logs(url):
    async with connect(url) as bucket:
        await bucket.upsert_many((f"info{number}", b"v") for number in range(100))
        infos = await bucket.vbucket_infos()
        assert list(infos) == list(range(16))
        assert {vb: info.high_seqno for vb, info in infos.items()} == await bucket.high_seqnos()
        logs = await bucket.failover_logs([3, 1])
        assert list(logs) == [3, 1]
        assert await bucket.vbucket_infos([3]) == {3: VbucketInfo(logs[3], infos[3].high_seqno, 0)}
        assert await bucket.vbucket_infos([]) == {}


@in_loop
async def test_high_seqnos_open_a_connection(url):
    async with connect(url) as bucket:
        await bucket.upsert("connected", b"v")
        expected = await bucket.high_seqnos()
    assert len(expected) == 16
    bucket = connect(url)
    assert await bucket.high_seqnos() == expected
    await bucket.close()


def test_keys_have_the_same_vbucket_as_in_other_clients():
    assert [compute_vbucket(key, 1024) for key in (b"foo", b"bar", b"hello")] == [115, 767, 528]
    assert [compute_vbucket(key, 64) for key in (b"foo", b"bar", b"hello")] == [51, 63, 16]


# A node that stops


@in_loop
async def test_closed_connection_is_replaced(running):
    async with connect(running.url()) as bucket:
        await bucket.upsert("k", b"v")
        await running.restart()
        assert await bucket.get_many(["k"]) == [None]
        await running.restart()
        await bucket.insert("k", b"v")
        await running.restart()
        assert (await bucket.stats())["curr_connections"] == "1"


@in_loop
async def test_node_that_stays_down_is_reported_in_one_sentence(running):
    async with connect(running.url(retrySeconds=0.2)) as bucket:
        await asyncio.to_thread(running.stop)
        for call in (bucket.get("k"), bucket.insert("k", b"v"), bucket.vbucket_infos(), bucket.stream("now")):
            with pytest.raises(
                Unreachable, match=r"/beer did not serve for .* s \(limit 0.2 s\); last failure: "
            ) as caught:
                await call
            assert "\n" not in str(caught.value)
    running.start()


@in_loop
async def test_changed_number_of_vbuckets_is_an_error(running):
    async with connect(running.url()) as bucket:
        running.vbuckets = 8
        await running.restart()
        with pytest.raises(RemoteProtocolError, match="/beer has 8 vbuckets now, it had 4"):
            await bucket.get("k")


def make_closing_script(opcode):
    """Return a script that closes the connection at the first request with an opcode, and the list of such requests."""
    seen = []

    def answer(peer, frame):
        if frame.opcode == opcode:
            seen.append(frame)
            if len(seen) == 1:
                peer.transport.close()
                return b""
        return None

    return Script(answer), seen


@pytest.mark.parametrize(
    ("opcode", "call"),
    [
        (Opcode.ADD, lambda bucket: bucket.insert("k", b"v")),
        (Opcode.SET, lambda bucket: bucket.replace("k", b"v", cas=5)),
        (Opcode.DELETE, lambda bucket: bucket.remove("k")),
        (Opcode.DELETE, lambda bucket: bucket.remove_many(["k"])),
    ],
)
@in_loop
async def test_request_that_may_have_been_executed_is_not_repeated(opcode, call):
    script, seen = make_closing_script(opcode)
    async with script, connect(script.url()) as bucket:
        with pytest.raises(ConnectionClosed):
            await call(bucket)
        assert len(seen) == 1


@pytest.mark.parametrize(
    ("opcode", "call"),
    [
        (Opcode.SET, lambda bucket: bucket.upsert("k", b"v")),
        (Opcode.GET, lambda bucket: bucket.get_many(["k"])),
        (Opcode.STAT, lambda bucket: bucket.stats()),
        (Opcode.GET_ALL_VB_SEQNOS, lambda bucket: bucket.high_seqnos()),
    ],
)
@in_loop
async def test_idempotent_request_is_repeated(opcode, call):
    script, seen = make_closing_script(opcode)
    async with script, connect(script.url()) as bucket:
        await call(bucket)
        assert len(seen) == 2


@in_loop
async def test_connection_without_answers_is_replaced():
    """The next call must not use the connection on which no answer arrived."""

    def answer(peer, frame):
        return b"" if frame.opcode == Opcode.GET and peer is script.peers[0] else None

    async with Script(answer) as script, connect(script.url(operationTimeout=0.1)) as bucket:
        assert (await bucket.get("k")).value == b""
        assert len(script.peers) == 2
        script.answer = lambda peer, frame: b"" if frame.opcode == Opcode.ADD else None
        with pytest.raises(OperationTimeout):
            await bucket.insert("k", b"v")


@pytest.mark.parametrize(
    ("status", "error"),
    [(Status.E2BIG, TooBig), (Status.NOT_SUPPORTED, NotSupported), (Status.ETMPFAIL, Unreachable)],
)
@in_loop
async def test_only_a_temporary_status_is_retried(status, error):
    answered = []

    def answer(peer, frame):
        if frame.opcode != Opcode.GET:
            return None
        answered.append(frame)
        return reply(frame, status)

    async with Script(answer) as script, connect(script.url(retrySeconds=0.2)) as bucket:
        with pytest.raises(error):
            await bucket.get("k")
        assert (len(answered) > 1) == (error is Unreachable)


@in_loop
async def test_ever_changing_failover_logs_end_in_an_error():
    vbuuids = iter(range(1, 10_000))

    def answer(peer, frame):
        if frame.opcode == Opcode.GET_FAILOVER_LOG:
            return reply(frame, value=pack_failover_log([FailoverEntry(next(vbuuids), 0)]))
        return None

    async with Script(answer) as script, connect(script.url(retrySeconds=0.2)) as bucket:
        with pytest.raises(Unreachable, match="failover logs changed while the seqnos were read"):
            await bucket.vbucket_infos()


@in_loop
async def test_statistics_without_a_vbucket_are_an_error():
    def answer(peer, frame):
        if frame.opcode == Opcode.GET_FAILOVER_LOG:
            return reply(frame, value=pack_failover_log([FailoverEntry(1, 0)]))
        return None

    async with Script(answer) as script, connect(script.url()) as bucket:
        with pytest.raises(RemoteProtocolError, match="vbucket-seqno without 'vb_0:high_seqno'"):
            await bucket.vbucket_infos()


@in_loop
async def test_cancelled_call_leaves_a_usable_connection(url):
    async with connect(url) as bucket:
        calling = asyncio.ensure_future(bucket.upsert_many((f"cancel{number}", b"v") for number in range(5000)))
        await bucket.stats()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert (await bucket.stats())["curr_connections"] == "1"
