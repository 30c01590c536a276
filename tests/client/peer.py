"""Peers for tests of the client: nodes that can be restarted, and scripted peers behind a real socket."""

import asyncio
import functools
import json
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import Any

from penstock.client.blocking import LoopThread
from penstock.node import Node
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.frame import Frame, join_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import pack_features, pack_vb_seqnos
from penstock.wire.protocol.frame_receiver import FrameReceiver, Slab
from tests.patience import PATIENCE


def in_loop(test):
    """Run a coroutine test in an event loop. It fails after PATIENCE seconds, or if it leaves a task behind."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        async def bounded():
            async with asyncio.timeout(PATIENCE):
                await test(*args, **kwargs)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(bounded())

    return run


class RestartableNode:
    """A node in a thread of its own. After a stop it can be started again on the same port, without its data."""

    def __init__(self, vbuckets=4):
        self.vbuckets = vbuckets
        self.port = 0
        self.start()

    def start(self):
        self._stack = ExitStack()
        self.node = self._stack.enter_context(Node.running(["beer"], vbuckets=self.vbuckets, port=self.port))
        self.port = self.node.kv_port

    def stop(self):
        self._stack.close()

    async def restart(self):
        await asyncio.to_thread(self.stop)
        await asyncio.to_thread(self.start)

    def url(self, **options):
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"couchbase://127.0.0.1:{self.port}/beer?{query}"


_PROCESS = """
import asyncio, json, sys
from penstock.node import Node

async def main():
    options = json.loads(sys.argv[2])
    node = await Node.start(port=int(sys.argv[1]), buckets=["beer"], **options)
    print(node.kv_port, flush=True)
    await node.wait_closed()

asyncio.run(main())
"""


class NodeProcess:
    """A node in a process of its own, which tests can kill.

    Args:
        port: KV port; 0: a free port.
        vbuckets: number of vbuckets.
        options: options of Node.start; `nodes` is the list of the ports of all nodes.
    """

    def __init__(self, port=0, vbuckets=4, **options):
        self.port = port
        self.options = json.dumps({"vbuckets": vbuckets, **options})
        self.start()

    def start(self):
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROCESS, str(self.port), self.options], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self):
        self._process.kill()
        self._process.communicate(timeout=PATIENCE)


def reply(frame, status=Status.SUCCESS, **parts):
    """Return the reply to a request as bytes."""
    return join_frame(Frame(Magic.RESPONSE, frame.opcode, status, opaque=frame.opaque, **parts))


def stats_reply(frame, stats):
    """Return the replies to a STAT request: one for each statistic, and the empty last one."""
    named = [reply(frame, key=name.encode(), value=str(value).encode()) for name, value in stats.items()]
    return b"".join([*named, reply(frame)])


class Peer(asyncio.Protocol):
    """One connection to a scripted peer.

    Attributes:
        requests: the received frames.
        lost: set when the other side has closed the connection.
    """

    def __init__(self, script):
        self.script = script
        self.requests = []
        self.incoming = FrameReceiver(Slab(1 << 16), run_dialect=None)
        self.lost = asyncio.Event()

    def connection_lost(self, exc):
        self.lost.set()

    def connection_made(self, transport):
        self.transport = transport
        self.script.peers.append(self)

    def data_received(self, data):
        for frame in self.incoming.feed(data):
            self.requests.append(frame)
            answer = self.script.answer(self, frame)
            self.transport.write(self.script.set_up(frame) if answer is None else answer)


class Script:
    """A listener that answers requests as a test decides.

    It has no documents and no changes. By default it answers only the requests that set up a connection.

    Args:
        answer: `answer(peer, frame)` returns bytes, or None for the default answer.
        vbuckets: number of vbuckets in the cluster map.

    Attributes:
        config: the cluster map.
        peers: connections in the order of their arrival.
        port: port of the listener while the script is entered.
    """

    def __init__(self, answer=lambda peer, frame: None, vbuckets=2):
        self.answer = answer
        self.config: dict[str, Any] = {"vBucketServerMap": {"serverList": ["h:1"], "vBucketMap": [[0]] * vbuckets}}
        self.peers = []

    async def __aenter__(self):
        self._server = await asyncio.get_running_loop().create_server(lambda: Peer(self), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc):
        self._server.close()
        for peer in self.peers:
            peer.transport.abort()
        await self._server.wait_closed()

    def url(self, **options):
        return f"couchbase://127.0.0.1:{self.port}/beer?" + "&".join(f"{k}={v}" for k, v in options.items())

    def set_up(self, frame):
        if frame.magic == Magic.RESPONSE or frame.opcode == Opcode.DCP_BUFFER_ACK:
            return b""
        vbuckets = range(len(self.config["vBucketServerMap"]["vBucketMap"]))
        if frame.opcode == Opcode.STAT and frame.key == b"vbucket":
            states = [reply(frame, key=b"vb_%d" % vbucket, value=b"active") for vbucket in vbuckets]
            return b"".join((*states, reply(frame)))
        values = {
            Opcode.GET_CLUSTER_CONFIG: json.dumps(self.config).encode(),
            Opcode.HELLO: pack_features([Feature.SELECT_BUCKET]),
            Opcode.GET_ALL_VB_SEQNOS: pack_vb_seqnos((vbucket, 0) for vbucket in vbuckets),
        }
        extras = bytes(4) if frame.opcode == Opcode.GET else b""
        return reply(frame, value=values.get(frame.opcode, b""), extras=extras)


@contextmanager
def serving(script):
    """Run a script in a thread of its own, for callers without an event loop."""
    with LoopThread("script") as loop:
        loop.run(script.__aenter__())
        try:
            yield script
        finally:
            loop.run(script.__aexit__())


def documents(first, behind, size=10):
    return [(f"k{number}", b"%d" % number + b"." * size) for number in range(first, behind)]
