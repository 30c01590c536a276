"""A full-text index: one SQLite file with the documents' text and an FTS5 index of the text.

The text stands in a separate table that the index refers to, because FTS5 needs the old text to remove an entry. One
transaction applies a changelog delta and stores the version that it reaches. Readers continue during a transaction
(WAL), and see the state before it or after it.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.argument_types import check_arguments
from penstock.errors import Error, UsageError
from penstock.spark.dependents.checks import check_declared_name, refuse_missing_index, validate_name
from penstock.spark.dependents.fulltext_words import (
    InvalidQuery,
    join_characters,
    make_fts5_query,
    separate_characters,
)
from penstock.spark.dependents.json_paths import find_values, parse_path
from penstock.spark.dependents.registry import DependentKind, Operand, Question, register_kind
from penstock.spark.lake.changelog.changelog_delta import CONTENT_SCHEMA, ChangelogDelta, RangeDelta
from penstock.spark.lake.changelog.merge_rules import IDENTITY, read_keys, to_documents
from penstock.spark.lake.maintenance.maintenance_report import TableReport
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.storage.local_copy import LocalCopy
from penstock.spark.storage.object_path import LakePath, ObjectPath
from penstock.wire.values.json_value import parse_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEPARATOR = "\n\ue000\n"
"""Stands between two strings of a document. FTS5 reads a private character as a word, so no phrase spans two."""
_SEPARATOR = re.compile(r"\n?\ue000\n?")
BUSY_SECONDS = 30.0
"""Seconds to wait for another connection's transaction."""
CHUNK_ROWS = 4096
"""Documents that are converted to Python objects at once."""

SCHEMA = """
CREATE TABLE penstock (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE documents (
    id INTEGER PRIMARY KEY,
    vbucket INTEGER NOT NULL, collection_id INTEGER NOT NULL, "key" BLOB NOT NULL,
    scope TEXT, collection TEXT, history INTEGER, seqno INTEGER,
    "text" TEXT NOT NULL
);
CREATE UNIQUE INDEX identities ON documents (vbucket, collection_id, "key");
CREATE VIRTUAL TABLE search USING fts5 ("text", content = documents, content_rowid = id, tokenize = unicode61);
"""

FOUND_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("key_bytes", pa.binary()),
        ("vbucket", pa.int32()),
        ("collection_id", pa.int64()),
        ("scope", pa.string()),
        ("collection", pa.string()),
        ("seqno", pa.int64()),
        ("history", pa.int32()),
        ("score", pa.float64()),
        ("snippet", pa.string()),
    ]
)
"""The columns of a search's result, with the key as in the current table.

score: higher is better. snippet: part of the text, with the found words in [ ].
"""

DocumentIdentity = tuple[int, int, bytes]
"""vbucket, collection_id and key."""


