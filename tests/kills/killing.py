"""The killer's side of what is killed."""

from __future__ import annotations

import json
import os
import select
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

__all__ = ["Death", "Nursery"]

ROOT = Path(__file__).parents[2]


class Death(NamedTuple):
    """on_disk: how many turns the writer had said to be on disk, None if not even that it had opened the bucket.

    by_itself: it has killed itself.
    """

    on_disk: int | None
    by_itself: bool


class Nursery:
    """Where writers and nodes come from, one at a time. port: where the node listens."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.port = 0
        self._process = process
        self._child: int | None = None  # a descriptor; None: it was gone before one could be had
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
        self._begin("write", life)
        if self._wait_for(b"end ", seconds) is not None:
            return Death(self._turns_on_disk(), True)
        self.kill()
        return Death(self._turns_on_disk(), False)

    @contextmanager
    def serving(self, path: Path, segment_bytes: int) -> Iterator[Nursery]:
        """Let a node live until it is killed, here at the latest."""
        self._begin("serve", (str(path), segment_bytes))
        port = self._wait_for(b"port ", PATIENCE)
        assert port is not None, self._said
        self.port = port
        try:
            yield self
        finally:
            if self._child is not None:
                self.kill()

    def kill(self) -> None:
        assert self._child is not None
        with suppress(ProcessLookupError):  # it has killed itself meanwhile
            signal.pidfd_send_signal(self._child, signal.SIGKILL)
        assert self._wait_for(b"end ", PATIENCE) is not None

    def _begin(self, kind: str, arguments: Sequence[object]) -> None:
        self._said = []
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([kind, arguments]).encode() + b"\n")
        number = self._wait_for(b"pid ", PATIENCE)
        assert number is not None, self._said
        with suppress(ProcessLookupError):  # if it has lost no time
            self._child = os.pidfd_open(number)

    def _turns_on_disk(self) -> int | None:
        return max(map(int, self._said), default=None)

    def _wait_for(self, prefix: bytes, seconds: float) -> int | None:
        """Return the number behind the prefix at the beginning of a line, None if none comes in time.

        `end` comes last, and only of one that was killed.
        """
        deadline = time.monotonic() + seconds
        while True:
            *lines, self._unread = self._unread.split(b"\n")
            while lines:
                line = lines.pop(0)
                if line.startswith((prefix, b"end ")):
                    self._unread = b"\n".join([*lines, self._unread])
                    if line.startswith(b"end "):
                        self._ended(int(line.removeprefix(b"end ")))
                    return int(line.removeprefix(prefix))
                self._said.append(line)
            assert self._process.stdout is not None
            ready, _, _ = select.select([self._process.stdout], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                return None
            more = os.read(self._process.stdout.fileno(), 1 << 16)
            assert more, "the nursery has ended"
            self._unread += more

    def _ended(self, status: int) -> None:
        if self._child is not None:
            os.close(self._child)
            self._child = None
        assert status == -signal.SIGKILL, b"\n".join(self._said).decode()
