"""The documents of the dashboard, and the rights that they need."""

import json
import re
from importlib.resources import files

import pytest

from penstock.client.dashboard.stat_rows import list_timings
from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.statuses import Status
from tests.node.http.web_client import WebClient
from tests.node.wire_client import connected, until_stat

PAGE = "/_penstock"
HEADER = {"X-Penstock-Request": "dashboard"}
ROLES = {"root": ["admin"], "reader": ["data_reader[beer]"], "follower": ["data_dcp_reader[beer]"]}


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "users.json"
    with change_users(path) as accounts:
        for name, roles in ROLES.items():
            accounts[name] = make_account(User.from_texts(name, roles), f"{name}'s", 4096)
    return path


@pytest.fixture
def guarded(users):
    with Node.running(["beer", "wine"], vbuckets=4, users=users) as node:
        yield node


def as_user(node, name):
    return WebClient(node, (name, f"{name}'s"))


def post(web, path, document, headers=HEADER):
    return web.ask("POST", f"{PAGE}/buckets/{path}", body=json.dumps(document).encode(), headers=headers)


def read_event(web, path=f"{PAGE}/events"):
    """Return the first two documents of the stream."""
    connection = web.connect()
    try:
        connection.request("GET", path, headers=web.make_headers())
        answer = connection.getresponse()
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        lines = [answer.readline() for _ in range(4)]
        answer.close()
        return [json.loads(line.removeprefix(b"data: ")) for line in lines[::2]]
    finally:
        connection.close()


def test_all_needs_a_login_and_a_role(guarded):
    paths = ["", "/assets/main.js", "/state", "/events", "/buckets/beer/vbuckets/0", "/buckets/beer/vbuckets/0/changes"]
    for path in paths:
        assert WebClient(guarded).get(PAGE + path).status == 401
    for path in paths[2:]:
        assert as_user(guarded, "reader").get(PAGE + path).status == 403
    for path in ("/state?bucket=wine", "/state?bucket=water", "/buckets/wine/vbuckets/0"):
        assert as_user(guarded, "follower").get(PAGE + path).status == (403 if "vbuckets" in path else 404)
    state = as_user(guarded, "follower").get_json(f"{PAGE}/state")
    assert (state["buckets"], state["bucket"], state["users"]) == (["beer"], "beer", None)
    assert not state["user"]["may_end_streams"]
    assert post(as_user(guarded, "reader"), "beer/changes", {}).status == 403
    assert post(as_user(guarded, "follower"), "beer/changes", {}).status == 200
    assert post(as_user(guarded, "follower"), "beer/streams/end", {"name": "x"}).status == 403
    assert post(as_user(guarded, "root"), "beer/streams/end", {"name": "x"}).status == 404


def test_administrators_see_the_last_logins(guarded):
    as_user(guarded, "follower").get("/whoami")
    found = {one["name"]: one for one in as_user(guarded, "root").get_json(f"{PAGE}/state")["users"]}
    assert found["follower"]["login_address"] == "127.0.0.1"
    assert found["follower"]["login_seconds"] >= 0
    assert (found["reader"]["login_seconds"], found["reader"]["roles"]) == (None, ["data_reader[beer]"])


@pytest.mark.parametrize("headers", [{}, {"X-Penstock-Request": "1"}, {**HEADER, "Origin": "http://evil.example"}])
def test_other_sites_cannot_act(node, web, headers):
    with connected(node, "beer") as consumer:
        consumer.open("indexer")
        assert post(web, "beer/streams/end", {"name": "indexer"}, headers).status == 403
        assert [one.name for one in node.streams("beer")] == ["indexer"]
        assert post(web, "beer/streams/end", {"name": "indexer"}).json == {"ended": 1}


