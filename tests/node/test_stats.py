"""Groups of STAT: the names that tools read, refused requests, and long replies that delay no other client."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from penstock.node import Node
from penstock.node.stats import stat_answer
from penstock.node.stats.stat_groups import GROUPS, MISSING
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.flags import Datatype, SnapshotFlag, StreamFlag, TapConnectFlag
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import SnapshotMarker
from penstock.wire.messages.kv import DelVbucket, Noop, SeqnoPersistence, Set, Stat
from penstock.wire.messages.observe import CompactDb
from penstock.wire.messages.tap import TapConnect
from tests.node.manifests import ALE, ALES, BEERS, DEFAULT, make_beers, make_key, set_scopes
from tests.node.watch import run
from tests.node.wire_client import connected, until_stat

MEMORY_WITH_ACK = SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT | SnapshotFlag.ACK

S = Status
VBUCKETS = 4


@pytest.fixture
def node(tmp_path):
    with Node.running(["default"], VBUCKETS, data_dir=tmp_path) as node:
        yield node


def wait_until_persisted(client, seqno, vbucket=0):
    assert client.status(SeqnoPersistence(vbucket=vbucket, seqno=seqno)) == S.SUCCESS


def get_status(client, group, **fields):
    return client.status(Stat(key=group.encode(), **fields))


# All groups

ARGUMENTS = {
    "key": "k 0",
    "key-byid": "k 0 0x0",
    "vkey": "k 0",
    "vkey-byid": "k 0 0x0",
    "collections-byid": "0x0",
    "scopes-byid": "0x0",
    "dcp-vbtakeover": "0 x",
    "upr-vbtakeover": "0 x",
    "tap-vbtakeover": "0 x",
}
MAYBE_EMPTY = ["reset", "kvtimings", "runtimes", "stat-timings", "streams", "dcpagg", "upragg", "tapagg"]


@pytest.mark.parametrize("name", sorted(GROUPS.keys() - {"follow"}))
def test_every_group_returns_names_and_values(client, name):
    client.set(b"k")
    assert client.stats(f"{name} {ARGUMENTS[name]}" if name in ARGUMENTS else name) or name in MAYBE_EMPTY
    assert client.status(Noop()) == S.SUCCESS


@pytest.mark.parametrize("name", sorted(MISSING))
def test_missing_groups_are_refused(client, name):
    client.hello(Feature.XERROR, Feature.JSON)
    for group in (name, f"{name} 0"):
        refused = client.ask(Stat(key=group.encode()))
        assert refused.specific == S.NOT_SUPPORTED
        assert f"group '{name}' is not supported" in refused.value.decode()


REFUSED = [
    ("colour", S.KEY_ENOENT),
    ("follow", S.KEY_ENOENT),
    ("colour 1", S.KEY_ENOENT),
    ("memory x", S.EINVAL),
    ("vbucket x", S.EINVAL),
    ("vbucket 123456", S.NOT_MY_VBUCKET),
    ("vbucket 1" + 20 * "0", S.EINVAL),
    ("vbucket-details 4", S.NOT_MY_VBUCKET),
    ("hash 70000", S.NOT_MY_VBUCKET),
    ("diskinfo x", S.EINVAL),
    ("diskinfo detail", S.NOT_SUPPORTED),
    ("key", S.EINVAL),
    ("key k", S.EINVAL),
    ("key k x", S.EINVAL),
    ("key k 4", S.NOT_MY_VBUCKET),
    ("key k 0 a b", S.EINVAL),
    ("key k 0 nothing", S.EINVAL),
    ("key k 0 no.such", S.UNKNOWN_SCOPE),
    ("key k 0 _default.such", S.UNKNOWN_COLLECTION),
    ("key-byid k 0 8", S.EINVAL),
    ("key-byid k 0 0xzz", S.EINVAL),
    ("key-byid k 0 0x99", S.UNKNOWN_COLLECTION),
    ("key nosuch 0", S.KEY_ENOENT),
    ("vkey nosuch 0", S.KEY_ENOENT),
    (f"key {'k' * 251} 0", S.EINVAL),
    ("dcp-vbtakeover", S.EINVAL),
    ("dcp-vbtakeover x y", S.EINVAL),
    ("dcp-vbtakeover 4 y", S.NOT_MY_VBUCKET),
    ("collections no.such", S.UNKNOWN_SCOPE),
    ("collections-byid", S.EINVAL),
    ("collections-byid 0x99", S.UNKNOWN_COLLECTION),
    ("collections-details x", S.EINVAL),
    ("scopes nosuch", S.UNKNOWN_SCOPE),
    ("scopes-byid 0x99", S.UNKNOWN_SCOPE),
    ("scopes-details 4", S.NOT_MY_VBUCKET),
]


@pytest.mark.parametrize(("group", "expected"), REFUSED)
def test_invalid_stat_requests_are_refused(client, group, expected):
    assert get_status(client, group) == expected
    assert client.status(Noop()) == S.SUCCESS


# The bucket as a whole


def test_statistics_have_the_names_that_tools_need(client):
    client.set(b"k")
    wait_until_persisted(client, 1)
    stats = client.stats()
    expected = {
        "ep_degraded_mode": "false",
        "ep_warmup_thread": "complete",
        "ep_queue_size": "0",
        "ep_diskqueue_items": "0",
        "ep_flusher_state": "running",
        "ep_flusher_todo": "0",
        "ep_item_commit_failed": "0",
        "ep_compaction_failed": "0",
        "vb_active_num": "4",
        "vb_active_perc_mem_resident": "100",
        "vb_active_num_non_resident": "0",
        "vb_active_expired": "0",
        "vb_replica_expired": "0",
        "ep_dcp_dead_conn_count": "0",
        "ep_dcp_consumer_count": "0",
    }
    assert {name: stats[name] for name in expected} == expected
    assert int(stats["ep_commit_num"]) > 0
    assert stats["ep_dbname"].endswith("/default")
    assert stats["ep_dbname"] == client.stats("config")["ep_dbname"]


def test_bucket_in_memory_shows_no_flusher():
    with Node.running(vbuckets=VBUCKETS) as node, connected(node) as client:
        client.set(b"k")
        stats = client.stats()
        names = ("ep_queue_size", "ep_flusher_todo", "ep_commit_num", "ep_total_persisted", "ep_dbname")
        assert [stats[name] for name in names] == ["0", "0", "1", "1", ""]  # stored changes count as persisted
        assert "ep_flusher_state" not in stats
        assert client.stats("warmup") == {"ep_warmup": "disabled"}
        assert get_status(client, "diskinfo") == S.NOT_SUPPORTED
        assert client.stats("key k 0")["key_is_dirty"] == "false"
        assert get_status(client, "vkey k 0") == S.NOT_SUPPORTED


def test_ephemeral_bucket_shows_no_commits():
    with Node.running(vbuckets=VBUCKETS) as node, connected(node) as client:
        bucket = node.buckets["default"]
        run(node, lambda: setattr(bucket, "spec", replace(bucket.spec, kind="ephemeral")))
        client.set(b"k")
        assert "ep_commit_num" not in client.stats()


def test_expired_documents_are_counted(client):
    client.ask(Set(key=b"k", expiry=1_000_000_000))  # in the past
    assert client.get(b"k").specific == S.KEY_ENOENT
    assert client.stats()["vb_active_expired"] == "1"


def test_memory_statistics_grow_with_documents(client):
    before = {name: int(value) for name, value in client.stats("memory").items()}
    for n in range(100):
        client.set(b"k%d" % n, bytes(1000))
    after = {name: int(value) for name, value in client.stats("memory").items()}
    assert after["bytes"] - before["bytes"] > 100_000
    assert after["mem_used"] - before["mem_used"] > 100_000
    assert after["mem_used"] == after["ep_index_bytes"] + after["ep_log_live_bytes"] + after["ep_log_dead_bytes"]
    assert after["ep_item_num"] == 100
    whole = client.stats()
    assert {name: int(whole[name]) for name in after} == after


def test_mapped_files_do_not_count_as_memory(client):
    for n in range(100):
        client.set(b"k%d" % n, bytes(1000))
    before = int(client.stats("memory")["mem_used"])
    assert client.status(CompactDb()) == S.SUCCESS
    memory = {name: int(value) for name, value in client.stats("memory").items()}
    assert memory["ep_log_live_bytes"] > 100_000
    assert memory["mem_used"] < before - 100_000


def test_reset_sets_counters_to_zero(client, other):
    client.set(b"k")
    client.get(b"k")
    other.open("c").stream(end=1)
    assert len([*other.changes()]) == 2  # a marker and the change
    assert client.stats()["ep_dcp_items_sent"] == "1"
    assert client.stats("reset") == {}
    stats = client.stats()
    assert {stats[name] for name in ("cmd_get", "cmd_set", "ep_dcp_items_sent", "ep_dcp_total_bytes")} == {"0"}
    assert stats["curr_items"] == "1"
    assert client.stats("dcp")["eq_dcpq:c:items_sent"] == "1"


# A document


def test_key_statistics_describe_a_document(client):
    client.ask(Set(key=b"k", value=b"v", flags=7, vbucket=1))
    wait_until_persisted(client, 1, vbucket=1)
    found = client.stats("key k 1")
    assert found == {
        "key_is_dirty": "false",
        "key_exptime": "0",
        "key_datatype": "raw",
        "key_flags": "7",
        "key_cas": str(client.meta(b"k", vbucket=1).cas),
        "key_vb_state": "active",
        "key_is_resident": "true",
    }
    assert client.stats("key-byid k 1 0x0") == client.stats("key k 1 _default._default") == found
    assert client.stats("vkey k 1") == {**found, "key_valid": "valid"}
    assert get_status(client, "key k 0") == S.KEY_ENOENT


def test_vkey_reports_a_dirty_document(node, client):
    flusher = node.buckets["default"].flusher
    run(node, lambda: flusher.pause(b""))
    client.set(b"k")
    assert client.stats("key k 0")["key_is_dirty"] == "true"
    assert client.stats("vkey k 0")["key_valid"] == "dirty"


def test_key_statistics_accept_a_collection(node, client):
    set_scopes(client, 1, DEFAULT, make_beers(ALE))
    with connected(node) as named:
        named.hello(Feature.COLLECTIONS)
        named.set(make_key(ALES), b"{}")
    wait_until_persisted(client, int(client.stats("vbucket-seqno 0")["vb_0:high_seqno"]))
    scope, collection = f"0x{BEERS:x}", f"0x{ALES:x}"
    assert client.stats("key k 0 beers.ales") == client.stats(f"key-byid k 0 {collection}")
    assert get_status(client, "key k 0") == S.KEY_ENOENT
    details = client.stats("collections-details 0")
    name = f"vb_0:{collection}"
    assert (details[f"{name}:name"], details[f"{name}:items"], details["vb_0:collections"]) == ("ales", "1", "2")
    shown = client.stats("collections beers.ales")
    assert shown.pop("manifest_uid") == client.stats("manifest")["manifest_uid"] == "1"
    assert {text.rpartition(":")[0] for text in shown} == {f"{scope}:{collection}"}
    assert client.stats(f"collections-byid {collection}") == client.stats("collections beers.ales")
    assert client.stats("scopes beers") == client.stats(f"scopes-byid {scope}")
    assert client.stats("scopes-details 0")[f"vb_0:{scope}:{collection}:items"] == "1"


# Producers


def test_producer_totals_never_decrease(client, other):
    for n in range(10):
        client.set(b"k%d" % n)
    other.open("c")
    totals = [(0, 0)]
    for _ in range(3):
        other.stream(end=10)
        assert len([*other.changes()]) == 11  # a marker and the changes
        stats = client.stats("dcp")
        totals.append((int(stats["eq_dcpq:c:items_sent"]), int(stats["eq_dcpq:c:total_bytes_sent"])))
        assert stats["eq_dcpq:c:num_streams"] == "0"
    assert [items for items, _ in totals] == [0, 10, 20, 30]
    assert [nbytes for _, nbytes in totals] == [totals[1][1] * n for n in range(4)]
    (report,) = (json.loads(text) for text in client.stats("streams").values())
    assert (report["items_sent"], report["bytes_sent"]) == totals[-1]
    assert client.stats("dcpagg :")[":total:items_sent"] == "30"


def test_acknowledged_bytes_are_shown(client, other):
    client.set(b"k", bytes(100))
    other.open("c").control("connection_buffer_size", "1000")
    other.stream()
    for _ in range(2):
        other.message()
    unacked = int(client.stats("dcp")["eq_dcpq:c:unacked_bytes"])
    assert unacked > 100
    other.acknowledge(unacked + 7)
    assert other.status(Noop()) == S.SUCCESS
    stats = client.stats("dcp")
    assert (stats["eq_dcpq:c:unacked_bytes"], stats["eq_dcpq:c:total_acked_bytes"]) == ("0", str(unacked + 7))


def read_stream_stats(client, name="c", vbucket=0):
    prefix = f"eq_dcpq:{name}:stream_{vbucket}_"
    return {key.removeprefix(prefix): text for key, text in client.stats("dcp").items() if key.startswith(prefix)}


def test_stream_statistics_separate_backfill_and_live(client, other):
    for n in range(3):
        client.set(b"k%d" % n)
    other.open("c").stream()
    for _ in range(4):
        other.message()  # a marker and the changes
    stats = read_stream_stats(client)
    wanted = ("backfill_sent", "memory_phase", "last_sent_seqno", "last_sent_snap_end_seqno", "items_ready")
    assert [stats[name] for name in wanted] == ["3", "0", "3", "3", "false"]
    client.set(b"live")
    for _ in range(2):
        other.message()
    stats = read_stream_stats(client)
    assert [stats[name] for name in wanted] == ["3", "1", "4", "4", "false"]


def test_stream_from_the_end_has_no_backfill(client, other):
    client.set(b"k")
    vbuuid = int(client.stats("vbucket-seqno 0")["vb_0:uuid"])
    other.open("c").stream(start=1, vbuuid=vbuuid)
    client.set(b"live")
    for _ in range(2):
        other.message()
    stats = read_stream_stats(client)
    assert (stats["backfill_sent"], stats["memory_phase"]) == ("0", "1")


def read_dcp_group(client, options, datatype=Datatype.JSON):
    """Request the group `dcp` with a value; return its statistics, or the status of a refusal."""
    value = options if isinstance(options, bytes) else json.dumps(options).encode()
    client.send(Frame(0x80, Stat.opcode, datatype=int(datatype), key=b"dcp", value=value))
    found = {}
    while (frame := client.receive()).key:
        found[frame.key.decode()] = frame.value.decode()
    return frame.specific if frame.specific else found


def test_stream_format_is_json_names_or_skip(client, other):
    client.hello(Feature.JSON)
    client.set(b"k")
    other.open("c").stream()
    for _ in range(2):
        other.message()
    legacy = {"eq_dcpq:c:stream_0_" + name: text for name, text in read_stream_stats(client).items()}
    as_json = read_dcp_group(client, {"stream_format": "json"})
    (stream,) = (text for name, text in as_json.items() if name == "eq_dcpq:c:stream_0")
    texts = {name: str(value).lower() for name, value in json.loads(stream).items()}
    assert {"eq_dcpq:c:stream_0_" + name: text for name, text in texts.items()} == legacy
    skipped = read_dcp_group(client, {"stream_format": "skip"})
    assert "eq_dcpq:c:type" in skipped
    assert not [name for name in (*skipped, *as_json) if "stream_0_" in name]
    others: list[Any] = [{}, {"stream_format": "legacy"}, {"stream_format": "colour"}, {"stream_format": 1}, [], 7]
    for options in others:
        assert set(legacy) < set(read_dcp_group(client, options))


def test_producers_are_filtered_by_user_and_port(node, client, other):
    client.hello(Feature.JSON)
    other.open("c")
    shown = [
        ({"port": node.kv_port}, True),
        ({"port": 1}, False),
        ({"user": "somebody"}, False),
        ({}, True),
    ]
    for wanted, expected in shown:
        assert ("eq_dcpq:c:type" in read_dcp_group(client, {"filter": wanted})) == expected


@pytest.mark.parametrize(
    ("value", "datatype"),
    [(b"{", Datatype.JSON), (b"{}", Datatype.RAW), (b"\xff", Datatype.JSON), (b"[" * 4096, Datatype.JSON)],
    ids=["incomplete", "of another datatype", "not UTF-8", "without an end"],
)
def test_invalid_json_value_is_refused(client, value, datatype):
    client.hello(Feature.JSON)
    assert read_dcp_group(client, value, datatype) == S.EINVAL


def test_value_length_is_limited(client):
    client.hello(Feature.JSON)
    assert "ep_dcp_count" in read_dcp_group(client, b"{}" + b" " * 4094)
    assert read_dcp_group(client, b"{}" + b" " * 4095) == S.E2BIG


def test_other_groups_ignore_the_value(client):
    client.hello(Feature.JSON)
    client.send(Frame(0x80, Stat.opcode, datatype=int(Datatype.JSON), key=b"uuid", value=b'{"a":1}'))
    assert client.receive().key == b"uuid"


def test_takeover_statistics_estimate_the_rest(client, other):
    for n in range(3):
        client.set(b"k%d" % n)
    client.delete(b"k0")
    unconnected = client.stats("dcp-vbtakeover 0 c")
    assert unconnected == {
        "status": "connection_does_not_exist",
        "on_disk_deletes": "1",
        "vb_items": "2",
        "chk_items": "0",
        "estimate": "3",
    }
    other.open("c")
    assert client.stats("dcp-vbtakeover 0 c")["status"] == "stream_does_not_exist"
    other.stream()
    for _ in range(4):
        other.message()
    assert client.stats("dcp-vbtakeover 0 c") == {
        "name": "eq_dcpq:c",
        "status": "in-memory",
        "estimate": "0",
        "backfillRemaining": "0",
        "on_disk_deletes": "1",
        "vb_items": "2",
        "chk_items": "0",
    }


def test_takeover_statistics_distinguish_the_backfill_from_later_changes(client, other):
    for n in range(3):
        client.set(b"k%d" % n)
    assert other.open("c").control("connection_buffer_size", "1") == S.SUCCESS
    other.stream(flags=StreamFlag.TAKEOVER, opaque=5)
    other.message()  # the marker fills the window
    client.set(b"later")
    found = client.stats("dcp-vbtakeover 0 c")
    expected = {"status": "backfilling", "estimate": "4", "backfillRemaining": "3", "chk_items": "1"}
    assert {name: found[name] for name in expected} == expected
    assert client.stats("dcp")["eq_dcpq:c:stream_0_takeover_state"] == "copying"
    assert other.control("connection_buffer_size", "0") == S.SUCCESS
    while other.message() != SnapshotMarker(opaque=5, start_seqno=4, end_seqno=4, flags=MEMORY_WITH_ACK):
        pass
    until_stat(client, "estimate", 0, "dcp-vbtakeover 0 c")
    assert client.stats("dcp-vbtakeover 0 c")["status"] == "in-memory"


def test_absent_tap_clients_are_listed(node, client):
    with connected(node) as tap:
        tap.send(TapConnect(key=b"r", flags=TapConnectFlag.REGISTERED_CLIENT))
        client.set(b"k")
        tap.receive()
        assert client.stats("tap")["eq_tapq:r:connected"] == "true"
        tap.disconnect()
    for _ in range(100_000):
        stats = client.stats("tap")
        if stats["eq_tapq:r:connected"] == "false":
            break
    assert stats["eq_tapq:r:registered"] == "true"
    assert stats["eq_tapq:r:num_streams"] == "0"
    assert stats["ep_tap_count"] == "0"
    assert int(stats["eq_tapq:r:items_remaining"]) >= 0


# Histograms and tasks


def test_histograms_have_the_form_that_cbstats_reads(client):
    client.set(b"k")
    wait_until_persisted(client, 1)
    client.stats("uuid")
    for group in ("timings", "latencies", "stat-timings", "runtimes", "kvtimings"):
        found = client.stats(group)
        assert found
        for name, text in found.items():
            assert re.fullmatch(r".+_\d+,\d+", name), name
            assert float(text) > 0
    assert sum(int(text) for name, text in client.stats("stat-timings").items() if re.match(r"uuid_\d", name)) == 1


def test_background_tasks_are_listed(client):
    client.set(b"k")
    wait_until_persisted(client, 1)
    found = client.stats("tasks")
    assert set(found) == set(client.stats("tasks-all"))
    rows = {row["name"]: row for row in json.loads(found["ep_tasks:tasks:default"])}
    assert set(rows) == {"flusher", "compactor", "expiry_pager"}
    assert rows["flusher"]["num_runs"] > 0
    assert rows["flusher"]["total_runtime_ns"] > 0
    assert rows["expiry_pager"]["waketime_ns"] > int(found["ep_tasks:cur_time:default"])


# Long replies


def test_sliced_reply_is_complete(tmp_path, monkeypatch):
    with Node.running(["default"], 1024) as node, connected(node) as client, connected(node) as other:
        for vbucket in range(1024):
            client.set(b"k", vbucket=vbucket)
        expected = client.stats("vbucket-details")
        monkeypatch.setattr(stat_answer, "_SLICE_SECONDS", 0.0)
        client.send(Stat(key=b"vbucket-details"), Noop())
        assert other.status(Noop()) == S.SUCCESS
        found = {}
        while (frame := client.receive()).key:
            found[frame.key.decode()] = frame.value.decode()
        assert client.receive().opcode == Noop.opcode  # replies stay in order
        assert found == expected
        assert len(found) > 10_000


@pytest.mark.long
def test_requests_do_not_overtake_a_long_reply(monkeypatch):
    """Otherwise many long replies of one connection would take nearly all turns."""
    monkeypatch.setattr(stat_answer, "_SLICE_SECONDS", 0.0)
    with Node.running(["default"], 1024) as node, connected(node) as client:
        client.hello(Feature.UNORDERED_EXECUTION)
        client.send(*[Stat(key=b"vbucket-details")] * 3, Noop())
        for _ in range(3):
            assert sum(1 for _ in iter(lambda: client.receive().key, b"")) > 10_000
        assert client.receive().opcode == Noop.opcode


def test_vbucket_deleted_meanwhile_is_left_out(monkeypatch):
    monkeypatch.setattr(stat_answer, "_SLICE_SECONDS", 0.0)
    with Node.running(["default"], 1024) as node, connected(node) as client, connected(node) as other:
        client.send(*[Stat(key=b"vbucket-details")] * 3)
        assert other.status(DelVbucket(vbucket=1023)) == S.SUCCESS
        for _ in range(3):
            while client.receive().key:
                pass
        assert client.status(Noop()) == S.SUCCESS
        assert "vb_1023" not in client.stats("vbucket")


def test_closed_client_ends_a_long_reply(monkeypatch):
    monkeypatch.setattr(stat_answer, "_SLICE_SECONDS", 0.0)
    with Node.running(["default"], 1024) as node:
        for _ in range(3):
            with connected(node) as client:
                client.send(*[Stat(key=b"vbucket-details")] * 4)
                client.disconnect()
        with connected(node) as client:
            assert len(client.stats("vbucket")) == 1024
