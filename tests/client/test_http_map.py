"""The cluster map over HTTP: from the pages of nodes, and from scripted servers of all kinds."""

import asyncio
import base64
from contextlib import ExitStack, asynccontextmanager

import pytest

from penstock import connect
from penstock.client.connect import map_request
from penstock.client.connect.address import parse_address
from penstock.client.connect.map_request import request_http_map
from penstock.client.discovery import http_map
from penstock.client.discovery.http_map import HTTP_PORT, HTTP_TLS_PORT
from penstock.client.login.credentials import Credentials
from penstock.errors import (
    AuthenticationFailed,
    BucketNotServed,
    ConnectionClosed,
    OperationTimeout,
    RemoteProtocolError,
    UsageError,
)
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from tests.client.peer import Script, documents, in_loop, reply, stats_reply
from tests.client.scripted_release import RELEASES, ReleaseServer
from tests.client.test_nodes import config
from tests.client.test_received_maps import count_requests
from tests.node.balanced_nodes import run_nodes

# Real nodes


@in_loop
async def test_nodes_are_found_by_the_management_port_of_one():
    with ExitStack() as stack:
        nodes = run_nodes(stack, 2)
        async with connect(f"couchbase://127.0.0.1:{nodes[1].http_port}/beer?bootstrap=http") as bucket:
            found = await bucket.cluster()
            assert {port for _, port in found.endpoints} == {node.kv_port for node in nodes}
            await bucket.upsert_many(documents(0, 100))
            assert len([change async for change in bucket.changes(stop="now")]) == 100


# Scripted servers

SEPARATOR = b"\n\n\n\n"


def respond(body, status="200 OK", length=None):
    """Return a response; a length that is greater than the body's leaves it incomplete."""
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), length or len(body), body)


def respond_in_chunks(*parts, is_complete=False):
    chunks = [b"%x\r\n%s\r\n" % (len(part), part) for part in parts]
    end = b"0\r\n\r\n" if is_complete else b""
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(chunks) + end


class WebScript(asyncio.Protocol):
    """A server that answers each page with fixed bytes. `requests` has the heads of the requests."""

    def __init__(self, pages, requests, is_open):
        self._pages, self._requests, self._is_open = pages, requests, is_open

    def connection_made(self, transport):
        self._transport = transport

    def data_received(self, data):
        self._requests.append(data.decode())
        page = data.split()[1].decode().removeprefix("/pools/default/").partition("/")[0]
        self._transport.write(self._pages.get(page, respond(b"", "404 Not Found")))
        if not self._is_open:
            self._transport.close()


@asynccontextmanager
async def serving_pages(*, is_open=False, **pages):
    """Yield the port of a server of these pages, and the list of its requests."""
    requests: list[str] = []
    server = await asyncio.get_running_loop().create_server(lambda: WebScript(pages, requests, is_open), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], requests
    finally:
        server.close()


def make_address(port, credentials=None, **options):
    query = "&".join(f"{name}={value}" for name, value in {"bootstrap": "http", **options}.items())
    return parse_address(f"couchbase://127.0.0.1:{port}/beer?{query}", credentials)


MAP = config(["127.0.0.1:1", "127.0.0.1:2"], [0, 1], rev=4)

GOOD = {
    "one chunk, open": ({"bs": respond_in_chunks(MAP + SEPARATOR)}, True),
    "many chunks, two maps": (
        {"bs": respond_in_chunks(MAP[:9], MAP[9:], b"\n\n", b"\n\n" + config(["h:1"], [0, 0]))},
        True,
    ),
    "page of 2.x": ({"bucketsStreaming": respond_in_chunks(MAP + SEPARATOR)}, True),
    "the stream ends": ({"bs": respond_in_chunks(MAP + SEPARATOR, is_complete=True)}, False),
    "no separator": ({"bs": respond(MAP)}, False),
    "no length": ({"bs": b"HTTP/1.0 200 OK\r\n\r\n" + MAP}, False),
}


