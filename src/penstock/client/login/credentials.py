"""User name and password, or a token. No message contains a password or a token."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import UsageError

__all__ = [
    "PASSWORD_VARIABLE",
    "USERNAME_VARIABLE",
    "Credentials",
    "Login",
    "TokenCredentials",
    "TokenSource",
    "read_credentials_file",
    "read_password_file",
    "resolve_credentials",
    "resolve_login",
]

USERNAME_VARIABLE, PASSWORD_VARIABLE = "PENSTOCK_USERNAME", "PENSTOCK_PASSWORD"

_MAX_FILE_BYTES = 4096
"""Largest size of a password file: a longer file is probably another file."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """User name and password of a login.

    Raises UsageError for a name or password that no node accepts.

    Attributes:
        username: the user name, not empty.
        password: may be empty: buckets of Couchbase 2.x often have no password.
    """

    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.username:
            raise UsageError("the username is empty")
        for field_name, text in (("username", self.username), ("password", self.password)):
            if "\0" in text or not _is_utf8(text):
                raise UsageError(f"the {field_name} has a NUL or a character that UTF-8 cannot encode")


TokenSource = str | Callable[[], str]
"""A token, or a function that returns a valid token at each login. It is called on a thread, and may block."""

_MAX_TOKEN_CHARACTERS = 16 * 1024
"""Longest token. JSON web tokens with many claims have some thousand characters."""


@dataclass(frozen=True, slots=True)
class TokenCredentials:
    """A token of an identity provider, such as a JSON web token. Couchbase 8.x accepts it as a login.

    Attributes:
        source: the token, or the function that returns it.
        username: the user; empty: the user that the token names.
    """

    source: TokenSource = field(repr=False)
    username: str = ""

    def get_token(self) -> str:
        """Return a token. Raises UsageError if it is none."""
        token = self.source if isinstance(self.source, str) else self.source()
        is_token = token.isascii() and token.isprintable() and " " not in token
        if not (is_token and 0 < len(token) <= _MAX_TOKEN_CHARACTERS):
            raise UsageError(f"the token is not 1 to {_MAX_TOKEN_CHARACTERS} printable ASCII characters without spaces")
        return token


Login = Credentials | TokenCredentials
"""The credentials of a connection."""


def resolve_login(username: str | None, password: str | None, token: TokenSource | None) -> Login | None:
    """Return the credentials of arguments; None without any.

    Raises:
        UsageError: a password and a token, or a user name with neither.
    """
    if token is None:
        return resolve_credentials(username, password)
    if password is not None:
        raise UsageError("a password and a token, expected one of them")
    return TokenCredentials(token, username or "")


def resolve_credentials(
    username: str | None, password: str | None, environment: Mapping[str, str] | None = None
) -> Credentials | None:
    """Return the credentials of arguments and environment.

    Args:
        username: the user name; None: PENSTOCK_USERNAME, if it is not empty.
        password: the password; None: PENSTOCK_PASSWORD, if it is set; it may be empty.
        environment: environment variables.

    Returns:
        None if there is neither a user name nor a password argument.

    Raises:
        UsageError: a user name without a password, or a password without a user name.
    """
    known = environment or {}
    username = known.get(USERNAME_VARIABLE) or None if username is None else username
    if username is None and password is None:
        return None  # PENSTOCK_PASSWORD alone is no login
    password = known.get(PASSWORD_VARIABLE) if password is None else password
    if username is None or password is None:
        found, missing = ("username", "password") if password is None else ("password", "username")
        raise UsageError(f"a {found} without a {missing}")
    return Credentials(username, password)


def read_password_file(path: str) -> str:
    """Return the password in a file of one line. An empty line is an empty password.

    Raises:
        UsageError: the file cannot be read, or has not exactly one line.
    """
    lines = _read_text(path).splitlines()
    if len(lines) != 1:
        raise UsageError(f"{path}: found {len(lines)} lines, expected one, with a password")
    return lines[0]


def read_credentials_file(path: str) -> Credentials:
    """Return the credentials in a file with the JSON object `{"username": ..., "password": ...}`.

    Raises:
        UsageError: the file cannot be read, or has other contents.
    """
    try:
        parsed = json.loads(_read_text(path))
    except (ValueError, RecursionError):
        parsed = None  # the text of the error is not used, because it quotes the file
    if not (isinstance(parsed, dict) and parsed.keys() == {"username", "password"}):
        raise UsageError(f'{path}: expected {{"username": ..., "password": ...}}')
    if not all(isinstance(text, str) for text in parsed.values()):
        raise UsageError(f"{path}: expected username and password as text")
    return Credentials(parsed["username"], parsed["password"])


def _read_text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            found = file.read(_MAX_FILE_BYTES + 1)
        text = found.decode()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8") from None
    if len(found) > _MAX_FILE_BYTES:
        raise UsageError(f"{path}: more than {_MAX_FILE_BYTES} bytes, expected a file with a password")
    return text


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
