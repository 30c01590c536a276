"""The dashboard beside a server: its values against those of the server, missing groups, the token and the login."""

import http.client
import json
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.dashboard.dashboard_site import MAX_VIEWERS
from penstock.client.dashboard.stat_rows import list_timings, read_connections
from penstock.client.login.credentials import Credentials
from penstock.node import Node
from penstock.pytest import PenstockCluster
from penstock.wire.codec.constants import Feature, VbucketState
from tests.client.dashboards import run_dashboard, run_release
from tests.node.wire_client import connected, until_stat
from tests.patience import PATIENCE

ANY_LOGIN = "Basic " + "eDp5"


def ask(url, path, authorization=None, method="GET"):
    """Return status, headers and body of a response of a dashboard; default: with the token of its address."""
    parts = urlsplit(url)
    token = parts.fragment.removeprefix("token=")
    headers = {"Authorization": f"Bearer {token}" if authorization is None else authorization}
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE)
    try:
        connection.request(method, parts.path + path, headers=headers if headers["Authorization"] else {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def read_state(url):
    status, _, body = ask(url, "/state")
    assert status == 200, body
    return json.loads(body)


@pytest.fixture
def node():
    with Node.running(["beer"], vbuckets=8) as node:
        yield node


def test_values_are_those_of_the_server(node):
    with connected(node, "beer") as client, connected(node, "beer") as consumer:
        for number in range(5):
            client.set(b"%d" % number, vbucket=3)
        consumer.hello(Feature.COLLECTIONS).open("in:dexer").control("enable_noop", "true")
        consumer.stream(3, opaque=3)
        until_stat(client, "ep_dcp_items_remaining", "0")
        with run_dashboard(node.url("beer")) as url:
            state, stats, details = read_state(url), client.stats(), client.stats("vbucket-details")
            found = json.loads(ask(url, "/buckets/beer/vbuckets/3")[2])
            assert ask(url, "/buckets/beer/vbuckets/8")[0] == 404
            assert ask(url, "/buckets/wine/vbuckets/3")[0] == 404
    assert state["stats"].keys() == stats.keys()
    volatile = {"rusage_user", "rusage_system", "time", "uptime", "curr_connections", "total_connections"}
    assert {name for name in stats if stats[name] != state["stats"][name]} <= volatile
    assert (state["totals"]["documents"], state["totals"]["active"]) == (5, 8)
    for vbucket, vbucket_state, *numbers, remaining, streams in state["vbuckets"]:
        names = ("high_seqno", "persisted_seqno", "num_items")
        assert numbers == [int(details[f"vb_{vbucket}:{name}"]) for name in names]
        assert (vbucket_state, remaining, streams) == (VbucketState.ACTIVE, 0, vbucket == 3)
    (stream,) = state["endpoints"]
    assert (stream["name"], stream["vbuckets"], stream["lag_seqnos"], stream["phase"]) == ("in:dexer", 1, 0, "in step")
    assert (stream["items_sent"], stream["window"]) == (int(stats["ep_dcp_items_sent"]), 0)
    assert state["collections"] == [{"scope": "_default", "name": "_default", "items": 5}]
    assert [(each["status"], each["active"]) for each in state["nodes"]] == [("healthy", 8)]
    assert (state["rollbacks"], state["users"]) == (None, None)
    assert not state["user"]["may_end_streams"]
    assert found["failover_log"] == [[details["vb_3:uuid"], 0]]
    assert [(each["consumer"], each["seqno"], each["items_remaining"]) for each in found["streams"]] == [
        ("in:dexer", 5, 0)
    ]


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("Couchbase 2.5.1", [[0, 1, None, None, None, 0, 0], [1, 1, None, None, None, 0, 0]]),
        ("Couchbase 3.0.0", [[0, 1, 0, None, None, 0, 0], [1, 1, 15, None, None, 0, 0]]),
    ],
)
def test_values_that_a_server_lacks_are_unknown_and_never_zero(name, rows):
    with run_release(name) as server, run_dashboard(server.url(), Credentials(server.user, server.password)) as url:
        state = read_state(url)
    assert state["vbuckets"] == rows
    assert set(state["totals"].values()) == {None, ""}
    assert [state[each] for each in ("collections", "timings", "rollbacks", "on_disk", "kind")] == [None] * 5
    assert set(state["points"][0][1:]) <= {None, 15}
    assert state["node"]["version"] == name.split()[1]