@check_arguments
class FullText:
    """A full-text index of a lake over the strings in its documents.

    Raises UsageError for an invalid name or path.

    Args:
        lake: the lake of the documents.
        name: the index's name, unique in the lake.
        paths: paths, names joined by dots. Each reaches all strings below it. Without paths all strings are indexed. A
            document that is not JSON has no text.

    Attributes:
        path: the SQLite file. In an object store it is copied to this machine, and replaced after each delta.
    """

    def __init__(self, lake: LakeDirectory, name: str, paths: Sequence[str] = ()) -> None:
        self.lake = lake
        self.name = validate_name(name)
        self.paths = tuple(paths)
        self.path = lake.path / "indexes" / f"{name}.sqlite"
        self._copy = LocalCopy(self.path) if isinstance(self.path, ObjectPath) else None
        self._names = tuple(parse_path(path) for path in self.paths) or ((),)

    @classmethod
    def stored(cls, lake: LakeDirectory, name: str) -> FullText:
        """Return the index that a lake has under this name, with its own paths. Raises UsageError if there is none."""
        known = sorted(path.stem for path in (lake.path / "indexes").glob("*.sqlite"))
        if name not in known:
            refuse_missing_index("full-text index", name, lake, known)
        with cls(lake, name)._connect("ro") as connection:
            settings = _read_settings(connection)
        return cls(lake, name, json.loads(settings.get("paths", "[]")))

    def position(self) -> tuple[str, int] | None:
        """Return id and version of the changelog that were applied, None if nothing was applied."""
        state = self._read_state()
        return (str(state["changelog"]), int(state["version"])) if state else None

    def apply_delta(self, delta: ChangelogDelta) -> None:
        """Apply a delta in one transaction, which also stores the version that it reaches."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._copy is None:
            self._apply_delta(delta, "WAL")
            return
        try:
            # Without a WAL the file alone has all of the transaction.
            if self._apply_delta(delta, "DELETE"):
                self._copy.publish()
        except BaseException:
            self._copy.discard()
            raise

    def _apply_delta(self, delta: ChangelogDelta, journal: str) -> bool:
        """Return whether the file has changed: not if another process was faster."""
        with self._connect("rwc") as connection:
            connection.execute(f"PRAGMA journal_mode = {journal}")
            # A power failure may lose the newest transactions; then their deltas are applied again.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("BEGIN IMMEDIATE")  # closing the connection rolls back an open transaction
            self._create_tables(connection)
            settings = _read_settings(connection)
            if settings.get("changelog") == delta.changelog_id and settings["version"] >= delta.version:
                return False
            if delta.is_full:
                connection.execute("INSERT INTO search (search) VALUES ('delete-all')")
                connection.execute("DELETE FROM documents")
                _write_settings(connection, separated=1)  # an index of an older release may not have it
            rows = 0 if delta.is_full else settings.get("rows", 0)
            for part in delta.ranges:
                rows += self._apply_range(connection, delta.read_range(part, CONTENT_SCHEMA), is_full=delta.is_full)
            _write_settings(connection, changelog=delta.changelog_id, version=delta.version, rows=rows)
            connection.execute("COMMIT")
        return True

    def erase_documents(self, erased: RangeDelta) -> tuple[int, int]:
        """Remove documents, and rewrite the file: SQLite leaves deleted text in free pages and in its log.

        Raises Error if another process reads the file, so that its log cannot be emptied.

        Args:
            erased: a delta that voids the documents and adds nothing.

        Returns:
            The number of removed documents, and of rewritten files.
        """
        if not self._read_state():
            return 0, 0
        if self._copy is None:
            return self._erase_documents(erased), 1
        try:
            removed = self._erase_documents(erased)
            self._copy.publish()
        except BaseException:
            self._copy.discard()
            raise
        return removed, 1

    def _erase_documents(self, erased: RangeDelta) -> int:
        with self._connect("rw") as connection:
            connection.execute("BEGIN IMMEDIATE")
            removed = _remove_outdated(connection, erased)
            _write_settings(connection, rows=int(_read_settings(connection).get("rows", 0)) - removed)
            # The deletions so far are only notes of the index: this merges its parts, and drops words and notes.
            connection.execute("INSERT INTO search (search) VALUES ('optimize')")
            connection.execute("COMMIT")
            connection.execute("VACUUM")
            if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                raise Error(f"{self.path} is being read, so its old pages could not be removed; erase again")
        return removed

    def vacuum(self, keep_hours: int, *, dry_run: bool = False) -> TableReport:
        """Return the size of the file. There is nothing to remove: SQLite uses free pages again."""
        size = self.path.stat().st_size
        return TableReport(1, 1, size, size)

    def count_rows(self) -> int:
        """Return the number of documents that have text, as of the applied version."""
        return int(self._read_state().get("rows", 0))

    def search(self, query: str, limit: int = 20) -> pa.Table:
        """Return the documents that match, best first, in FOUND_SCHEMA, as of the applied version.

        Raises UsageError for an invalid query, and before the first delta was applied.

        Args:
            query: words, "a phrase", AND, OR, NOT, NEAR(a b), prefix*. A word may have any characters.
            limit: greatest number of documents.

        Returns:
            One row for each document.

        Raises:
            UsageError: the limit is negative.
        """
        if limit < 0:
            raise UsageError(f"limit is {limit}, expected a number of documents, 0 or more")
        columns = 'd."key", vbucket, collection_id, scope, collection, seqno, history, -rank'
        rows = self._match(
            f"{columns}, snippet(search, 0, '[', ']', '…', 16)", query, "ORDER BY rank, id LIMIT ?", limit
        )
        found: list[dict[str, Any]] = []
        for key, vbucket, collection_id, scope, collection, seqno, history, score, snippet in rows:
            text = _decode_key(key)
            place = {"vbucket": vbucket, "collection_id": collection_id, "scope": scope, "collection": collection}
            version = {
                "seqno": seqno,
                "history": history,
                "score": score,
                "snippet": _SEPARATOR.sub(" … ", join_characters(snippet)),
            }
            found.append({"key": text, "key_bytes": key if text is None else None, **place, **version})
        return pa.Table.from_pylist(found, schema=FOUND_SCHEMA)

    def matches(self, query: str) -> set[DocumentIdentity]:
        """Return (vbucket, collection_id, key) of all documents that match. Raises UsageError as `search` does."""
        return set(self._match('vbucket, collection_id, d."key"', query))

    def _match(self, columns: str, query: str, rest: str = "", *values: Any) -> list[Any]:
        """Return the rows of an SQL query over the matching documents.

        Raises:
            UsageError: the query is invalid, or no delta was applied yet.
            OperationalError: SQLite failed for another reason.
        """
        state = self._read_state()
        if not state:
            raise UsageError(
                f"there is no full-text index at {self.path}; expected the index of a pipeline that has run"
            )
        statement = f"SELECT {columns} FROM search JOIN documents d ON id = search.rowid WHERE search MATCH ? {rest}"
        try:
            translated = make_fts5_query(query, is_separated="separated" in state)
            with self._connect("ro") as connection:
                try:
                    return connection.execute(statement, (translated, *values)).fetchall()
                except sqlite3.OperationalError as error:
                    # An invalid query is SQLite's general error; other codes have other reasons, such as a lock.
                    if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                        raise
                    reason = str(error).removeprefix("fts5: ")
        except InvalidQuery as error:
            reason = str(error)
        raise UsageError(f'the query is {query!r}: {reason}; expected words, "a phrase", AND, OR, NOT, or a prefix*')

    def _create_tables(self, connection: sqlite3.Connection) -> None:
        """Create the tables of a new file."""
        if _read_settings(connection):
            return
        for statement in SCHEMA.split(";"):
            connection.execute(statement)
        _write_settings(connection, paths=json.dumps(self.paths), separated=1)

    def _read_state(self) -> dict[str, Any]:
        """Return the settings in the file; empty without a file, or before its first transaction was committed.

        Returns:
            The columns of the table `penstock`, by name.

        Raises:
            UsageError: the file is an index of other paths.
        """
        if not (self.path.exists() if self._copy is None else self._copy.update()):
            return {}
        with self._connect("ro") as connection:
            settings = _read_settings(connection)
        paths = json.dumps(self.paths)
        if settings and settings["paths"] != paths:
            raise UsageError(
                f"{self.path} is an index of the paths {settings['paths']}, expected {paths}; choose another name, or"
                " remove the file to build the index again"
            )
        return settings

    def _apply_range(self, connection: sqlite3.Connection, delta: RangeDelta, *, is_full: bool) -> int:
        """Return how many more documents have text after the changes of a vbucket range."""
        removed = 0 if is_full else _remove_outdated(connection, delta)
        newest = connection.execute("SELECT coalesce(max(id), 0) FROM documents").fetchone()[0]
        new = connection.executemany(
            'INSERT INTO documents (vbucket, collection_id, "key", scope, collection, history, seqno, "text")'
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            self._make_rows(delta.changes, is_separated="separated" in _read_settings(connection)),
        ).rowcount
        # FTS5 does not follow changes of a content table by itself.
        connection.execute('INSERT INTO search (rowid, "text") SELECT id, "text" FROM documents WHERE id > ?', [newest])
        return max(new, 0) - removed

    def _make_rows(self, changes: pa.Table, *, is_separated: bool) -> Iterator[tuple[Any, ...]]:
        """Yield a row for each document that has text."""
        columns = ["vbucket", "collection_id", "scope", "collection", "history", "seqno", "value"]
        for start in range(0, changes.num_rows, CHUNK_ROWS):
            documents = to_documents(changes.slice(start, CHUNK_ROWS))
            rows = documents.select(columns).add_column(2, "key", read_keys(documents))
            for *head, value in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                if text := extract_text(value or b"", self._names):
                    yield (*head, separate_characters(text) if is_separated else text)

    @contextmanager
    def _connect(self, mode: str) -> Iterator[sqlite3.Connection]:
        """Open the file in a mode of SQLite: ro, or rwc to create it.

        Args:
            mode: ro or rwc.

        Yields:
            A connection without automatic transactions.

        Raises:
            Error: SQLite failed; the error has its message.
        """
        if self._copy is not None:
            self._copy.update()
        file = self.path if self._copy is None else self._copy.path
        uri = f"{file.as_uri()}?mode={mode}"
        try:
            with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
                yield connection
        except sqlite3.Error as error:
            raise Error(f"{self.path}: {error}") from error


def extract_text(value: bytes, paths: Sequence[tuple[str, ...]]) -> str:
    """Return the strings that paths reach in a document, with separators; empty for a value that is not JSON."""
    try:
        document = parse_json(value)
    except ValueError:
        return ""
    found = (text for names in paths for each in find_values(document, names) for text in _find_strings(each))
    # SQLite refuses half of a surrogate pair, and its functions end a text at a zero character.
    return SEPARATOR.join(found).encode(errors="replace").decode().replace("\0", " ")


def _find_strings(value: Any) -> Iterator[str]:
    """Yield all strings in parsed JSON, in their order; names of fields are left out."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, str):
            yield found
        elif isinstance(found, list | dict):
            waiting += reversed(found if isinstance(found, list) else found.values())