@pytest.mark.parametrize(("pages", "is_open"), GOOD.values(), ids=GOOD)
@in_loop
async def test_first_map_of_a_page_is_used(pages, is_open):
    async with serving_pages(is_open=is_open, **pages) as (port, _):
        found = await request_http_map(make_address(port))
    assert found.endpoints == (("127.0.0.1", 1), ("127.0.0.1", 2))
    assert (found.owners, found.version) == ((0, 1), (0, 4))


LONG = respond_in_chunks(b"[" * (http_map.MOST_MAP_BYTES + 1))
BAD = {
    "401": (respond(b"", "401 Unauthorized"), False, AuthenticationFailed, "refused the login over HTTP"),
    "404": (respond(b"", "404 Not Found"), False, BucketNotServed, "no bucket 'beer' on 127.0.0.1"),
    "503": (respond(b"busy", "503 Busy"), False, BucketNotServed, "status 503"),
    "no JSON": (respond_in_chunks(b"<html>" + SEPARATOR), True, RemoteProtocolError, "cluster map of 6 bytes is malf"),
    "no vbuckets": (respond(b"{}"), False, BucketNotServed, "has no vbuckets of couchbase://127.0.0.1"),
    "empty": (respond(b""), False, BucketNotServed, "no cluster map over HTTP"),
    "slow": (respond_in_chunks(MAP), True, OperationTimeout, "did not send the cluster map over HTTP within 0.2 s"),
    "silent": (b"", True, OperationTimeout, "did not send the cluster map"),
    "cut off": (respond_in_chunks(MAP), False, ConnectionClosed, "ended its HTTP response within the cluster map"),
    "closed": (b"", False, ConnectionClosed, "ended its HTTP response"),
    "no HTTP": (b"\x81\x00\x00\x00\r\n\r\n", False, RemoteProtocolError, "no valid HTTP .* expected a management port"),
    "too long": (LONG, True, RemoteProtocolError, "longer than 20971520 bytes"),
}


@pytest.mark.parametrize(("answer", "is_open", "error", "sentence"), BAD.values(), ids=BAD)
@in_loop
async def test_page_without_a_map_is_reported(answer, is_open, error, sentence):
    options = {"connectTimeout": "0.2"} if error is OperationTimeout else {}
    async with serving_pages(is_open=is_open, bs=answer) as (port, _):
        with pytest.raises(error, match=sentence):
            await request_http_map(make_address(port, **options))


@in_loop
async def test_another_host_is_asked_after_a_failure():
    async with serving_pages(bs=respond(b"", "503 Busy")) as (busy, _), serving_pages(bs=respond(MAP)) as (port, _):
        address = parse_address(f"couchbase://127.0.0.1:{busy},127.0.0.1:{port}/beer?bootstrap=http")
        assert (await request_http_map(address)).vbuckets == 2


# Logins

LOGIN = Credentials("sailor", "s3cret")


@in_loop
async def test_login_is_sent_and_never_shown(caplog):
    caplog.set_level("DEBUG")
    async with serving_pages(bs=respond(b"", "401 Unauthorized")) as (port, requests):
        with pytest.raises(AuthenticationFailed) as caught:
            await request_http_map(make_address(port, LOGIN))
    token = base64.b64encode(b"sailor:s3cret").decode()
    (head,) = requests
    assert head.startswith("GET /pools/default/bs/beer HTTP/1.1\r\n")
    assert f"authorization: basic {token}".lower() in head.lower()
    for shown in (str(caught.value), repr(caught.value), caplog.text):
        assert "s3cret" not in shown
        assert token not in shown


@in_loop
async def test_password_does_not_leave_the_machine_unencrypted():
    with pytest.raises(UsageError, match="HTTP needs the password unencrypted at h; expected couchbases://"):
        await request_http_map(parse_address("couchbase://h/beer?bootstrap=http", LOGIN))


