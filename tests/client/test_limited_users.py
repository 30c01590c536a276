"""A user with a role for one scope: the requests that Couchbase grants, and those that the client sends instead."""

import pytest

from penstock import connect
from penstock.errors import AccessDenied
from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import GetAllVbSeqnos, GetCollectionSeqnos, GetFailoverLog, SelectBucket
from tests.client.old_server import OldServer, Release
from tests.client.peer import in_loop
from tests.node.manifests import ALE, ALES, DEFAULT, make_beers, set_scopes
from tests.node.test_login import ITERATIONS, log_in
from tests.node.wire_client import connected

ROLES = {
    "root": ["admin"],
    "whole": ["data_dcp_reader[beer]"],
    "scope": ["data_dcp_reader[beer:beers]"],
    "writer": ["data_writer[beer]"],
}


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "users.json"
    with change_users(path) as accounts:
        for name, roles in ROLES.items():
            accounts[name] = make_account(User.from_texts(name, roles), f"{name}'s", ITERATIONS)
    with Node.running(["beer"], vbuckets=2, users=path, allow_plain=True) as node:
        with connected(node) as root:
            assert log_in(root.hello(Feature.COLLECTIONS), "root") == Status.SUCCESS
            assert root.status(SelectBucket(key=b"beer")) == Status.SUCCESS
            set_scopes(root, 1, DEFAULT, make_beers(ALE))
        yield node


GRANTED = [
    ("whole", True, GetFailoverLog(), Status.SUCCESS),
    ("scope", True, GetFailoverLog(), Status.EACCESS),
    ("writer", True, GetFailoverLog(), Status.EACCESS),
    ("scope", True, GetAllVbSeqnos(), Status.SUCCESS),
    ("writer", True, GetAllVbSeqnos(), Status.EACCESS),
    ("scope", True, GetCollectionSeqnos(state=1, collection_id=ALES), Status.SUCCESS),
    ("whole", True, GetCollectionSeqnos(state=1, collection_id=0), Status.SUCCESS),
    ("whole", False, GetAllVbSeqnos(), Status.SUCCESS),
    ("scope", False, GetAllVbSeqnos(), Status.EACCESS),
]
"""User, whether the connection has collections, request, status. Source: kv_engine 7.2.8, mcbp_privileges.cc and
ep_engine.cc (doGetAllVbSeqnosPrivilegeCheck)."""


@pytest.mark.parametrize(("user", "collections", "request_", "status"), GRANTED)
def test_node_grants_the_same_as_couchbase(node, user, collections, request_, status):
    with connected(node) as client:
        client.hello(*[Feature.COLLECTIONS] * collections)
        assert log_in(client, user) == Status.SUCCESS
        assert client.status(SelectBucket(key=b"beer")) == Status.SUCCESS
        assert client.status(request_) == status


async def store(node, key):
    async with connect(node.url("beer"), username="root", password="root's") as bucket:
        await bucket.upsert(key, b"v", collection="beers.ales")


@in_loop
async def test_stream_from_now_needs_neither_read_of_the_bucket_nor_statistics(node):
    """As data_dcp_reader of Couchbase 7.2, which has no SimpleStats."""
    with OldServer(node, Release(stats={"vbucket-seqno": Status.EACCESS})) as server:
        bucket = connect(server.url(scope="beers"), username="scope", password="scope's")
        async with bucket, await bucket.stream(start="now") as stream:
            await store(node, "new")
            assert (await anext(stream.changes())).key == b"new"
            with pytest.raises(AccessDenied, match=r"SimpleStats, such as data_monitoring"):
                await bucket.vbucket_infos()
        assert {frame.specific for frame in server.find_requests(Opcode.DCP_GET_FAILOVER_LOG)} == {0, 1}


@in_loop
async def test_failover_logs_are_those_of_an_unlimited_user(node):
    found = []
    for name in ("scope", "whole"):
        async with connect(node.url("beer"), username=name, password=f"{name}'s") as bucket:
            found.append(await bucket.vbucket_infos())
    assert found[0] == found[1]


@in_loop
async def test_stream_of_the_whole_bucket_names_the_options(node, caplog):
    bucket = connect(node.url("beer"), username="scope", password="scope's")
    async with bucket, await bucket.stream() as stream:
        with pytest.raises(AccessDenied, match=r"such as data_dcp_reader; the options scope and collections"):
            await anext(stream.changes())
    assert "violated the order" not in caplog.text
