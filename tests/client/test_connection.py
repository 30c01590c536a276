"""One connection: how replies are matched to requests, and how a connection is set up."""

import asyncio

import pytest

from penstock.client.connect import pending_calls
from penstock.client.connect.address import parse_address
from penstock.client.connect.client_session import open_session
from penstock.client.connect.node_link import NodeLink
from penstock.errors import (
    AccessDenied,
    BucketNotServed,
    ConnectionClosed,
    InternalError,
    KeyNotFound,
    LocalProtocolError,
    OperationTimeout,
    RemoteProtocolError,
    UnknownCommand,
)
from penstock.wire.codec.frame import HEADER, Frame, join_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Get, Set, Stat
from tests.client.peer import RestartableNode, Script, in_loop, reply
from tests.patience import PATIENCE


async def open_link(script, **options):
    return await NodeLink.open("127.0.0.1", script.port, PATIENCE, **options)


def get(key):
    return Get(key=key.encode())


# Requests and answers


@in_loop
async def test_replies_in_any_order_are_matched_to_their_requests():
    held = []

    def answer(peer, frame):
        held.append(frame)
        return b"".join(reply(each, value=each.key) for each in reversed(held)) if len(held) == 3 else b""

    async with Script(answer) as script:
        link = await open_link(script)
        one, two = await asyncio.gather(
            link.request_many([get("a"), get("b")], PATIENCE), link.request_many([get("c")], PATIENCE)
        )
        assert [frame.value for frame in (*one, *two)] == [b"a", b"b", b"c"]
        await link.close()


@in_loop
async def test_statistics_are_collected_from_mixed_replies():
    """The replies to STAT arrive mixed with replies to other requests."""
    asked = asyncio.Event()

    def answer(peer, frame):
        if frame.opcode != Opcode.STAT:
            asked.set()
            return b""
        line = [reply(frame, key=b"name%d" % number, value=b"1") for number in range(3)]
        others = [reply(other, value=other.key) for other in peer.requests if other.opcode == Opcode.GET]
        return b"".join((line[0], others[0], line[1], line[2], reply(frame), *others[1:]))

    async with Script(answer) as script:
        link = await open_link(script)
        getting = asyncio.ensure_future(link.request_many([get("a"), get("b")], PATIENCE))
        await asked.wait()
        assert [frame.key for frame in await link.collect_replies(Stat(), PATIENCE)] == [b"name0", b"name1", b"name2"]
        assert [frame.value for frame in await getting] == [b"a", b"b"]
        await link.close()


@pytest.mark.parametrize(
    ("name", "limit", "value", "found"),
    [
        ("MAX_STATS", 10, b"", "11 entries of 44 bytes without an end, limits 10 and 134217728"),
        ("MAX_STAT_BYTES", 1000, bytes(100), "10 entries of 1040 bytes without an end, limits 1048576 and 1000"),
    ],
    ids=["entries", "bytes"],
)
@in_loop
async def test_endless_statistics_are_an_error(monkeypatch, name, limit, value, found):
    monkeypatch.setattr(pending_calls, name, limit)

    def answer(peer, frame):
        return reply(frame, key=b"name", value=value) * 1000 if frame.opcode == Opcode.STAT else b""

    async with Script(answer) as script:
        link = await open_link(script)
        with pytest.raises(RemoteProtocolError, match=f"the answer to STAT is too large: {found}"):
            await link.request_stats("", PATIENCE)
        assert link.closed.done()
        await link.close()


@in_loop
async def test_refused_statistics_are_an_error():
    async with Script(lambda peer, frame: reply(frame, Status.KEY_ENOENT)) as script:
        link = await open_link(script)
        with pytest.raises(KeyNotFound, match=r"STAT b'nope': KEY_ENOENT"):
            await link.collect_replies(Stat(key=b"nope"), PATIENCE)
        await link.close()


@in_loop
async def test_late_reply_to_a_cancelled_request_is_dropped():
    asked = asyncio.Event()

    def answer(peer, frame):
        asked.set()
        return b"".join(reply(each, value=each.key) for each in peer.requests) if frame.key == b"b" else b""

    async with Script(answer) as script:
        link = await open_link(script)
        waiting = asyncio.ensure_future(link.request(get("a"), PATIENCE))
        await asked.wait()
        waiting.cancel()
        assert (await link.request(get("b"), PATIENCE)).value == b"b"
        assert waiting.cancelled()
        assert not link.closed.done()
        await link.close()