# Connection strings


@pytest.mark.parametrize(
    ("url", "hosts", "http_hosts"),
    [
        ("couchbase://h/beer?bootstrap=http", (("h", HTTP_PORT),), (("h", HTTP_PORT),)),
        ("couchbases://h/beer?bootstrap=http", (("h", HTTP_TLS_PORT),), (("h", HTTP_TLS_PORT),)),
        ("couchbase://h:1,i/beer?bootstrap=http", (("h", 1), ("i", HTTP_PORT)), (("h", 1), ("i", HTTP_PORT))),
        ("couchbase://h:1/beer?bootstrap=cccp", (("h", 1),), ()),
    ],
)
def test_ports_are_those_of_management_with_bootstrap_http(url, hosts, http_hosts):
    address = parse_address(url)
    assert (address.hosts, address.http_hosts) == (hosts, http_hosts)
    assert address.srv_host is None


def test_vbucket_count_contradicts_bootstrap_http():
    with pytest.raises(UsageError, match="option vbucketCount with bootstrap=http"):
        parse_address("couchbase://h/beer?bootstrap=http&vbucketCount=4")


# Servers without GET_CLUSTER_CONFIG


def be_old(script, active):
    """Let a script answer like one of several nodes of Couchbase 2.2."""

    def answer(peer, frame):
        if frame.opcode == Opcode.GET_CLUSTER_CONFIG:
            return reply(frame, Status.UNKNOWN_COMMAND)
        if frame.opcode == Opcode.STAT and frame.key in (b"", b"vbucket"):
            states = {f"vb_{vbucket}": "active" for vbucket in active}
            return stats_reply(frame, states if frame.key else {"ep_version": "2.2.0", "ep_max_vbuckets": "2"})
        return None

    script.answer = answer


@in_loop
async def test_old_cluster_is_found_by_the_management_port(monkeypatch):
    async with Script() as one, Script() as two:
        be_old(one, [0])
        be_old(two, [1])
        served = config([f"127.0.0.1:{script.port}" for script in (one, two)], [0, 1])
        async with serving_pages(bucketsStreaming=respond_in_chunks(served + SEPARATOR), is_open=True) as (port, asked):
            monkeypatch.setattr(map_request, "HTTP_PORT", port)
            for url in (one.url(), f"couchbase://127.0.0.1:{port}/beer?bootstrap=http"):
                asked.clear()
                async with connect(url) as bucket:
                    await bucket.get_many(["k1", "k2", "k3"])
                    assert (await bucket.cluster()).owners == (0, 1)
                assert asked
        assert count_requests(Opcode.GET, one) + count_requests(Opcode.GET, two) == 6


@in_loop
async def test_map_over_http_is_not_asked_for_with_bootstrap_cccp():
    async with Script() as script:
        be_old(script, [0])
        with pytest.raises(
            BucketNotServed, match="has no cluster map, and its statistics show 1 vbuckets of at most 2"
        ):
            async with connect(script.url(bootstrap="cccp")):
                pass


@in_loop
async def test_release_without_the_command_is_dumped_by_tap():
    release = RELEASES["Couchbase 2.5.1"]
    async with ReleaseServer(release) as server:
        release_map = release.map.replace("PORT", str(server.port)).replace("$HOST", "127.0.0.1")
        page = respond_in_chunks(release_map.encode() + SEPARATOR)
        async with serving_pages(bucketsStreaming=page, is_open=True) as (port, _):
            url = f"couchbase://127.0.0.1:{port}/beer?bootstrap=http&protocol=tap"
            async with connect(url, username=server.user, password=server.password) as bucket:
                changes = [each async for each in bucket.changes("beginning", "now")]
                assert len(changes) == len(release.changes)
        assert not server.find_requests(Opcode.GET_CLUSTER_CONFIG)
