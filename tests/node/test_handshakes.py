"""TLS connections: their memory, limits before and during handshakes, and reloads of the CA."""

import asyncio
import os
import socket
import ssl
import tracemalloc
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime

import pytest

from penstock.errors import UsageError
from penstock.node import Node
from penstock.node.auth.certificates import make_certificates
from penstock.node.transport import tls_handshakes
from penstock.node.transport.tls_connection import READ_BYTES
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Get, Noop
from tests.node.watch import run
from tests.node.wire_client import connected
from tests.patience import PATIENCE

CONNECTIONS = 40


@pytest.fixture
def certificates(tmp_path):
    """Write the files of a node (`pem`, `key`), of a client (`client`, `client_key`), and their CA (`ca`).

    Returns:
        The directory of the files.
    """
    made = make_certificates([], "root", 2, datetime.now(UTC))
    files = {
        "pem": made["server"].certificate,
        "key": made["server"].key,
        "ca": made["ca"].certificate,
        "client": made["client"].certificate,
        "client_key": made["client"].key,
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@contextmanager
def run_tls_node(certificates, **options):
    """Run a node with TLS, and yield it with the context of its clients."""
    context = ssl.create_default_context(cafile=certificates / "ca")
    files = {"certificate": certificates / "pem", "key": certificates / "key"}
    with Node.running(vbuckets=1, tls_port=0, **files, **options) as node:
        yield node, context


@pytest.fixture
def encrypted(certificates):
    with run_tls_node(certificates) as both:
        yield both


def test_idle_connection_keeps_a_small_buffer(encrypted):
    node, context = encrypted
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(node, tls=context))]
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            clients += [stack.enter_context(connected(node, tls=context)) for _ in range(CONNECTIONS)]
            for client in clients:
                assert client.status(Noop()) == Status.SUCCESS
            each = (tracemalloc.get_traced_memory()[0] - before) / CONNECTIONS
        finally:
            tracemalloc.stop()
    assert each < (1 << 16) + 16 * 1024  # the client's slab and the node's objects; tracemalloc does not count OpenSSL


