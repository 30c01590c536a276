"""Sources of secrets: a file, a command, an environment variable, or a provider that another distribution installs.

A provider is an entry point of the group `penstock.secrets`: a function that takes a reference and returns the secret.

    [project.entry-points."penstock.secrets"]
    vault = "my_package:read_secret"        # def read_secret(reference: str) -> str

No message and no representation has a secret, the output of a command, or the text of a provider's error.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import entry_points
from threading import Lock
from typing import Any

from penstock.errors import UsageError
from penstock.text_files import decode_text, read_text_file, split_lines

PROVIDER_GROUP = "penstock.secrets"

COMMAND_SECONDS = 30.0
"""Limit of a command's run. A command that waits for a user ends too, because it has no input."""

_KEPT_SECONDS = 30.0
"""Seconds for which a process uses the output of a command again: one start of a run needs each password many times."""

MOST_SECRET_BYTES = 4096
"""Largest size of a password file: a longer file is probably another file."""


class SecretKind(StrEnum):
    """The kinds of sources. An option with the end `_command` has a source of the kind `command`, and so on."""

    FILE = "file"
    COMMAND = "command"
    PROVIDER = "from"
    VARIABLE = "env"


@dataclass(frozen=True, slots=True)
class SecretSource:
    """The place of a secret, which can be read again after the secret was replaced.

    Attributes:
        option: the option that names the place, for errors.
        kind: the kind of the place.
        place: the file, the words of the command, `PROVIDER:REFERENCE`, or the name of the variable.
    """

    option: str
    kind: SecretKind
    place: str | tuple[str, ...] = field(repr=False)

    @property
    def runs_program(self) -> bool:
        """Whether reading the secret runs a program: a command, or the code of a provider."""
        return self.kind in (SecretKind.COMMAND, SecretKind.PROVIDER)

    def read(self) -> str:
        """Return the secret.

        Raises:
            UsageError: it cannot be read.
        """
        with _LOCK:
            found = _KEPT.get(self)
            if found is None or self.kind in _CHEAP or time.monotonic() - found[0] > _KEPT_SECONDS:
                found = self._read_now()
            return found[1]

    def read_again(self, refused: str) -> str:
        """Return the secret that replaced a refused one.

        Raises:
            UsageError: it cannot be read.
        """
        with _LOCK:
            found = _KEPT.get(self)
            return (found if found is not None and found[1] != refused else self._read_now())[1]

    def find_newest(self) -> str | None:
        """Return the secret that this process read last, None if it has read none."""
        found = _KEPT.get(self)
        return None if found is None else found[1]

    def _read_now(self) -> tuple[float, str]:
        found = _KEPT[self] = time.monotonic(), _READERS[self.kind](self.option, self.place)
        return found


_CHEAP = (SecretKind.FILE, SecretKind.VARIABLE)
"""Kinds that are read each time."""

_KEPT: dict[SecretSource, tuple[float, str]] = {}
_LOCK = Lock()


def choose_secret(given: Mapping[str, Any]) -> str | SecretSource | None:
    """Return the secret, or its source, in one of several options.

    Args:
        given: the options by name. The end of a name is the kind: passwordFile, password_command, PASSWORD_FROM,
            password_env; without such an end, the value is the secret. None: the option was not given.

    Returns:
        None if no option was given.

    Raises:
        UsageError: several options were given, or the source is invalid.
    """
    found = [(name, value) for name, value in given.items() if value is not None]
    if len(found) > 1:
        raise UsageError(f"options {found[0][0]} and {found[1][0]}, expected one of them")
    if not found:
        return None
    name, value = found[0]
    kind = next((each for each in SecretKind if name.lower().endswith(each)), None)
    if kind is None:
        return str(value)
    if kind is SecretKind.PROVIDER:
        _split_reference(name, value)
    return SecretSource(name, kind, tuple(value) if kind is SecretKind.COMMAND else str(value))


def read_password_file(path: str) -> str:
    """Return the password in a file of one line. An empty line is an empty password.

    Raises:
        UsageError: the file cannot be read, or has not exactly one line.
    """
    return parse_password(read_secret_text(path), path)


def parse_password(text: str, place: str) -> str:
    """Return the password in a text of one line. Only the end of the line is cut: blanks belong to the password.

    Args:
        text: the text.
        place: its place, for the error.

    Raises:
        UsageError: the text has not exactly one line.
    """
    lines = split_lines(text)
    if len(lines) != 1:
        raise UsageError(f"{place}: found {len(lines)} lines, expected one, with a password")
    return lines[0]


def read_secret_text(path: str) -> str:
    """Return the text of a file with a secret. Raises UsageError if it cannot be read, or is too long."""
    return read_text_file(path, "a file with a password", MOST_SECRET_BYTES, is_secret=True)


def _read_variable(option: str, variable: str) -> str:
    try:
        return os.environ[variable]
    except KeyError:
        raise UsageError(f"the environment has no {variable}, which {option} names; expected a secret in it") from None


def _run_command(option: str, words: tuple[str, ...]) -> str:
    """Return the first line of a command's output. Only the program's name is shown: its arguments may be secret."""
    shown = f"{option}: {words[0]!r}"
    try:
        # Without a shell, input and messages: neither a prompt nor a secret reaches the terminal or a log.
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise UsageError(f"{shown} cannot be run: {reason or 'invalid arguments'}") from None
    try:
        output, _ = process.communicate(timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        raise UsageError(f"{shown} did not end within {COMMAND_SECONDS:g} s") from None
    finally:
        with suppress(OSError):  # the whole group: a child of the command would hold the pipe open
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    if process.returncode:
        raise UsageError(f"{shown} failed with exit code {process.returncode}, expected 0 and a secret as output")
    lines = split_lines(decode_text(output, f"{shown} printed text", "a secret", is_secret=True))
    if not lines or not lines[0]:
        raise UsageError(f"{shown} printed no secret, expected it as the first line of its output")
    return lines[0]


def _split_reference(option: str, text: str) -> tuple[str, str]:
    name, colon, reference = text.partition(":")
    if not (name and colon and reference):
        raise UsageError(f"{option} has another form than PROVIDER:REFERENCE, such as vault:secret/beer")
    return name, reference


def _ask_provider(option: str, text: str) -> str:
    name, reference = _split_reference(option, text)
    found = next(iter(entry_points(group=PROVIDER_GROUP, name=name)), None)
    if found is None:
        known = ", ".join(sorted({each.name for each in entry_points(group=PROVIDER_GROUP)})) or "none"
        raise UsageError(f"{option}: no provider of secrets is named {name!r}; installed are: {known}")
    try:
        secret = found.load()(reference)
    except Exception as error:  # noqa: BLE001 - code of others; its text may have a secret
        raise UsageError(f"{option}: the provider {name!r} failed with {type(error).__name__}") from None
    if not isinstance(secret, str) or not secret:
        found_type = "an empty text" if secret == "" else type(secret).__name__
        raise UsageError(f"{option}: the provider {name!r} returned {found_type}, expected a secret as text")
    return secret


_READERS: dict[SecretKind, Callable[[str, Any], str]] = {
    SecretKind.FILE: lambda _, path: read_password_file(path),
    SecretKind.COMMAND: _run_command,
    SecretKind.PROVIDER: _ask_provider,
    SecretKind.VARIABLE: _read_variable,
}