def _remove_outdated(connection: sqlite3.Connection, delta: RangeDelta) -> int:
    """Remove all documents that the delta voids or replaces.

    Returns:
        The number of removed documents.
    """
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS gone (id INTEGER PRIMARY KEY)")
    connection.execute("DELETE FROM gone")
    gone = "INSERT OR IGNORE INTO gone SELECT id FROM documents WHERE vbucket = ?"
    connection.executemany(gone, ((vbucket,) for vbucket in sorted(delta.rolled_back)))
    ended = ((place >> 32, place & 0xFFFF_FFFF) for place in delta.collection_ends.collections.tolist())
    connection.executemany(f"{gone} AND collection_id = ?", ended)
    for batch in delta.changes.select(IDENTITY).to_batches(max_chunksize=CHUNK_ROWS):
        changed = (column.to_pylist() for column in batch.columns)
        connection.executemany(f'{gone} AND collection_id = ? AND "key" = ?', zip(*changed, strict=True))
    # Before the documents are deleted, because FTS5 needs their old text.
    connection.execute(
        'INSERT INTO search (search, rowid, "text") SELECT \'delete\', id, "text" FROM documents'
        " WHERE id IN (SELECT id FROM gone)"
    )
    return connection.execute("DELETE FROM documents WHERE id IN (SELECT id FROM gone)").rowcount


