"""Reports of producers, closing of producers by name, and disconnection of dead peers."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.errors import KeyNotFound, UsageError
from penstock.node import Node
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.codec.flags import OpenFlag
from penstock.wire.codec.layout import Message
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import Open, StreamReq
from penstock.wire.messages.kv import CloseProducer, Get, Hello, Noop, Stat
from penstock.wire.messages.tap import TapConnect, TapOptions
from penstock.wire.messages.upr import UprGetFailoverLog, UprStreamReq
from penstock.wire.messages.upr_draft import DraftStreamReq
from tests.node.tap_client import F, TapClient, connected_tap
from tests.node.watch import has_unsent_bytes
from tests.node.wire_client import connected
from tests.patience import PATIENCE

S = Status
ASK: dict[str, Any] = {"start_seqno": 0, "end_seqno": MAX_SEQNO}
FIRSTS: dict[str, list[Message]] = {
    "tap": [TapConnect(flags=F.LIST_VBUCKETS, value=TapOptions(F.LIST_VBUCKETS, vbuckets=(3,)).pack())],
    "upr-draft": [DraftStreamReq(**ASK, vbucket=3, opaque=1)],
    "upr": [UprStreamReq(**ASK, vbucket=3)],
    "dcp": [
        Open(key=b"without noop", flags=OpenFlag.PRODUCER),
        StreamReq(**ASK, vbucket=3, vbuuid=0, snap_start=0, snap_end=0),
    ],
}
"""By dialect: the first requests for a stream of vbucket 3."""


@pytest.fixture
def upr(node):
    with connected(node) as client:
        yield client


def read_reports(client) -> dict[str, Any]:
    return {name: json.loads(text) for name, text in client.stats("streams").items()}


def get_address(client) -> str:
    host, port = client.socket.getsockname()
    return f"{host}:{port}"


def test_each_producer_is_listed(node, client, consumer, upr):
    client.set(b"k", b"v", vbucket=3)
    consumer.stream(3, end=8, opaque=42)
    assert upr.ask(Hello(key=b"agent/1")).specific == S.SUCCESS
    assert upr.status(UprStreamReq(**ASK, opaque=7, key=b"group")) == S.SUCCESS
    for receiver, count in ((consumer, 2), (upr, 1)):
        for _ in range(count):
            receiver.receive()
    found = read_reports(client)
    assert list(found) == ["dcp:consumer", "upr:anon_1"]
    dcp = found["dcp:consumer"]
    assert dcp["name"] == dcp["label"] == "consumer"
    assert (dcp["peer"], dcp["user"]) == (get_address(consumer), None)
    assert abs(dcp["created"] - int(client.stats()["time"])) < 60
    (stream,) = dcp["streams"]
    assert {name: stream[name] for name in ("vbucket", "opaque", "state", "start_seqno", "end_seqno")} == {
        **{"vbucket": 3, "opaque": 42, "state": "in snapshot", "start_seqno": 0, "end_seqno": 8},
    }
    assert (stream["items_sent"], stream["bytes_sent"], stream["items_remaining"]) == (1, 44 + 55 + 2, 0)
    anonymous = found["upr:anon_1"]
    assert (anonymous["label"], anonymous["agent"]) == (f"anonymous@{get_address(upr)}", "agent/1")
    assert anonymous["streams"][0]["details"]["group"] == "group"
    assert [report.to_dict()["name"] for report in node.streams("default")] == ["consumer", "anon_1"]


def test_reports_name_the_filters(client):
    client.open("keys", OpenFlag.PRODUCER | OpenFlag.NO_VALUE).stream()
    assert read_reports(client)["dcp:keys"]["streams"][0]["filters"] == ["values"]


def test_statistics_describe_each_producer(client, consumer, upr):
    consumer.control("connection_buffer_size", "1000")
    consumer.control("enable_noop", "true")
    consumer.stream(4)
    upr.ask(UprStreamReq(**ASK))
    dcp = client.stats("dcp")
    prefix = "eq_dcpq:consumer"
    expected = {
        f"{prefix}:type": "producer",
        f"{prefix}:connected": "true",
        f"{prefix}:num_streams": "1",
        f"{prefix}:items_sent": "0",
        f"{prefix}:items_remaining": "0",
        f"{prefix}:total_bytes_sent": "0",
        f"{prefix}:noop_enabled": "true",
        f"{prefix}:noop_wait": "false",
        f"{prefix}:max_buffer_bytes": "1000",
        f"{prefix}:unacked_bytes": "0",
        f"{prefix}:total_acked_bytes": "0",
        f"{prefix}:flow_control": "enabled",
        f"{prefix}:stream_4_start_seqno": "0",
        f"{prefix}:stream_4_end_seqno": str(MAX_SEQNO),
        f"{prefix}:stream_4_vb_uuid": "0",
        f"{prefix}:stream_4_state": "open",
        "ep_dcp_count": "1",
        "ep_dcp_total_backlog_size": "0",
    }
    assert {name: dcp.get(name) for name in expected} == expected
    draft = client.stats("upr")
    assert draft["eq_uprq:anon_1:protocol"] == "upr"
    assert draft["ep_upr_num_running_streams"] == "1"
    assert not [name for name in draft if "dcp" in name]
    assert client.stats("tap")["ep_tap_count"] == "0"


def test_statistics_can_be_limited_to_a_prefix(node, client):
    client.set(b"k")
    with connected(node) as first, connected(node) as second, connected(node) as third:
        for name, consumer in (("replication:a", first), ("replication:b", second), ("xdcr", third)):
            consumer.open(name).stream()
            assert (consumer.message().end_seqno, consumer.message().key) == (1, b"k")
        found = client.stats("dcpagg :")
        assert (found[":total:count"], found["replication:count"]) == ("3", "2")
        assert (found[":total:items_sent"], found["replication:items_sent"]) == ("3", "2")
        assert "xdcr:count" not in found
        assert client.stats("upragg :") == {}
        assert client.stats("dcpagg _")[":total:count"] == "3"


@pytest.mark.parametrize(("dialect", "family"), [("tap", "tap"), ("upr-draft", "upr"), ("upr", "upr"), ("dcp", "dcp")])
def test_each_dialect_reports_its_vbuckets_and_leaves_nothing_behind(node, client, dialect, family):
    def list_totals():
        return {name: value for name, value in client.stats(f"{family}agg").items() if value != "0"}

    with connected(node) as consumer:
        consumer.send(*FIRSTS[dialect])
        consumer.receive()
        (report,) = read_reports(client).values()
        assert (report["dialect"], [stream["vbucket"] for stream in report["streams"]]) == (dialect, [3])
        assert client.stats(family)[f"eq_{family}q:{report['name']}:stream_3_items_remaining"] == "0"
        assert (list_totals()[":total:count"], list_totals().get(":total:total_backlog_size")) == ("1", None)
        consumer.disconnect()
    assert read_reports(client) == list_totals() == {}


@pytest.mark.parametrize("group", ["dcp 4", "streams x", "dcpagg " + ":" * 17])
def test_statistics_groups_refuse_unknown_arguments(client, group):
    assert client.status(Stat(key=group.encode())) == S.EINVAL


def test_producer_can_be_closed_by_name(node, client, consumer, upr):
    upr.ask(UprGetFailoverLog())
    assert client.status(CloseProducer(key=b"consume")) == S.KEY_ENOENT
    assert client.status(CloseProducer(key=b"consumer")) == S.SUCCESS
    assert consumer.ended()
    assert node.close_streams("anon_1", "default") == 1
    assert upr.ended()
    assert read_reports(client) == {}
    with pytest.raises(KeyNotFound, match="no change-stream connection b'anon_1'"):
        node.close_streams("anon_1", "default")
    with pytest.raises(UsageError, match="no bucket 'wine'"):
        node.streams("wine")


def test_any_thread_lists_producers_that_come_and_go(node):
    def come_and_go(name):
        for _ in range(100):
            with connected(node) as client:
                client.open(name)

    with ThreadPoolExecutor(2) as threads, connected(node) as steady:
        steady.open("steady")
        working = [threads.submit(come_and_go, name) for name in ("left", "right")]
        listed = []
        while not all(work.done() for work in working):
            listed.append({report.name for report in node.streams("default")})
        for work in working:
            work.result(PATIENCE)
    assert all("steady" in names <= {"steady", "left", "right"} for names in listed)
    assert {"steady"} < set().union(*listed)


def test_unnamed_producer_takes_no_existing_name(node, client):
    named = TapClient(node).connect(b"anon_1")
    named.read_message()
    with connected_tap(node) as tap:
        tap.read_message()
        assert set(read_reports(client)) == {"tap:anon_1", "tap:anon_2"}
        named.close()


def test_name_is_unique_within_a_dialect(node, client):
    client.open("anon_1")
    with connected(node) as upr:
        upr.ask(UprGetFailoverLog())
        assert set(read_reports(client)) == {"dcp:anon_1", "upr:anon_1"}
        assert client.status(CloseProducer(key=b"anon_1")) == S.SUCCESS
        assert upr.ended()
    assert client.ended()


BACKLOG = ("streams_ready", "items_remaining", "total_backlog_size", "unacked_bytes")


def test_idle_node_has_no_pending_work(node, client, consumer, upr):
    with connected(node) as draft:
        consumer.control("connection_buffer_size", "1000000")
        consumer.stream(1)
        upr.send(UprStreamReq(**ASK, vbucket=1))
        draft.send(DraftStreamReq(**ASK, vbucket=1))
        for number in range(100):
            client.set(b"%d" % number, bytes(1000), vbucket=1)
        received = 0
        for receiver in (consumer, upr, draft):
            keys: set[bytes] = set()
            while len(keys) < 100:
                frame = receiver.receive()
                if receiver is consumer and frame.magic == 0x80:
                    received += frame.size
                keys |= {frame.key} - {b""}
        for receiver in (upr, draft):  # the end of the last snapshot
            receiver.receive()
        consumer.acknowledge(received)
        assert consumer.status(Noop()) == S.SUCCESS
        stats = client.stats()
        assert {f"{family}_{name}": stats[f"ep_{family}_{name}"] for family in ("dcp", "upr") for name in BACKLOG} == (
            {f"{family}_{name}": "0" for family in ("dcp", "upr") for name in BACKLOG}
        )
        assert stats["ep_bytes_unsent"] == "0"
        assert stats["ep_requests_waiting"] == "0"


def read_to_end(client):
    while True:
        client.receive()


@pytest.mark.parametrize("dialect", FIRSTS)
def test_peer_that_reads_nothing_is_disconnected(dialect):
    with Node.running(vbuckets=4, idle_timeout=0.2) as node, connected(node) as client:
        for number in range(30):
            client.set(b"%d" % number, bytes(1 << 20), vbucket=3)
        with connected(node, receive_buffer=4096) as silent:
            silent.send(*FIRSTS[dialect])
            silent.receive()
            while read_reports(client):
                client.status(Noop())
            silent.socket.settimeout(PATIENCE)
            with pytest.raises((ConnectionResetError, EOFError)):
                read_to_end(silent)
        assert client.stats()["ep_bytes_unsent"] == "0"


@pytest.mark.parametrize("dialect", [None, *FIRSTS])
def test_peer_that_reads_nothing_of_a_large_reply_is_disconnected(dialect):
    with Node.running(vbuckets=4, idle_timeout=0.2) as node, connected(node) as client:
        client.set(b"k", bytes(18 << 20))
        with connected(node, receive_buffer=4096) as silent:
            silent.send(*FIRSTS.get(dialect, ()), Get(key=b"k", opaque=7))
            while not has_unsent_bytes(node):
                client.status(Noop())
            patience = time.monotonic() + PATIENCE
            while len(node.connections.open_connections) > 1 and time.monotonic() < patience:
                client.status(Noop())
            assert len(node.connections.open_connections) == 1


def read_slowly(idle_timeout):
    """Return the keys that a slow peer received while it was connected, and its longest time without a read."""
    keys: set[bytes] = set()
    longest = 0.0
    with (
        Node.running(vbuckets=4, idle_timeout=idle_timeout) as node,
        connected(node) as client,
        connected(node, receive_buffer=4096) as slow,
    ):
        for number in range(12):
            client.set(b"%d" % number, bytes(1 << 20))
        slow.send(UprStreamReq(**ASK, opaque=1))
        read_at, is_connected = time.monotonic(), True
        while is_connected and len(keys) < 12:
            try:
                keys |= {slow.receive().key} - {b""}
            except (EOFError, ConnectionResetError):
                is_connected = False
            while time.monotonic() < read_at + idle_timeout / 8:
                client.status(Noop())
            longest, read_at = max(longest, time.monotonic() - read_at), time.monotonic()
    return keys, longest


def test_slow_peer_stays_connected():
    """A trial counts for nothing if the machine itself paused for so long that the peer could not read in time."""
    for idle_timeout in (0.5, 2.0, 8.0, 32.0):
        keys, longest = read_slowly(idle_timeout)
        if longest < idle_timeout / 2:
            break
    assert keys == {b"%d" % number for number in range(12)}


def test_accepted_sockets_have_keepalive(node, client):
    client.status(Noop())

    def get_keepalive():
        sockets = [one._transport.get_extra_info("socket") for one in node.connections.open_connections]
        return [bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) for one in sockets]

    assert set(node.call(get_keepalive)) == {True}


def test_hello_names_the_agent(node, client):
    client.ask(Hello(key=b'{"a":"x/1"}'))
    client.open("named")
    assert read_reports(client)["dcp:named"]["agent"] == "x/1"
    assert client.ask(Noop()).opcode == Opcode.NOOP
