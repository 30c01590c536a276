"""Live tails of the dashboard beside a server: their changes, their filters, and their end."""

import asyncio
import http.client
import json
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

import penstock
from penstock.node import Node
from tests.client.dashboards import run_dashboard
from tests.node.wire_client import connected
from tests.patience import PATIENCE

PATH = "/buckets/beer/changes"


@pytest.fixture
def node():
    with Node.running(["beer"], vbuckets=8) as node:
        yield node


def post(url, body, path=PATH, **headers):
    """Return status and body of the response to a POST, with the token of the address and the header of the page."""
    parts = urlsplit(url)
    token = parts.fragment.removeprefix("token=")
    given = {"x-penstock-request": "dashboard"} | ({"authorization": f"Bearer {token}"} if token else {}) | headers
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE)
    try:
        connection.request("POST", parts.path + path, body if isinstance(body, bytes) else json.dumps(body), given)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def read_tail(url, count, positions=(), **wanted):
    """Poll as the page does until there are so many changes; return them, and the last positions."""
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count:
        assert time.monotonic() < deadline, found
        status, body = post(url, wanted | {"positions": positions})
        assert status == 200, body
        answer = json.loads(body)
        found, positions = found + answer["changes"], answer["positions"]
    return found, positions


def wait_until_idle(node):
    """Wait until the bucket has no change stream."""
    deadline = time.monotonic() + PATIENCE
    while node.streams("beer"):
        assert time.monotonic() < deadline


def test_tail_has_the_changes_that_the_node_itself_shows(node):
    wanted = {"filter_key": "^k", "filter_value": "abv > 5", "vbuckets": [3, 4], "collections": ["_default._default"]}
    own = f"http://127.0.0.1:{node.http_port}/_penstock"
    with connected(node, "beer") as client, run_dashboard(node.url("beer")) as url:
        client.set(b"k-before", b'{"abv":9}', vbucket=3)
        starts = {each: json.loads(post(each, wanted)[1])["positions"] for each in (url, own)}
        client.set(b"k-light", b'{"abv":4}', vbucket=3)
        client.set(b"other", b'{"abv":8}', vbucket=3)
        client.set(b"k-elsewhere", b'{"abv":8}', vbucket=5)
        client.set(b"k-strong", b'{"abv":8}', vbucket=3)
        client.set(b"k-long", b'{"abv":7,"text":"%s"}' % (b"x" * 5000), vbucket=4)
        client.delete(b"k-before", vbucket=3)
        beside, positions = read_tail(url, 3, starts[url], **wanted)
        shown, _ = read_tail(own, 3, starts[own], **wanted)
        by_key = {change["key"]: change for change in beside}
        assert by_key == {change["key"]: change for change in shown}
        assert by_key.keys() == {"k-before", "k-strong", "k-long"}
        assert (by_key["k-before"]["event"], by_key["k-long"]["size"] > 5000) == ("deletion", True)
        assert len(by_key["k-long"]["value"]) < 5000
        # An answer that was lost comes again: the page asks with the positions that it has.
        again, _ = read_tail(url, 3, starts[url], **wanted)
        assert again == beside
        assert json.loads(post(url, wanted | {"positions": positions})[1])["changes"] == []


def test_tail_keeps_the_newest_changes_and_counts_the_others(node):
    async def store():
        async with penstock.connect(node.url("beer")) as bucket:
            await bucket.upsert_many([(f"k{number:04}", b"1") for number in range(1200)])

    with run_dashboard(node.url("beer")) as url:
        positions = json.loads(post(url, {})[1])["positions"]
        asyncio.run(store())
        deadline = time.monotonic() + PATIENCE
        answer: dict[str, Any] = {}
        while answer.get("skipped", 0) + len(answer.get("changes", ())) < 1200:
            assert time.monotonic() < deadline, answer
            answer = json.loads(post(url, {"positions": positions})[1])
        assert (len(answer["changes"]), answer["skipped"]) == (500, 700)


def test_tail_ends_when_its_viewer_is_away(node):
    with run_dashboard(node.url("beer"), idle_seconds=0.01) as url:
        first = json.loads(post(url, {})[1])["positions"]
        deadline, later = time.monotonic() + PATIENCE, first
        while later[0] == first[0]:  # the first answer may come before the node has the streams
            assert time.monotonic() < deadline
            wait_until_idle(node)
            later = json.loads(post(url, {"positions": first})[1])["positions"]
        wait_until_idle(node)


def test_newest_changes_of_a_vbucket(node):
    with connected(node, "beer") as client, run_dashboard(node.url("beer")) as url:
        for number in range(60):
            client.set(b"k%02d" % number, b"{}", vbucket=3)
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE)
        headers = {"authorization": f"Bearer {parts.fragment.removeprefix('token=')}"}
        connection.request("GET", f"{parts.path}/buckets/beer/vbuckets/3/changes", headers=headers)
        found = json.loads(connection.getresponse().read())
        connection.close()
    assert [change["seqno"] for change in found["changes"]] == [*range(11, 61)]
    assert (found["vbucket"], found["skipped"]) == (3, 10)


@pytest.mark.parametrize(
    ("request_", "status", "text"),
    [
        ({"body": {}, "authorization": "Bearer other"}, 401, b"Unauthorized"),
        ({"body": {}, "x-penstock-request": "other"}, 403, b"without the header x-penstock-request"),
        ({"body": b"{"}, 400, b"the body is not as expected"),
        ({"body": {"filter_value": "abv >"}}, 400, b"abv >"),
        ({"body": {"filter_key": "(a{1000}){1000}"}}, 400, b"limit 1000"),
        ({"body": {"vbuckets": [8]}}, 400, b"8"),
        ({"body": {"collections": ["shop.none"]}}, 400, b"shop.none"),
        ({"body": b" " * 70_000}, 413, b"Too Large"),
        ({"body": {}, "path": "/state"}, 405, b"Not Allowed"),
    ],
)
def test_request_for_changes_is_refused(refusing, request_, status, text):
    found, body = post(refusing, **request_)
    assert found == status, body
    assert text in body


@pytest.fixture(scope="module")
def refusing():
    with Node.running(["beer"], vbuckets=8) as node, run_dashboard(node.url("beer")) as url:
        yield url
