"""Start and stop of a node: its options, ports and connections."""

import asyncio
import socket
import threading

import pytest

from penstock.errors import Error, UsageError
from penstock.node import Node
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Get, Noop
from tests.node.wire_client import WireClient, connected
from tests.patience import PATIENCE

WRONG = [
    ({"host": "0.0.0.0"}, "0.0.0.0"),
    ({"host": "192.0.2.1"}, "192.0.2.1"),
    ({"host": "::"}, "::"),
    ({"host": "example.org"}, "example.org"),
    ({"host": ""}, "''"),
    ({"port": -1}, "-1"),
    ({"port": 65536}, "65536"),
    ({"vbuckets": 0}, "0"),
    ({"vbuckets": 100}, "100"),
    ({"vbuckets": 131072}, "131072"),
    ({"buckets": []}, "no bucket"),
    ({"buckets": ["a", "b", "a"]}, "twice"),
    ({"buckets": ["with space"]}, "'with space'"),
    ({"buckets": [""]}, "''"),
    ({"buckets": ["x" * 101]}, "xxx"),
]


@pytest.mark.parametrize(("options", "found"), WRONG)
def test_invalid_options_are_refused_in_one_sentence(options, found):
    with pytest.raises(UsageError, match=r"expected|users|twice") as raised, Node.running(**options):
        pass
    assert found in str(raised.value)
    assert "\n" not in str(raised.value)


def test_port_in_use_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Error, match=f"cannot listen on 127.0.0.1 port {port}"), Node.running(port=port):
            pass
        text = f"port {port} for management: .*; another http_port can be chosen, 0 for any"
        with pytest.raises(Error, match=text), Node.running(http_port=port):
            pass


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("::1", "[::1]")]
)
def test_url_names_host_port_and_bucket(host, address):
    try:
        with Node.running(["beer", "wine"], vbuckets=1, host=host) as node:
            assert node.url("beer") == f"couchbase://{address}:{node.kv_port}/beer"
            with pytest.raises(UsageError, match="no bucket 'water'; expected one of beer, wine"):
                node.url("water")
    except UsageError:
        if host != "::1":
            raise
        pytest.skip("no IPv6 on this machine")


def test_functions_run_on_the_thread_of_the_node():
    def fail():
        raise TimeoutError("of the function")

    with Node.running(vbuckets=1) as node:
        thread = node.call(threading.get_ident)
        assert thread != threading.get_ident()
        assert node.call(lambda: node.call(threading.get_ident)) == thread
        with pytest.raises(TimeoutError, match="of the function"):
            node.call(fail)
    with pytest.raises(UsageError, match="the node has ended"):
        node.call(threading.get_ident)


def test_port_is_free_after_a_stop():
    with Node.running(vbuckets=1) as node, connected(node) as client:
        port = node.kv_port
        assert client.status(Noop()) == Status.SUCCESS
    with Node.running(vbuckets=1, port=port) as node, connected(node) as client:
        assert node.kv_port == port
        assert client.status(Noop()) == Status.SUCCESS


def test_stop_ends_connections_and_leaves_no_task():
    async def run():
        node = await Node.start(port=0, vbuckets=4)
        loop = asyncio.get_running_loop()

        def stop_during_use():
            with connected(node) as idle, connected(node) as streaming:
                streaming.open().control("enable_noop", "true")
                assert streaming.stream(0).specific == Status.SUCCESS
                assert idle.status(Noop()) == Status.SUCCESS
                asyncio.run_coroutine_threadsafe(node.stop(), loop).result(PATIENCE)
                return idle.ended(), streaming.ended()

        ended = await asyncio.wait_for(loop.run_in_executor(None, stop_during_use), PATIENCE)
        await asyncio.wait_for(node.wait_closed(), PATIENCE)
        assert ended == (True, True)
        assert not node.connections.open_connections
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_stop_does_not_wait_for_a_peer_that_does_not_read():
    with Node.running(vbuckets=1) as node:
        client = WireClient(node, receive_buffer=4096)
        client.set(b"k", bytes(16 << 20))
        client.send(*[Get(key=b"k")] * 4)
        assert len(client.socket.recv(1)) == 1
    client.close()
    assert not node.connections.open_connections
