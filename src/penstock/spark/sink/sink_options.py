"""The options of `format("dcp")` for writing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, NamedTuple, Self
from urllib.parse import urlsplit

from penstock.client.documents.bulk import MAX_BYTES_IN_FLIGHT
from penstock.errors import UsageError
from penstock.options import SIZE, TEXT, TRUTH, one_of, option, parsed
from penstock.spark.source.bucket_options import BucketOptions
from penstock.spark.source.source_options import selection_of
from penstock.wire.messages.subdoc import MAX_PATHS

__all__ = ["Operation", "SinkOptions", "SubPath"]


class Operation(StrEnum):
    """What a row does to the document with its key."""

    UPSERT = "upsert"
    INSERT = "insert"
    REPLACE = "replace"
    DELETE = "delete"
    CHANGE = "change"
    WITH_META = "with-meta"
    SUBDOC = "subdoc"


class SubPath(NamedTuple):
    """One path of `subdocument`, and the column that goes there. xattr: it is one of an extended attribute."""

    path: str
    column: str
    xattr: bool = False


XATTR_MARK = "xattr:"


def sub_paths(name: str, text: str) -> tuple[SubPath, ...]:
    """Read `path=column` with commas between them; those of extended attributes come first, as a node wants them."""
    found = []
    for part in text.split(","):
        path, sign, column = (each.strip() for each in part.rpartition("="))
        xattr = path.startswith(XATTR_MARK)
        path = path.removeprefix(XATTR_MARK).strip()
        if not (sign and path and column):
            raise UsageError(f"option {name} has {part.strip()!r}, expected path=column, or {XATTR_MARK}path=column")
        found.append(SubPath(path, column, xattr))
    if len(found) > MAX_PATHS:
        raise UsageError(f"option {name} has {len(found)} paths, expected {MAX_PATHS} at most")
    if twice := [each.path for each in found if [(one.path, one.xattr) for one in found].count(each[::2]) > 1]:
        raise UsageError(f"option {name} has the path {twice[0]!r} twice, expected it once")
    return tuple(sorted(found, key=lambda each: not each.xattr))


def directory(name: str, text: str) -> Path:
    parts = urlsplit(TEXT.read(name, text))
    if len(parts.scheme) > 1 and (parts.scheme != "file" or parts.netloc):
        raise UsageError(f"option {name} is {text!r}, expected a directory that the driver and all workers see")
    return Path(parts.path if parts.scheme == "file" else text).expanduser().absolute()


@dataclass(frozen=True, kw_only=True)
class SinkOptions(BucketOptions):
    """The options of a write. What is None was not given."""

    place: ClassVar[str] = "for writing by format dcp"

    operation: Operation = option(
        one_of(*Operation),
        "what a row does: upsert, insert, replace, delete, change, with-meta or subdoc",
        default=Operation.UPSERT,
    )
    subdocument: tuple[SubPath, ...] = option(
        parsed(sub_paths),
        "for operation subdoc: `path=column` with commas between them; `xattr:path=column` in extended attributes",
        default=(),
        shown="none",
    )
    create_documents: bool = option(TRUTH, "for operation subdoc: make a document where there is none", default=True)
    scope: str | None = option(TEXT, "where all documents go", default=None, shown="the column scope, else `_default`")
    collection: str | None = option(
        TEXT, "where all documents go", default=None, shown="the column collection, else `_default`"
    )
    errors: str = option(
        one_of("fail", "deadletter"),
        "what a row that is refused does: end the job, or go to deadLetterPath",
        default="fail",
    )
    dead_letter_path: Path | None = option(
        parsed(directory, is_path=True), "a directory for parquet files with the rows that were refused", default=None
    )
    max_bytes_in_flight: int = option(
        SIZE, "bytes of requests without an answer at most, of each task", default=MAX_BYTES_IN_FLIGHT, shown="4m"
    )
    conflict_resolution: str = option(
        one_of("seqno", "lww"),
        "for operation with-meta: how the bucket that is written to resolves conflicts",
        default="seqno",
    )

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """As BucketOptions.parse; Spark's own options are passed over."""
        return super().parse({name: text for name, text in given.items() if name.lower() not in _SPARKS_OWN})

    def _check(self, given: Collection[str]) -> None:
        _ = selection_of(self.address, self.address.options.protocol)
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


_SPARKS_OWN = ("checkpointlocation", "queryname")
