"""The options of `format("dcp")` for reading."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.client.address import DEFAULT_URL, Address, collection_names, dialect_of, parse_address, truth_of
from penstock.client.credentials import Credentials, credentials_file, credentials_from, password_file
from penstock.client.selection import Selection
from penstock.errors import UsageError
from penstock.wire.constants import Dialect

_MOST_PARTITIONS = 8
"""Default limit: a Python task costs about 34 ms however little it reads."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of `format("dcp")`.

    url: connection string, with the connection's own options as its query. start: "beginning" or "now", where a new
    streaming query begins. maxChangesPerTrigger: seqnos of one micro-batch at most, an upper bound on its rows.
    partitions: tasks of one batch at most; as many as the driver has processors, up to 8, if not given. protocol: the
    dialect, "tap", "upr-draft", "upr" or "dcp", if the connection string does not say it; "tap" is for batch reads,
    each of one task, which begins anew behind rollback rows if its connection is cut.
    username and password, or passwordFile, or credentialsFile with both as JSON: who logs in; what is not given is
    looked for in PENSTOCK_USERNAME and PENSTOCK_PASSWORD of the driver's environment. No plan or log shows a password.
    scope, collections, xattrs: as of the connection string. Without scope and collections it is the default collection.
    """

    url: str = DEFAULT_URL
    start: str = "beginning"
    max_changes_per_trigger: int | None = None
    partitions: int = min(os.cpu_count() or 1, _MOST_PARTITIONS)
    dialect: Dialect = Dialect.DCP
    credentials: Credentials | None = None
    scope: str | None = None
    collections: tuple[str, ...] | None = None
    xattrs: bool | None = None

    @property
    def address(self) -> Address:
        """Where the bucket is, with what these options say in place of what the connection string does."""
        address = parse_address(self.url, self.credentials)
        options = address.options
        if self.scope is not None or self.collections is not None:
            options = replace(options, scope=self.scope or "", collections=self.collections or ())
        if self.xattrs is not None:
            options = replace(options, xattrs=self.xattrs)
        return replace(address, options=options)

    @property
    def selection(self) -> Selection | None:
        """The collections that are wanted, if any are named. Raises UsageError for what cannot be together."""
        return selection_of(self.address, self.dialect)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Raises UsageError for an unknown name or a value that cannot be."""
        lower = {name.lower(): text for name, text in given.items()}
        known = ("url", "start", "maxChangesPerTrigger", "partitions", "protocol", *_LOGIN, *_CONTENT)
        if unknown := sorted(set(lower) - {name.lower() for name in known}):
            raise UsageError(f"unknown option {unknown[0]!r} of format dcp; known are {', '.join(known)}")
        start = lower.get("start", "beginning")
        if start not in ("beginning", "now"):
            raise UsageError(f"option start is {start!r}, expected 'beginning' or 'now'")
        url = lower.get("url", os.environ.get("PENSTOCK_URL", DEFAULT_URL))
        dialect = parse_address(url).options.protocol
        limit = lower.get("maxchangespertrigger")
        options = cls(
            url=url,
            start=start,
            max_changes_per_trigger=None if limit is None else _positive("maxChangesPerTrigger", limit),
            partitions=_positive("partitions", lower["partitions"]) if "partitions" in lower else cls().partitions,
            dialect=dialect_of(lower["protocol"]) if "protocol" in lower else dialect,
            credentials=_credentials(lower),
            scope=lower.get("scope"),
            collections=collection_names(lower["collections"]) if "collections" in lower else None,
            xattrs=truth_of("xattrs", lower["xattrs"]) if "xattrs" in lower else None,
        )
        _ = options.selection
        return options

    def check_streaming(self) -> None:
        """Raises UsageError for a dialect that a streaming query cannot use."""
        if self.dialect is Dialect.TAP:
            raise UsageError("option protocol is 'tap', but TAP cannot resume; streaming needs upr-draft, upr or dcp")


_LOGIN = ("username", "password", "passwordFile", "credentialsFile")
_CONTENT = ("scope", "collections", "xattrs")


def selection_of(address: Address, dialect: Dialect) -> Selection | None:
    """Return the collections that are wanted, None where none are named. Raises UsageError for what goes not together."""
    selection = Selection(address.options.scope, address.options.collections)
    if selection.is_everything:
        return None
    if dialect is not Dialect.DCP:
        raise UsageError(f"option protocol is {dialect.value!r}, which knows no collections; dcp does")
    return selection


def _credentials(lower: Mapping[str, str]) -> Credentials | None:
    """Return who logs in. lower: options by their names in lower case."""
    given = [name for name in _LOGIN if name.lower() in lower]
    if "credentialsFile" in given:
        if len(given) > 1:
            raise UsageError(f"option credentialsFile says all, expected it without {given[0]}")
        return credentials_file(lower["credentialsfile"])
    if "password" in given and "passwordFile" in given:
        raise UsageError("options password and passwordFile, expected one of them")
    password = password_file(lower["passwordfile"]) if "passwordFile" in given else lower.get("password")
    return credentials_from(lower.get("username"), password, os.environ)


def _positive(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise UsageError(f"option {name} is {text!r}, expected a whole number above 0")
    return int(text)
