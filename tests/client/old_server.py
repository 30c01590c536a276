"""A proxy that makes a node look like a server of an earlier release: it answers some opcodes itself.

    with Node.running(["beer"]) as node, OldServer(node, COUCHBASE_3_1) as server:
        server.url()

Documents and streams come from the node. The answers are those of Couchbase 3.1.6 and 2.5.1. Both were observed with
the bucket engine and with their engine alone.
"""

import asyncio
import hmac
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from penstock.client.blocking import LoopThread
from penstock.wire.codec.frame import HEADER_BYTES, Frame, cut_frame, join_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import SelectBucket

Answer = Status | bytes | Callable[["OldServer", Frame], bytes | None]
"""The answer to an opcode: a status, SUCCESS with this value, or a function that returns frames (None: the node's)."""

CHALLENGE = b"<1896.697170952@postoffice>"
_SELECT_OPAQUE = 0xDEADBEEF
_STORED_EXTRAS = (8, 24, 28)
"""Bytes of extras of requests that store documents."""


def reply(frame, status=Status.SUCCESS, **parts):
    return join_frame(Frame(Magic.RESPONSE, frame.opcode, status, opaque=frame.opaque, **parts))


def statistics(frame, stats):
    """Return the reply frames of STAT with these statistics."""
    lines = [reply(frame, key=name.encode(), value=str(text).encode()) for name, text in stats.items()]
    return b"".join([*lines, reply(frame)])


@dataclass(frozen=True)
class Release:
    """The answers in which one release differs from a current node.

    Attributes:
        answers: opcode -> answer.
        stats: statistics group -> the statistics that replace the node's; a Status refuses the group.
        unknown: opcodes that are answered with UNKNOWN_COMMAND.
        has_datatypes: without them, a document with a datatype is EINVAL.
    """

    answers: Mapping[int, Answer] = field(default_factory=dict)
    stats: Mapping[str, Mapping[str, str] | Status] = field(default_factory=dict)
    unknown: frozenset[int] = frozenset()
    has_datatypes: bool = True

    def override(self, answers=None, stats=None):
        """Return a copy of the release with other answers."""
        return replace(self, answers={**self.answers, **(answers or {})}, stats={**self.stats, **(stats or {})})


def answer_cram_md5(server, frame):
    if frame.opcode == Opcode.SASL_AUTH and frame.key == b"CRAM-MD5":
        return reply(frame, Status.AUTH_CONTINUE, value=CHALLENGE)
    for user, password in server.users.items():
        if frame.key == b"CRAM-MD5":
            right = user.encode() + b" " + hmac.digest(password.encode(), CHALLENGE, "md5").hex().encode()
        else:
            right = b"\0" + user.encode() + b"\0" + password.encode()
        if frame.value == right:
            return reply(frame, value=b"Authenticated")
    return reply(frame, Status.AUTH_ERROR, value=b"Auth failure")


def answer_set_vbucket(server, frame):
    return (
        reply(frame, Status.EINVAL, value=b"Incorrect packet format")
        if len(frame.extras) + len(frame.value) != 4
        else None
    )


def answer_set_map(server, frame):
    """Store the whole body as the map."""
    server.stored_map = bytes(frame.extras) + bytes(frame.key) + bytes(frame.value)
    return reply(frame)


def answer_get_map(server, frame):
    return None if server.stored_map is None else reply(frame, value=server.stored_map)


_STATES_AND_MAPS: Mapping[int, Answer] = {
    Opcode.SET_VBUCKET: answer_set_vbucket,
    Opcode.SET_CLUSTER_CONFIG: answer_set_map,
    Opcode.GET_CLUSTER_CONFIG: answer_get_map,
}

_SASL: Mapping[int, Answer] = {
    Opcode.SASL_LIST_MECHS: b"CRAM-MD5 PLAIN",
    Opcode.SASL_AUTH: answer_cram_md5,
    Opcode.SASL_STEP: answer_cram_md5,
}

COUCHBASE_3_1 = Release(
    answers={
        **_SASL,
        **_STATES_AND_MAPS,
        Opcode.HELLO: b"",
        Opcode.SELECT_BUCKET: Status.NOT_SUPPORTED,
        Opcode.VERSION: b"3.1.6",
    },
    stats={"": {"version": "3.1.6", "ep_version": "3.1.6", "ep_max_vbuckets": "4"}},
    unknown=frozenset({Opcode.GET_FAILOVER_LOG, Opcode.GET_ERROR_MAP, Opcode.OBSERVE_SEQNO}),
    has_datatypes=False,
)
"""Couchbase 3.1.6 with its bucket engine."""

COUCHBASE_2_5 = Release(
    answers={**_SASL, **_STATES_AND_MAPS, Opcode.SELECT_BUCKET: Status.NOT_SUPPORTED, Opcode.VERSION: b"2.5.1"},
    stats={
        "": {"version": "2.5.1", "ep_version": "2.5.1", "ep_max_vbuckets": "4"},
        **dict.fromkeys(("dcp", "failovers", "vbucket-seqno"), Status.KEY_ENOENT),
    },
    unknown=frozenset(
        {
            *range(Opcode.DCP_OPEN, Opcode.DCP_OPEN + 0x18),
            *(Opcode.HELLO, Opcode.GET_ALL_VB_SEQNOS, Opcode.GET_FAILOVER_LOG, Opcode.GET_ERROR_MAP),
            Opcode.OBSERVE_SEQNO,
        }
    ),
    has_datatypes=False,
)
"""Couchbase 2.5.1 with its bucket engine."""


