"""The places of positions, as commands name them: a store of each kind, and the files of other consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.client.bucket import Bucket
    from penstock.client.positions.position_store import PositionStore

STORE_HELP = (
    "file:PATH, sqlite:PATH#NAME, document:NAME or group:NAME (in the bucket of --url), or spark:PATH; "
    "a bare path is a file."
)
StorePlace = Annotated[str, typer.Argument(metavar="STORE", help=f"Store of positions: {STORE_HELP}")]

_KINDS = ("file", "sqlite", "document", "group", "spark")


def _split_place(place: str) -> tuple[str, str]:
    """Return the kind and the rest of a place. Raises UsageError for an empty rest."""
    kind, colon, rest = place.partition(":")
    if not colon or kind not in _KINDS:
        kind, rest = "file", place
    if not rest:
        raise UsageError(f"store {place!r}, expected {STORE_HELP}")
    return kind, rest


def needs_bucket(place: str) -> bool:
    """Return whether a store is in a bucket."""
    return _split_place(place)[0] in ("document", "group")


def open_store(place: str, bucket: Bucket | None = None) -> PositionStore:
    """Return the store at a place.

    Args:
        place: the place, as in STORE_HELP.
        bucket: the bucket of a document or a group, connected.

    Raises:
        UsageError: the place is not valid.
    """
    from penstock.client.groups.group_positions import GroupPositions
    from penstock.client.positions.document_positions import DocumentPositions
    from penstock.client.positions.file_positions import FilePositions
    from penstock.client.positions.sqlite_positions import SqlitePositions
    from penstock.spark.source.read_positions import SparkPositions

    kind, rest = _split_place(place)
    if kind == "document" and bucket is not None:
        return DocumentPositions(bucket, rest)
    if kind == "group" and bucket is not None:
        return GroupPositions(bucket, rest)
    if kind == "sqlite":
        path, _, name = rest.partition("#")
        return SqlitePositions(path, name) if name else SqlitePositions(path)
    return SparkPositions(rest) if kind == "spark" else FilePositions(rest)


async def list_stores(place: str, bucket: Bucket | None) -> list[PositionStore]:
    """Return the stores at a place: all consumers of an SQLite database without a name, else one store."""
    from penstock.client.positions.sqlite_positions import SqlitePositions, list_sqlite_names

    kind, rest = _split_place(place)
    if kind == "sqlite" and "#" not in rest:
        return [SqlitePositions(rest, name) for name in await list_sqlite_names(rest)]
    return [open_store(place, bucket)]
