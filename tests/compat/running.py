"""An external program that runs beside a test and prints lines."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Condition, Thread

from tests.patience import PATIENCE


class Program:
    """A running program. A thread reads its output, so that it never waits for the test.

    Attributes:
        lines: the lines of its standard output so far.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.lines: list[str] = []
        self._process = process
        self._returned = 0  # lines that `read_until` and `read_rest` have returned
        self._has_ended = False
        self._changed = Condition()
        self._thread = Thread(target=self._collect)
        self._thread.start()

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
            program = cls(process)
            try:
                yield program
            finally:
                process.kill()
                program._thread.join()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on the lines holds. It is checked after each piece of output."""
        with self._changed:
            is_met = self._changed.wait_for(lambda: condition() or self._has_ended, PATIENCE)
            assert is_met, f"not within {PATIENCE:g} s, after {self.lines[-100:]}"
            if not condition():
                status = self._process.wait(PATIENCE)
                raise AssertionError(f"the program ended with status {status}: {self.lines[self._returned :]}")

    def read_until(self, enough: Callable[[list[str]], bool]) -> list[str]:
        """Return the lines that were not returned before, once `enough` returns true for them."""
        self.wait_until(lambda: enough(self.lines[self._returned :]))
        return self._take_lines()

    def read_rest(self) -> tuple[list[str], int]:
        """Return the lines that were not returned before, and the exit status, after the end of the program."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._has_ended, PATIENCE), f"no end within {PATIENCE:g} s"
        return self._take_lines(), self._process.wait(PATIENCE)

    def close_input(self) -> None:
        """End the standard input of the program."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def terminate(self) -> int:
        """Return the exit status after SIGTERM."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE)

    def _take_lines(self) -> list[str]:
        with self._changed:
            known, self._returned = self._returned, len(self.lines)
            return self.lines[known : self._returned]

    def _collect(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        while data := os.read(self._process.stdout.fileno(), 1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            with self._changed:
                self.lines += [line.decode() for line in lines]
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
