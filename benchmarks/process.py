"""Servers in separate processes, with their CPU time and memory: `penstock serve`, as users start it, and memcached."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users

USER, PASSWORD = "Administrator", "password"
"""The login of a user with all rights on the nodes."""

_PATIENCE = 60.0
_UNPACKED = Path(__file__).parent.parent / "build" / "compat" / "debian" / "usr"


class Process(NamedTuple):
    """A running server.

    Attributes:
        pid: the process id.
        port: the port of the binary protocol.
        ready: the JSON line that the node printed when it was ready; empty for memcached.
    """

    pid: int
    port: int
    ready: dict[str, Any]

    def read_cpu_seconds(self) -> float:
        """Return the CPU seconds that the process has used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def read_memory(self) -> int:
        """Return the resident memory of the process in bytes, including shared libraries."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None, f"process {self.pid} has ended"
        return int(found[1]) * 1024


@contextmanager
def run_penstock(*options: object) -> Iterator[Process]:
    """Run `penstock serve` with these options, on a free port, until the block ends. Clients must log in."""
    with ExitStack() as stack:
        users = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "users.json"
        with change_users(users) as accounts:
            accounts[USER] = make_account(User.from_texts(USER, ["admin"]), PASSWORD)
        given = ["--users", users, "--allow-plain", "--port", 0, "--json", *options]
        command = [sys.executable, "-m", "penstock", "serve", *map(str, given)]
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
        try:
            assert process.stdout is not None
            if not select.select([process.stdout], [], [], _PATIENCE)[0]:
                raise TimeoutError("the node did not start")
            if not (line := process.stdout.readline()):
                raise RuntimeError(f"the node ended before it was ready, exit code {process.wait(_PATIENCE)}")
            ready = json.loads(line)
            yield Process(process.pid, ready["kv_port"], ready)
        finally:
            _end_process(process)


@contextmanager
def run_memcached(*options: object) -> Iterator[Process | None]:
    """Run memcached with these options and one thread, until the block ends. Yield None if it is not installed."""
    found = shutil.which("memcached", path=str(_UNPACKED / "bin")) or shutil.which("memcached")
    if found is None:
        yield None
        return
    port = _find_free_port()
    user = ["-u", "root"] if os.geteuid() == 0 else []
    command = [found, "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-t", "1", *user, *map(str, options)]
    libraries = os.pathsep.join(map(str, _UNPACKED.glob("lib/*-linux-*")))
    with subprocess.Popen(command, env=os.environ | {"LD_LIBRARY_PATH": libraries}) as process:
        try:
            _wait_for_port(port)
            yield Process(process.pid, port, {})
        finally:
            _end_process(process)


def _end_process(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()


def _find_free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port: int = server.getsockname()[1]
        return port


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
