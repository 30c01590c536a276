"""Durations of work and of commands, in histograms with powers of two of microseconds as bounds."""

import time

import pytest

from penstock.client.dashboard.stat_rows import list_timings
from penstock.node import Node
from penstock.node.timing.command_times import RECENT_SECONDS, CommandKind, CommandTimes
from penstock.node.timing.histogram import Histogram
from penstock.node.timing.request_timer import RequestTimer
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.kv import Count, Delete, Get, Noop, SeqnoPersistence, Set
from penstock.wire.messages.subdoc import MultiLookup
from tests.node.wire_client import connected, until_stat

SECONDS = [
    (0.0, "work_0,1"),
    (0.000_001, "work_1,2"),
    (0.000_003, "work_2,4"),
    (0.001, "work_512,1024"),
    (1.0, "work_524288,1048576"),
]


@pytest.mark.parametrize(("seconds", "name"), SECONDS)
def test_duration_is_counted_between_two_powers_of_two(seconds, name):
    histogram = Histogram()
    histogram.record(seconds)
    assert list(histogram.list_stats("work")) == [(name, 1)]


def test_histograms_are_merged_and_reset():
    histograms = [Histogram(), Histogram(), Histogram()]
    for histogram, seconds in zip(histograms, (0.000_003, 0.000_003, 0.001), strict=True):
        histogram.record(seconds)
    merged = Histogram.merge(histograms)
    assert list(merged.list_stats("work")) == [("work_2,4", 2), ("work_512,1024", 1)]
    assert merged.count == 3
    assert merged.total == pytest.approx(0.001_006)
    histograms[0].reset()
    assert list(histograms[0].list_stats("work")) == []
    assert (histograms[0].count, histograms[0].total, histograms[0].last) == (0, 0.0, 0.0)


def count_commands(histograms):
    return {kind: times.count for kind, times in histograms.items() if times.count}


def test_commands_of_the_last_ten_minutes_are_distinguished():
    times, kinds = CommandTimes(), CommandKind
    times.record(bytes((Opcode.GET, Opcode.SET, Opcode.GETQ)), 0.001, now=5.0)
    times.record(bytes((Opcode.DELETE,)), 0.001, now=100.0)
    times.record(bytes((Opcode.NOOP,)), 0.001, now=110.0, times=7)
    assert count_commands(times.list_recent(110.0)) == {kinds.GET: 2, kinds.SET: 1, kinds.DELETE: 1, kinds.OTHER: 7}
    assert count_commands(times.list_recent(99.0 + RECENT_SECONDS)) == {kinds.DELETE: 1, kinds.OTHER: 7}
    assert count_commands(times.list_recent(150.0 + RECENT_SECONDS)) == {}
    for second in range(0, 3600, 10):
        times.record(bytes((Opcode.INCREMENT,)), 0.001, now=200.0 + second)
    (recent,) = count_commands(times.list_recent(200.0 + 3590)).values()
    assert RECENT_SECONDS / 10 <= recent <= RECENT_SECONDS / 10 + 4
    assert count_commands(times.list_all())[kinds.COUNTER] == 360
    times.reset()
    assert count_commands(times.list_recent(5000.0)) == count_commands(times.list_all()) == {}


@pytest.mark.parametrize("seconds", [0.5, 0.000_05])
def test_timed_reads_count_for_all_reads(seconds):
    now = 0.0
    timer, times, timed = RequestTimer(lambda: now), CommandTimes(), 0
    for number in range(10_000):
        timer.reads_left -= 1
        if timer.reads_left <= 0 or timer.read is not None:
            timer.begin_read()
        timed += timer.read is not None
        if timer.read is not None:
            timer.answered.append(Opcode.SET if number % 10 == 0 else Opcode.GET)
        timer.record(times)
        now += seconds
    found = count_commands(times.list_all())
    if seconds > 0.01:
        assert (timed, found) == (10_000, {CommandKind.GET: 9000, CommandKind.SET: 1000})
    else:
        assert timed == pytest.approx(10_000 / 32, rel=0.1)
        assert sum(found.values()) == pytest.approx(10_000, abs=60)  # those after the last timed read are missing
        assert found[CommandKind.SET] == pytest.approx(1000, rel=0.2)


def test_commands_of_a_read_are_counted_by_kind():
    sent = [
        Set(key=b"k"),
        Get(key=b"k"),
        Get(key=b"missing"),
        Delete(key=b"k"),
        Noop(),
        MultiLookup(key=b"k", value=b""),
    ]
    sent.append(Count(key=b"n", delta=1, initial=0, expiry=0))
    with Node.running(vbuckets=1) as node, connected(node) as client, connected(node) as other:
        client.send(*sent)
        for _ in sent:
            client.receive()
        until_stat(other, "cmd_get", "2")
        rows = {row.name: row.count for row in list_timings([other.stats("latencies")]) or ()}
        assert rows.pop("other") >= 1
        assert rows == {"get": 2, "set": 1, "delete": 1, "counter": 1, "subdoc": 1}
        assert "store_cmd_" in str(other.stats("timings"))
        other.stats("reset")
        assert "store_cmd" not in str(other.stats("timings"))


def test_request_that_waits_for_the_disk_has_the_time_until_its_reply(tmp_path):
    with Node.running(vbuckets=1, data_dir=tmp_path) as node, connected(node) as client, connected(node) as other:
        client.send(SeqnoPersistence(seqno=1))
        until_stat(other, "ep_persistence_waiters", "1")
        began = time.monotonic()
        while time.monotonic() < began + 0.05:
            other.stats("uuid")
        waited = time.monotonic() - began
        other.set(b"k")
        client.receive()
        bounds = [int(name.rpartition(",")[2]) for name in other.stats("latencies") if name.startswith("other")]
        assert max(bounds) > waited * 1e6
