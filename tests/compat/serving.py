"""`penstock serve` as a process of its own, as the programs of others meet it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.patience import PATIENCE
from tests.waiting import wait_readable

__all__ = ["Serving"]


class Serving:
    """A node with these options. ready: what it said when it was there; user, password: who may do everything.

    Started again it listens where it did before.
    """

    host = "127.0.0.1"
    user, password = "Administrator", "password"

    def __init__(self, *options: object) -> None:
        self._options = [*map(str, options)]
        self._process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}

    @classmethod
    @contextmanager
    def running(cls, *options: object) -> Iterator[Serving]:
        serving = cls(*options)
        serving.start()
        try:
            yield serving
        finally:
            serving.kill()

    @property
    def url(self) -> str:
        """What a client connects to: the node, and none of its buckets in particular."""
        return f"couchbase://127.0.0.1:{self.ready['kv_port']}"

    @property
    def kv_port(self) -> int:
        port: int = self.ready["kv_port"]
        return port

    def start(self) -> None:
        ports = {
            "kv_port": "--port",
            "http_port": "--http-port",
            "tls_port": "--tls-port",
            "https_port": "--https-port",
        }
        listens = [part for name, option in ports.items() if name in self.ready for part in (option, self.ready[name])]
        command = [
            sys.executable,
            "-m",
            "penstock",
            "serve",
            "--port",
            "0",
            "--json",
            *self._options,
            *map(str, listens),
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        ready = wait_readable([self._process.stdout], PATIENCE)
        assert ready, "the node said nothing in time"
        self.ready = json.loads(self._process.stdout.readline())

    def stop(self) -> None:
        """Let it end well."""
        self._end(signal.SIGTERM, 0)

    def kill(self) -> None:
        """End it without a chance to write anything."""
        self._end(signal.SIGKILL, -signal.SIGKILL)

    def _end(self, how: signal.Signals, status: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            with process:
                process.send_signal(how)
                assert process.wait(PATIENCE) == status
