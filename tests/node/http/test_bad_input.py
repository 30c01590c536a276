"""Input that is no HTTP request, or exceeds the limits of one."""

import asyncio
import contextlib
import json
import re
import socket
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.node import Node
from penstock.node.http.dashboard.dashboard_pages import make_dashboard_pages
from penstock.node.http.http_app import PAGES
from penstock.node.http.pages import forms
from penstock.node.http.protocol import request_pipeline, response_output
from penstock.node.http.protocol.request_reader import MAX_BODY, MAX_HEAD_BYTES
from tests.examples import scaled
from tests.node.http.web_client import WebClient, open_connection, read_to_end
from tests.node.manifests import DEFAULT, set_scopes
from tests.node.wire_client import connected
from tests.patience import PATIENCE

BUCKETS = "/pools/default/buckets"
FORM = "application/x-www-form-urlencoded"


def is_served(node):
    return WebClient(node).get_json("/pools/default/b/beer")["name"] == "beer"


BODIES = [
    (b"name=%ff", 400, b"UTF-8"),
    (b"\xff\xfe", 400, b"UTF-8"),
    (b"&".join(b"f%d=1" % number for number in range(forms.MAX_FIELDS + 1)), 400, b"fields"),
    (b"name=wine&name=water", 400, b"twice"),
    (b'{"name": "wine"}', 400, b"name"),
    (b"[" * 100_000, 400, b"name"),
    (b"", 400, b"name"),
    (b"name=" + b"x" * MAX_BODY, 413, b"1048576"),
]


@pytest.mark.parametrize(("body", "status", "why"), BODIES, ids=[str(row[1:]) for row in BODIES])
def test_body_that_is_not_a_valid_form_is_refused(node, web, body, status, why):
    answer = web.ask("POST", BUCKETS, body=body, headers={"Content-Type": FORM})
    assert answer.status == status
    assert why in answer.body
    assert list(node.buckets) == ["default", "beer"]


def test_endless_body_is_cut_off(node):
    head = b"POST /pools/default/buckets HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    with open_connection(node, head) as connection:
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                connection.sendall(chunk)
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 413") or not answer  # the system may drop the response when the connection ends
    assert is_served(node)


REQUESTS = [
    b"\r\n\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: local host\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\x00y\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (MAX_HEAD_BYTES + 1),
    b"GET /" + b"x" * (MAX_HEAD_BYTES + 1),
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    b"\x80\x00\x00\x00" + bytes(20),
    b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(200),
]


@pytest.mark.parametrize("request_", REQUESTS)
def test_invalid_request_is_refused(node, request_):
    with open_connection(node, request_) as connection:
        connection.shutdown(1)
        answer = read_to_end(connection)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))
    assert is_served(node)


PATHS = st.lists(
    st.sampled_from(
        ["pools", "default", "buckets", "b", "bs", "beer", "scopes", "_default", "collections", "..", "%00", "%2f", "*"]
    ),
    max_size=8,
)


@settings(max_examples=scaled(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["GET", "POST", "PATCH", "PUT", "OPTIONS", "HEAD", "TRACE"]),
    path=PATHS,
    body=st.binary(max_size=100),
)
def test_any_path_and_body_get_a_response(node, method, path, body):
    where = "/" + "/".join(path)
    if "bs" in path and method in ("GET", "HEAD"):
        return  # the response of a stream does not end
    answer = WebClient(node).ask(method, where, body=body, headers={"Content-Type": FORM})
    assert 200 <= answer.status < 500
    assert b"Traceback" not in answer.body


NAMES = [
    "allowUnsafe", "bucket", "collections", "enabled", "filter_key", "filter_value", "hostname", "knownNodes", "maxTTL",
    "name", "numVBuckets", "otpNode", "password", "positions", "ramQuota", "replicaNumber", "roles", "scopes",
    "timeout", "uid", "vbuckets",
]  # fmt: skip
NUMBERS = st.sampled_from([-(2**63), -1, 0, 1, 4, 2**31, 2**63, 2**64, 1e308, float("nan"), float("inf")])
TEXTS = st.sampled_from(
    ["", "0", "-1", "\u00b2", "beer", "_default", "_default._default", "(", "n >", "\0", "\ud800", "x" * 5000]
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = (
    LEAVES
    | st.lists(NUMBERS, min_size=4, max_size=4)
    | st.lists(LEAVES, max_size=2)
    | st.dictionaries(TEXTS, LEAVES, max_size=2)
)
BODIES_OF_ANY_KIND = st.one_of(
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5).map(lambda found: json.dumps(found).encode()),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5).map(
        lambda found: urlencode(
            {name: str(value).encode("utf-8", "surrogatepass") for name, value in found.items()}
        ).encode()
    ),
    st.sampled_from(
        [b"[" * 100_000, b'{"positions":' + b"[" * 100_000, b'{"name":1e999}', b'{"name":"\\ud800"}', b"null"]
    ),
)
ENDLESS = re.compile("events|streaming|/bs/|bucketsStreaming|ensureManifest")  # they answer later, or go on