def test_page_and_its_files_allow_no_other_content(web):
    page = web.get(PAGE)
    names = [file.name for file in files("penstock.client.dashboard").joinpath("static").iterdir()]
    for path in (PAGE, f"{PAGE}/state", *(f"{PAGE}/assets/{name}" for name in names)):
        answer = web.get(path)
        assert (answer.status, answer.headers["X-Content-Type-Options"]) == (200, "nosniff")
        policy = dict(part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
        assert "unsafe" not in str(policy)
    assert not re.findall(r"<style|\sstyle=|\son[a-z]+=|<script>|https?:", page.body.decode())
    known = web.get(PAGE, headers={"If-None-Match": page.headers["ETag"]})
    assert (known.status, known.body) == (304, b"")
    assert web.get(f"{PAGE}/assets/..%2fstatic_files.py").status == 404


def test_state_has_the_numbers_of_stat(node, web):
    with connected(node, "beer") as client, connected(node, "beer") as consumer:
        for number in range(5):
            client.set(b"%d" % number, vbucket=3)
        consumer.hello(Feature.COLLECTIONS).open("indexer").control("enable_noop", "true")
        consumer.stream(3, opaque=3)
        until_stat(client, "ep_dcp_items_remaining", "0")
        state, stats = web.get_json(f"{PAGE}/state?bucket=beer"), client.stats()
        details, latencies = client.stats("vbucket-details"), client.stats("latencies")
    assert state["stats"].keys() == stats.keys()
    assert {name for name in stats if stats[name] != state["stats"][name]} <= {"rusage_user", "rusage_system", "time"}
    assert state["columns"] == ["vbucket", "state", "high_seqno", "persisted_seqno", "items", "remaining", "streams"]
    for vbucket, vbucket_state, *numbers, remaining, streams in state["vbuckets"]:
        names = ("high_seqno", "persisted_seqno", "num_items")
        assert numbers == [int(details[f"vb_{vbucket}:{name}"]) for name in names]
        assert (vbucket_state, remaining, streams) == (1, 0, vbucket == 3)
    (stream,) = state["endpoints"]
    assert (stream["name"], stream["vbuckets"], stream["lag_seqnos"], stream["phase"]) == ("indexer", 1, 0, "in step")
    assert stream["items_sent"] == int(stats["ep_dcp_items_sent"])
    shown = {row["name"]: (row["count"], row["quantiles"]) for row in state["commands"] if row["name"] != "other"}
    assert shown == {
        row.name: (row.count, row.quantiles) for row in list_timings([latencies]) or () if row.name in shown
    }
    assert shown.keys() == {"set"}
    assert state["collections"] == [{"scope": "_default", "name": "_default", "items": 5}]
    assert [(one["status"], one["active"]) for one in state["nodes"]] == [("healthy", 16)]


def test_later_documents_have_only_the_vbuckets_that_changed(node, web):
    with connected(node, "default") as client:
        client.set(b"k", vbucket=3)
        web.get(f"{PAGE}/state?bucket=default")  # the first event has this sample
        client.set(b"k", vbucket=7)
        first, second = read_event(web, f"{PAGE}/events?bucket=default")
    assert (first["complete"], len(first["vbuckets"])) == (True, 16)
    assert (second["complete"], [row[:3] for row in second["vbuckets"]]) == (False, [[7, 1, 1]])
    assert [len(document["points"]) for document in (first, second)] == [1, 1]


def test_rollbacks_are_kept_with_the_branches_they_rest_on(node, web):
    with connected(node, "beer") as client, connected(node, "beer") as consumer:
        client.set(b"k", vbucket=3)
        assert consumer.open("warehouse").stream(3, start=1, vbuuid=77).specific == Status.ROLLBACK
        details = web.get_json(f"{PAGE}/buckets/beer/vbuckets/3")
    state = web.get_json(f"{PAGE}/state?bucket=beer")
    (rollback,) = state["rollbacks"]
    assert state["rollback_count"] == 1
    assert (rollback["consumer"], rollback["vbuuid"], rollback["start_seqno"], rollback["seqno"]) == (
        "warehouse", "77", 1, 0,
    )  # fmt: skip
    assert rollback["failover_log"] == details["failover_log"] == [[details["stats"]["uuid"], 0]]


def test_changes_are_decoded_and_bounded(node, web):
    with connected(node, "beer") as client:
        client.set(b"a", b'{"abv": 5}', vbucket=3)
        client.set(b"a", b'{"abv": 6}', vbucket=3)
        client.set(b"long", b"x" * 9000, vbucket=3)
        client.set(b"\xff", b"\xfe", vbucket=3)
        client.delete(b"long", vbucket=3)
        found = web.get_json(f"{PAGE}/buckets/beer/vbuckets/3/changes")["changes"]
        assert [(one["seqno"], one["event"], one.get("superseded")) for one in found] == [
            (1, "mutation", 2), (2, "mutation", None), (3, "mutation", 5), (4, "mutation", None), (5, "deletion", None),
        ]  # fmt: skip
        assert (found[2]["size"], len(found[2]["value"])) == (9000, 4096)
        assert (found[3]["key_base64"], found[3]["value_base64"]) == ("/w==", "/g==")
        for number in range(1500):
            client.set(b"%d" % number, b'{"n": %d}' % number, vbucket=number % 16)
    asked = post(web, "beer/changes", {"positions": [5] * 16})
    page = asked.json
    assert (len(page["changes"]), page["skipped"]) == (500, 1505 - 500 - 5 * 16)
    assert page["changes"][-1]["key"] == "1499"
    chosen = post(web, "beer/changes", {"positions": [0] * 16, "filter_value": "n = 77", "vbuckets": [13]}).json
    assert [one["key"] for one in chosen["changes"]] == ["77"]
    assert post(web, "beer/changes", {}).json["changes"] == []
    assert post(web, "beer/changes", {"collections": ["_default._default"], "positions": [0] * 16}).json["changes"]


@pytest.mark.parametrize(
    "document",
    [
        {"filter_key": "("},
        {"filter_value": "abv >"},
        {"vbuckets": [99]},
        {"collections": ["a.b"]},
        {"vbuckets": [-1]},
        {"positions": "x"},
        {"positions": [-1]},
        {"positions": [-1] * 16},
        {"positions": [0.5] * 16},
        {"positions": [True] * 16},
        {"positions": [2**64] * 16, "vbuckets": [2**64]},
        [],
    ],
)
def test_bad_request_for_changes_is_refused(web, document):
    answer = post(web, "beer/changes", document)
    assert answer.status == 400
    assert answer.json["errors"]
