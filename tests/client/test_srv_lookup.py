"""DNS SRV records, from a name server on loopback."""

import asyncio
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from penstock import Node, connect
from penstock.client.bucket import Bucket
from penstock.client.connect.address import parse_address
from penstock.client.discovery.srv_lookup import find_srv_endpoints
from tests.client.peer import Script, in_loop
from tests.ports import free_ports

# Environments that were installed before the extra `dns` existed do not have the library.
asyncresolver = pytest.importorskip("dns.asyncresolver")
message = pytest.importorskip("dns.message")
rcode = pytest.importorskip("dns.rcode")
rrset = pytest.importorskip("dns.rrset")


class NameServer(asyncio.DatagramProtocol):
    """A name server over UDP.

    Attributes:
        records: name -> texts of its SRV records: priority, weight, port, target.
        asked: the names of all questions.
        is_silent: it answers nothing.
        garbage: bytes in place of each answer, if there are some.
    """

    def __init__(self, records, *, is_silent=False, garbage=b""):
        self.records = records
        self.asked = []
        self.is_silent = is_silent
        self.garbage = garbage

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        query = message.from_wire(data)
        name = query.question[0].name.to_text(omit_final_dot=True)
        self.asked.append(name)
        if self.is_silent:
            return
        response = message.make_response(query)
        if name in self.records:
            response.answer.append(rrset.from_text(f"{name}.", 60, "IN", "SRV", *self.records[name]))
        else:
            response.set_rcode(rcode.NXDOMAIN)
        self.transport.sendto(self.garbage or response.to_wire(), address)


@asynccontextmanager
async def name_server(monkeypatch, records, **options):
    """Run a name server, which is the resolver of this process meanwhile."""
    server = NameServer(records, **options)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: server, ("127.0.0.1", 0))
    resolver = asyncresolver.Resolver(configure=False)
    resolver.nameservers = ["127.0.0.1"]
    resolver.port = transport.get_extra_info("sockname")[1]
    monkeypatch.setattr(asyncresolver, "default_resolver", resolver)
    try:
        yield server
    finally:
        transport.close()


NAME = "_couchbase._tcp.localhost"


@pytest.mark.parametrize(
    ("url", "is_srv"),
    [
        ("couchbase://name", True),
        ("couchbases://db.example.org/beer", True),
        ("couchbase://name:11210", False),
        ("couchbase://127.0.0.1", False),
        ("couchbase://[::1]", False),
        ("couchbase://a,b", False),
        ("couchbase://name?dnsSrv=false", False),
        ("couchbase://name?vbucketCount=64", False),
    ],
)
def test_one_name_without_a_port_may_have_records(url, is_srv):
    address = parse_address(url)
    assert address.srv_host == (address.hosts[0] if is_srv else None)


@in_loop
async def test_records_are_in_the_order_of_priority(monkeypatch):
    records = ["20 0 3 c.example.", "10 0 1 a.example.", "15 0 2 b.example.", "5 0 9 .", "5 0 0 z.example."]
    async with name_server(monkeypatch, {"_couchbases._tcp.db.example": records}) as server:
        found = await find_srv_endpoints("db.example", tls=True)
        assert found == (("a.example", 1), ("b.example", 2), ("c.example", 3))
        assert await find_srv_endpoints("db.example", tls=False) == ()
        assert set(server.asked) == {"_couchbases._tcp.db.example", "_couchbase._tcp.db.example"}


@in_loop
async def test_many_records_are_limited(monkeypatch):
    records = [f"1 1 {port} a." for port in range(1, 70)]
    async with name_server(monkeypatch, {NAME: records}):
        assert len(await find_srv_endpoints("localhost", tls=False)) == 64


@pytest.mark.parametrize("fault", [{"is_silent": True}, {"garbage": b"\xff" * 40}, {"garbage": b"x"}])
@in_loop
async def test_faulty_name_server_costs_a_bounded_time(monkeypatch, fault):
    async with name_server(monkeypatch, {}, **fault) as server:
        assert await find_srv_endpoints("localhost", tls=False) == ()
        assert server.asked


@in_loop
async def test_client_connects_to_the_hosts_of_the_records(monkeypatch):
    dead = free_ports(1)[0]
    with Node.running(["beer"], vbuckets=4) as node:
        records = [f"1 0 {dead} localhost.", f"2 0 {node.kv_port} localhost."]
        async with name_server(monkeypatch, {NAME: records}) as server:
            async with connect("couchbase://localhost/beer") as bucket:
                await bucket.upsert("k", b"v")
                assert [change.key async for change in bucket.changes(stop="now")] == [b"k"]
                assert (await bucket.cluster()).endpoints == (("localhost", node.kv_port),)
            assert set(server.asked) == {NAME}


@in_loop
async def test_name_without_records_is_a_host(monkeypatch):
    async with Script() as script, name_server(monkeypatch, {}) as names:
        host = ("localhost", script.port)
        address = replace(parse_address("couchbase://localhost/beer"), hosts=(host,), srv_host=host)
        async with Bucket(address):
            assert len(script.peers) == 1
        assert set(names.asked) == {NAME}


@in_loop
async def test_without_the_library_a_name_is_a_host(monkeypatch):
    async with name_server(monkeypatch, {NAME: ["1 0 1 localhost."]}) as names:
        monkeypatch.setitem(sys.modules, "dns.asyncresolver", None)
        assert await find_srv_endpoints("localhost", tls=False) == ()
        assert not names.asked
