"""Cache invalidation: an HTTP server gets the keys of changed documents, without values.

Delivery is at least once. The changelog version is stored after the server has accepted all messages up to it. After a
crash or a failure in between, messages are sent again. Instead of a very long list of keys, one
message voids all keys of an ended collection, of rolled back vbuckets, or of the bucket. Values are not read from disk.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.argument_types import check_arguments
from penstock.client.connect.address import Address
from penstock.client.documents.window_writer import RefusedRows
from penstock.client.documents.write_requests import Fault
from penstock.client.login.password_options import REFERENCE
from penstock.errors import Error, UsageError
from penstock.names import escape_bytes
from penstock.options import COMMAND, FILE, check_limits, nonempty, option, whole_number
from penstock.spark.dependents.bucket_state import BucketAnswers
from penstock.spark.dependents.checks import check_declared_name, validate_name
from penstock.spark.dependents.position_file import PositionFile, list_position_files
from penstock.spark.dependents.posting import BatchRefused, HeaderSource, HttpPoster, RetryPolicy
from penstock.spark.dependents.registry import DependentKind, register_kind
from penstock.spark.lake.changelog.changelog_delta import SLIM_SCHEMA, ChangelogDelta
from penstock.spark.lake.changelog.changelog_writer import VBUCKETS
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.schemas import MERGE_SCHEMA
from penstock.spark.sink import dead_letters
from penstock.spark.sink.sink_options import parse_directory
from penstock.spark.storage.object_path import LakePath
from penstock.wire.columns.collection_names import DEFAULT_NAME

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIRECTORY = "invalidation"
"""The directory of a lake that holds the positions of its invalidations."""
KEYS_SCHEMA = pa.schema([*SLIM_SCHEMA, MERGE_SCHEMA.field("scope"), MERGE_SCHEMA.field("collection")])
"""The columns that are read of a change."""
LETTERS_SCHEMA = pa.schema([MERGE_SCHEMA.field(name) for name in ("key", "collection_id", "scope", "collection")])
REFUSES_KEYS = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)
"""Statuses that may be due to one of the keys, or to their number."""
POOLED_BATCHES = 4
"""Batches of keys that are held over all collections, so that requests of small collections fill up."""

InvalidationMessage = dict[str, Any]
"""The JSON object of one request."""


@check_arguments
class Invalidation:
    """Sends the keys of a lake's changed documents to an HTTP server.

    Args:
        lake: the lake of the changelog.
        name: the dependent's name, unique in the lake. Each message has it.
        url: the address that messages are posted to.
        batch_size: greatest number of keys of one request.
        most_keys: a delta with more changes is sent as one message "everything".
        knows_vbuckets: True if the server can drop all keys of some vbuckets. Otherwise a rollback is sent as keys.
        headers_file: a file with lines of `Name: value`, headers of each request.
        headers_command: a program and arguments; the first line of its output is a header.
        headers_from: a provider of secrets, and its reference.
        headers_env: an environment variable with lines of headers.
        timeout: as in RetryPolicy.
        retries: as in RetryPolicy.
        backoff: as in RetryPolicy.
        dead_letter_path: the directory for keys that the server refuses; None: a refused key is an error.

    Raises:
        UsageError: an argument is invalid.
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
        headers_command: Sequence[str] | None = None,
        headers_from: str | None = None,
        headers_env: str | None = None,
        timeout: float = 10.0,
        retries: int = 3,
        backoff: float = 0.5,
        dead_letter_path: str | None = None,
    ) -> None:
        for argument, number in (("batch_size", batch_size), ("most_keys", most_keys)):
            if number < 1:
                raise UsageError(f"{argument} is {number}, expected a number above 0")
        self.lake = lake
        self.name = validate_name(name)
        self.path = lake.path / DIRECTORY / f"{name}.json"
        self._position_file = PositionFile(self.path, "all keys are invalidated")
        self._batch_size = batch_size
        self._most_keys = most_keys
        self._knows_vbuckets = knows_vbuckets
        self._letters = None if dead_letter_path is None else parse_directory("dead_letter_path", dead_letter_path)
        patience = RetryPolicy(timeout, retries, backoff)
        headers = HeaderSource(
            headers_file=headers_file,
            headers_command=headers_command,
            headers_from=headers_from,
            headers_env=headers_env,
        )
        self._poster = HttpPoster(url, patience, headers)

    def position(self) -> tuple[str, int] | None:
        """Return id and version of the changelog that the server has accepted, None if it accepted nothing."""
        return self._position_file.read()

    def apply_delta(self, delta: ChangelogDelta) -> None:
        """Send the messages of a delta.

        Raises Unreachable if the server does not answer, BatchRefused if it refuses a message.
        """
        if self._letters is None:
            for message in self.build_messages(delta):
                self._post(delta, message)
        else:
            self._send_with_letters(delta, self._letters)
        self._position_file.write(delta.changelog_id, delta.version)

    def _send_with_letters(self, delta: ChangelogDelta, directory: LakePath) -> None:
        """Send the messages of a delta. Refused keys are stored before the position; a repeated delta replaces them."""
        known = self.position()
        run = f"{self.name}-{delta.changelog_id}"
        batch = f"{self.name}-{delta.changelog_id[:8]}-{0 if delta.is_full or known is None else known[1] + 1:09}"
        with dead_letters.DeadLetterFile(directory, run) as file:
            for message in self.build_messages(delta):
                for refused, error in self._find_refused(delta, message):
                    rows, fault = _make_rows(refused), Fault(error.status, str(error))
                    file.write(RefusedRows(rows, [fault] * len(rows)), {error.status: HTTPStatus(error.status).phrase})
            written = file.close()
            dead_letters.commit_letters(directory, run, batch, [] if written is None else [written])

    def _find_refused(
        self, delta: ChangelogDelta, message: InvalidationMessage
    ) -> Iterator[tuple[InvalidationMessage, BatchRefused]]:
        """Send a message. Of a refused one, send both halves, down to single keys.

        Args:
            delta: the delta.
            message: the message.

        Yields:
            Messages with one key that the server refuses, and the reasons.

        Raises:
            BatchRefused: the refusal does not depend on the keys.
        """
        try:
            self._post(delta, message)
        except BatchRefused as error:
            keys = _list_keys(message)
            if error.status not in REFUSES_KEYS or not keys:
                raise
            if len(keys) == 1:
                yield message, error
                return
            for half in (keys[: len(keys) // 2], keys[len(keys) // 2 :]):
                yield from self._find_refused(delta, message | encode_keys(half))

    def _post(self, delta: ChangelogDelta, message: InvalidationMessage) -> None:
        """Post a message.

        Args:
            delta: the delta.
            message: the message.

        Raises:
            BatchRefused: the server refuses it; the error names its first key.
        """
        try:
            self._poster.post({"name": self.name, "changelog": delta.changelog_id, "version": delta.version} | message)
        except BatchRefused as error:
            keys = _list_keys(message)
            if not keys:
                raise
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            place = f"{escape_bytes(keys[0])}{more} of collection {_describe_collection(message)}"
            raise BatchRefused(f"{error}; it has the key {place}", error.status) from None

    def build_messages(self, delta: ChangelogDelta) -> Iterator[InvalidationMessage]:
        """Yield the messages of a delta, without its position."""
        if delta.is_full or delta.rows > self._most_keys:
            yield {"everything": True}
            return
        # A collection ends in each vbucket, so each range reports the end again; one message is enough.
        known_ends: set[int] = set()
        names: dict[int, InvalidationMessage] = {}
        batches = KeyBatches(self._batch_size)
        for part in delta.ranges:
            read = delta.read_range(part, KEYS_SCHEMA)
            changes = read.changes
            names |= _collect_names(changes)
            ended = {place & 0xFFFF_FFFF for place in read.collection_ends.collections.tolist()}
            for collection in sorted(ended - known_ends):
                yield {"everything": True, **_find_name(names, collection)}
            known_ends |= ended
            if read.rolled_back and self._knows_vbuckets:
                yield {
                    "everything": True,
                    "vbuckets": sorted(read.rolled_back),
                    "of_vbuckets": self._read_vbucket_count(),
                }
                rolled = pc.is_in(changes["vbucket"], value_set=pa.array(read.rolled_back, pa.int32()))
                changes = changes.filter(pc.invert(rolled))
            # No change of a lost document survives, so only the older rows of the changelog have its key.
            lost = [delta.find_lost_documents(part)] if read.rolled_back and not self._knows_vbuckets else []
            for rows in (changes, *lost):
                for collection, keys in batches.add(rows):
                    yield _find_name(names, collection) | encode_keys(keys)
        for collection, keys in batches.drain():
            yield _find_name(names, collection) | encode_keys(keys)

    def count_rows(self) -> int:
        """Return 0: an invalidation merges nothing."""
        return 0

    def close(self) -> None:
        """Close the connection."""
        self._poster.close()

    def _read_vbucket_count(self) -> int:
        """Return the number of vbuckets of the bucket, from the changelog's metadata.

        Returns:
            The number that the first batch stored.

        Raises:
            Error: the changelog does not have the number.
        """
        changelog = self.lake.changelog_table.open()
        count = self.lake.changelog_table.read_note(changelog, VBUCKETS) if changelog is not None else None
        if count is None:
            raise Error(f"the metadata of {self.lake.changelog_table.path} lacks {VBUCKETS}, the number of vbuckets")
        return int(count)


class KeyBatches:
    """Collects keys by collection until there are enough for a request."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pool: dict[int, list[bytes]] = {}

    def add(self, rows: pa.Table) -> Iterator[tuple[int, list[bytes]]]:
        """Add rows to the pool and return the batches that leave it.

        Args:
            rows: rows with `collection_id` and `key`.

        Yields:
            A collection id and keys, for each batch that is full or exceeds the pool.
        """
        for collection in pc.unique(rows["collection_id"]).to_pylist():
            keys = rows["key"].filter(pc.equal(rows["collection_id"], collection))
            for start in range(0, len(keys), self._size):
                self._pool.setdefault(collection, []).extend(keys.slice(start, self._size).to_pylist())
                if len(self._pool[collection]) >= self._size:
                    yield self._take_batch(collection)
        while sum(map(len, self._pool.values())) > POOLED_BATCHES * self._size:
            yield self._take_batch(max(self._pool, key=lambda each: len(self._pool[each])))

    def drain(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield all remaining keys."""
        for collection in sorted(self._pool):
            if self._pool[collection]:
                yield self._take_batch(collection)

    def _take_batch(self, collection: int) -> tuple[int, list[bytes]]:
        keys = self._pool[collection]
        self._pool[collection] = keys[self._size :]
        return collection, keys[: self._size]


def encode_keys(keys: Iterable[bytes]) -> InvalidationMessage:
    """Return keys as JSON: keys in UTF-8 as text, the others in base64."""
    texts: list[str] = []
    others: list[str] = []
    for key in keys:
        try:
            texts.append(key.decode())
        except UnicodeDecodeError:
            others.append(base64.b64encode(key).decode())
    return {"keys": texts, "keys_base64": others}


def _describe_collection(message: InvalidationMessage) -> str:
    """Return the name of a message's collection, or its id if only that is known."""
    if message["collection"] is not None:
        return f"{message['scope']}.{message['collection']}"
    number: int = message["collection_id"]
    return hex(number) if number else f"{DEFAULT_NAME}.{DEFAULT_NAME}"


def _list_keys(message: InvalidationMessage) -> list[bytes]:
    """Return the keys of a message."""
    return [key.encode() for key in message.get("keys", ())] + [
        base64.b64decode(key) for key in message.get("keys_base64", ())
    ]


def _make_rows(message: InvalidationMessage) -> pa.Table:
    """Return the keys of a message as rows of dead letters."""
    place = {name: message[name] for name in ("collection_id", "scope", "collection")}
    return pa.Table.from_pylist([{**place, "key": key} for key in _list_keys(message)], LETTERS_SCHEMA)


def _collect_names(changes: pa.Table) -> dict[int, InvalidationMessage]:
    """Return scope and collection names by collection id, from the changes that have them."""
    columns = ["collection_id", "scope", "collection"]
    once = changes.select(columns).group_by(columns, use_threads=False).aggregate([])
    return {line["collection_id"]: line for line in once.to_pylist() if line["collection"] is not None}


def _find_name(names: dict[int, InvalidationMessage], collection: int) -> InvalidationMessage:
    return names.get(collection, {"collection_id": collection, "scope": None, "collection": None})


@register_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidationKind(DependentKind):
    """Keys of changed documents, posted to an HTTP address. The fields are the arguments of Invalidation.

    Attributes:
        headers_env: the environment variable with the requests' headers, such as an Authorization header.
    """

    title = "sink"
    kind = "invalidate"
    directory = DIRECTORY
    order = 30
    is_local = False

    url: str = field(repr=False)  # its query may have secrets
    batch_size: int = option(whole_number(1, 10**6), "keys of one request at most", default=1000)
    most_keys: int = option(
        whole_number(1, 10**12), "keys that are sent one by one; beyond that all are invalid", default=1_000_000
    )
    knows_vbuckets: bool = False
    headers_file: str | None = option(FILE, "headers of the requests, such as one that logs in", default=None)
    headers_command: tuple[str, ...] | None = option(
        COMMAND, "program and arguments; the first line of its output is a header", default=None, secret=True
    )
    headers_from: str | None = option(
        REFERENCE, "an installed provider of secrets, and its reference for the secret", default=None
    )
    headers_env: str | None = None
    timeout: float = 10.0
    retries: int = 3
    backoff: float = 0.5
    dead_letter_path: str | None = option(
        nonempty("a directory", metavar="DIRECTORY", is_path=True),
        "directory for Parquet files of the keys that the server refuses, or a URL of an object store",
        default=None,
    )

    def __post_init__(self) -> None:
        check_declared_name("sink", self.name)
        check_limits(self)
        self.find_address()
        self.find_letter_directory()

    def open(self, lake: LakeDirectory, session: SparkSession | None = None) -> Invalidation:
        """Return the sender of this declaration for a lake."""
        return Invalidation(
            lake, **{each.name: getattr(self, each.name) for each in fields(self) if each.name != "source"}
        )

    @property
    def dead_letters(self) -> str | None:
        """The directory of refused keys, None without one."""
        return self.dead_letter_path

    def find_letter_directory(self) -> LakePath | None:
        """Return the directory of dead letters, None without one."""
        return None if self.dead_letter_path is None else parse_directory("dead_letter_path", self.dead_letter_path)

    def describe(self) -> str:
        """Return the content of the messages, for plans."""
        return "keys of changed documents"

    def find_address(self) -> str:
        """Return the address without secrets. Raises UsageError for an invalid address or invalid headers."""
        poster = self._make_poster()
        poster.close()
        return poster.shown_url

    def _make_poster(self) -> HttpPoster:
        patience = RetryPolicy(self.timeout, self.retries, self.backoff)
        return HttpPoster(self.url, patience, HeaderSource.of_declaration(self))

    @property
    def login_runs_program(self) -> bool:
        """Whether the headers of requests are the output of a program."""
        return HeaderSource.of_declaration(self).runs_program

    def check_target(self, source: Address, buckets: BucketAnswers) -> str:
        """Read the headers, and connect to the server without a request. Raises Unreachable if it does not answer.

        Returns:
            A line about the server.
        """
        poster = self._make_poster()
        try:
            poster.check_connection()
        finally:
            poster.close()
        return f"{poster.shown_url}: answers"

    def locate(self, lake: LakeDirectory) -> str:
        """Return the address without secrets."""
        return self.find_address()

    @classmethod
    def list_files(cls, lake: LakeDirectory, name: str) -> list[LakePath]:
        """Return the position file, if it exists."""
        return list_position_files(lake.path / cls.directory, name)
