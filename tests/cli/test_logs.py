"""The log of commands: formats, levels, and levels that signals change."""

import json
import re
import signal

import pytest

from tests.cli.test_processes import read_first_line, run_process, stop_process

TAIL = ("tail", "--from", "now", "--until", "now")


def test_log_as_json(on_beer, monkeypatch):
    done = on_beer("--log-level", "info", "--log-format", "json", *TAIL)
    (opened, *_) = [json.loads(line) for line in done.err.splitlines()]
    assert (opened["level"], opened["logger"]) == ("info", "penstock.client.streams")
    assert re.fullmatch(r"penstock:[0-9a-f]{16}", opened["connection"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[0-9:.]+\+00:00", opened["time"])
    monkeypatch.setenv("PENSTOCK_LOG_FORMAT", "json")
    (error,) = [json.loads(line) for line in on_beer("stats", "nosuch").err.splitlines()]
    assert (error["level"], error["logger"]) == ("error", "penstock.cli")
    assert "has no statistics 'nosuch'" in error["message"]


def test_log_as_text_with_time_and_level(on_beer):
    assert on_beer(*TAIL).err == ""
    first = on_beer("--log-level", "info", "--log-format", "console", *TAIL).err.splitlines()[0]
    assert re.match(r"\d{4}-\d\d-\d\dT\S+ INFO penstock\.client\.streams: ", first)
    assert on_beer(*TAIL).err == ""  # a command leaves no settings behind


def test_unknown_level_is_wrong_usage(on_beer):
    code, _, err = on_beer("--log-level", "loud", "stats")
    assert (code, err.count("\n")) == (2, 1)
    assert "'loud' is not one of 'debug', 'info', 'warning', 'error'" in err


@pytest.mark.process
def test_signals_change_the_level_of_a_node(tmp_path):
    with run_process("--log-format", "json", "serve", "--port", 0, "--vbuckets", 4) as node:
        read_first_line(node.stdout)
        read_first_line(node.stderr)  # the notice that there are no users
        for number, level in (
            (signal.SIGUSR1, "info"),
            (signal.SIGUSR1, "debug"),
            (signal.SIGUSR1, "debug"),
            (signal.SIGUSR2, "warning"),
        ):
            node.send_signal(number)
            while (line := json.loads(read_first_line(node.stderr)))["logger"] != "penstock":
                pass
            assert line["message"] == f"the log has level {level}"
        assert stop_process(node, signal.SIGTERM)[0] == 0
