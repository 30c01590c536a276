"""Addresses of one node, and nodes on copies of one data directory."""

import asyncio
from contextlib import ExitStack, asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.connect.address import parse_address
from penstock.client.replication.node_control import NodeControl, check_identities
from penstock.client.replication.node_identity import NodeIdentity, check_identity, read_identity
from penstock.errors import UsageError
from penstock.node import Node
from tests.client.old_server import COUCHBASE_3_1, OldServer
from tests.ports import free_ports

identities = st.builds(NodeIdentity, st.sampled_from("ab"), st.sampled_from("12345"))


def find_refusal(identity, known):
    """Return the error about a node; empty if it is accepted."""
    try:
        check_identity("new", identity, known)
    except UsageError as error:
        return str(error)
    return ""


@given(st.lists(identities, max_size=5, unique=True), identities)
def test_node_is_refused_if_and_only_if_its_directory_or_its_start_is_known(found, identity):
    known = {f"node{number}": each for number, each in enumerate(found)}
    is_known = any(identity.node_uuid == each.node_uuid or identity.start_id == each.start_id for each in found)
    refusal = find_refusal(identity, known)
    named = [name for name in known if refusal.startswith(f"{name} and new are ")]
    assert len(named) == is_known
    for name in named:
        assert ("are the same node" in refusal) == (known[name].start_id == identity.start_id)


def test_other_servers_have_no_identity():
    assert read_identity({"pid": "1", "node_uuid": "a"}) is None
    assert read_identity({"node_uuid": "a", "start_id": "b"}) == NodeIdentity("a", "b")


@asynccontextmanager
async def controlling(*urls):
    controls = [NodeControl(parse_address(url).with_retries(0.0)) for url in urls]
    try:
        yield controls
    finally:
        for control in controls:
            await control.close()


async def check(*urls):
    async with controlling(*urls) as controls:
        await check_identities(controls)


def test_nodes_without_the_bucket_or_without_an_answer_are_left_out():
    with Node.running(["beer"], 4) as node, Node.running(["wine"], 4) as other:
        others = [other.url("wine").replace("/wine", "/beer"), f"couchbase://127.0.0.1:{free_ports(1)[0]}/beer"]
        asyncio.run(check(node.url("beer"), *others))
        twice = node.url("beer").replace("127.0.0.1", "localhost")
        with pytest.raises(UsageError, match=rf"127\.0\.0\.1:{node.kv_port} and localhost:{node.kv_port} are the same"):
            asyncio.run(check(*others, node.url("beer"), *others, twice))


def test_other_servers_are_compared_by_their_processes_and_histories():
    with ExitStack() as stack:
        nodes = [stack.enter_context(Node.running(["beer"], 4)) for _ in range(2)]
        servers = [stack.enter_context(OldServer(node, COUCHBASE_3_1)) for node in (*nodes, nodes[0])]
        urls = [server.url() for server in servers]
        asyncio.run(check(*urls[:2]))
        with pytest.raises(UsageError, match="are the same node"):
            asyncio.run(check(*urls))
