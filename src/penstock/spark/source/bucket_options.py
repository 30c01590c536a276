"""The options of `format("dcp")` that reading and writing share: the bucket, the login, timeouts."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from penstock.client.connect.address import DEFAULT_URL, Address, ConnectionOptions, parse_address
from penstock.client.login.credentials import (
    PASSWORD_VARIABLE,
    USERNAME_VARIABLE,
    Credentials,
    choose_login,
    read_credentials_file,
    resolve_credentials,
)
from penstock.client.login.password_options import PasswordOptions, choose_password
from penstock.client.login.secret_sources import SecretSource
from penstock.errors import UsageError
from penstock.names import quote_part
from penstock.options import (
    ANY_TEXT,
    FILE,
    TEXT,
    nonempty,
    option,
    read_options,
    read_shared_values,
    shared_option,
    to_external_name,
)

URL_VARIABLE = "PENSTOCK_URL"


@dataclass(frozen=True, kw_only=True)
class BucketOptions:
    """The options of a bucket for reading and writing. An option that was not given is None.

    Attributes:
        purpose: the use of the options, which the error for an unknown option names.
    """

    purpose: ClassVar[str]
    """The last words of the error for an unknown option."""

    url: str = option(
        nonempty(metavar="URL"),
        "connection string of the bucket; its query has more options, such as those of TLS",
        default=DEFAULT_URL,
        environment=URL_VARIABLE,
        example="couchbases://node1,node2/beer?ca=ca.pem",
    )
    bucket: str | None = option(
        TEXT,
        "the bucket, in place of the connection string's path",
        default=None,
        shown="of the connection string",
        example="beer",
    )
    username: str | None = option(
        TEXT,
        f"user name; its password is in a file or in {PASSWORD_VARIABLE}, or its source in {PASSWORD_VARIABLE}_FILE, "
        "_COMMAND or _FROM",
        default=None,
        environment=USERNAME_VARIABLE,
        example="ada",
    )
    password: str | None = option(
        ANY_TEXT,
        "the password; no plan, log or message shows it",
        default=None,
        environment=PASSWORD_VARIABLE,
        example="secret",
        secret=True,
    )
    password_file: str | None = shared_option(PasswordOptions)
    password_command: tuple[str, ...] | None = shared_option(PasswordOptions, secret=True)
    password_from: str | None = shared_option(PasswordOptions)
    credentials_file: str | None = option(
        FILE, "file with username and password as JSON", default=None, example="login.json"
    )
    connect_timeout: float | None = shared_option(ConnectionOptions, example="5")
    operation_timeout: float | None = shared_option(ConnectionOptions, example="2.5")
    retry_seconds: float | None = shared_option(ConnectionOptions, example="300")
    vbucket_count: int | None = shared_option(ConnectionOptions, example="1024")

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Return the options that are given as text. Names are case-insensitive.

        Args:
            given: option names with their texts, as Spark passes them.

        Returns:
            The options, with all values checked.

        Raises:
            UsageError: a name is unknown, a value is invalid, or options exclude each other.
        """
        values = read_options(cls, given, cls.purpose, any_case=True)
        options = cls(**{**cls._complete(values), "url": _add_bucket(values.get("url"), values.get("bucket"))})
        options._check_login()
        options._check(values.keys())
        return options

    @classmethod
    def _complete(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values, completed by those that follow from other options."""
        return values

    def _check(self, given: Collection[str]) -> None:
        """Raise UsageError for options that exclude each other.

        Args:
            given: the names of the fields that were given.
        """

    @property
    def login_runs_program(self) -> bool:
        """Whether a login runs a program: the command of a password, or the code of a provider of secrets."""
        login = None if self.credentials_file is not None else choose_login(self.username, self._password, os.environ)
        return login is not None and isinstance(login[1], SecretSource) and login[1].runs_program

    @property
    def _password(self) -> str | SecretSource | None:
        return choose_password(self, spell=to_external_name, password=self.password)

    def _check_login(self) -> None:
        """Check the login as far as that runs no program: the reader of options may not trust their author.

        Raises:
            UsageError: options exclude each other.
        """
        if self.credentials_file is not None and (self.username is not None or self._password is not None):
            more = "password" if self.username is None else "username"
            raise UsageError(f"option credentialsFile has the whole login, expected it without {more}")
        if not self.login_runs_program:
            _ = self.credentials

    @cached_property
    def credentials(self) -> Credentials | None:
        """The credentials of the login; None without a login. This reads the password, which may run a program.

        Raises:
            UsageError: a file cannot be used, or user name or password is missing.
        """
        if self.credentials_file is not None:
            return read_credentials_file(self.credentials_file)
        return resolve_credentials(self.username, self._password, os.environ)

    @cached_property
    def address(self) -> Address:
        """The address of the bucket, with the credentials of its login."""
        return replace(self.place, credentials=self.credentials)

    @cached_property
    def place(self) -> Address:
        """The address of the bucket, without a login. These options replace those of the connection string."""
        address = parse_address(self.url)
        return replace(address, options=self._merge_connection_options(address.options))

    def _merge_connection_options(self, url_options: ConnectionOptions) -> ConnectionOptions:
        """Return the settings of connections: those of the connection string, replaced by these options.

        Args:
            url_options: the settings of the connection string.
        """
        return replace(url_options, **read_shared_values(self, ConnectionOptions))


def _add_bucket(url: str | None, bucket: str | None) -> str:
    """Return the connection string with the bucket in its path.

    Args:
        url: the option url; None if it was not given.
        bucket: the option bucket; None if it was not given.

    Raises:
        UsageError: the connection string is invalid, or names another bucket.
    """
    found = os.environ.get(URL_VARIABLE, DEFAULT_URL) if url is None else url
    if bucket is None:
        return found
    address = parse_address(found)  # an error of the connection string comes before one of the bucket
    head, mark, query = found.partition("?")
    scheme, _, rest = head.partition("://")
    hosts, _, path = rest.partition("/")
    if url is not None and path and address.bucket != bucket:
        raise UsageError(f"option bucket is {bucket!r}, but the connection string names {address.bucket!r}")
    return f"{scheme}://{hosts}/{quote_part(bucket)}{mark}{query}"
