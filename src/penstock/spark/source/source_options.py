"""The options of `format("dcp")` for reading: one table says how each is read, and what it is for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from penstock.client.connect.address import (
    DEFAULT_URL,
    Address,
    ConnectionOptions,
    MissingVbuckets,
    outside_name,
    parse_address,
    truth_of,
)
from penstock.client.connect.credentials import Credentials, credentials_file, credentials_from, password_file
from penstock.client.feeds.selection import Selection
from penstock.errors import UsageError
from penstock.spark.source.option_text import (
    any_text,
    as_in_a_url,
    columns,
    not_empty,
    one_of,
    positive,
    size,
    vbuckets,
)
from penstock.spark.source.read_positions import EARLIEST, LATEST, Place, end_of, start_of
from penstock.spark.source.shape import Shape, ValueFormat
from penstock.wire.codec.constants import Dialect
from penstock.wire.columns.schema import CHANGE_SCHEMA

__all__ = ["INFERRED", "OPTIONS", "SourceOption", "SourceOptions", "selection_of"]

INFERRED = "infer"
"""As valueSchema: what the values are found to be."""

MOST_PARTITIONS = 8
"""Default limit: a Python task costs about 34 ms however little it reads."""


class SourceOption(NamedTuple):
    """An option of the source. read: of its name and text, its value; raises UsageError. default: in words.

    field: the attribute of SourceOptions that has the value; empty for what makes up the login.
    """

    name: str
    read: Callable[[str, str], Any]
    default: str
    help: str
    example: str
    field: str


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What the options say; OPTIONS describes each, under its name in Spark. What is None was not given.

    url: with the bucket in it. credentials: who logs in. dialect: of the option protocol, else of the url.
    """

    url: str = DEFAULT_URL
    bucket: str | None = None
    credentials: Credentials | None = None
    scope: str | None = None
    collections: tuple[str, ...] | None = None
    vbuckets: tuple[int, ...] | None = None
    starting_offsets: Place = EARLIEST
    ending_offsets: Place = LATEST
    max_changes_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_partitions: int = 1
    max_partitions: int = min(os.cpu_count() or 1, MOST_PARTITIONS)
    keys_only: bool = False
    columns: tuple[str, ...] | None = None
    xattrs: bool | None = None
    value_format: ValueFormat = "binary"
    value_schema: str = ""
    key_pattern: str = ""
    protocol: Dialect | None = None
    rollback: Literal["row", "fail"] = "row"
    fail_on_data_loss: bool = False
    filter_pushdown: bool = False
    connect_timeout: float | None = None
    operation_timeout: float | None = None
    retry_seconds: float | None = None
    vbucket_count: int | None = None
    missing_vbuckets: MissingVbuckets | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Raises UsageError for an unknown name, a value that cannot be, and what cannot be together."""
        lower = {name.lower(): str(text) for name, text in given.items()}
        if unknown := sorted(lower.keys() - _BY_LOWER_NAME.keys()):
            known = ", ".join(option.name for option in OPTIONS)
            raise UsageError(f"unknown option {unknown[0]!r} of format dcp; known are {known}")
        values = {
            option.field: option.read(option.name, text)
            for name, text in lower.items()
            if (option := _BY_LOWER_NAME[name]).field
        }
        values["url"] = _with_bucket(lower.get("url"), values.get("bucket"))
        if "minpartitions" in lower and "maxpartitions" not in lower:
            values["max_partitions"] = max(values["min_partitions"], cls.max_partitions)
        options = cls(credentials=_credentials(lower), **values)
        options._check(lower)
        return options

    def _check(self, lower: Mapping[str, str]) -> None:
        if self.min_partitions > self.max_partitions:
            raise UsageError(
                f"option minPartitions is {self.min_partitions}, above maxPartitions {self.max_partitions}"
            )
        if self.keys_only and (named := [name for name in _OF_VALUES if name.lower() in lower]):
            raise UsageError(f"options keysOnly and {named[0]}, expected one of them")
        if self.value_schema != INFERRED:
            _ = self.shape
        elif self.value_format != "json":
            raise UsageError(f"option valueSchema is 'infer', but valueFormat is {self.value_format!r}, expected json")
        _ = self.selection

    @cached_property
    def dialect(self) -> Dialect:
        return self.protocol or parse_address(self.url).options.protocol

    @cached_property
    def address(self) -> Address:
        """Where the bucket is, with what these options say in place of what the connection string does."""
        address = parse_address(self.url, self.credentials)
        named = {name: value for name in _OF_CONNECTION if (value := getattr(self, name)) is not None}
        options = replace(address.options, protocol=self.dialect, xattrs=self._wants_xattrs(address.options), **named)
        if self.scope is not None or self.collections is not None:
            options = replace(options, scope=self.scope or "", collections=self.collections or ())
        return replace(address, options=options)

    def _wants_xattrs(self, said: ConnectionOptions) -> bool:
        if not self.shape_of("").needs_xattrs:
            return False
        if self.xattrs is None:
            return said.xattrs or self.columns is not None
        return self.xattrs

    @cached_property
    def selection(self) -> Selection | None:
        """The collections that are wanted; None in a dialect that knows none. Raises UsageError."""
        return selection_of(self.address, self.dialect)

    @cached_property
    def shape(self) -> Shape:
        """What columns there are. Raises UsageError; and for an inferred schema, which only the bucket can tell."""
        if self.value_schema != INFERRED:
            return self.shape_of(self.value_schema)
        if self.shape_of("").needs_values:
            raise UsageError("option valueSchema is 'infer', which a bucket must be asked for")
        return self.shape_of("")

    def shape_of(self, value_schema: str) -> Shape:
        """Return the shape with this schema of JSON values; empty: as bytes, though the option says JSON."""
        columns = self.columns or tuple(CHANGE_SCHEMA.names)
        if self.keys_only:
            columns = tuple(name for name in columns if name not in ("value", "xattrs"))
        if self.value_format == "json" and not value_schema and self.value_schema:
            return Shape(columns, key_pattern=self.key_pattern)
        return Shape(columns, self.value_format, value_schema, self.key_pattern)

    def check_streaming(self) -> None:
        """Raises UsageError for what a streaming query cannot have."""
        if self.dialect is Dialect.TAP:
            raise UsageError("option protocol is 'tap', but TAP cannot resume; streaming needs upr-draft, upr or dcp")
        if self.ending_offsets != LATEST:
            raise UsageError("option endingOffsets is for batch reads, a stream has no end; expected none")

    def check_batch(self) -> None:
        """Raises UsageError for what a batch read cannot have."""
        if self.starting_offsets == LATEST:
            raise UsageError(
                "option startingOffsets is 'latest', but a batch read has only what was before; "
                "expected earliest or positions as JSON"
            )
        if self.dialect is Dialect.TAP:
            for name in ("starting_offsets", "ending_offsets", "vbuckets"):
                if getattr(self, name) != getattr(SourceOptions, name):
                    raise UsageError(f"option {outside_name(name)}, but TAP has no seqnos: it reads all there is")


def selection_of(address: Address, dialect: Dialect) -> Selection | None:
    """Return the collections that are wanted: all, if none are named. None: of a dialect that knows none.

    Raises UsageError for what goes not together.
    """
    selection = Selection(address.options.scope, address.options.collections)
    if dialect is Dialect.DCP:
        return selection
    if not selection.is_everything:
        raise UsageError(f"option protocol is {dialect.value!r}, which knows no collections; dcp does")
    return None


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


_LOGIN = ("username", "password", "passwordFile", "credentialsFile")
_OF_VALUES = ("valueFormat", "valueSchema", "xattrs")
_OF_CONNECTION = ("connect_timeout", "operation_timeout", "retry_seconds", "vbucket_count", "missing_vbuckets")


def _option(
    name: str, read: Callable[[str, str], Any], default: str, text: str, example: str, *, login: bool = False
) -> SourceOption:
    snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    return SourceOption(name, read, default, text, example, "" if login else snake)


_URL = "of the connection string, else "
_ENVIRONMENT = "of the driver's environment"

# fmt: off
OPTIONS: Sequence[SourceOption] = (
    _option("url", not_empty, f"PENSTOCK_URL {_ENVIRONMENT}, else {DEFAULT_URL}",
            "connection string; its query has more options, as those of TLS", "couchbases://node1,node2/beer?ca=ca.pem"),
    _option("bucket", not_empty, "of the connection string",
            "the bucket, in place of the connection string's path", "beer"),
    _option("username", not_empty, f"PENSTOCK_USERNAME {_ENVIRONMENT}, else nobody", "who logs in", "ada", login=True),
    _option("password", any_text, f"PENSTOCK_PASSWORD {_ENVIRONMENT}",
            "the password; no plan, log or message shows it", "secret", login=True),
    _option("passwordFile", not_empty, "none",
            "a file on the driver whose only line is the password", "/run/secrets/dcp", login=True),
    _option("credentialsFile", not_empty, "none",
            "a file on the driver with username and password as JSON", "login.json", login=True),
    _option("scope", as_in_a_url, _URL + "all", "only this scope's collections", "inventory"),
    _option("collections", as_in_a_url, _URL + "all",
            "only these: names in the scope, or `scope.name`", "hotel,route"),
    _option("vbuckets", vbuckets, "all", "only these: numbers and ranges", "0-15,40"),
    _option("startingOffsets", start_of, EARLIEST,
            "where a new query or a batch read begins: earliest, latest (streams only) or positions as JSON", "latest"),
    _option("endingOffsets", end_of, LATEST, "where a batch read ends: latest or positions as JSON", "latest"),
    _option("maxChangesPerTrigger", positive, "no limit",
            "seqnos of one micro-batch at most, which is an upper bound on its rows", "100000"),
    _option("maxBytesPerTrigger", size, "no limit",
            "about how many bytes of changes a micro-batch has at most", "64m"),
    _option("minPartitions", positive, "1",
            "tasks of a batch at least, where as many vbuckets have changes", "4"),
    _option("maxPartitions", positive, f"the driver's processors, up to {MOST_PARTITIONS}",
            "tasks of a batch at most; but each node that has changes gets one", "16"),
    _option("keysOnly", truth_of, "false",
            "without the columns value and xattrs, and without their bytes on the way", "true"),
    _option("columns", columns, "all",
            "which columns, in this order; without value no values travel", "key,seqno,event"),
    _option("xattrs", as_in_a_url, _URL + "true where columns names it",
            "changes with their extended attributes", "true"),
    _option("valueFormat", one_of("binary", "string", "json"), "binary", "the form of the column value", "json"),
    _option("valueSchema", not_empty, "none",
            "the fields of values as JSON: DDL, or infer", "name STRING, abv DOUBLE"),
    _option("keyPattern", not_empty, "none",
            "only changes whose key has a match of this regular expression (RE2); rollback rows stay", "^user::"),
    _option("protocol", as_in_a_url, _URL + "dcp", "the dialect: tap (batch only), upr-draft, upr or dcp", "upr"),
    _option("rollback", one_of("row", "fail"), "row", "what a rollback is: a row, or the end of the query", "fail"),
    _option("failOnDataLoss", truth_of, "false", "end where deletions were purged before they were read", "true"),
    _option("filterPushdown", truth_of, "false",
            "batch reads take Spark's filters; needs spark.sql.python.filterPushdown.enabled", "true"),
    _option("connectTimeout", as_in_a_url, _URL + "10", "seconds for a connection to be made and set up", "5"),
    _option("operationTimeout", as_in_a_url, _URL + "10", "seconds for one request's answer", "2.5"),
    _option("retrySeconds", as_in_a_url, _URL + "30",
            "seconds for which a node that does not serve is tried again", "300"),
    _option("vbucketCount", as_in_a_url, _URL + "of the cluster map",
            "how many vbuckets a bucket without a cluster map has; the address alone serves it", "1024"),
    _option("missingVbuckets", as_in_a_url, _URL + "fail",
            "vbuckets that no node serves: fail after retrySeconds, or skip them and log a warning", "skip"),
)
# fmt: on
"""Every option, in the order of its documentation."""

_BY_LOWER_NAME = {option.name.lower(): option for option in OPTIONS}
