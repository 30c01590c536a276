"""The node of the demonstration, in its own process."""

from __future__ import annotations

import atexit
import json
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import Error

_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
_BUCKET = "demo"


@dataclass
class DemoNode:
    """A node with an empty bucket in memory. It can be killed, and started again at the same place.

    Attributes:
        url: the connection string of the bucket.
        pid: the process.
        dashboard: the address of the dashboard.
    """

    url: str = ""
    pid: int = 0
    dashboard: str = ""
    _ports: dict[str, int] = field(default_factory=lambda: {"--port": 0, "--http-port": 0})
    _process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process, and wait until it accepts connections. Raises Error if it does not."""
        ports = [str(word) for pair in self._ports.items() for word in pair]
        command = [sys.executable, "-m", "penstock", "serve", "--json", *ports, "--bucket", _BUCKET]
        # A new session keeps Ctrl-C away from the node: the demo stops it last.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self._process = process
        atexit.register(self.kill)
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], _START_SECONDS)
        line = process.stdout.readline() if ready else ""
        if not line:
            raise Error(f"the node did not start within {_START_SECONDS:g} s")
        found: dict[str, Any] = json.loads(line)
        self.url, self.pid, self.dashboard = found["url"], found["pid"], found["dashboard"]
        self._ports = {"--port": found["kv_port"], "--http-port": found["http_port"]}

    def kill(self) -> None:
        """End the process at once, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._close(self._process)

    def stop(self) -> None:
        """End the process."""
        process = self._process
        if process is None:
            return
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
        self.kill()

    def _close(self, process: subprocess.Popen[str]) -> None:
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._process = None
        atexit.unregister(self.kill)


@contextmanager
def run_demo_node() -> Iterator[DemoNode]:
    """Run a node while the block runs.

    Yields:
        The node.
    """
    node = DemoNode()
    try:
        node.start()
        yield node
    finally:
        node.stop()
