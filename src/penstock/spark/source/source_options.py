"""The options of `format("dcp")` for reading."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

from penstock.client.connect.address import (
    Address,
    Compression,
    ConnectionOptions,
    MissingVbuckets,
    RecreatedBucket,
)
from penstock.client.feeds.collection_selection import CollectionSelection
from penstock.errors import UsageError
from penstock.options import BOOLEAN, TEXT, one_of, option, parsed, shared_option, to_external_name
from penstock.spark.source.bucket_options import BucketOptions
from penstock.spark.source.micro_batch_options import MicroBatchOptions
from penstock.spark.source.read_positions import EARLIEST, LATEST, ReadPosition, parse_end, parse_start
from penstock.spark.source.shape import Shape, ValueFormat
from penstock.wire.codec.constants import Dialect
from penstock.wire.columns.schema import CHANGE_SCHEMA

INFERRED = "infer"
"""The value of valueSchema that asks for a schema inferred from the bucket's values."""


_MAX_VBUCKETS = 65536
_IN_URL = re.compile(r"[?&]recreatedBucket=")


def parse_columns(name: str, text: str) -> tuple[str, ...]:
    """Return the column names of a comma-separated list.

    Args:
        name: the option, for the error.
        text: names with commas between them.

    Raises:
        UsageError: a column is unknown or stands twice.
    """
    names = tuple(each.strip() for each in text.split(","))
    if unknown := [each for each in names if each not in CHANGE_SCHEMA.names]:
        raise UsageError(f"option {name} has {unknown[0]!r}, expected some of {', '.join(CHANGE_SCHEMA.names)}")
    if twice := [each for each in names if names.count(each) > 1]:
        raise UsageError(f"option {name} has {twice[0]} twice, expected it once")
    return names


