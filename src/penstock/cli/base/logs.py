"""The log of a command on standard error: its format, and its level, which signals change."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from types import FrameType
from typing import Any

from penstock.names import make_json_printable, make_printable

_LOGGER = logging.getLogger("penstock")
_FIELDS = ("connection", "node", "vbucket", "opaque")
"""Attributes of records that JSON shows too."""


class LogLevel(StrEnum):
    """The least important events that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """The form of a line of the log."""

    CONSOLE = "console"
    JSON = "json"


class _JsonFormatter(logging.Formatter):
    """Formats a record as one object in one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        found = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: getattr(record, name) for name in _FIELDS if hasattr(record, name)},
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return make_json_printable(json.dumps(found, ensure_ascii=False))


class _TextFormatter(logging.Formatter):
    """Formats a record as text in one line, and a traceback in further lines. Unprintable characters are escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line."""
        record.message = make_printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        """Return the lines of a traceback."""
        return "\n".join(map(make_printable, super().formatException(ei).split("\n")))


class _ConsoleFormatter(_TextFormatter):
    """Formats a record as text with its time, level and logger."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time of a record in ISO 8601."""
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class _CommandHandler(logging.Handler):
    """Prints records on standard error, also while a progress display has replaced it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:  # noqa: BLE001 - as logging's own handlers do
            self.handleError(record)


@contextmanager
def logging_on_stderr() -> Iterator[None]:
    """Print the library's warnings on standard error while a command runs, such as a wait for a node.

    SIGUSR1 makes the log one level more detailed, SIGUSR2 sets the level of the start again.
    """
    handler, level = _CommandHandler(), _LOGGER.level
    handler.setFormatter(_TextFormatter("penstock: %(message)s"))
    _LOGGER.addHandler(handler)
    before = _change_level_on_signals()
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)
        _LOGGER.removeHandler(handler)
        _LOGGER.setLevel(level)


def configure_log(level: LogLevel | None, log_format: LogFormat | None) -> None:
    """Set the level and the format of the log of this command; None leaves them."""
    if level is not None:
        _LOGGER.setLevel(level.upper())
    formatters = {
        LogFormat.JSON: _JsonFormatter(),
        LogFormat.CONSOLE: _ConsoleFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"),
    }
    if log_format is not None:
        for handler in _list_handlers():
            handler.setFormatter(formatters[log_format])


def log_as_json(sentence: str, level: int) -> bool:
    """Log a sentence if the log is JSON.

    Returns:
        Whether the log is JSON.
    """
    is_json = any(isinstance(handler.formatter, _JsonFormatter) for handler in _list_handlers())
    if is_json:
        logging.getLogger("penstock.cli").log(level, sentence)
    return is_json


def _list_handlers() -> list[_CommandHandler]:
    return [each for each in _LOGGER.handlers if isinstance(each, _CommandHandler)]


def _change_level_on_signals() -> dict[int, signal.Handlers]:
    """Install the handlers of SIGUSR1 and SIGUSR2.

    Returns:
        The actions before, by signal; none if nothing was installed.
    """
    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or any(signal.getsignal(number) != signal.SIG_DFL for number in numbers):
        return {}
    start: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        start[:] = start or [_LOGGER.getEffectiveLevel()]
        level = start[0] if number == signal.SIGUSR2 else max(_LOGGER.getEffectiveLevel() - 10, logging.DEBUG)
        _LOGGER.setLevel(level)
        _LOGGER.log(max(level, logging.WARNING), "the log has level %s", logging.getLevelName(level).lower())

    for number in numbers:
        signal.signal(number, on_signal)
    return dict.fromkeys(numbers, signal.SIG_DFL)
