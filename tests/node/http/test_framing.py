"""Ambiguous HTTP requests, which two programs could read differently: refused, and no later bytes are served."""

import asyncio
import contextlib
import re
import socket
import ssl
import struct
from datetime import UTC, datetime

import pytest

from penstock.node import Node
from penstock.node.auth.certificates import make_certificates
from penstock.node.http.protocol.request_reader import MAX_BODY, MAX_FIELD_LINES, MAX_HEAD_BYTES
from tests.node.http.web_client import WebClient, open_connection, read_to_end
from tests.node.serve_process import wait_for
from tests.node.watch import run
from tests.patience import PATIENCE

POST = b"POST /pools/default/buckets HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET /pools HTTP/1.1\r\nHost: localhost\r\n"
HIDDEN = b"GET /whoami HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"0\r\n\r\n"
STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")

REFUSED = [
    ("CL.TE", POST + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG", 400),
    ("TE.CL", POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n" + HIDDEN, 400),
    ("TE.TE, other second", POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: cow\r\n\r\n" + CHUNKED, 501),
    ("TE.TE, the same twice", POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
    ("TE xchunked", POST + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKED, 501),
    ("TE list", POST + b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKED, 501),
    ("TE gzip", POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKED, 501),
    ("TE quoted", POST + b'Transfer-Encoding: "chunked"\r\n\r\n' + CHUNKED, 501),
    ("TE vertical tab", POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKED, 400),
    ("TE folded", POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + CHUNKED, 400),
    ("TE space before colon", POST + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKED, 400),
    ("TE in HTTP/1.0", POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED, 400),
    ("CL twice", POST + b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n" + HIDDEN, 400),
    ("CL list", POST + b"Content-Length: 0, 44\r\n\r\n" + HIDDEN, 400),
    ("CL negative", POST + b"Content-Length: -1\r\n\r\n", 400),
    ("CL plus", POST + b"Content-Length: +5\r\n\r\nname=", 400),
    ("CL hexadecimal", POST + b"Content-Length: 0x5\r\n\r\nname=", 400),
    ("CL underscore", POST + b"Content-Length: 1_0\r\n\r\nname=12345", 400),
    ("CL empty", POST + b"Content-Length:\r\n\r\n", 400),
    ("CL space inside", POST + b"Content-Length: 4 4\r\n\r\n", 400),
    ("CL space before colon", POST + b"Content-Length : 44\r\n\r\n" + HIDDEN, 400),
    ("CL other digits", POST + "Content-Length: ٤٤\r\n\r\n".encode() + HIDDEN, 400),
    ("CL long", POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", 400),
    ("CL over the limit", POST + b"Content-Length: %d\r\n\r\n" % (MAX_BODY + 1), 413),
    ("bare LF", b"GET /pools HTTP/1.1\nHost: localhost\n\n" + HIDDEN, 400),
    ("bare LF at the end", GET + b"X: y\n\r\n", 400),
    ("bare LF in a value", GET + b"X: a\nContent-Length: 44\r\n\r\n" + HIDDEN, 400),
    ("bare CR", GET + b"X: a\rContent-Length: 44\r\n\r\n" + HIDDEN, 400),
    ("bare CR in the request line", b"GET /pools\rHTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    ("folded", GET + b"X: a\r\n b\r\n\r\n", 400),
    ("folded with a tab", GET + b"X: a\r\n\tContent-Length: 44\r\n\r\n" + HIDDEN, 400),
    ("folded first line", b"GET /pools HTTP/1.1\r\n Host: localhost\r\n\r\n", 400),
    ("NUL", GET + b"X: a\x00b\r\n\r\n", 400),
    ("control byte", GET + b"X: a\x01b\r\n\r\n", 400),
    ("DEL", GET + b"X: a\x7fb\r\n\r\n", 400),
    ("no name", GET + b": a\r\n\r\n", 400),
    ("no colon", GET + b"abc\r\n\r\n", 400),
    ("name that is no token", GET + b"a(b): c\r\n\r\n", 400),
    ("two hosts", GET + b"Host: elsewhere\r\n\r\n", 400),
    ("no host", b"GET /pools HTTP/1.1\r\n\r\n", 400),
    ("two spaces", b"GET  /pools HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    ("HTTP/0.9", b"GET /pools\r\n\r\n", 400),
    ("HTTP/1.2", b"GET /pools HTTP/1.2\r\nHost: localhost\r\n\r\n", 505),
    ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ("absolute target of another host", b"GET http://elsewhere/pools HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    ("absolute target with a user", b"GET http://a@localhost/pools HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    ("authority as target", b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    ("relative target", b"GET pools HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    ("asterisk", b"GET * HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    ("TLS", b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(200), 400),
    ("KV", b"\x80\x00\x00\x00" + bytes(20), 400),
    ("too many header lines", GET + b"A: b\r\n" * MAX_FIELD_LINES + b"\r\n", 431),
    ("head in one piece", GET + b"X: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
    ("head one byte too long", GET + b"X: " + b"x" * (MAX_HEAD_BYTES - len(GET) - 6) + b"\r\n\r\n", 431),
    ("head without end", GET + b"X: " + b"x" * MAX_HEAD_BYTES, 431),
    ("target too long", b"GET /" + b"x" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
]


@pytest.fixture(scope="module")
def node():
    with Node.running(["beer"], vbuckets=4) as node:
        yield node


@pytest.fixture(scope="module")
def tls_node(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tls")
    made = make_certificates([], "root", 2, datetime.now(UTC))["server"]
    (directory / "pem").write_bytes(made.certificate)
    (directory / "key").write_bytes(made.key)
    with Node.running(["beer"], vbuckets=4, tls_port=0, certificate=directory / "pem", key=directory / "key") as node:
        yield node


@pytest.mark.parametrize(("request_", "status"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_ambiguous_request_is_refused_and_ends_the_connection(node, request_, status):
    with open_connection(node, request_) as connection:
        answer = read_to_end(connection)
    assert [int(found) for found in STATUS.findall(answer)] == [status], answer
    assert b"connection: close" in answer


@pytest.mark.parametrize("request_", [row[1] for row in REFUSED[:6]], ids=[row[0] for row in REFUSED[:6]])
def test_ambiguous_request_is_refused_byte_by_byte(node, request_):
    with open_connection(node) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(ConnectionError):
            for value in request_:
                connection.sendall(bytes((value,)))
        answer = read_to_end(connection)
    assert len(STATUS.findall(answer)) <= 1  # the system may drop the response as more bytes arrive
    assert not answer or answer[9:10] in b"45"


CHUNKED_BODIES = [
    ("whole", b"9\r\nramQuota=\r\n0\r\n\r\n", b"ramQuota"),
    ("extension", b'9;a="b"\r\nramQuota=\r\n0\r\n\r\n', b"ramQuota"),
    ("trailer", b"9\r\nramQuota=\r\n0\r\nX: y\r\n\r\n", b"ramQuota"),
    ("no size", b"\r\nramQuota=\r\n0\r\n\r\n", b""),
    ("negative size", b"-9\r\nramQuota=\r\n0\r\n\r\n", b""),
    ("size with 0x", b"0x9\r\nramQuota=\r\n0\r\n\r\n", b""),
    ("size overflow", b"f" * 21 + b"\r\nramQuota=\r\n0\r\n\r\n", b""),
    ("wrong size", b"5\r\nramQuota=\r\n0\r\n\r\n", b""),
    ("bare LF", b"9\nramQuota=\n0\n\n", b""),
    ("endless extension", b"9;" + b"a" * (MAX_HEAD_BYTES + 1), b""),
]


@pytest.mark.parametrize(("body", "why"), [row[1:] for row in CHUNKED_BODIES], ids=[row[0] for row in CHUNKED_BODIES])
def test_chunked_body_is_read_exactly_and_ends_its_connection(node, body, why):
    with open_connection(node, POST + b"Transfer-Encoding: chunked\r\n\r\n" + body + HIDDEN) as connection:
        connection.shutdown(socket.SHUT_WR)
        answer = read_to_end(connection)
    assert STATUS.findall(answer) == [b"400"]
    assert why in answer
    assert b'"domain"' not in answer  # the hidden request was not served


def test_huge_chunk_is_refused_at_once(node):
    with open_connection(node, POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 16 + b"\r\n") as connection:
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                connection.sendall(bytes(0x10000))
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 413") or not answer


SERVED = [
    ("head at the limit", GET + b"X: " + b"x" * (MAX_HEAD_BYTES - len(GET) - 7) + b"\r\n\r\n"),
    ("absolute target", b"GET http://localhost/pools HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    ("CRLF before", b"\r\n" + GET + b"\r\n"),
    ("most header lines", GET + b"A: b\r\n" * (MAX_FIELD_LINES - 1) + b"\r\n"),
    ("other bytes in a value", GET + "X: ü\r\n\r\n".encode()),
    ("upgrade", GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"),
    ("HTTP/1.0", b"GET /pools HTTP/1.0\r\n\r\n"),
    ("unread body", GET + b"Content-Length: 5\r\n\r\nabcde"),
]


@pytest.mark.parametrize("request_", [row[1] for row in SERVED], ids=[row[0] for row in SERVED])
def test_valid_request_is_served(node, request_):
    with open_connection(node, request_) as connection:
        connection.shutdown(socket.SHUT_WR)
        answer = read_to_end(connection)
    assert STATUS.findall(answer) == [b"200"]
    assert b"implementationVersion" in answer


def test_unread_body_is_not_read_as_a_request(node):
    whoami = b"GET /whoami HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with open_connection(node, GET + b"Content-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN + whoami) as connection:
        answer = read_to_end(connection)
    assert STATUS.findall(answer) == [b"200", b"200"]
    assert answer.count(b'"domain"') == 1


def test_client_that_leaves_within_an_unread_body_is_forgotten(node):
    with open_connection(node, GET + b"Content-Length: 5\r\n\r\n") as connection:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        connection.shutdown(socket.SHUT_WR)
        assert not read_to_end(connection)


def test_connection_that_the_client_has_just_reset_ends(node):
    with open_connection(node, GET + b"\r\n") as connection:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")

        def reset_and_end():
            name = connection.getsockname()  # a client of a former node at this port may be connected too
            (served,) = (one for one in node.http.connections if one.transport.get_extra_info("peername") == name)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            served.end()  # before the event loop sees the reset
            return served

        served = run(node, reset_and_end)
        wait_for(lambda: served not in node.http.connections, "the end of the connection")


def test_expect_continue_is_answered(node):
    with open_connection(node, POST + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n") as connection:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"a=b")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400 ")


def test_pipelined_requests_are_answered_in_order_and_bounded(node):
    """A client that reads no responses can send only as many bytes as the buffers on the way hold."""
    many = b"GET /pools/default/b/beer HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE)
        connection.connect((node.host, node.http_port))
        sent = _send_until_blocked(connection, many)
        assert WebClient(node).get_json("/pools/default/b/beer")["name"] == "beer"
        written = 0
        while not written:  # the sent bytes may still be on their way
            read, written = asyncio.run_coroutine_threadsafe(_get_most_buffered(node), node.loop).result(PATIENCE)
    assert sent > read
    assert read < 3 * MAX_HEAD_BYTES
    assert written < 16 * MAX_HEAD_BYTES


def _send_until_blocked(connection, data):
    """Send the data repeatedly until the node reads no more, and return how many bytes the system accepted."""
    connection.settimeout(1.0)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while True:
            sent += connection.send(data[sent % len(data) :])
    return sent


async def _get_most_buffered(node):
    sizes = [(one.pipeline.buffered_bytes, one.transport.get_write_buffer_size()) for one in node.http.connections]
    return max(sizes)


def test_invalid_requests_are_logged_once_a_minute(caplog):
    with Node.running(["beer"], vbuckets=4) as node:
        for _ in range(20):
            with open_connection(node, b"\x16\x03\x01") as connection:
                read_to_end(connection)
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert lines == ["HTTP: request of 127.0.0.1 refused: invalid HTTP request: byte 0x16 in its head"]


def test_one_address_leaves_connections_for_others():
    with Node.running(["beer"], vbuckets=4) as node, contextlib.ExitStack() as opened:
        node.http.shares.places = 8
        sent = [opened.enter_context(open_connection(node, b"GET / HTTP/1.1\r\nHost: lo")) for _ in range(8)]
        assert [bool(read_to_end(connection)) for connection in sent[4:]] == [False] * 4  # ended at once
        other = opened.enter_context(socket.socket())
        other.settimeout(PATIENCE)
        other.bind(("127.0.0.2", 0))
        other.connect((node.host, node.http_port))
        other.sendall(GET + b"\r\n")
        assert other.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_plain_http_on_the_tls_port_gets_no_response(tls_node):
    with socket.create_connection((tls_node.host, tls_node.https_port), timeout=PATIENCE) as connection:
        connection.sendall(GET + b"\r\n")
        assert not STATUS.search(read_to_end(connection))


def test_tls_connections_have_the_same_rules(tls_node):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for request, status in ((row[1], row[2]) for row in REFUSED if row[0] in ("CL.TE", "bare LF", "head in one piece")):
        with (
            socket.create_connection((tls_node.host, tls_node.https_port), timeout=PATIENCE) as plain,
            context.wrap_socket(plain) as connection,
        ):
            connection.sendall(request)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 %d " % status)