def without_map(release, status=Status.SUCCESS):
    """Return a release with its engine alone, like a bare memcached: without a cluster map and bucket selection."""
    return release.override(
        answers={Opcode.GET_CLUSTER_CONFIG: status, Opcode.SELECT_BUCKET: Status.UNKNOWN_COMMAND},
    )


class OldServer:
    """The proxy, running in a thread of its own.

    Args:
        node: the node with the documents.
        release: the release whose answers replace those of the node.
        bucket: the bucket that the proxy selects for each connection.
        users: user name -> password; None: no user can log in.

    Attributes:
        requests: every frame that clients have sent.
        stored_map: the map of the last SET_CLUSTER_CONFIG; None: the node's.
    """

    def __init__(self, node, release, bucket="beer", users=None):
        self.release = release
        self.users = users or {}
        self.requests: list[Frame] = []
        self.stored_map: bytes | None = None
        self.port = 0
        self._node = node
        self._bucket = bucket
        self._stack = ExitStack()
        self._pairs: list[_Pair] = []

    def __enter__(self):
        self._thread = self._stack.enter_context(LoopThread("old-server"))
        self._server = self._thread.run(self._listen())
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *exc):
        self._thread.run(self._end())
        self._stack.close()

    async def _listen(self):
        return await asyncio.get_running_loop().create_server(self._accept, "127.0.0.1", 0)

    def _accept(self):
        pair = _Pair(self, self._node.host, self._node.kv_port, self._bucket)
        self._pairs.append(pair)
        return pair.client

    async def _end(self):
        self._server.close()
        for pair in self._pairs:
            pair.close()
        await self._server.wait_closed()

    def url(self, bucket=None, **options):
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"couchbase://127.0.0.1:{self.port}/{bucket or self._bucket}" + (f"?{query}" if query else "")

    def find_requests(self, opcode):
        """Return the received requests with this opcode."""
        return [frame for frame in self.requests if frame.opcode == opcode]

    def answer(self, frame):
        """Return the release's answer to a request, or None if the node has to answer."""
        if frame.magic != Magic.REQUEST:
            return None
        release = self.release
        # The UPR draft has the kind of message at the place of the datatype, and other extras.
        if frame.datatype and len(frame.extras) in _STORED_EXTRAS and not release.has_datatypes:
            return reply(frame, Status.EINVAL)
        if frame.opcode in release.unknown:
            return reply(frame, Status.UNKNOWN_COMMAND)
        group = frame.key.decode().partition(" ")[0]  # without the number of a vbucket
        if frame.opcode == Opcode.STAT and (found := release.stats.get(group)) is not None:
            return reply(frame, found) if isinstance(found, Status) else statistics(frame, found)
        answer = release.answers.get(frame.opcode)
        if answer is None or isinstance(answer, Status):
            return None if answer is None else reply(frame, answer)
        return reply(frame, value=answer) if isinstance(answer, bytes) else answer(self, frame)


class _Side(asyncio.Protocol):
    """One of the two connections of a pair. It passes on whole frames, as bytes."""

    def __init__(self, on_frame, on_lost):
        self.ready: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._data = bytearray()

    def connection_made(self, transport):
        self.ready.set_result(transport)

    def data_received(self, data):
        self._data += data
        while len(self._data) >= HEADER_BYTES:
            size = HEADER_BYTES + int.from_bytes(self._data[8:12], "big")
            if len(self._data) < size:
                return
            frame, self._data = bytes(self._data[:size]), self._data[size:]
            self._on_frame(frame)

    def connection_lost(self, exc):
        self._on_lost()


class _Pair:
    """A client's connection and its connection to the node. The proxy selects the bucket, as a port or a login does."""

    def __init__(self, server, host, port, bucket):
        self._server = server
        self._early: list[bytes] = []
        self._is_open = False
        self.client = _Side(self._from_client, self.close)
        self.node = _Side(self._from_node, self.close)
        self._connecting = asyncio.ensure_future(self._connect(host, port, bucket))

    async def _connect(self, host, port, bucket):
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: self.node, host, port)
        transport.write(SelectBucket(key=bucket.encode(), opaque=_SELECT_OPAQUE).encode())
        transport.write(b"".join(self._early))
        self._is_open = True

    def _from_client(self, data):
        frame = cut_frame(memoryview(data), 0)
        self._server.requests.append(frame)
        answer = self._server.answer(frame)
        if answer is not None:
            self.client.ready.result().write(answer)
        elif self._is_open:
            self.node.ready.result().write(data)
        else:
            self._early.append(data)

    def _from_node(self, data):
        if int.from_bytes(data[12:16], "big") != _SELECT_OPAQUE:
            self.client.ready.result().write(data)

    def close(self):
        self._connecting.cancel()
        for side in (self.client, self.node):
            if side.ready.done():
                side.ready.result().close()
