"""The killer's side of writers."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.kills.writer import Life

__all__ = ["Death", "Nursery"]

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
"""Seconds in which something happens that has to."""


class Death(NamedTuple):
    """on_disk: how many turns the writer had said to be on disk, None if not even that it had opened the bucket.

    by_itself: it has killed itself.
    """

    on_disk: int | None
    by_itself: bool


class Nursery:
    """Where writers come from, one at a time."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._unread = b""
        self._said: list[bytes] = []

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Nursery]:
        command = [sys.executable, "-m", "tests.kills.nursery"]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
            yield cls(process)
            assert process.stdin is not None
            process.stdin.close()

    def live(self, life: Life, seconds: float = PATIENCE) -> Death:
        """Let a writer live until it kills itself, or for so long."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(life).encode() + b"\n")
        number = self._wait_for(b"pid ", PATIENCE)
        assert number is not None, "no writer"
        try:
            writer = os.pidfd_open(number)
        except ProcessLookupError:  # it has had no time to lose
            writer = None
        try:
            status = self._wait_for(b"end ", seconds)
            by_itself = status is not None
            if not by_itself:
                assert writer is not None
                signal.pidfd_send_signal(writer, signal.SIGKILL)
                status = self._wait_for(b"end ", PATIENCE)
        finally:
            if writer is not None:
                os.close(writer)
        said, self._said = self._said, []
        assert status == -signal.SIGKILL, b"\n".join(said).decode()
        return Death(max(map(int, said), default=None), by_itself)

    def _wait_for(self, prefix: bytes, seconds: float) -> int | None:
        """Return the number behind the prefix at the beginning of a line, None if none comes in time."""
        deadline = time.monotonic() + seconds
        while True:
            *lines, self._unread = self._unread.split(b"\n")
            while lines:
                line = lines.pop(0)
                if line.startswith(prefix):
                    self._unread = b"\n".join([*lines, self._unread])
                    return int(line.removeprefix(prefix))
                self._said.append(line)
            assert self._process.stdout is not None
            ready, _, _ = select.select([self._process.stdout], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                return None
            more = os.read(self._process.stdout.fileno(), 1 << 16)
            assert more, "the nursery has ended"
            self._unread += more
