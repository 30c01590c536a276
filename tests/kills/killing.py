"""Starts writers and nodes in other processes, and kills them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.kills.writer import Life
from tests.patience import PATIENCE
from tests.waiting import wait_readable

ROOT = Path(__file__).parents[2]


class Death(NamedTuple):
    """The end of a writer.

    Attributes:
        on_disk: how many turns the writer had reported as on disk; None if it had not reported the opening.
        by_itself: whether it killed itself.
    """

    on_disk: int | None
    by_itself: bool


class ForkServer:
    """Runs writers and nodes, one at a time, as children of the process `tests.kills.nursery`.

    Attributes:
        port: the port of the running node.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.port = 0
        self._process = process
        self._child: int | None = None  # a pidfd; None: the child ended before it could be opened
        self._unread = b""
        self._output: list[bytes] = []

    @classmethod
    @contextmanager
    def start(cls) -> Iterator[ForkServer]:
        command = [sys.executable, "-m", "tests.kills.nursery"]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
            yield cls(process)
            assert process.stdin is not None
            process.stdin.close()

    def run_writer(self, life: Life, seconds: float = PATIENCE) -> Death:
        """Run a writer until it kills itself, or kill it after so many seconds."""
        self._start_child("write", life)
        if self._wait_for(b"end ", seconds) is not None:
            return Death(self._count_turns_on_disk(), True)
        self.kill()
        return Death(self._count_turns_on_disk(), False)

    @contextmanager
    def run_node(self, path: Path, segment_bytes: int) -> Iterator[ForkServer]:
        """Run a node; kill it at the end of the context unless that has been done."""
        self._start_child("serve", (str(path), segment_bytes))
        port = self._wait_for(b"port ", PATIENCE)
        assert port is not None, self._output
        self.port = port
        try:
            yield self
        finally:
            if self._child is not None:
                self.kill()

    def kill(self) -> None:
        assert self._child is not None
        with suppress(ProcessLookupError):  # the child has killed itself just now
            signal.pidfd_send_signal(self._child, signal.SIGKILL)
        assert self._wait_for(b"end ", PATIENCE) is not None

    def _start_child(self, kind: str, arguments: Sequence[object]) -> None:
        self._output = []
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([kind, arguments]).encode() + b"\n")
        number = self._wait_for(b"pid ", PATIENCE)
        assert number is not None, self._output
        with suppress(ProcessLookupError):  # a writer may have killed itself at once
            self._child = os.pidfd_open(number)

    def _count_turns_on_disk(self) -> int | None:
        return max(map(int, self._output), default=None)

    def _wait_for(self, prefix: bytes, seconds: float) -> int | None:
        """Return the number after the prefix in the next line that begins with it; None if none comes in time.

        The line `end` is the last line of a child, which must have been killed.
        """
        deadline = time.monotonic() + seconds
        while True:
            *lines, self._unread = self._unread.split(b"\n")
            while lines:
                line = lines.pop(0)
                if line.startswith((prefix, b"end ")):
                    self._unread = b"\n".join([*lines, self._unread])
                    if line.startswith(b"end "):
                        self._record_end(int(line.removeprefix(b"end ")))
                    return int(line.removeprefix(prefix))
                self._output.append(line)
            assert self._process.stdout is not None
            ready = wait_readable([self._process.stdout], max(deadline - time.monotonic(), 0))
            if not ready:
                return None
            more = os.read(self._process.stdout.fileno(), 1 << 16)
            assert more, "the fork server has ended"
            self._unread += more

    def _record_end(self, status: int) -> None:
        if self._child is not None:
            os.close(self._child)
            self._child = None
        assert status == -signal.SIGKILL, b"\n".join(self._output).decode()
