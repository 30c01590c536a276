"""A node that opens some buckets of its directory, and finds another bucket damaged."""

import asyncio
import json
import logging

import pytest

import penstock
from penstock.cli.doctor.finding import FindingState
from penstock.cli.doctor.server_diagnosis import check_server
from penstock.client.connect.address import parse_address
from penstock.errors import InternalError, StoreDamaged, UsageError
from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.cluster import ListBuckets
from penstock.wire.messages.kv import SelectBucket
from tests.node.http.web_client import WebClient
from tests.node.wire_client import connected

SENTENCE = "bucket 'wine' exists, but the node could not open it: "


def cut_record(directory):
    """Damage the definition: the node cannot read how many vbuckets the bucket has."""
    record = directory / "bucket.json"
    record.write_bytes(record.read_bytes()[:-20])


def change_log(directory):
    """Damage the changes: the definition is intact."""
    log = max(directory.glob("log-*"))
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)


@pytest.fixture(params=[cut_record, change_log])
def node(tmp_path, request, caplog):
    """A node with the intact bucket beer and the damaged bucket wine."""
    caplog.set_level(logging.CRITICAL, "penstock.node")
    with Node.running(["beer", "wine"], vbuckets=4, data_dir=tmp_path) as node, connected(node, "wine") as client:
        for number in range(300):
            client.set(b"key-%d" % number, bytes(1000))
    request.param(tmp_path / "wine")
    with Node.running(["beer"], vbuckets=4, data_dir=tmp_path) as node:
        yield node


def test_no_door_shows_a_damaged_bucket_as_missing(node):
    web = WebClient(node)
    with connected(node, "beer") as client:
        assert client.ask(SelectBucket(key=b"wine")).specific == Status.EINTERNAL
        assert client.ask(SelectBucket(key=b"water")).specific == Status.KEY_ENOENT
        assert client.ask(ListBuckets()).value == b"beer wine"
        assert client.stats()["buckets_unopened"] == "1"
    for path in ("buckets/wine", "b/wine", "bs/wine", "buckets/wine/stats", "buckets/wine/scopes"):
        answer = web.get(f"/pools/default/{path}")
        assert (answer.status, answer.body.decode()[: len(SENTENCE)]) == (503, SENTENCE)
    assert web.get("/pools/default/buckets/water").status == 404
    beer, wine = web.get_json("/pools/default/buckets")
    assert (beer["name"], beer["nodes"][0]["status"]) == ("beer", "healthy")
    assert (wine["name"], wine["nodes"][0]["status"]) == ("wine", "unhealthy")
    assert wine["problem"]
    problem = "1 of 2 buckets could not be opened; the log has the reasons"
    assert web.get("/healthz").body == f"alive; {problem}\n".encode()
    ready = web.get("/readyz")
    assert (ready.status, json.loads(ready.body)["problems"]) == (503, [problem])
    assert b"penstock_node_unopened_buckets 1.0" in web.get("/metrics").body


def test_damaged_bucket_is_not_replaced_by_a_new_one(node):
    answer = WebClient(node).ask("POST", "/pools/default/buckets", {"name": "wine", "ramQuota": "100"})
    assert (answer.status, answer.json["errors"]["name"]) == (400, "Bucket with given name already exists")
    assert WebClient(node).ask("DELETE", "/pools/default/buckets/wine").status == 503
    assert "wine" not in node.buckets


def test_client_and_doctor_report_the_reason(node):
    url = node.url("beer").replace("beer", "wine")

    async def open_bucket():
        async with penstock.connect(url):
            pass

    async def examine():
        return [each async for each in check_server(parse_address(url))]

    with pytest.raises(InternalError, match=SENTENCE):
        node.url("wine")

    with pytest.raises(InternalError, match=r"bucket 'wine' exists, but the node could not open it: .*wine"):
        asyncio.run(open_bucket())
    (found,) = asyncio.run(examine())
    assert (found.check, found.state) == ("bucket", FindingState.PROBLEM)
    assert "penstock check" in found.advice


def test_user_without_a_role_learns_nothing(tmp_path):
    users = tmp_path / "users.json"
    with change_users(users) as accounts:
        accounts["ada"] = make_account(User.from_texts("ada", ["data_reader[beer]"]), "ada's", 4096)
    with Node.running(["beer"], vbuckets=4, data_dir=tmp_path / "none", users=users) as other:
        other.buckets.unopened["wine"] = StoreDamaged("damaged")
        web = WebClient(other, ("ada", "ada's"))
        assert web.get("/pools/default/buckets/wine").status == 404
        assert [each["name"] for each in web.get_json("/pools/default/buckets")] == ["beer"]


def test_node_without_an_intact_bucket_does_not_start(tmp_path):
    with Node.running(["wine"], vbuckets=4, data_dir=tmp_path):
        pass
    cut_record(tmp_path / "wine")
    with pytest.raises((StoreDamaged, UsageError)), Node.running(data_dir=tmp_path):
        pass