def _read_settings(connection: sqlite3.Connection) -> dict[str, Any]:
    known = "SELECT count(*) FROM sqlite_schema WHERE name = 'penstock'"
    if not connection.execute(known).fetchone()[0]:
        return {}
    return dict(connection.execute("SELECT name, value FROM penstock").fetchall())


def _write_settings(connection: sqlite3.Connection, **values: Any) -> None:
    connection.executemany("INSERT OR REPLACE INTO penstock VALUES (?, ?)", values.items())


def _decode_key(key: bytes) -> str | None:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def _answer_search(lake: LakeDirectory, name: str, operands: Mapping[str, str | None], limit: int) -> pa.Table:
    return FullText.stored(lake, name).search(str(operands["query"]), limit)


@register_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class FullTextKind(DependentKind):
    """A full-text index over the strings at some paths of the documents; over all strings if no paths are given.

    A search finds only applied changes, so the index applies each delta at once. The cost depends only on the changes,
    not on the size of the index.
    """

    title = kind = "fulltext"
    directory = "indexes"
    order = 20
    question = Question(
        command="search",
        help="""Find documents by a full-text index, best first.

    The result is as of the last batch that the index has applied. A run may
    continue meanwhile. Found words are in brackets. With --json, each line is
    one document.
    """,
        examples=(
            "penstock pipeline search ./lake words 'citrus hop*'",
            "penstock pipeline search pipeline.toml words '\"dry finish\" NOT stout' --limit 3 --json",
        ),
        operands=(Operand("query", "QUERY", 'Words, "a phrase", AND, OR, NOT, NEAR(a b), prefix*.'),),
        columns=("score", "key", "snippet"),
        answer=_answer_search,
    )

    paths: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_declared_name("fulltext", self.name)
        for path in self.paths:
            parse_path(path)

    @classmethod
    def open_stored(cls, lake: LakeDirectory, name: str) -> FullText:
        """Return the index that a lake has under a name."""
        return FullText.stored(lake, name)

    def open(self, lake: LakeDirectory, session: SparkSession | None = None) -> FullText:
        """Return the index of this declaration in a lake."""
        return FullText(lake, self.name, self.paths)

    def describe(self) -> str:
        """Return the paths, for plans."""
        return ", ".join(self.paths) or "all text"

    def locate(self, lake: LakeDirectory) -> str:
        """Return the SQLite file."""
        return str(lake.path / self.directory / f"{self.name}.sqlite")

    @classmethod
    def list_files(cls, lake: LakeDirectory, name: str) -> list[LakePath]:
        """Return the SQLite file and the files that SQLite keeps beside it."""
        return [*(lake.path / cls.directory).glob(f"{name}.sqlite*")]