def parse_vbuckets(name: str, text: str) -> tuple[int, ...]:
    """Return the vbuckets of numbers and ranges in ascending order: `0-15,40` has 17 vbuckets.

    Args:
        name: the option, for the error.
        text: numbers and ranges with commas between them.

    Raises:
        UsageError: the text has another form, or a number is above 65535.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        bounds = [first, last] if dash else [first]
        if not all(each.isascii() and each.isdecimal() and len(each) <= 5 for each in bounds):
            raise UsageError(f"option {name} is {text!r}, expected numbers and ranges of them as 0-15,40")
        low, high = int(bounds[0]), int(bounds[-1])
        if not low <= high < _MAX_VBUCKETS:
            raise UsageError(f"option {name} has {part.strip()!r}, expected 0 to {_MAX_VBUCKETS - 1}, the lower first")
        found |= {*range(low, high + 1)}
    return tuple(sorted(found))


@dataclass(frozen=True, kw_only=True)
class SourceOptions(MicroBatchOptions, BucketOptions):
    """The options of a read. An option that was not given is None.

    Attributes:
        url: the connection string, with the bucket in its path.
    """

    purpose: ClassVar[str] = "of format dcp"

    scope: str | None = shared_option(ConnectionOptions, example="inventory", is_filter=True)
    collections: tuple[str, ...] | None = shared_option(ConnectionOptions, example="hotel,route", is_filter=True)
    vbuckets: tuple[int, ...] | None = option(
        parsed(parse_vbuckets),
        "read only these vbuckets: numbers and ranges",
        default=None,
        shown="all",
        example="0-15,40",
        is_filter=True,
    )
    starting_offsets: ReadPosition = option(
        parsed(parse_start),
        "start of a new query or a batch read: earliest, latest (streams only) or positions as JSON",
        default=EARLIEST,
        example="latest",
    )
    ending_offsets: ReadPosition = option(
        parsed(parse_end), "end of a batch read: latest or positions as JSON", default=LATEST, example="latest"
    )
    keys_only: bool = option(
        BOOLEAN,
        "omit the columns value and xattrs, which the node does not send either; datatype is null",
        default=False,
        example="true",
        is_filter=True,
    )
    columns: tuple[str, ...] | None = option(
        parsed(parse_columns),
        "columns of the result, in this order; the node sends values only if value or datatype is one of them",
        default=None,
        shown="all",
        example="key,seqno,event",
    )
    xattrs: bool | None = shared_option(
        ConnectionOptions, shown="true where columns names it", example="true", is_filter=True
    )
    value_format: ValueFormat = option(
        one_of("binary", "string", "json"), "the form of the column value", default="binary", example="json"
    )
    value_schema: str = option(
        TEXT,
        "the fields of values as JSON: DDL, or infer",
        default="",
        shown="none",
        example="name STRING, abv DOUBLE",
    )
    resnapshot_file: str | None = option(
        TEXT,
        'file with vbuckets that a stream reads again from their first change, as {"VBUCKET": HISTORY}',
        default=None,
        shown="none",
        example="requests.json",
    )
    key_pattern: str = option(
        TEXT,
        "only changes whose key has a match of this regular expression (RE2); rollback rows stay",
        default="",
        shown="none",
        example="^user::",
        is_filter=True,
    )
    key_pattern_exclude: str = option(
        TEXT,
        "no changes whose key has a match of this regular expression (RE2), such as those of transactions",
        default="",
        shown="none",
        example="^_txn:",
        is_filter=True,
    )
    protocol: Dialect | None = shared_option(
        ConnectionOptions, doc="the dialect: tap (batch only), upr-draft, upr or dcp", example="upr"
    )
    rollback: Literal["row", "fail"] = option(
        one_of("row", "fail"), "effect of a rollback: a row, or the end of the query", default="row", example="fail"
    )
    fail_on_data_loss: bool = option(
        BOOLEAN, "fail if deletions were purged before they were read", default=False, example="true"
    )
    filter_pushdown: bool = option(
        BOOLEAN,
        "apply Spark's filters in batch reads; needs spark.sql.python.filterPushdown.enabled",
        default=False,
        example="true",
    )
    missing_vbuckets: MissingVbuckets | None = shared_option(ConnectionOptions, example="skip")
    recreated_bucket: RecreatedBucket | None = shared_option(
        ConnectionOptions,
        doc="action if the bucket has another uuid than that of the positions: end the query, or roll back to zero",
        shown="fail",
        example="fail",
    )
    mitigate_rollback: bool | None = shared_option(ConnectionOptions, example="true")
    compression: Compression | None = shared_option(ConnectionOptions, example="force")

    @classmethod
    def _complete(cls, values: dict[str, Any]) -> dict[str, Any]:
        if "min_partitions" in values and "max_partitions" not in values:
            return {**values, "max_partitions": max(values["min_partitions"], cls.max_partitions)}
        return values

    def _check(self, given: Collection[str]) -> None:
        if self.min_partitions > self.max_partitions:
            raise UsageError(
                f"option minPartitions is {self.min_partitions}, above maxPartitions {self.max_partitions}"
            )
        if self.keys_only and (named := [name for name in _VALUE_OPTIONS if name in given]):
            raise UsageError(f"options keysOnly and {to_external_name(named[0])}, expected one of them")
        if self.value_schema != INFERRED:
            _ = self.shape
        elif self.value_format != "json":
            raise UsageError(f"option valueSchema is 'infer', but valueFormat is {self.value_format!r}, expected json")
        _ = self.selection

    @property
    def dialect(self) -> Dialect:
        """The dialect of the option protocol, or else of the connection string."""
        return self.place.options.protocol

    def _merge_connection_options(self, url_options: ConnectionOptions) -> ConnectionOptions:
        options = replace(super()._merge_connection_options(url_options), xattrs=self._is_reading_xattrs(url_options))
        if self.recreated_bucket is None and not _IN_URL.search(self.url):
            # Another default than that of a client: Spark's tables outlive the bucket, and a rollback empties them.
            options = replace(options, recreated_bucket=RecreatedBucket.FAIL)
        if self.scope is not None or self.collections is not None:
            options = replace(options, scope=self.scope or "", collections=self.collections or ())
        return options

    def _is_reading_xattrs(self, url_options: ConnectionOptions) -> bool:
        """Return whether the producer must send extended attributes."""
        if not self.make_shape("").needs_xattrs:
            return False
        if self.xattrs is None:
            return url_options.xattrs or self.columns is not None
        return self.xattrs

    @cached_property
    def selection(self) -> CollectionSelection | None:
        """The selected collections; None in a dialect without collections.

        Raises:
            UsageError: collections are selected in a dialect without collections.
        """
        return make_selection(self.place, self.dialect)

    @cached_property
    def shape(self) -> Shape:
        """The columns and rows of the read.

        Raises:
            UsageError: the options are invalid, or the schema must first be inferred from the bucket.
        """
        if self.value_schema != INFERRED:
            return self.make_shape(self.value_schema)
        if "value" in self.make_shape("").columns:
            raise UsageError("option valueSchema is 'infer', so the schema must first be read from the bucket")
        return self.make_shape("")

    def make_shape(self, value_schema: str) -> Shape:
        """Return the shape with this schema of JSON values.

        Args:
            value_schema: the fields as DDL. If empty, values stay bytes, even with valueFormat json.
        """
        columns = self.columns or tuple(CHANGE_SCHEMA.names)
        if self.keys_only:
            columns = tuple(name for name in columns if name not in ("value", "xattrs"))
        is_unparsed = self.value_format == "json" and not value_schema and bool(self.value_schema)
        return Shape(
            columns,
            "binary" if is_unparsed else self.value_format,
            value_schema,
            self.key_pattern,
            self.key_pattern_exclude,
            keys_only=self.keys_only,
        )

    def check_streaming(self) -> None:
        """Check the options for a streaming query.

        Raises:
            UsageError: a streaming query cannot have one of them.
        """
        if self.dialect is Dialect.TAP:
            raise UsageError("option protocol is 'tap', but TAP cannot resume; streaming needs upr-draft, upr or dcp")
        if self.ending_offsets != LATEST:
            raise UsageError("option endingOffsets is for batch reads, a stream has no end; expected none")

    def check_batch(self) -> None:
        """Check the options for a batch read.

        Raises:
            UsageError: a batch read cannot have one of them.
        """
        if self.starting_offsets == LATEST:
            raise UsageError(
                "option startingOffsets is 'latest', but a batch read has only earlier changes; "
                "expected earliest or positions as JSON"
            )
        if self.dialect is Dialect.TAP:
            for name in ("starting_offsets", "ending_offsets", "vbuckets"):
                if getattr(self, name) != getattr(SourceOptions, name):
                    raise UsageError(
                        f"option {to_external_name(name)}, but TAP has no seqnos: it reads the whole bucket"
                    )


def make_selection(address: Address, dialect: Dialect) -> CollectionSelection | None:
    """Return the selected collections; without a selection, all of the bucket.

    Args:
        address: the bucket, with the options scope and collections.
        dialect: the dialect of the read.

    Returns:
        The selection; None for a dialect without collections.

    Raises:
        UsageError: collections are selected in a dialect without collections.
    """
    selection = CollectionSelection(address.options.scope, address.options.collections)
    if dialect is Dialect.DCP:
        return selection
    if not selection.is_everything:
        raise UsageError(f"option protocol is {dialect.value!r}, which does not support collections; dcp does")
    return None


_VALUE_OPTIONS = ("value_format", "value_schema", "xattrs")