@settings(max_examples=scaled(1000), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_no_page_fails_for_any_body(node, data):
    pages = [page for page in (*PAGES, *make_dashboard_pages(node.http.state)) if not ENDLESS.search(page.path)]
    page = data.draw(st.sampled_from(pages))
    buckets = st.just("nope") if page.method == "DELETE" else st.sampled_from(["beer", "beer", "beer", "nope"])
    parts = st.sampled_from(["0", "-1", "\u00b2", "9" * 30, "_default", "local", "%", "..", "@", "\0", "x" * 300])
    path = re.sub(
        r"\{(\w+)[^}]*\}", lambda part: quote(data.draw(buckets if part[1] == "bucket" else parts), safe=""), page.path
    )
    body = data.draw(BODIES_OF_ANY_KIND)
    kind = "application/json" if body[:1] in b"{[n" else FORM
    answer = WebClient(node).ask(
        page.method, path, body=body, headers={"Content-Type": kind, "x-penstock-request": "dashboard"}
    )
    assert answer.status < 500, (page.method, path, body[:200], answer.body)


@settings(max_examples=scaled(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_random_bytes_leave_the_node_running(node, data):
    with open_connection(node, data) as connection:
        connection.shutdown(1)
        read_to_end(connection)
    assert is_served(node)


SLOW = [
    b"",
    b"GET / HTTP/1.1\r\nHost: local",
    b"POST /pools/default/buckets HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nname=",
]


@pytest.mark.parametrize("sent", SLOW)
def test_unfinished_request_ends_its_connection_after_some_seconds(sent):
    with Node.running(["beer"], vbuckets=4) as node:
        node.http.seconds = 0.05
        with open_connection(node, sent) as connection:
            assert not read_to_end(connection)
        assert is_served(node)


def test_unfinished_second_request_ends_its_connection():
    with Node.running(["beer"], vbuckets=4) as node:
        node.http.seconds = 0.05
        with open_connection(node, b"GET /pools HTTP/1.1\r\nHost: localhost\r\n\r\n") as connection:
            answer = b""
            while b"}]" not in answer:
                answer += connection.recv(1 << 16)
            connection.sendall(b"GET /po")
            read_to_end(connection)
        with open_connection(node, b"GET /pools/default/bs/beer HTTP/1.1\r\nHost: localhost\r\n\r\n") as streaming:
            answer = b""
            while b"\n\n\n\n" not in answer:
                answer += streaming.recv(1 << 16)
            with open_connection(node) as other:
                assert not read_to_end(other)
            # The other connection has reached the time limit, but a stream has none.
            assert asyncio.run_coroutine_threadsafe(_count_streams(node), node.loop).result(PATIENCE) == 1


def test_idle_connection_ends(monkeypatch, node):
    monkeypatch.setattr(request_pipeline, "_KEEP_ALIVE_SECONDS", 0.05)
    with open_connection(node, b"GET /pools HTTP/1.1\r\nHost: localhost\r\n\r\n") as connection:
        assert read_to_end(connection).startswith(b"HTTP/1.1 200")


def test_client_that_reads_nothing_is_disconnected(monkeypatch, node):
    monkeypatch.setattr(response_output, "_UNREAD_SECONDS", 0.05)
    request = b"GET /pools/default/buckets HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE)
        connection.connect((node.host, node.http_port))
        with pytest.raises(ConnectionError):
            _send_until_error(connection, request)


@pytest.mark.long
def test_client_that_reads_slowly_is_served(monkeypatch):
    """The limit of time applies to each part that the client reads, not to a whole document."""
    seconds = 1.0
    monkeypatch.setattr(response_output, "_UNREAD_SECONDS", seconds)
    with Node.running(["beer"], vbuckets=1) as node, connected(node, "beer") as client:
        collections = [{"name": f"{number:0250d}", "uid": f"{number + 8:x}"} for number in range(1190)]
        set_scopes(client, 1, DEFAULT, {"name": "many", "uid": "8", "collections": collections})
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(PATIENCE)
            connection.connect((node.host, node.http_port))
            connection.sendall(b"GET /pools/default/buckets/beer/scopes HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
            sent, received = node.loop.time(), 0
            while (elapsed := node.loop.time() - sent) < 3 * seconds:
                if received < elapsed * 80_000 / seconds:
                    received += len(connection.recv(1024))
                else:
                    assert is_served(node)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            rest = b""
            while rest.count(b"HTTP/1.1 200") < 10:
                piece = connection.recv(1 << 16)
                assert piece
                rest += piece


def _send_until_error(connection, data):
    while True:
        connection.sendall(data)


async def _count_streams(node):
    return len(node.http.state.streams)


def test_number_of_connections_has_a_limit():
    """One address gets half of the connections."""
    with Node.running(["beer"], vbuckets=4) as node:
        node.http.shares.places = 6
        with contextlib.ExitStack() as opened:
            request = b"GET /pools/default/bs/beer HTTP/1.1\r\nHost: localhost\r\n\r\n"
            for _ in range(3):
                connection = opened.enter_context(open_connection(node, request))
                assert connection.recv(1)
            assert not read_to_end(opened.enter_context(open_connection(node, request)))
        web = WebClient(node)
        for _ in range(100):
            with contextlib.suppress(ConnectionError):
                assert web.get("/pools").status == 200
                break
        else:
            raise AssertionError("no connection is accepted any more")


def test_one_connection_serves_many_requests(node):
    request = b"GET /pools/default/b/beer HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /pools/default/b/beer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with open_connection(node, request * 49 + last) as connection:
        assert read_to_end(connection).count(b"HTTP/1.1 200") == 50
