"""The options of `format("dcp")` that reading and writing share: where the bucket is, who logs in, how long to wait."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self
from urllib.parse import quote

from penstock.client.connect.address import DEFAULT_URL, Address, ConnectionOptions, parse_address
from penstock.client.connect.credentials import Credentials, credentials_file, credentials_from, password_file
from penstock.errors import UsageError
from penstock.options import ANY_TEXT, FILE, TEXT, option, outside_name, read_options, shared, shared_values

__all__ = ["BucketOptions"]

_ENVIRONMENT = "of the driver's environment"


@dataclass(frozen=True, kw_only=True)
class BucketOptions:
    """What reading and writing say of the bucket. What is None was not given."""

    place: ClassVar[str]
    """Which options these are, for the error about one that is unknown."""

    url: str = option(
        TEXT,
        "connection string; its query has more options, as those of TLS",
        default=DEFAULT_URL,
        shown=f"PENSTOCK_URL {_ENVIRONMENT}, else {DEFAULT_URL}",
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
        TEXT, "who logs in", default=None, shown=f"PENSTOCK_USERNAME {_ENVIRONMENT}, else nobody", example="ada"
    )
    password: str | None = option(
        ANY_TEXT,
        "the password; no plan, log or message shows it",
        default=None,
        shown=f"PENSTOCK_PASSWORD {_ENVIRONMENT}",
        example="secret",
        secret=True,
    )
    password_file: str | None = option(
        FILE, "a file on the driver whose only line is the password", default=None, example="/run/secrets/dcp"
    )
    credentials_file: str | None = option(
        FILE, "a file on the driver with username and password as JSON", default=None, example="login.json"
    )
    connect_timeout: float | None = shared(ConnectionOptions, example="5")
    operation_timeout: float | None = shared(ConnectionOptions, example="2.5")
    retry_seconds: float | None = shared(ConnectionOptions, example="300")
    vbucket_count: int | None = shared(ConnectionOptions, example="1024")

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Return the options that are given as text, their names in any case.

        Raises UsageError for an unknown name, an invalid value, and options that exclude each other.
        """
        values = read_options(cls, given, cls.place, any_case=True)
        options = cls(**{**cls._completed(values), "url": _with_bucket(values.get("url"), values.get("bucket"))})
        _ = options.credentials
        options._check(values.keys())
        return options

    @classmethod
    def _completed(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values with those that follow from others."""
        return values

    def _check(self, given: Collection[str]) -> None:
        """Raises UsageError for options that exclude each other. given: the fields that were given."""

    @cached_property
    def credentials(self) -> Credentials | None:
        """The user that logs in. Raises UsageError for a file that cannot be used, and for half a login."""
        given = [name for name in ("username", "password", "password_file") if getattr(self, name) is not None]
        if self.credentials_file is not None:
            if given:
                raise UsageError(f"option credentialsFile says all, expected it without {outside_name(given[0])}")
            return credentials_file(self.credentials_file)
        if self.password is not None and self.password_file is not None:
            raise UsageError("options password and passwordFile, expected one of them")
        password = self.password if self.password_file is None else password_file(self.password_file)
        return credentials_from(self.username, password, os.environ)

    @cached_property
    def address(self) -> Address:
        """Where the bucket is, with what these options say in place of what the connection string does."""
        address = parse_address(self.url, self.credentials)
        return replace(address, options=self._connection(address.options))

    def _connection(self, said: ConnectionOptions) -> ConnectionOptions:
        """Return the settings of connections. said: those of the connection string."""
        return replace(said, **shared_values(self, ConnectionOptions))


def _with_bucket(url: str | None, bucket: str | None) -> str:
    """Return the connection string with the bucket in its path. Raises UsageError for two of them."""
    found = os.environ.get("PENSTOCK_URL", DEFAULT_URL) if url is None else url
    if bucket is None:
        return found
    address = parse_address(found)  # whatever is wrong with it is told in front of what is wrong with the bucket
    head, mark, query = found.partition("?")
    scheme, _, rest = head.partition("://")
    hosts, _, path = rest.partition("/")
    if url is not None and path and address.bucket != bucket:
        raise UsageError(f"option bucket is {bucket!r}, but the connection string names {address.bucket!r}")
    return f"{scheme}://{hosts}/{quote(bucket, safe='')}{mark}{query}"
