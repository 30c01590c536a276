"""The exit codes of all commands."""

from __future__ import annotations

import signal
from enum import IntEnum

SIGNAL_BASE = 128
"""Shells report a signal as this number plus its own."""


class ExitCode(IntEnum):
    """An exit code, with its meaning for the page of the command line.

    Attributes:
        meaning: the meaning.
    """

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:  # noqa: D102 - the members describe it
        made = int.__new__(cls, code)
        made._value_ = code
        made.meaning = meaning
        return made

    SUCCESS = 0, "success; a signal ends commands that run until they are stopped with it, such as serve"
    FAILURE = 1, "failure at run time, or a result that the help of the command calls a failure"
    WRONG_USAGE = 2, "wrong usage: an invalid option, connection string, file or directory"
    HANGUP = SIGNAL_BASE + signal.SIGHUP, "stopped by SIGHUP: the terminal was closed"
    INTERRUPTED = SIGNAL_BASE + signal.SIGINT, "interrupted by Ctrl-C (SIGINT)"
    TERMINATED = SIGNAL_BASE + signal.SIGTERM, "stopped by SIGTERM"


class SignalReceived(KeyboardInterrupt):
    """A signal that ends the command like Ctrl-C.

    Attributes:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
