"""An external program that runs beside a test and prints lines."""

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
        lines: the lines of its standard output that were read so far.
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
        """Start a program, and kill it at the end if it still runs.

        Args:
            command: the program and its arguments.
            environment: variables in addition to those of the tests.
        """
        variables = os.environ | dict(environment or {})
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables) as process:
            try:
                yield cls(process)
            finally:
                process.kill()

    def read_until(self, enough: Callable[[list[str]], bool]) -> list[str]:
        """Return new lines: read until `enough` returns true for the lines that this call has read."""
        deadline, known = time.monotonic() + PATIENCE, len(self.lines)
        while not enough(self.lines[known:]):
            try:
                self._read(deadline)
            except EOFError:
                status = self._process.wait(PATIENCE)
                raise AssertionError(f"the program ended with status {status}: {self.lines[known:]}") from None
        return self.lines[known:]

    def _read(self, deadline: float) -> None:
        """Read the available output. Raises EOFError at its end."""
        ready = wait_readable([self._output], max(0.0, deadline - time.monotonic()))
        assert ready, f"no output for {PATIENCE:g} s, after {self.lines}"
        data = os.read(self._output.fileno(), 1 << 16)
        if not data:
            raise EOFError
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.lines += [line.decode() for line in lines]

    def read_rest(self) -> tuple[list[str], int]:
        """Return the lines that were not read before, and the exit status, after the end of the program."""
        known = len(self.lines)
        with suppress(EOFError):
            while True:
                self._read(time.monotonic() + PATIENCE)
        return self.lines[known:], self._process.wait(PATIENCE)

    def terminate(self) -> int:
        """Return the exit status after SIGTERM."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE)