@in_loop
async def test_missing_reply_ends_the_connection():
    """After a missing reply, later replies would not arrive either."""
    async with Script(lambda peer, frame: b"") as script:
        link = await open_link(script)
        other = asyncio.ensure_future(link.request(get("a"), PATIENCE))
        with pytest.raises(OperationTimeout, match=r"GET: no answer within 0.05 s"):
            await link.request(get("b"), 0.05)
        with pytest.raises(ConnectionClosed, match="no answer within"):
            await other
        await link.close()


@in_loop
async def test_peer_that_does_not_read_is_timed_out():
    async with Script(lambda peer, frame: peer.transport.pause_reading() or b"") as script:
        link = await open_link(script)
        big = [Set(key=b"k", value=bytes(1 << 20))] * 20
        with pytest.raises(OperationTimeout):
            await link.request_many(big, 0.2)
        with pytest.raises(ConnectionClosed):
            await link.request_many(big, PATIENCE)
        await link.close()


@in_loop
async def test_closing_peer_fails_every_waiting_request():
    def answer(peer, frame):
        peer.transport.close()
        return b""

    async with Script(answer) as script:
        link = await open_link(script)
        found = await asyncio.gather(
            link.request(get("a"), PATIENCE),
            link.request_many([get("b"), get("c")], PATIENCE),
            link.collect_replies(Stat(), PATIENCE),
            return_exceptions=True,
        )
        assert [type(each) for each in found] == [ConnectionClosed] * 3
        assert [str(each) for each in found] == [
            f"the connection ended before {name} was answered: the node closed it" for name in ("GET", "GET", "STAT")
        ]


@in_loop
async def test_closed_connection_accepts_calls_and_fails_requests():
    async with Script() as script:
        link = await open_link(script)
        await link.close()
        await link.close()
        link.transport.pause_reading()
        link.transport.resume_reading()
        link.send(b"bytes")
        with pytest.raises(ConnectionClosed, match="it was closed on this side"):
            await link.request(get("a"), PATIENCE)
        with pytest.raises(ConnectionClosed):
            await link.collect_replies(Stat(), PATIENCE)
        assert await link.request_many([], PATIENCE) == []


@in_loop
async def test_unencodable_request_is_not_sent_and_the_connection_stays_usable():
    async with Script(lambda peer, frame: reply(frame)) as script:
        link = await open_link(script)
        with pytest.raises(LocalProtocolError):
            await link.request_many([get("a"), Get(key=b"b", vbucket=1 << 16)], PATIENCE)
        assert (await link.request(get("c"), PATIENCE)).specific == Status.SUCCESS
        assert [frame.key for frame in script.peers[0].requests] == [b"c"]
        await link.close()


@in_loop
async def test_opaques_start_again_before_they_overflow():
    async with Script(lambda peer, frame: reply(frame, value=frame.key)) as script:
        link = await open_link(script)
        link.allocate_opaque(0x7FFF_FFFF - 3)
        frames = await link.request_many([get(text) for text in "abcd"], PATIENCE)
        assert [frame.value for frame in frames] == [b"a", b"b", b"c", b"d"]
        await link.close()


GARBAGE = [
    (
        "another protocol",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        r"127\.0\.0\.1:\d+ speaks HTTP: use bootstrap=http for a management port; expected a data port",
    ),
    ("too long", HEADER.pack(0x81, 0, 0, 0, 0, 0, 1 << 30, 1, 0), "limit 31457280"),
    ("parts that do not fit", HEADER.pack(0x81, 0, 9, 0, 0, 0, 4, 1, 0) + b"four", "key of 9 bytes in a body of 4"),
]


@pytest.mark.parametrize(("name", "garbage", "found"), GARBAGE, ids=[row[0] for row in GARBAGE])
@in_loop
async def test_garbage_is_a_protocol_error(name, garbage, found):
    async with Script(lambda peer, frame: garbage) as script:
        link = await open_link(script)
        with pytest.raises(RemoteProtocolError, match=found):
            await link.request(get("a"), PATIENCE)
        with pytest.raises(RemoteProtocolError, match=found):
            await link.request(get("a"), PATIENCE)
        await link.close()


@in_loop
async def test_frames_other_than_replies_go_to_the_stream_once_for_each_read():
    noop = join_frame(Frame(Magic.REQUEST, Opcode.DCP_NOOP, opaque=7))
    reads = []
    async with Script(lambda peer, frame: reply(frame) + noop) as script:
        link = await open_link(script, on_stream=lambda link, events: reads.append(events))
        await link.request(get("a"), PATIENCE)
        await link.close()
    assert [[frame.opaque for frame in events] for events in reads] == [[7]]


@in_loop
async def test_refused_connection_is_an_os_error():
    async with Script() as script:
        pass
    with pytest.raises(OSError, match="Connect call failed"):
        await open_link(script)


