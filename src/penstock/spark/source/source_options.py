"""The options of `format("dcp")` for reading."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

from penstock.client.connect.address import Address, ConnectionOptions, MissingVbuckets
from penstock.client.feeds.selection import Selection
from penstock.errors import UsageError
from penstock.options import POSITIVE, SIZE, TEXT, TRUTH, one_of, option, outside_name, parsed, shared
from penstock.spark.source.bucket_options import BucketOptions
from penstock.spark.source.option_text import columns_of, vbuckets_of
from penstock.spark.source.read_positions import EARLIEST, LATEST, Place, end_of, start_of
from penstock.spark.source.shape import Shape, ValueFormat
from penstock.wire.codec.constants import Dialect
from penstock.wire.columns.schema import CHANGE_SCHEMA

__all__ = ["INFERRED", "SourceOptions", "selection_of"]

INFERRED = "infer"
"""As valueSchema: what the values are found to be."""

MOST_PARTITIONS = 8
"""Default limit: a Python task costs about 34 ms however little it reads."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions(BucketOptions):
    """The options of a read. What is None was not given. url: with the bucket in it."""

    place: ClassVar[str] = "of format dcp"

    scope: str | None = shared(ConnectionOptions, example="inventory", filters=True)
    collections: tuple[str, ...] | None = shared(ConnectionOptions, example="hotel,route", filters=True)
    vbuckets: tuple[int, ...] | None = option(
        parsed(vbuckets_of),
        "only these: numbers and ranges",
        default=None,
        shown="all",
        example="0-15,40",
        filters=True,
    )
    starting_offsets: Place = option(
        parsed(start_of),
        "where a new query or a batch read begins: earliest, latest (streams only) or positions as JSON",
        default=EARLIEST,
        example="latest",
    )
    ending_offsets: Place = option(
        parsed(end_of), "where a batch read ends: latest or positions as JSON", default=LATEST, example="latest"
    )
    max_changes_per_trigger: int | None = option(
        POSITIVE,
        "seqnos of one micro-batch at most, which is an upper bound on its rows",
        default=None,
        shown="no limit",
        example="100000",
    )
    max_bytes_per_trigger: int | None = option(
        SIZE,
        "about how many bytes of changes a micro-batch has at most",
        default=None,
        shown="no limit",
        example="64m",
    )
    min_partitions: int = option(
        POSITIVE, "tasks of a batch at least, where as many vbuckets have changes", default=1, example="4"
    )
    max_partitions: int = option(
        POSITIVE,
        "tasks of a batch at most; but each node that has changes gets one",
        default=min(os.cpu_count() or 1, MOST_PARTITIONS),
        shown=f"the driver's processors, up to {MOST_PARTITIONS}",
        example="16",
    )
    keys_only: bool = option(
        TRUTH,
        "without the columns value and xattrs, and without their bytes on the way",
        default=False,
        example="true",
        filters=True,
    )
    columns: tuple[str, ...] | None = option(
        parsed(columns_of),
        "which columns, in this order; without value no values travel",
        default=None,
        shown="all",
        example="key,seqno,event",
    )
    xattrs: bool | None = shared(ConnectionOptions, shown="true where columns names it", example="true", filters=True)
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
    key_pattern: str = option(
        TEXT,
        "only changes whose key has a match of this regular expression (RE2); rollback rows stay",
        default="",
        shown="none",
        example="^user::",
        filters=True,
    )
    protocol: Dialect | None = shared(
        ConnectionOptions, doc="the dialect: tap (batch only), upr-draft, upr or dcp", example="upr"
    )
    rollback: Literal["row", "fail"] = option(
        one_of("row", "fail"), "what a rollback is: a row, or the end of the query", default="row", example="fail"
    )
    fail_on_data_loss: bool = option(
        TRUTH, "end where deletions were purged before they were read", default=False, example="true"
    )
    filter_pushdown: bool = option(
        TRUTH,
        "batch reads take Spark's filters; needs spark.sql.python.filterPushdown.enabled",
        default=False,
        example="true",
    )
    missing_vbuckets: MissingVbuckets | None = shared(ConnectionOptions, example="skip")

    @classmethod
    def _completed(cls, values: dict[str, Any]) -> dict[str, Any]:
        if "min_partitions" in values and "max_partitions" not in values:
            return {**values, "max_partitions": max(values["min_partitions"], cls.max_partitions)}
        return values

    def _check(self, given: Collection[str]) -> None:
        if self.min_partitions > self.max_partitions:
            raise UsageError(
                f"option minPartitions is {self.min_partitions}, above maxPartitions {self.max_partitions}"
            )
        if self.keys_only and (named := [name for name in _OF_VALUES if name in given]):
            raise UsageError(f"options keysOnly and {outside_name(named[0])}, expected one of them")
        if self.value_schema != INFERRED:
            _ = self.shape
        elif self.value_format != "json":
            raise UsageError(f"option valueSchema is 'infer', but valueFormat is {self.value_format!r}, expected json")
        _ = self.selection

    @property
    def dialect(self) -> Dialect:
        """The dialect of the option protocol, else of the connection string."""
        return self.address.options.protocol

    def _connection(self, said: ConnectionOptions) -> ConnectionOptions:
        options = replace(super()._connection(said), xattrs=self._wants_xattrs(said))
        if self.scope is not None or self.collections is not None:
            options = replace(options, scope=self.scope or "", collections=self.collections or ())
        return options

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


_OF_VALUES = ("value_format", "value_schema", "xattrs")
