"""The options of `format("dcp")` for writing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple, Self

from penstock.client.documents.bulk import MAX_BYTES_IN_FLIGHT
from penstock.errors import UsageError
from penstock.options import BOOLEAN, SIZE, TEXT, one_of, option, parsed
from penstock.spark.source.bucket_options import BucketOptions
from penstock.spark.source.source_options import make_selection
from penstock.spark.storage.object_path import LakePath, parse_place
from penstock.wire.messages.subdoc import MAX_PATHS


class Operation(StrEnum):
    """The operation that a row stands for."""

    UPSERT = "upsert"
    INSERT = "insert"
    REPLACE = "replace"
    DELETE = "delete"
    CHANGE = "change"
    WITH_META = "with-meta"
    SUBDOC = "subdoc"


class SubdocumentPath(NamedTuple):
    """One path of the option `subdocument`.

    Attributes:
        path: the path in the document or in its extended attributes.
        column: the column with the values.
        is_xattr: whether it is a path of an extended attribute.
    """

    path: str
    column: str
    is_xattr: bool = False


XATTR_PREFIX = "xattr:"


def parse_subdocument(name: str, text: str) -> tuple[SubdocumentPath, ...]:
    """Return the paths of `path=column` with commas between them.

    Paths of extended attributes come first, because a node requires this order.

    Args:
        name: the option, for errors.
        text: its value.

    Raises:
        UsageError: the text has another form, too many paths, or a path twice.
    """
    found = []
    for part in text.split(","):
        path, sign, column = (each.strip() for each in part.rpartition("="))
        xattr = path.startswith(XATTR_PREFIX)
        path = path.removeprefix(XATTR_PREFIX).strip()
        if not (sign and path and column):
            raise UsageError(f"option {name} has {part.strip()!r}, expected path=column, or {XATTR_PREFIX}path=column")
        found.append(SubdocumentPath(path, column, xattr))
    if len(found) > MAX_PATHS:
        raise UsageError(f"option {name} has {len(found)} paths, expected {MAX_PATHS} at most")
    if twice := [each.path for each in found if [(one.path, one.is_xattr) for one in found].count(each[::2]) > 1]:
        raise UsageError(f"option {name} has the path {twice[0]!r} twice, expected it once")
    return tuple(sorted(found, key=lambda each: not each.is_xattr))


def parse_directory(name: str, text: str) -> LakePath:
    """Return a place that the driver and all workers see. Accepts paths, `file:` URLs and URLs of object stores.

    Args:
        name: the option, for errors.
        text: its value.

    Raises:
        UsageError: it is a URL of another kind.
    """
    try:
        return parse_place(TEXT.read(name, text))
    except UsageError as error:
        raise UsageError(f"option {name}: {error}; the driver and all workers must see the place") from None


@dataclass(frozen=True, kw_only=True)
class SinkOptions(BucketOptions):
    """The options of a write. An option that was not given is None."""

    purpose: ClassVar[str] = "for writing by format dcp"

    operation: Operation = option(
        one_of(*Operation),
        "operation of each row: upsert, insert, replace, delete, change, with-meta or subdoc",
        default=Operation.UPSERT,
    )
    subdocument: tuple[SubdocumentPath, ...] = option(
        parsed(parse_subdocument),
        "for operation subdoc: `path=column` with commas between them; `xattr:path=column` in extended attributes",
        default=(),
        shown="none",
    )
    create_documents: bool = option(BOOLEAN, "for operation subdoc: create missing documents", default=True)
    scope: str | None = option(TEXT, "scope of all documents", default=None, shown="the column scope, else `_default`")
    collection: str | None = option(
        TEXT, "collection of all documents", default=None, shown="the column collection, else `_default`"
    )
    errors: str = option(
        one_of("fail", "deadletter"),
        "effect of a refused row: end the job, or write the row to deadLetterPath",
        default="fail",
    )
    dead_letter_path: LakePath | None = option(
        parsed(parse_directory, is_path=True),
        "directory for Parquet files of refused rows, or a URL of an object store",
        default=None,
    )
    max_bytes_in_flight: int = option(
        SIZE, "maximum size of unanswered requests of each task in bytes", default=MAX_BYTES_IN_FLIGHT, shown="4m"
    )
    conflict_resolution: str = option(
        one_of("seqno", "lww"),
        "for operation with-meta: conflict resolution of the target bucket",
        default="seqno",
    )

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Return the options like BucketOptions.parse, without Spark's own options."""
        return super().parse({name: text for name, text in given.items() if name.lower() not in _SPARK_OPTIONS})

    def _check(self, given: Collection[str]) -> None:
        _ = make_selection(self.place, self.place.options.protocol)
        is_subdoc = self.operation is Operation.SUBDOC
        if is_subdoc != bool(self.subdocument):
            raise UsageError(
                "operation subdoc without the option subdocument, expected paths and columns as `a.b=column`"
                if is_subdoc
                else f"option subdocument with operation {self.operation}, expected operation subdoc"
            )
        if (self.errors == "deadletter") != (self.dead_letter_path is not None):
            raise UsageError("errors deadletter and the option deadLetterPath, expected both or neither")
        if self.conflict_resolution != "seqno" and self.operation is not Operation.WITH_META:
            raise UsageError(f"option conflictResolution with operation {self.operation}, expected operation with-meta")


_SPARK_OPTIONS = ("checkpointlocation", "queryname")
"""Options that Spark passes to every streaming sink."""
