"""Programs on a pseudo-terminal of 80x24."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tests.patience import PATIENCE
from tests.waiting import wait_readable

COLUMNS, LINES = 80, 24


class Terminal(NamedTuple):
    """A program on a terminal.

    Attributes:
        process: the program.
        keyboard: the other end of the terminal, as a file descriptor.
    """

    process: "subprocess.Popen[bytes]"
    keyboard: int

    def write(self, text: str) -> None:
        """Type a text."""
        os.write(self.keyboard, text.encode())

    def read_until(self, text: str) -> str:
        """Return the output up to a text."""
        seen = b""
        while text.encode() not in seen:
            assert wait_readable([self.keyboard], PATIENCE), f"not shown in time after {seen[-200:]!r}"
            seen += self._read(seen)
        return seen.decode()

    def read_all(self) -> str:
        """Return the output up to the end of the program."""
        seen = b""
        while part := self._read(None):
            seen += part
        self.process.wait(PATIENCE)
        return seen.decode()

    def _read(self, seen: bytes | None) -> bytes:
        try:
            return os.read(self.keyboard, 65536)
        except OSError:  # the program has ended, and no process has the terminal open
            assert seen is None, f"the program ended after {seen!r}"
            return b""


@contextmanager
def run_on_terminal(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Terminal]:
    """Run a program on a terminal, and kill it if it still runs at the end of the block."""
    keyboard, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env={**os.environ, **environment},
        start_new_session=True,
    ) as process:  # fmt: skip
        os.close(terminal)
        try:
            yield Terminal(process, keyboard)
        finally:
            if process.poll() is None:
                process.kill()
            os.close(keyboard)
