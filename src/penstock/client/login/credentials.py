"""User name and password, or a token. No message contains a password or a token."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.client.login.secret_sources import SecretSource, choose_secret, read_secret_text
from penstock.errors import UsageError
from penstock.options import split_command

USERNAME_VARIABLE, PASSWORD_VARIABLE = "PENSTOCK_USERNAME", "PENSTOCK_PASSWORD"
FILE_VARIABLE = f"{PASSWORD_VARIABLE}_FILE"
COMMAND_VARIABLE = f"{PASSWORD_VARIABLE}_COMMAND"
PROVIDER_VARIABLE = f"{PASSWORD_VARIABLE}_FROM"


@dataclass(frozen=True, slots=True)
class Credentials:
    """User name and password of a login.

    Raises UsageError for a name or password that no node accepts.

    Attributes:
        username: the user name, not empty.
        password: may be empty: buckets of Couchbase 2.x often have no password.
        source: the source of the password, which is read again if a login is refused; None: the password is fixed.
    """

    username: str
    password: str = field(repr=False)
    source: SecretSource | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.username:
            raise UsageError("the username is empty")
        for field_name, text in (("username", self.username), ("password", self.password)):
            if "\0" in text or not _is_utf8(text):
                raise UsageError(f"the {field_name} has a NUL or a character that UTF-8 cannot encode")

    def find_newest(self) -> Credentials:
        """Return the credentials with the password that this process read last from the source."""
        newest = None if self.source is None else self.source.find_newest()
        return self if newest is None else Credentials(self.username, newest, self.source)

    def read_again(self) -> Credentials | None:
        """Return credentials with a replaced password; None if it is the same, or its source cannot be read."""
        if self.source is None:
            return None
        try:
            password = self.source.read_again(self.password)
        except UsageError:  # on another machine than the one of the settings; the refused login is the error
            return None
        return None if password == self.password else Credentials(self.username, password, self.source)


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
    username: str | None, password: str | SecretSource | None, environment: Mapping[str, str] | None = None
) -> Credentials | None:
    """Return the credentials of arguments and environment.

    Args:
        username: the user name; None: PENSTOCK_USERNAME, if it is not empty.
        password: the password, or its source; None: PENSTOCK_PASSWORD, which may be empty, or the source in
            PENSTOCK_PASSWORD_FILE, PENSTOCK_PASSWORD_COMMAND or PENSTOCK_PASSWORD_FROM.
        environment: environment variables.

    Returns:
        None if there is neither a user name nor a password argument.

    Raises:
        UsageError: a user name without a password, or a password without a user name; or the source cannot be read.
    """
    found = choose_login(username, password, environment)
    if found is None:
        return None
    username, password = found
    if isinstance(password, str):
        return Credentials(username, password)
    return Credentials(username, password.read(), password)


def choose_login(
    username: str | None, password: str | SecretSource | None, environment: Mapping[str, str] | None = None
) -> tuple[str, str | SecretSource] | None:
    """Return user name and password, or the source of the password, which is not read.

    Args:
        username: as for `resolve_credentials`.
        password: as for `resolve_credentials`.
        environment: environment variables.

    Returns:
        None without a login.

    Raises:
        UsageError: a user name without a password, or a password without a user name.
    """
    known = environment or {}
    username = known.get(USERNAME_VARIABLE) or None if username is None else username
    if username is None and password is None:
        return None  # PENSTOCK_PASSWORD alone is no login
    password = _choose_known_password(known) if password is None else password
    if username is None or password is None:
        found, missing = ("username", "password") if password is None else ("password", "username")
        raise UsageError(f"a {found} without a {missing}")
    return username, password


def _choose_known_password(environment: Mapping[str, str]) -> str | SecretSource | None:
    given: dict[str, object] = {PASSWORD_VARIABLE: environment.get(PASSWORD_VARIABLE)}
    given |= {name: environment.get(name) or None for name in (FILE_VARIABLE, COMMAND_VARIABLE, PROVIDER_VARIABLE)}
    if text := environment.get(COMMAND_VARIABLE):
        given[COMMAND_VARIABLE] = split_command(COMMAND_VARIABLE, text)
    return choose_secret(given)


def read_credentials_file(path: str) -> Credentials:
    """Return the credentials in a file with the JSON object `{"username": ..., "password": ...}`.

    Raises:
        UsageError: the file cannot be read, or has other contents.
    """
    try:
        parsed = json.loads(read_secret_text(path))
    except (ValueError, RecursionError):
        parsed = None  # the text of the error is not used, because it quotes the file
    if not (isinstance(parsed, dict) and parsed.keys() == {"username", "password"}):
        raise UsageError(f'{path}: expected {{"username": ..., "password": ...}}')
    if not all(isinstance(text, str) for text in parsed.values()):
        raise UsageError(f"{path}: expected username and password as text")
    return Credentials(parsed["username"], parsed["password"])


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
