"""`penstock top`: rates, the screen on a small terminal, keys and signals on a pseudo-terminal."""

import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from contextlib import contextmanager
from dataclasses import replace

import pytest
from rich.console import Console

from penstock.cli.top.bucket_view import format_bytes, format_count, make_object, make_screen
from penstock.cli.top.traffic_sample import ConnectionSample, TrafficSample, compute_rates
from penstock.client.dashboard.dashboard_document import TimingRow
from tests.client.old_server import COUCHBASE_3_1, OldServer
from tests.patience import PATIENCE
from tests.waiting import wait_readable

COLUMNS, LINES = 80, 24


def make_connection(number, sent=0):
    return ConnectionSample(
        name=f"replication-{number}-\x1b[31m" + 30 * "x",
        dialect="dcp",
        role="producer",
        user="u",
        peer="127.0.0.1:1",
        items_sent=sent,
        bytes_sent=100 * sent,
        streams=1024,
        remaining=number,
        unsent=0,
    )


BEFORE = TrafficSample(
    at=10.0,
    version="7.6.0-penstock-" + 50 * "1",
    nodes=3,
    values={"documents": 10**12, "memory_bytes": 10**12, "quota_bytes": 10**13, "disk_bytes": 10**14, "unpersisted": 7},
    counts={"gets": 100, "sets": 100, "deletes": 100, "sent_changes": 0, "sent_bytes": 0},
    states={"active": 512, "replica": 511, "pending": 0, "dead": 1},
    seqnos=dict.fromkeys(range(1024), 5),
    streams=[make_connection(number) for number in range(100)],
    commands=[TimingRow(name, 7, None, [0.000_064, 0.004_096, 33.5]) for name in ("get", "set", "other")],
)
AFTER = replace(
    BEFORE,
    at=12.0,
    counts={**BEFORE.counts, "gets": 2100, "sets": 50},
    seqnos={**BEFORE.seqnos, 7: 25, 1023: 1005},
    streams=[make_connection(number, sent=40) for number in range(100)],
)


def test_rates_are_for_each_second_and_never_negative():
    rates = compute_rates(BEFORE, AFTER)
    assert (rates.counts["gets"], rates.counts["sets"]) == (1000, 0)
    assert (rates.vbuckets[7], rates.vbuckets[8], rates.vbuckets[1023]) == (10, 0, 500)
    assert set(rates.streams.values()) == {(20, 2000)}
    shown = make_object(AFTER, rates)
    assert shown["busy_vbuckets"] == {"7": 10, "1023": 500}
    assert [each["remaining"] for each in shown["streams"][:2]] == [99, 98]
    assert make_object(replace(AFTER, commands=None), rates)["latencies"] is None


@pytest.mark.parametrize("height", [24, 12, 50])
def test_screen_fits_into_the_terminal(height):
    written = io.StringIO()
    console = Console(file=written, width=COLUMNS, height=height, force_terminal=True, no_color=True, highlight=False)
    rates = compute_rates(BEFORE, AFTER)
    console.print(make_screen("couchbase://" + 90 * "h", AFTER, rates, height=height, notice="no answer: " + 99 * "x"))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", written.getvalue())
    lines = plain.removesuffix("\n").split("\n")
    assert len(lines) <= max(height, 19)
    assert max(map(len, lines)) <= COLUMNS
    assert "1023: 500/s, 7: 10/s" in plain
    assert "█]" in plain
    assert "99 %, 10 minutes  get 34 s   set 34 s" in plain
    assert "more connections, which lag less" in plain
    assert "\x1b" not in plain


@pytest.mark.parametrize(("number", "text"), [(0, "0"), (9999.4, "9,999"), (10_000, "10k"), (12_345_678, "12M")])
def test_counts_are_short(number, text):
    assert format_count(number) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 40, "1.0 TiB")])
def test_bytes_are_short(number, text):
    assert format_bytes(number) == text


def test_one_sample_is_printed_without_a_terminal(on_beer, node):
    on_beer("load", "-", "--key", "id", stdin=b'{"id": "ale"}\n{"id": "stout"}\n')
    shown = on_beer("top", "--json", "--interval", 0.1).json
    assert (shown["bucket"], shown["documents"], shown["vbuckets"]["active"], shown["streams"]) == ("beer", 2, 16, [])
    assert shown["per_second"].keys() == {"gets", "sets", "deletes", "sent_changes", "sent_bytes"}
    latencies = shown["latencies"]["set"]
    assert 0 < latencies["p50"] <= latencies["p95"] <= latencies["p99"]
    shown = on_beer("top", "--interval", 0.1)
    assert (shown.code, shown.err) == (0, "")
    assert "documents  2   vbuckets  16 active" in shown.out
    assert "Ctrl-C" not in shown.out
    with OldServer(node, COUCHBASE_3_1) as server:
        shown = on_beer("top", "--json", "--interval", 0.1, "--url", server.url()).json
    assert (shown["version"], shown["nodes"], "documents" in shown) == ("3.1.6", 1, False)


RUN_ON_TERMINAL = """
import fcntl, runpy, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C reaches the process by its terminal
runpy.run_module("penstock", run_name="__main__", alter_sys=True)
"""


@contextmanager
def running_top(url, *arguments):
    """Run `penstock top` on a pseudo-terminal of 80x24; yield the process and the terminal's other end."""
    other, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": "1", "PENSTOCK_URL": url}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN_ON_TERMINAL, "top", *map(str, arguments)],
        stdin=terminal,
        stdout=terminal,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process, other, terminal
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
        os.close(other)
        os.close(terminal)


def read_until(other, text):
    """Return the output of the terminal up to a text."""
    seen = b""
    while text not in seen:
        assert wait_readable([other], PATIENCE), f"nothing was shown in time after {seen[-200:]!r}"
        seen += os.read(other, 1 << 16)
    return seen


@pytest.mark.process
@pytest.mark.parametrize("end", [b"q", b"\x03", None])
def test_live_view_ends_by_key_and_by_signal(node, end):
    with running_top(node.url("beer"), "--interval", 0.1) as (process, other, terminal):
        seen = read_until(other, b"q or Ctrl-C: end")
        seen += read_until(other, b"q or Ctrl-C: end")  # the view is repeated
        assert b"16 active" in seen
        assert re.search(rb"\x1b\[[0-9;]*(?:3[0-9]|9[0-7])m", seen) is None, "a colour in spite of NO_COLOR"
        if end is None:
            process.send_signal(signal.SIGTERM)
        else:
            os.write(other, end)
        seen = read_until(other, b"\x1b[?1049l")  # it leaves the alternate screen
        _, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, err) == (0, b"")
        echoes = termios.tcgetattr(terminal)[3] & (termios.ECHO | termios.ICANON)
        assert echoes == termios.ECHO | termios.ICANON, "the terminal is as before"