# Set-up


def make_script_except(opcode, answer):
    """Return a script that answers like a good node, except to one opcode."""
    return Script(lambda peer, frame: answer(frame) if frame.opcode == opcode else None)


async def open_and_close_session(script, **options):
    session = await open_session(parse_address(script.url(**options)))
    await session.link.close()
    return session


@in_loop
async def test_session_has_the_number_of_vbuckets():
    async with Script(vbuckets=7) as script:
        assert (await open_and_close_session(script)).vbuckets == 7


@pytest.mark.parametrize(
    ("opcode", "status", "error", "found"),
    [
        (Opcode.HELLO, Status.EINTERNAL, InternalError, "HELLO b'penstock/.*': EINTERNAL"),
        (Opcode.SELECT_BUCKET, Status.KEY_ENOENT, BucketNotServed, "no bucket 'beer' on couchbase://127.0.0.1"),
        (
            Opcode.SELECT_BUCKET,
            Status.EACCESS,
            AccessDenied,
            "a client without login may not access it",
        ),
        (Opcode.SELECT_BUCKET, Status.UNKNOWN_COMMAND, UnknownCommand, "SELECT_BUCKET"),
        (Opcode.GET_CLUSTER_CONFIG, Status.UNKNOWN_COMMAND, BucketNotServed, "has no cluster map"),
        (Opcode.GET_CLUSTER_CONFIG, Status.EACCESS, AccessDenied, "GET_CLUSTER_CONFIG"),
    ],
)
@in_loop
async def test_refusal_during_set_up_is_reported(opcode, status, error, found):
    async with make_script_except(opcode, lambda frame: reply(frame, status)) as script:
        with pytest.raises(error, match=found):
            await open_and_close_session(script)


CONFIGS = [
    (b"{", RemoteProtocolError, "cluster map of 1 bytes is malformed: Input data was truncated"),
    (b"\xff\xfe", RemoteProtocolError, "cluster map of 2 bytes is malformed"),
    (b"[]", RemoteProtocolError, "Expected `object`, got `array`"),
    (b"", BucketNotServed, "has no cluster map, and its statistics show 2 vbuckets; .* option vbucketCount=N"),
    (b"{}", BucketNotServed, "has no cluster map"),
    (
        b'{"vBucketServerMap":{"serverList":1,"vBucketMap":2}}',
        RemoteProtocolError,
        r"at `\$.vBucketServerMap.serverList`",
    ),
    (b'{"vBucketServerMap":{"serverList":["a"],"vBucketMap":[]}}', BucketNotServed, "has no cluster map"),
    (b'{"vBucketServerMap":{"serverList":[],"vBucketMap":[[0]]}}', RemoteProtocolError, "0 nodes, expected 1 to"),
    (b'{"vBucketServerMap":{"serverList":["a:1","b"],"vBucketMap":[[0]]}}', RemoteProtocolError, "the server 'b'"),
]


@pytest.mark.parametrize(("config", "error", "found"), CONFIGS)
@in_loop
async def test_unusable_cluster_map_is_reported(config, error, found):
    async with make_script_except(Opcode.GET_CLUSTER_CONFIG, lambda frame: reply(frame, value=config)) as script:
        with pytest.raises(error, match=found):
            await open_and_close_session(script)


@in_loop
async def test_the_whole_set_up_has_one_time_limit():
    """Each step is answered within the limit, but all steps together take longer."""

    def answer(peer, frame):
        asyncio.get_running_loop().call_later(0.15, lambda: peer.transport.write(script.set_up(frame)))
        return b""

    async with Script(answer) as script:
        with pytest.raises(OperationTimeout, match=r"did not set up the connection within 0.2 s"):
            await open_and_close_session(script, connectTimeout=0.2)


@in_loop
async def test_host_that_does_not_serve_is_skipped():
    node = await asyncio.to_thread(RestartableNode)
    try:
        async with Script(lambda peer, frame: b"") as silent, Script() as gone:
            await gone.__aexit__()
            hosts = f"127.0.0.1:{gone.port},127.0.0.1:{silent.port},127.0.0.1:{node.port}"
            session = await open_session(parse_address(f"couchbase://{hosts}/beer?connectTimeout=0.2"))
            assert session.vbuckets == 4
            await session.link.close()
    finally:
        await asyncio.to_thread(node.stop)


@in_loop
async def test_cancelled_set_up_closes_the_connection():
    reached = asyncio.Event()

    def never(frame):
        reached.set()
        return b""

    async with make_script_except(Opcode.HELLO, never) as script:
        opening = asyncio.ensure_future(open_and_close_session(script))
        await reached.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await script.peers[0].lost.wait()
