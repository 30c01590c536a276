"""Spark's Python processes as forks: arguments, environment, files, status; with and without the server."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.runtime import fork_launcher
from penstock.spark.runtime.fork_server import SOCKET_NAME, ForkRequest, start_fork_server
from tests.patience import PATIENCE

pytestmark = [pytest.mark.process, pytest.mark.long]

LAUNCHER = files("penstock.spark.runtime") / "worker-python"
PROGRAM = """
import json, os, sys
print(json.dumps([sys.argv[1:], os.environ.get("ASKED"), os.getcwd(), sys.path[:2], os.getpid(), sys.stdin.read(),
                  "pyspark.worker" in sys.modules, sys.flags.hash_randomization, __name__]))
sys.stdout.flush()
print("a problem", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""
START = """
import json, sys
from penstock.spark.runtime.fork_server import start_fork_server
print(json.dumps(start_fork_server()), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def server():
    """A program that has started a fork server, and the variables that it got."""
    command = [sys.executable, "-c", START]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        yield program, json.loads(program.stdout.readline())
        program.stdin.close()
        program.wait(PATIENCE)


def run(tmp_path: Path, status: int, variables: dict[str, str], more: Iterable[str] = ()) -> list[Any]:
    (tmp_path / "asked_program.py").write_text(PROGRAM)
    inherited = {name: value for name, value in os.environ.items() if name != SOCKET_NAME}
    environment = {**inherited, "PENSTOCK_PYTHON": sys.executable, "ASKED": "yes=1", "PYTHONPATH": "/one:/two"}
    if more:
        environment["PYTHONPATH"] += ":" + ":".join(more)
    done = subprocess.run(
        [str(LAUNCHER), "-m", "asked_program", str(status), "ü"],
        cwd=tmp_path,
        env={**environment, **variables},
        input="from Java",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == status
    assert "a problem" in done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def test_process_is_the_same_as_without_the_server(server, tmp_path):
    source = [str(Path(entry)) for entry in sys.path if (Path(entry) / "penstock").is_dir()]
    forked, started = (run(tmp_path, 7, variables, source) for variables in [server[1], dict[str, str]()])
    (*same, pid, text, is_preloaded, is_randomized, name) = forked
    assert same == started[:4] == [["7", "ü"], "yes=1", str(tmp_path), [str(tmp_path), "/one"]]
    assert (text, name) == (started[5], started[8]) == ("from Java", "__main__")
    assert pid != started[4]
    assert (is_preloaded, started[6]) == (True, False)
    assert is_randomized == 0  # all processes have the same hash of a text
    assert run(tmp_path, 0, server[1])[4] != pid


def test_process_runs_without_a_server_that_has_ended(tmp_path):
    source = [str(Path(entry)) for entry in sys.path if (Path(entry) / "penstock").is_dir()]
    assert run(tmp_path, 3, {SOCKET_NAME: str(tmp_path / "gone")}, source)[0] == ["3", "ü"]


def test_long_directory_has_no_server(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 70)))
    assert start_fork_server() == {}


def test_server_ends_with_its_program(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", START], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        path = Path(json.loads(program.stdout.readline())[SOCKET_NAME])
        run(tmp_path, 0, {SOCKET_NAME: str(path)})
        assert path.parent.stat().st_mode & 0o777 == 0o700
        program.send_signal(signal.SIGKILL)
        assert program.stderr.read() == ""  # until the server, which has this file too, has ended
    assert not path.parent.exists()


def test_incomplete_request_is_dropped(server, tmp_path):
    path = server[1][SOCKET_NAME]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(b"\0\0\1\0rest")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall((1 << 31).to_bytes(4, "big") + b"x")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert run(tmp_path, 0, server[1])[1] == "yes=1"


def test_request_is_received_as_it_was_packed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    one, other = socket.socketpair()
    with one, other, open(os.devnull) as file:
        socket.send_fds(one, [fork_launcher.pack_request(["-m", "a", ""])], [file.fileno()] * 3)
        request = ForkRequest.receive(other)
    assert request is not None
    assert (request.directory, request.arguments) == (str(tmp_path), ["-m", "a", ""])
    assert request.environment == dict(os.environ)
    for each in request.files:
        os.close(each)
