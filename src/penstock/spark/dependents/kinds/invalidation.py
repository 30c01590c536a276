"""Cache invalidation: an HTTP server gets the keys of changed documents, and no values.

At least once: the changelog's version is remembered when the server has accepted all that led to it, so that a crash or
a failure in between tells it again. Where a list of keys would be longer than it is worth, what is told is that nothing
counts any more: of a collection that ended, of rolled back vbuckets, or of all. Values are not read from disk either.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Error, UsageError
from penstock.options import FILE, check_limits, option, whole_number
from penstock.spark.dependents.checks import check_declared_name, checked_name
from penstock.spark.dependents.position_file import PositionFile, position_files
from penstock.spark.dependents.posting import Patience, Poster, secret_headers
from penstock.spark.dependents.registry import DependentKind, register_kind
from penstock.spark.lake.changelog.changelog_delta import SLIM_SCHEMA, ChangelogDelta
from penstock.spark.lake.changelog.changelog_writer import VBUCKETS
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.schemas import MERGE_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIRECTORY = "invalidation"
"""The directory of a lake that holds the positions of its invalidations."""
KEYS_SCHEMA = pa.schema([*SLIM_SCHEMA, MERGE_SCHEMA.field("scope"), MERGE_SCHEMA.field("collection")])
POOLED_BATCHES = 4
"""Keys of several collections wait for their batches to fill: up to this many batches of them in all."""

Message = dict[str, Any]


class Invalidation:
    """Tells `url` what changed in a lake, under a name.

    batch_size: keys of one request at most. most_keys: a delta of more changes is sent as one "everything".
    knows_vbuckets: the server can drop all of some vbuckets; a rollback is then told so, and else by its keys.
    headers_file, headers_env: a file, or a variable of the environment, with lines of `Name: value` that each request
    has. timeout, retries, backoff: as of Patience. Raises UsageError for what cannot be.
    """

    def __init__(
        self,
        lake: LakeDirectory,
        name: str,
        url: str,
        *,
        batch_size: int = 1000,
        most_keys: int = 1_000_000,
        knows_vbuckets: bool = False,
        headers_file: str | Path | None = None,
        headers_env: str | None = None,
        timeout: float = 10.0,
        retries: int = 3,
        backoff: float = 0.5,
    ) -> None:
        for what, number in (("batch_size", batch_size), ("most_keys", most_keys)):
            if number < 1:
                raise UsageError(f"{what} is {number}, expected a number above 0")
        self.lake = lake
        self.name = checked_name(name)
        self.path = lake.path / DIRECTORY / f"{name}.json"
        self._place = PositionFile(self.path, "everything will be invalidated")
        self._batch_size = batch_size
        self._most_keys = most_keys
        self._knows_vbuckets = knows_vbuckets
        patience = Patience(timeout, retries, backoff)
        self._poster = Poster(url, patience, secret_headers(headers_file, headers_env))

    def position(self) -> tuple[str, int] | None:
        """Return the changelog's id and the version of it that the server has accepted, None if it accepted nothing."""
        return self._place.read()

    def apply_delta(self, delta: ChangelogDelta) -> None:
        """Tell the delta. Raises Unreachable if the server is not there, Error if it refuses."""
        for message in self.messages(delta):
            place = {"name": self.name, "changelog": delta.changelog_id, "version": delta.version}
            self._poster.post(place | message)
        self._place.write(delta)

    def messages(self, delta: ChangelogDelta) -> Iterator[Message]:
        """Yield the messages of a delta, without its position."""
        if delta.everything or delta.rows > self._most_keys:
            yield {"everything": True}
            return
        ended_before: set[int] = set()
        named: dict[int, Message] = {}
        batches = Batches(self._batch_size)
        for part in delta.ranges:
            read = delta.read(part, KEYS_SCHEMA)
            changes = read.changes
            named |= _names(changes)
            ended = {place & 0xFFFF_FFFF for place in read.ended.collections.tolist()}
            for collection in sorted(ended - ended_before):
                yield {"everything": True, **_named(named, collection)}
            ended_before |= ended
            if read.rolled_back and self._knows_vbuckets:
                yield {"everything": True, "vbuckets": sorted(read.rolled_back), "of_vbuckets": self._vbuckets()}
                rolled = pc.is_in(changes["vbucket"], value_set=pa.array(read.rolled_back, pa.int32()))
                changes = changes.filter(pc.invert(rolled))
            gone = [delta.lost(part)] if read.rolled_back and not self._knows_vbuckets else []
            for rows in (changes, *gone):
                for collection, keys in batches.add(rows):
                    yield _named(named, collection) | keys_message(keys)
        for collection, keys in batches.rest():
            yield _named(named, collection) | keys_message(keys)

    def rows(self) -> int:
        """Return 0: nothing is merged."""
        return 0

    def close(self) -> None:
        """Close the connection."""
        self._poster.close()

    def _vbuckets(self) -> int:
        changelog = self.lake.changelog_table.open()
        said = changelog.schema().fields[-1].metadata.get(VBUCKETS) if changelog is not None else None
        if said is None:
            raise Error(f"{self.lake.changelog_table.path} does not say how many vbuckets its bucket has")
        return int(said)


