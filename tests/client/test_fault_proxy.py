"""The fault proxy: each fault as the sockets on both of its sides see it."""

import socket
import threading
from contextlib import ExitStack

import pytest

from penstock.client.blocking import LoopThread
from penstock.pytest import FaultProxy, ProxySide
from tests.patience import PATIENCE
from tests.ports import free_ports


class Sides:
    """A proxy, and the two ends of connections through it."""

    def __init__(self, stack):
        self._stack = stack
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._listener.settimeout(PATIENCE)
        loop = stack.enter_context(LoopThread())
        self.proxy = stack.enter_context(FaultProxy(self._listener.getsockname(), loop))

    def dial(self):
        """Return the client's socket of a new connection."""
        return self._keep(socket.create_connection(("127.0.0.1", self.proxy.port), PATIENCE))

    def accept(self):
        """Return the server's socket of the next connection."""
        return self._keep(self._listener.accept()[0])

    def connect(self):
        return self.dial(), self.accept()

    def _keep(self, made):
        made.settimeout(PATIENCE)
        return self._stack.enter_context(made)


@pytest.fixture
def sides():
    with ExitStack() as stack:
        yield Sides(stack)


def read(sock, count):
    data = b""
    while len(data) < count and (more := sock.recv(count - len(data))):
        data += more
    return data


def assert_reset(sock):
    with pytest.raises(ConnectionResetError):
        sock.recv(1)


def test_bytes_pass_in_both_directions(sides):
    client, server = sides.connect()
    data = bytes(range(256)) * 4000
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    assert read(server, len(data)) == data
    sender.join(PATIENCE)
    server.sendall(b"answer")
    assert read(client, 6) == b"answer"
    assert (sides.proxy.accepted, sides.proxy.open_connections) == (1, 1)


def test_end_of_one_direction_leaves_the_other_open(sides):
    client, server = sides.connect()
    client.shutdown(socket.SHUT_WR)
    assert server.recv(1) == b""
    server.sendall(b"last")
    server.shutdown(socket.SHUT_WR)
    assert read(client, 5) == b"last"


def test_cut_resets_both_sides_and_lets_new_connections_through(sides):
    client, server = sides.connect()
    client.sendall(b"x")
    assert read(server, 1) == b"x"
    sides.proxy.cut()
    assert_reset(client)
    assert_reset(server)
    client, server = sides.connect()
    client.sendall(b"y")
    assert read(server, 1) == b"y"


@pytest.mark.parametrize("side", ProxySide)
def test_half_closed_side_reads_the_end_and_can_still_send(sides, side):
    client, server = sides.connect()
    client.sendall(b"x")
    assert read(server, 1) == b"x"
    sides.proxy.half_close(side)
    ended, other = (client, server) if side is ProxySide.CLIENT else (server, client)
    assert ended.recv(1) == b""
    ended.sendall(b"more")
    assert read(other, 4) == b"more"


def test_single_bytes_arrive_complete_and_in_order(sides):
    client, server = sides.connect()
    sides.proxy.single_bytes(10)
    client.sendall(bytes(range(200)))
    assert read(server, 200) == bytes(range(200))


def test_black_hole_keeps_bytes_until_it_is_healed(sides):
    client, server = sides.connect()
    sides.proxy.black_hole()
    client.sendall(b"held")
    later = sides.dial()
    later.sendall(b"too")
    server.setblocking(False)
    with pytest.raises(BlockingIOError):
        server.recv(1)
    server.settimeout(PATIENCE)
    sides.proxy.heal()
    assert read(server, 4) == b"held"
    assert read(sides.accept(), 3) == b"too"


@pytest.mark.parametrize("to", [*ProxySide])
def test_black_hole_of_one_direction_passes_the_other_on(sides, to):
    client, server = sides.connect()
    sink, source = (client, server) if to is ProxySide.CLIENT else (server, client)
    sides.proxy.black_hole(to)
    source.sendall(b"held")
    sink.sendall(b"passed")
    assert read(source, 6) == b"passed"
    sink.setblocking(False)
    with pytest.raises(BlockingIOError):
        sink.recv(1)
    sink.settimeout(PATIENCE)
    sides.proxy.heal()
    assert read(sink, 4) == b"held"


def test_refusing_proxy_resets_old_and_new_connections(sides):
    client, _ = sides.connect()
    sides.proxy.refuse()
    assert_reset(client)
    # The reset may come before or after the connection is seen as made.
    with pytest.raises(ConnectionError):
        assert sides.dial().recv(1)
    sides.proxy.heal()
    client, server = sides.connect()
    server.sendall(b"x")
    assert read(client, 1) == b"x"


def test_later_connection_overtakes_a_reordered_one(sides):
    early, early_server = sides.connect()
    sides.proxy.reorder(PATIENCE)
    late, late_server = sides.connect()
    early.sendall(b"1")
    late.sendall(b"2")
    assert read(late_server, 1) == b"2"
    early_server.setblocking(False)
    with pytest.raises(BlockingIOError):
        early_server.recv(1)


def test_delay_passes_everything_on(sides):
    client, server = sides.connect()
    sides.proxy.delay(0.01)
    client.sendall(b"slow")
    assert read(server, 4) == b"slow"
    server.sendall(b"answer")
    assert read(client, 6) == b"answer"


def test_connection_to_a_server_that_is_down_is_reset(sides):
    sides.proxy.target = ("127.0.0.1", *free_ports(1))
    with pytest.raises(ConnectionError):
        assert sides.dial().recv(1)