@pytest.mark.parametrize("nbytes", [4 * READ_BYTES, 18 << 20])
def test_message_longer_than_the_buffer_arrives(encrypted, nbytes):
    node, context = encrypted
    value = bytes(range(256)) * (nbytes // 256)
    with connected(node, tls=context) as client:
        assert client.set(b"k", value).specific == Status.SUCCESS
        client.send(Get(key=b"k"), Noop(), Get(key=b"k"))
        assert [client.receive().value for _ in range(3)] == [value, b"", value]


def test_silent_tls_peers_need_little_memory(encrypted):
    """The peers cost only their sockets in this process, so the growth is the memory of the node."""
    node, context = encrypted
    with ExitStack() as stack, connected(node, tls=context) as client:
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(CONNECTIONS):
                stack.enter_context(socket.create_connection((node.host, node.tls_port), PATIENCE))
            assert client.status(Noop()) == Status.SUCCESS
            with connected(node, tls=context) as last:
                assert last.status(Noop()) == Status.SUCCESS
            each = (tracemalloc.get_traced_memory()[0] - before) / CONNECTIONS
        finally:
            tracemalloc.stop()
    assert each < 8 * 1024


def test_silent_tls_peers_are_limited(certificates, monkeypatch):
    monkeypatch.setattr(tls_handshakes, "MAX_SILENT", 6)
    with run_tls_node(certificates) as (node, context), ExitStack() as stack:
        address = (node.host, node.tls_port)
        silent = [stack.enter_context(socket.create_connection(address, PATIENCE)) for _ in range(4)]
        assert is_closed(silent[0])
        with connected(node, tls=context) as client:  # one more connection, so the second is ended as well
            assert client.status(Noop()) == Status.SUCCESS
        assert is_closed(silent[1])
        assert is_open(silent[2])


HELLO = bytes.fromhex("1603010200010001fc0303")  # the first bytes of a ClientHello


@pytest.mark.parametrize("port", ["tls_port", "https_port"])
def test_simultaneous_handshakes_are_limited(certificates, monkeypatch, port):
    """Peers of other addresses and peers without a whole ClientHello are not counted."""
    monkeypatch.setattr(tls_handshakes, "MAX_HANDSHAKES", 6)
    with run_tls_node(certificates) as (node, context), ExitStack() as stack:
        address = (node.host, getattr(node, port))
        silent = stack.enter_context(socket.create_connection(address, PATIENCE))
        silent.send(HELLO)
        other = stack.enter_context(socket.create_connection(address, PATIENCE, ("127.0.0.2", 0)))
        waiting = [stack.enter_context(socket.create_connection(address, PATIENCE)) for _ in range(5)]
        for peer in (other, *waiting):
            peer.send(make_client_hello(context))
            assert peer.recv(1)  # the ServerHello
        assert read_to_end(waiting[0])
        assert read_to_end(waiting[1])
        with connected(node, tls=context) as client:
            assert client.status(Noop()) == Status.SUCCESS
        assert is_open(silent)


def make_client_hello(context):
    """Return the bytes of a ClientHello."""
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1").do_handshake()
    return outgoing.read()


def read_to_end(peer):
    """Read up to the end of a connection."""
    try:
        while peer.recv(1 << 16):
            continue
    except ConnectionResetError:
        pass
    return True


def is_open(peer):
    peer.settimeout(0)
    try:
        return bool(peer.recv(1))
    except BlockingIOError:
        return True


@pytest.mark.parametrize("pieces", [1, 7, 1000])
def test_handshake_in_pieces_succeeds(encrypted, pieces):
    """The client also closes its TLS session while it reads a reply."""
    node, context = encrypted
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with socket.create_connection((node.host, node.tls_port), PATIENCE) as peer:

        def run_until_done(work):
            while True:
                try:
                    return work()
                except ssl.SSLWantReadError:
                    send()
                    incoming.write(peer.recv(1 << 16))

        def send():
            data = outgoing.read()
            size = max(len(data) // pieces, 1)
            for start in range(0, len(data), size):
                peer.sendall(data[start : start + size])

        run_until_done(tls.do_handshake)
        tls.write(Noop().encode())
        send()
        assert run_until_done(lambda: tls.read(24))[1] == Noop().encode()[1]
        with suppress(ssl.SSLWantReadError):
            tls.unwrap()
        send()
        with suppress(ssl.SSLWantReadError):
            incoming.write(peer.recv(1 << 16))
            tls.unwrap()  # the node has closed its side too
        assert is_closed(peer)


@pytest.mark.parametrize(
    "sent", [bytes(24), b"\x80\x0a" + bytes(22), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(99)]
)
def test_bytes_without_handshake_end_connection(encrypted, sent):
    node, context = encrypted
    with socket.create_connection((node.host, node.tls_port), PATIENCE) as peer:
        peer.sendall(sent)
        assert read_to_end(peer)
    with connected(node, tls=context) as client:
        assert client.status(Noop()) == Status.SUCCESS


def test_damaged_record_ends_connection(encrypted):
    node, context = encrypted
    with connected(node, tls=context) as client, socket.socket(fileno=os.dup(client.socket.fileno())) as raw:
        assert client.status(Noop()) == Status.SUCCESS
        raw.settimeout(PATIENCE)
        raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        assert read_to_end(raw)


def test_late_reader_gets_the_whole_reply(encrypted):
    """The replies exceed the node's buffer for a connection, so the node pauses."""
    node, context = encrypted
    value, times = b"v" * 1_000_000, 12
    with connected(node, tls=context, receive_buffer=1 << 16) as client:
        assert client.set(b"k", value).specific == Status.SUCCESS
        client.send(*[Get(key=b"k")] * times, *[Noop()] * 1000)
        for _ in range(times):
            assert client.receive().value == value
        assert {client.receive().specific for _ in range(1000)} == {Status.SUCCESS}


def is_closed(peer):
    try:
        return not peer.recv(1)
    except ConnectionResetError:
        return True


def test_stopping_node_does_not_wait_for_handshakes(encrypted):
    node, _ = encrypted
    peer = socket.create_connection((node.host, node.tls_port), PATIENCE)
    asyncio.run_coroutine_threadsafe(node.stop(), node.loop).result(PATIENCE)
    with peer:
        assert is_closed(peer)


@pytest.mark.parametrize("kept_ca", [False, True], ids=["removed", "another added"])
def test_certificates_of_a_removed_ca_are_refused(certificates, kept_ca):
    """Open connections end, and new connections are refused, also if they resume an earlier session."""
    (certificates / "cas").write_bytes((certificates / "ca").read_bytes())
    with run_tls_node(certificates, client_ca=certificates / "cas") as (node, context), ExitStack() as stack:
        certified = ssl.create_default_context(cafile=certificates / "ca")
        certified.load_cert_chain(certificates / "client", certificates / "client_key")
        client = stack.enter_context(connected(node, tls=certified))
        assert client.status(Noop()) == Status.SUCCESS
        uncertified = stack.enter_context(connected(node, tls=context))
        assert uncertified.status(Noop()) == Status.SUCCESS
        session = client.socket.session

        other = make_certificates([], "root", 2, datetime.now(UTC))["ca"].certificate
        kept = (certificates / "ca").read_bytes() if kept_ca else b""
        (certificates / "cas").write_bytes(kept + other)
        run(node, node.reload)
        assert uncertified.status(Noop()) == Status.SUCCESS
        if kept_ca:
            assert client.status(Noop()) == Status.SUCCESS
            return
        assert read_to_end(client.socket)
        for earlier in (None, session):
            with pytest.raises((ssl.SSLError, ConnectionResetError)), connect_tls(node, certified, earlier) as refused:
                refused.recv(1)
        with connected(node, tls=context) as newer:
            assert newer.status(Noop()) == Status.SUCCESS


@contextmanager
def connect_tls(node, context, session):
    """Connect with TLS, and resume a session unless it is None."""
    with (
        socket.create_connection((node.host, node.tls_port), PATIENCE) as peer,
        context.wrap_socket(peer, server_hostname=node.host, session=session) as encrypted,
    ):
        yield encrypted


def test_failed_reload_changes_nothing(certificates):
    (certificates / "cas").write_bytes((certificates / "ca").read_bytes())
    with run_tls_node(certificates, client_ca=certificates / "cas") as (node, _):
        certified = ssl.create_default_context(cafile=certificates / "ca")
        certified.load_cert_chain(certificates / "client", certificates / "client_key")
        with connected(node, tls=certified) as client:
            (certificates / "cas").write_bytes(b"nothing")
            with pytest.raises(UsageError, match="no certificate in PEM form"):
                run(node, node.reload)
            assert client.status(Noop()) == Status.SUCCESS
            with connected(node, tls=certified) as newer:
                assert newer.status(Noop()) == Status.SUCCESS