def test_chains_of_an_old_server_have_no_age():
    with (
        run_release("Couchbase 2.5.1") as server,
        run_dashboard(server.url(), Credentials(server.user, server.password)) as url,
    ):
        rows = json.loads(ask(url, "/buckets/beer/chains")[2])["rows"]
        assert [(row["replicas"], row["age"], row["state"]) for row in rows] == [([], {}, "ok")] * 2
        assert ask(url, "/buckets/wine/chains")[0] == 404


def test_data_need_the_token_of_the_address(node):
    with run_dashboard(node.url("beer")) as url, run_dashboard(node.url("beer")) as other:
        for path in ("/state", "/events", "/buckets/beer/vbuckets/0", "/buckets/beer/chains"):
            for given in ("", ANY_LOGIN, "Bearer ", f"Bearer {urlsplit(other).fragment.removeprefix('token=')}"):
                assert ask(url, path, given)[0] == 401
            assert ask(url, path, method="PUT")[0] == 405
        status, headers, body = ask(url, "", "")
        assert (status, headers["X-Frame-Options"], b"token" in body) == (200, "DENY", False)
        assert ask(url, "", "")[1]["Content-Security-Policy"].startswith("default-src 'none'")
        assert ask(url, "/assets/main.js", "")[0] == 200
        for _ in range(2 * MAX_VIEWERS):  # a viewer that does not stay takes no place of others
            assert ask(url, "/events", method="HEAD")[0] == 200
        assert [ask(url, path)[0] for path in ("/assets/../static_files.py", "/assets/", "/other")] == [404] * 3


def test_all_needs_the_login_if_there_is_one(node):
    with run_dashboard(node.url("beer"), login=Credentials("x", "y")) as url:
        assert "#" not in url
        for path in ("", "/assets/main.js", "/state"):
            status, headers, _ = ask(url, path, "")
            assert (status, headers["WWW-Authenticate"]) == (401, 'Basic realm="Penstock"')
            assert ask(url, path, ANY_LOGIN)[0] == 200


@contextmanager
def reading_events(url):
    """Yield the documents of an event stream."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE)
    try:
        token = parts.fragment.removeprefix("token=")
        connection.request("GET", f"{parts.path}/events", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        yield (json.loads(line.removeprefix(b"data: ")) for line in iter(answer.readline, b"") if line.strip())
    finally:
        connection.close()


def test_nodes_that_do_not_answer_are_lost_until_they_return(tmp_path):
    with PenstockCluster.running(2, tmp_path, 8) as cluster:
        cluster.create_bucket("beer")
        with run_dashboard(f"{cluster.bucket.url}?retrySeconds=0.001") as url, reading_events(url) as documents:
            first = next(documents)
            assert [each["status"] for each in first["nodes"]] == ["healthy"] * 2
            assert sum(each["active"] for each in first["nodes"]) == first["totals"]["active"] == 8
            cluster.nodes[1].proxy.refuse()
            lost = next(each for each in documents if "problem" not in each and each["nodes"][1]["status"] == "lost")
            # A sum of the other node alone would look like a loss of documents.
            assert (lost["complete"], lost["totals"]["documents"], lost["nodes"][0]["status"]) == (
                False,
                None,
                "healthy",
            )
            assert any(row[2] is None for row in lost["vbuckets"])
            cluster.nodes[0].proxy.refuse()
            assert next(each for each in documents if "problem" in each)["problem"].startswith("No answer: ")
            for node in cluster.nodes:
                node.proxy.heal()
            assert next(each for each in documents if "problem" not in each)["totals"]["active"] == 8


names = st.text(min_size=1, max_size=20)


@given(names, st.integers(0, 1023), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_connections_are_read_whatever_their_name(name, vbucket, high, sent):
    prefix = f"eq_dcpq:{name}"
    stats = {f"{prefix}:type": "producer", f"{prefix}:stream_{vbucket}_last_sent_seqno": str(sent)}
    (found,) = read_connections({**stats, "ep_dcp_count": "1", "eq_dcpq::": "x", "eq_dcpq:": "y"})
    assert (found.dialect, found.name, found.stats["type"]) == ("dcp", name, "producer")
    assert found.count_remaining(vbucket, high) == max(0, high - sent)
    assert found.count_remaining(vbucket, None) is None


def test_timings_of_several_nodes_are_added():
    first = {"get_cmd_0,1": "1", "get_cmd_1,2": "1", "get_cmd_mean": "1", "x_1,2": "no"}
    rows = list_timings([first, {"get_cmd_1,2": "97", "get_cmd_512,1024": "1"}])
    assert rows is not None
    (row,) = rows
    assert (row.name, row.count, row.quantiles) == ("get_cmd", 100, [2e-6, 2e-6, 2e-6])
    assert list_timings([{}]) is None