class Batches:
    """Collects keys by collection until there are enough for a request."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pool: dict[int, list[bytes]] = {}

    def add(self, rows: pa.Table) -> Iterator[tuple[int, list[bytes]]]:
        """Take in rows with `collection_id` and `key`, and yield what must not wait any longer."""
        for collection in pc.unique(rows["collection_id"]).to_pylist():
            keys = rows["key"].filter(pc.equal(rows["collection_id"], collection))
            for start in range(0, len(keys), self._size):
                self._pool.setdefault(collection, []).extend(keys.slice(start, self._size).to_pylist())
                if len(self._pool[collection]) >= self._size:
                    yield self._take(collection)
        while sum(map(len, self._pool.values())) > POOLED_BATCHES * self._size:
            yield self._take(max(self._pool, key=lambda each: len(self._pool[each])))

    def rest(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield all that is left."""
        for collection in sorted(self._pool):
            if self._pool[collection]:
                yield self._take(collection)

    def _take(self, collection: int) -> tuple[int, list[bytes]]:
        keys = self._pool[collection]
        self._pool[collection] = keys[self._size :]
        return collection, keys[: self._size]


def keys_message(keys: Iterable[bytes]) -> Message:
    """Return keys as JSON: those that are UTF-8 as text, the others in base64."""
    texts: list[str] = []
    others: list[str] = []
    for key in keys:
        try:
            texts.append(key.decode())
        except UnicodeDecodeError:
            others.append(base64.b64encode(key).decode())
    return {"keys": texts, "keys_base64": others}


def _names(changes: pa.Table) -> dict[int, Message]:
    """Return what the collections among changes are called, by their ids."""
    columns = ["collection_id", "scope", "collection"]
    once = changes.select(columns).group_by(columns, use_threads=False).aggregate([])
    return {line["collection_id"]: line for line in once.to_pylist() if line["collection"] is not None}


def _named(named: dict[int, Message], collection: int) -> Message:
    return named.get(collection, {"collection_id": collection, "scope": None, "collection": None})


@register_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidationKind(DependentKind):
    """Keys of changed documents, posted to an HTTP address. The fields are those of Invalidation.

    headers_file, headers_env: where headers of the requests are read from, such as one that logs in.
    """

    title = "sink"
    kind = "invalidate"
    directory = DIRECTORY
    order = 30
    is_local = False

    url: str
    batch_size: int = option(whole_number(1, 10**6), "keys of one request at most", default=1000)
    most_keys: int = option(
        whole_number(1, 10**12), "keys that are sent one by one; beyond that all are invalid", default=1_000_000
    )
    knows_vbuckets: bool = False
    headers_file: str | None = option(FILE, "headers of the requests, such as one that logs in", default=None)
    headers_env: str | None = None
    timeout: float = 10.0
    retries: int = 3
    backoff: float = 0.5

    def __post_init__(self) -> None:
        check_declared_name("sink", self.name)
        check_limits(self)
        self.address()

    def open(self, lake: LakeDirectory, session: SparkSession | None = None) -> Invalidation:
        return Invalidation(
            lake, **{each.name: getattr(self, each.name) for each in fields(self) if each.name != "source"}
        )

    def describe(self) -> str:
        return "keys of changed documents"

    def address(self) -> str:
        """Return the address without secrets. Raises UsageError for an invalid address or invalid headers."""
        patience = Patience(self.timeout, self.retries, self.backoff)
        poster = Poster(self.url, patience, secret_headers(self.headers_file, self.headers_env))
        poster.close()
        return poster.shown

    def place(self, lake: LakeDirectory) -> str:
        return self.address()

    @classmethod
    def files(cls, lake: LakeDirectory, name: str) -> list[Path]:
        return position_files(lake.path / cls.directory, name)
