"""Changes that a handler could not process: when to try again, and where to keep those that never succeeded."""

from __future__ import annotations

import asyncio
import json
import os
from base64 import b64encode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from penstock.argument_types import check_arguments
from penstock.client.finished_work import finish_in_thread
from penstock.errors import Error, UsageError
from penstock.store.disk.bucket_files import Directory
from penstock.wire.columns.schema import UNSIGNED64, Change


@check_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRetry:
    """The attempts of a handler that raises an error. The delay between them doubles.

    Attributes:
        attempts: the number of calls for one change.
        first_seconds: the delay after the first failure.
        longest_seconds: the longest delay.
    """

    attempts: int = 5
    first_seconds: float = 0.1
    longest_seconds: float = 10.0

    def __post_init__(self) -> None:
        for name, least in (("attempts", 1), ("first_seconds", 0), ("longest_seconds", 0)):
            value = getattr(self, name)
            if value < least:
                raise UsageError(f"{name} of a handler's retry is {value!r}, expected {least} or more")

    def find_delay(self, failures: int) -> float | None:
        """Return the seconds until the next attempt; None: there is none.

        Args:
            failures: failures for this change so far, at least 1.
        """
        if failures >= self.attempts:
            return None
        doublings = min(failures - 1, 64)  # beyond, the number would only grow
        return float(min(self.first_seconds * 2**doublings, self.longest_seconds))


class DeadLetter(NamedTuple):
    """A change whose handler failed in every attempt.

    Attributes:
        change: the change.
        error: the last error of the handler.
        attempts: the number of attempts.
    """

    change: Change
    error: Exception
    attempts: int

    def to_dict(self) -> dict[str, Any]:
        """Return the letter as JSON members. Bytes are text if they are UTF-8, else base64 under NAME_base64."""
        found: dict[str, Any] = {"error": f"{type(self.error).__name__}: {self.error}", "attempts": self.attempts}
        for name, value in self.change._asdict().items():
            if isinstance(value, bytes):
                _add_bytes(found, name, value)
            elif name == "xattrs" and value:
                found[name] = {}
                for attribute, content in value.items():
                    _add_bytes(found[name], attribute, content)
            elif value is not None:
                # Many JSON parsers round numbers above 2**53.
                found[name] = str(value) if name in UNSIGNED64 and not name.endswith("seqno") else value
        return found


DeadLetterSink = Callable[[DeadLetter], Awaitable[None] | None]
"""Receives changes whose handler failed. The change is processed when it returns."""


@check_arguments
class DeadLetterLog:
    """Appends dead letters to a file as JSON lines. A letter is on disk before its change counts as processed.

    Args:
        path: the file, which is created if needed. Only its owner may read a new file, because it has documents.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = asyncio.Lock()

    async def __call__(self, letter: DeadLetter) -> None:
        """Append a letter. Raises Error if the file cannot be written."""
        line = json.dumps(letter.to_dict(), separators=(",", ":")).encode() + b"\n"
        async with self._lock:
            await finish_in_thread(partial(self._append, line))

    def _append(self, line: bytes) -> None:
        try:
            with open(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "wb") as file:
                is_new = not os.fstat(file.fileno()).st_size
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                Directory(self._path.parent).sync_names()
        except OSError as error:
            raise Error(f"{self._path} cannot be written: {error.strerror or error}") from error


def _add_bytes(members: dict[str, Any], name: str, value: bytes) -> None:
    try:
        members[name] = value.decode()
    except UnicodeDecodeError:
        members[f"{name}_base64"] = b64encode(value).decode()
