"""The options of `format("dcp")` for writing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from penstock.client.connect.address import Address, truth_of
from penstock.client.documents.bulk import MAX_BYTES_IN_FLIGHT
from penstock.errors import UsageError
from penstock.spark.source.option_text import not_empty, one_of, size
from penstock.spark.source.source_options import SourceOptions
from penstock.wire.messages.subdoc import MAX_PATHS

__all__ = ["CONNECTION", "OPTIONS", "Operation", "SinkOption", "SinkOptions", "SubPath"]


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
    parts = urlsplit(not_empty(name, text))
    if len(parts.scheme) > 1 and (parts.scheme != "file" or parts.netloc):
        raise UsageError(f"option {name} is {text!r}, expected a directory that the driver and all workers see")
    return Path(parts.path if parts.scheme == "file" else text).expanduser().absolute()


def truth(name: str, text: str) -> bool:
    return truth_of(name, text)


class SinkOption(NamedTuple):
    """An option of the sink. read: of its name and text, its value; raises UsageError. field: where it is kept."""

    name: str
    field: str
    read: Callable[[str, str], Any]
    default: str
    help: str


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """What the options say; OPTIONS describes each. What is None was not given."""

    address: Address
    operation: Operation = Operation.UPSERT
    subdocument: tuple[SubPath, ...] = ()
    create_documents: bool = True
    scope: str | None = None
    collection: str | None = None
    errors: str = "fail"
    dead_letter_path: Path | None = None
    max_bytes_in_flight: int = MAX_BYTES_IN_FLIGHT
    conflict_resolution: str = "seqno"

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """Raises UsageError for an unknown name, a value that cannot be, and what cannot be together."""
        lower = {name.lower(): str(text) for name, text in given.items() if name.lower() not in _SPARKS_OWN}
        if unknown := sorted(lower.keys() - _BY_LOWER_NAME.keys() - {name.lower() for name in CONNECTION}):
            known = ", ".join((*CONNECTION, *(option.name for option in OPTIONS)))
            raise UsageError(f"unknown option {unknown[0]!r} for writing by format dcp; known are {known}")
        values = {
            option.field: option.read(option.name, lower[name])
            for name, option in _BY_LOWER_NAME.items()
            if name in lower
        }
        source = SourceOptions.parse({name: lower[name.lower()] for name in CONNECTION if name.lower() in lower})
        options = cls(address=source.address, **values)
        options._check()
        return options

    def _check(self) -> None:
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


# fmt: off
OPTIONS: Sequence[SinkOption] = (
    SinkOption("operation", "operation", lambda name, text: Operation(one_of(*Operation)(name, text)), "upsert",
           "what a row does: upsert, insert, replace, delete, change, with-meta or subdoc"),
    SinkOption("subdocument", "subdocument", sub_paths, "none",
           "for operation subdoc: `path=column` with commas between them; `xattr:path=column` in extended attributes"),
    SinkOption("createDocuments", "create_documents", truth, "true",
           "for operation subdoc: make a document where there is none"),
    SinkOption("scope", "scope", not_empty, "the column scope, else `_default`", "where all documents go"),
    SinkOption("collection", "collection", not_empty, "the column collection, else `_default`",
           "where all documents go"),
    SinkOption("errors", "errors", one_of("fail", "deadletter"), "fail",
           "what a row that is refused does: end the job, or go to deadLetterPath"),
    SinkOption("deadLetterPath", "dead_letter_path", directory, "none",
           "a directory for parquet files with the rows that were refused"),
    SinkOption("maxBytesInFlight", "max_bytes_in_flight", size, "4m",
           "bytes of requests without an answer at most, of each task"),
    SinkOption("conflictResolution", "conflict_resolution", one_of("seqno", "lww"), "seqno",
           "for operation with-meta: how the bucket that is written to resolves conflicts"),
)
# fmt: on
"""Every option but those of the connection, in the order of its documentation."""

CONNECTION = (
    *("url", "bucket", "username", "password", "passwordFile", "credentialsFile"),
    *("connectTimeout", "operationTimeout", "retrySeconds", "vbucketCount"),
)
"""Options that mean the same as in reading."""

_BY_LOWER_NAME = {option.name.lower(): option for option in OPTIONS}
_SPARKS_OWN = ("checkpointlocation", "queryname")
