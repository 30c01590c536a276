"""A program of others that runs beside a test and prints lines."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from tests.patience import PATIENCE
from tests.waiting import wait_readable

__all__ = ["Program"]


class Program:
    """A running program.

    Attributes:
        lines: all lines of its standard output that have been read.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self.lines: list[str] = []
        self._process = process
        self._output: IO[bytes] = process.stdout
        self._rest = b""

    @classmethod
    @contextmanager
    def running(cls, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[Program]:
        """Start a program, and kill it where it has not ended by itself. environment: beside that of the tests."""
        known = os.environ | dict(environment or {})
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=known) as process:
            try:
                yield cls(process)
            finally:
                process.kill()

    def read_until(self, enough: Callable[[list[str]], bool]) -> list[str]:
        """Read lines until they are enough, and return those that this call has read."""
        deadline, already = time.monotonic() + PATIENCE, len(self.lines)
        while not enough(self.lines[already:]):
            try:
                self._read(deadline)
            except EOFError:
                status = self._process.wait(PATIENCE)
                raise AssertionError(f"the program ended with status {status}: {self.lines[already:]}") from None
        return self.lines[already:]

    def _read(self, deadline: float) -> None:
        """Read some of the output. Raises EOFError at its end."""
        ready = wait_readable([self._output], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing more in {PATIENCE:g} s: {self.lines}"
        data = os.read(self._output.fileno(), 1 << 16)
        if not data:
            raise EOFError
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.lines += [line.decode() for line in lines]

    def read_rest(self) -> tuple[list[str], int]:
        """Wait for the end of the program, and return the lines that were not read before, and the exit status."""
        already = len(self.lines)
        with suppress(EOFError):
            while True:
                self._read(time.monotonic() + PATIENCE)
        return self.lines[already:], self._process.wait(PATIENCE)

    def terminate(self) -> int:
        """Send SIGTERM, and return the exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE)
