"""`penstock serve` as a separate process, for tests with external programs."""

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


class Serving:
    """A node in its own process. After a restart it listens on the same ports.

    Attributes:
        host: the host of its ports.
        user: the name of a user with all rights.
        password: the password of that user.
        ready: the JSON line that the node printed when it was ready.
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
        """The connection string of the node, without a bucket."""
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
        assert ready, f"the node was not ready after {PATIENCE:g} s"
        self.ready = json.loads(self._process.stdout.readline())

    def stop(self) -> None:
        """Stop the node in order, by SIGTERM."""
        self._end(signal.SIGTERM, 0)

    def kill(self) -> None:
        """Kill the node, so that it cannot write anything more."""
        self._end(signal.SIGKILL, -signal.SIGKILL)

    def _end(self, signal_number: signal.Signals, status: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            with process:
                process.send_signal(signal_number)
                assert process.wait(PATIENCE) == status
