"""User name and password, which no message ever shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import UsageError

__all__ = [
    "PASSWORD_VARIABLE",
    "USERNAME_VARIABLE",
    "Credentials",
    "credentials_file",
    "credentials_from",
    "password_file",
]

USERNAME_VARIABLE, PASSWORD_VARIABLE = "PENSTOCK_USERNAME", "PENSTOCK_PASSWORD"

_MOST_BYTES = 4096
"""Of a file with a password: what is longer is another file."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user of a node. The password may be empty: buckets of Couchbase 2.x often have none.

    Raises UsageError for a name or password that no node can have, without showing the password.
    """

    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.username:
            raise UsageError("the username is empty")
        for what, text in (("username", self.username), ("password", self.password)):
            if "\0" in text or not _is_utf8(text):
                raise UsageError(f"the {what} is not what UTF-8 without NUL can hold")


def credentials_from(
    username: str | None, password: str | None, environment: Mapping[str, str] | None = None
) -> Credentials | None:
    """Return the credentials that are given, None if there are none.

    environment: has PENSTOCK_USERNAME and PENSTOCK_PASSWORD, for what is not given; a password that is set and empty
    counts, a username does not. Raises UsageError for one without the other.
    """
    known = environment or {}
    username = known.get(USERNAME_VARIABLE) or None if username is None else username
    if username is None and password is None:
        return None  # a password that only lies about in the environment is nobody's
    password = known.get(PASSWORD_VARIABLE) if password is None else password
    if username is None or password is None:
        found, missing = ("username", "password") if password is None else ("password", "username")
        raise UsageError(f"a {found} without a {missing}")
    return Credentials(username, password)


def password_file(path: str) -> str:
    """Return the password that a file's only line is: an empty line is an empty password. Raises UsageError."""
    lines = _read(path).splitlines()
    if len(lines) != 1:
        raise UsageError(f"{path}: found {len(lines)} lines, expected one, with a password")
    return lines[0]


def credentials_file(path: str) -> Credentials:
    """Return the credentials in a file: a JSON object `{"username": ..., "password": ...}`. Raises UsageError."""
    try:
        parsed = json.loads(_read(path))
    except (ValueError, RecursionError):
        parsed = None  # and not a word of the error, which quotes the text
    if not (isinstance(parsed, dict) and parsed.keys() == {"username", "password"}):
        raise UsageError(f'{path}: expected {{"username": ..., "password": ...}}')
    if not all(isinstance(text, str) for text in parsed.values()):
        raise UsageError(f"{path}: expected username and password as text")
    return Credentials(parsed["username"], parsed["password"])


def _read(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            found = file.read(_MOST_BYTES + 1)
        text = found.decode()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8") from None
    if len(found) > _MOST_BYTES:
        raise UsageError(f"{path}: more than {_MOST_BYTES} bytes, expected a file with a password")
    return text


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
