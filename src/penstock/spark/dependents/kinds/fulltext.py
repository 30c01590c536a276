"""A full-text index: one SQLite file with the documents' text and an FTS5 index of it.

The text is kept in a table of its own, which the index refers to: FTS5 removes an entry by the very text that was
added. One transaction applies a changelog delta and stores the version that it reaches. Readers go on beside it (WAL)
and see the state before or after.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import Error, UsageError
from penstock.spark.dependents.checks import check_declared_name, checked_name, missing_index
from penstock.spark.dependents.json_paths import parse_path, reached, read_json
from penstock.spark.dependents.registry import DependentKind, Operand, Question, register_kind
from penstock.spark.lake.changelog.changelog_delta import ChangelogDelta, RangeDelta
from penstock.spark.lake.changelog.merge_rules import keys_of, to_documents
from penstock.spark.lake.tables.directory import LakeDirectory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BETWEEN = "\n\ue000\n"
"""Stands between two strings of a document. A private character is a word to the tokenizer: no phrase spans two."""
_BETWEEN = re.compile(r"\n?\ue000\n?")
BUSY_SECONDS = 30.0
CHUNK_ROWS = 4096

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
"""What a search finds; the key as in the current table. score: higher is better. snippet: found words in [ ]."""

Identity = tuple[int, int, bytes]


class FullText:
    """The full-text index `name` of a lake, of the strings that `paths` reach in documents, all of them without paths.

    A path is names joined by dots; it reaches all strings below it. A document that is not JSON has no text. Raises
    UsageError for what cannot be.
    """

    def __init__(self, lake: LakeDirectory, name: str, paths: Sequence[str] = ()) -> None:
        self.lake = lake
        self.name = checked_name(name)
        self.paths = tuple(paths)
        self.path = lake.path / "indexes" / f"{name}.sqlite"
        self._names = tuple(parse_path(path) for path in self.paths) or ((),)

    @classmethod
    def stored(cls, lake: LakeDirectory, name: str) -> FullText:
        """Return the index that a lake has under this name, with its own paths. Raises UsageError for none."""
        there = sorted(path.stem for path in (lake.path / "indexes").glob("*.sqlite"))
        if name not in there:
            raise missing_index("full-text index", name, lake, there)
        with cls(lake, name)._opened("ro") as connection:
            said = _recalled(connection)
        return cls(lake, name, json.loads(said.get("paths", "[]")))

    def position(self) -> tuple[str, int] | None:
        """Return the changelog's id and the version of it that was applied, None if nothing was."""
        said = self._said()
        return (str(said["changelog"]), int(said["version"])) if said else None

    def apply_delta(self, delta: ChangelogDelta) -> None:
        """Apply a delta in one transaction, which also stores the version that it reaches."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._opened("rwc") as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")  # lost deltas are applied again
            connection.execute("BEGIN IMMEDIATE")  # what is open when the connection is closed is rolled back
            self._prepare(connection)
            said = _recalled(connection)
            if said.get("changelog") == delta.changelog_id and said["version"] >= delta.version:
                return  # another process was faster
            if delta.everything:
                connection.execute("INSERT INTO search (search) VALUES ('delete-all')")
                connection.execute("DELETE FROM documents")
            rows = 0 if delta.everything else said.get("rows", 0)
            for part in delta.ranges:
                rows += self._apply_range(connection, delta.read(part), anew=delta.everything)
            _remember(connection, changelog=delta.changelog_id, version=delta.version, rows=rows)
            connection.execute("COMMIT")

    def rows(self) -> int:
        """Return the number of documents that have text, as of the applied version."""
        return int(self._said().get("rows", 0))

    def search(self, query: str, limit: int = 20) -> pa.Table:
        """Return the documents that match, best first, in FOUND_SCHEMA, as of the applied version.

        query: FTS5's language: words, "a phrase", AND, OR, NOT, NEAR(a b), prefix*. Raises UsageError if it is none, or
        if nothing was taken in yet.
        """
        if limit < 0:
            raise UsageError(f"limit is {limit}, expected a number of documents, 0 or more")
        columns = 'd."key", vbucket, collection_id, scope, collection, seqno, history, -rank'
        rows = self._match(
            f"{columns}, snippet(search, 0, '[', ']', '…', 16)", query, "ORDER BY rank, id LIMIT ?", limit
        )
        found: list[dict[str, Any]] = []
        for key, vbucket, collection_id, scope, collection, seqno, history, score, snippet in rows:
            text = _utf8(key)
            place = {"vbucket": vbucket, "collection_id": collection_id, "scope": scope, "collection": collection}
            version = {"seqno": seqno, "history": history, "score": score, "snippet": _BETWEEN.sub(" … ", snippet)}
            found.append({"key": text, "key_bytes": key if text is None else None, **place, **version})
        return pa.Table.from_pylist(found, schema=FOUND_SCHEMA)

    def matches(self, query: str) -> set[Identity]:
        """Return (vbucket, collection_id, key) of all documents that match. Otherwise as `search`."""
        return set(self._match('vbucket, collection_id, d."key"', query))

    def _match(self, columns: str, query: str, rest: str = "", *values: Any) -> list[Any]:
        if not self._said():
            raise UsageError(f"there is no full-text index at {self.path}; expected one that has taken in a changelog")
        statement = f"SELECT {columns} FROM search JOIN documents d ON id = search.rowid WHERE search MATCH ? {rest}"
        reason = _not_text(query)
        if reason is None:
            with self._opened("ro") as connection:
                try:
                    return connection.execute(statement, (query, *values)).fetchall()
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                        raise
                    reason = str(error).removeprefix("fts5: ")
        raise UsageError(f'the query is {query!r}: {reason}; expected words, "a phrase", AND, OR, NOT, or a prefix*')

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make the tables where there are none."""
        if _recalled(connection):
            return
        for statement in SCHEMA.split(";"):
            connection.execute(statement)
        _remember(connection, paths=json.dumps(self.paths))

    def _said(self) -> dict[str, Any]:
        """Return what the file says of itself, nothing if there is none or its first transaction has not ended."""
        if not self.path.exists():
            return {}
        with self._opened("ro") as connection:
            said = _recalled(connection)
        wanted = json.dumps(self.paths)
        if said and said["paths"] != wanted:
            raise UsageError(
                f"{self.path} is an index of the paths {said['paths']}, and {wanted} were asked for; choose another"
                " name, or remove the file to build it anew"
            )
        return said

    def _apply_range(self, connection: sqlite3.Connection, delta: RangeDelta, *, anew: bool) -> int:
        """Return how many documents more have text."""
        gone = 0 if anew else _forget(connection, delta)
        documents = to_documents(delta.changes)
        newest = connection.execute("SELECT coalesce(max(id), 0) FROM documents").fetchone()[0]
        new = connection.executemany(
            'INSERT INTO documents (vbucket, collection_id, "key", scope, collection, history, seqno, "text")'
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            self._texts(documents),
        ).rowcount
        connection.execute('INSERT INTO search (rowid, "text") SELECT id, "text" FROM documents WHERE id > ?', [newest])
        return max(new, 0) - gone

    def _texts(self, documents: pa.Table) -> Iterator[tuple[Any, ...]]:
        """Yield a row for each document that has text."""
        key = keys_of(documents)
        columns = ["vbucket", "collection_id", "scope", "collection", "history", "seqno", "value"]
        rows = documents.select(columns).add_column(2, "key", key)
        for batch in rows.to_batches(max_chunksize=CHUNK_ROWS):
            for *said, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if text := self._text(value):
                    yield (*said, text)

    def _text(self, value: bytes | None) -> str:
        try:
            document = read_json(value or b"")
        except ValueError:
            return ""
        found = (text for names in self._names for each in reached(document, names) for text in _strings(each))
        # SQLite takes no half of a surrogate pair, and its functions end a text at a zero character.
        return BETWEEN.join(found).encode(errors="replace").decode().replace("\0", " ")

    @contextmanager
    def _opened(self, mode: str) -> Iterator[sqlite3.Connection]:
        """Open the file. Raises Error with the message of SQLite."""
        uri = f"{self.path.as_uri()}?mode={mode}"
        try:
            with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
                yield connection
        except sqlite3.Error as error:
            raise Error(f"{self.path}: {error}") from error


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings in what JSON said, in their order; names of fields are none of them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value if isinstance(value, list) else value.values():
            yield from _strings(inner)


def _forget(connection: sqlite3.Connection, delta: RangeDelta) -> int:
    """Take out all documents of which what was known before no longer counts, and return how many had text."""
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS gone (id INTEGER PRIMARY KEY)")
    connection.execute("DELETE FROM gone")
    gone = "INSERT OR IGNORE INTO gone SELECT id FROM documents WHERE vbucket = ?"
    connection.executemany(gone, ((vbucket,) for vbucket in sorted(delta.rolled_back)))
    ended = ((place >> 32, place & 0xFFFF_FFFF) for place in delta.ended.collections.tolist())
    connection.executemany(f"{gone} AND collection_id = ?", ended)
    changed = (delta.changes[name].to_pylist() for name in ("vbucket", "collection_id", "key"))
    connection.executemany(f'{gone} AND collection_id = ? AND "key" = ?', zip(*changed, strict=True))
    connection.execute(
        'INSERT INTO search (search, rowid, "text") SELECT \'delete\', id, "text" FROM documents'
        " WHERE id IN (SELECT id FROM gone)"
    )
    return connection.execute("DELETE FROM documents WHERE id IN (SELECT id FROM gone)").rowcount


def _recalled(connection: sqlite3.Connection) -> dict[str, Any]:
    known = "SELECT count(*) FROM sqlite_schema WHERE name = 'penstock'"
    if not connection.execute(known).fetchone()[0]:
        return {}
    return dict(connection.execute("SELECT name, value FROM penstock").fetchall())


def _remember(connection: sqlite3.Connection, **values: Any) -> None:
    connection.executemany("INSERT OR REPLACE INTO penstock VALUES (?, ?)", values.items())


def _not_text(query: str) -> str | None:
    """Return why SQLite cannot take a query for text, None if it can."""
    if "\0" in query:
        return "it has a zero character"
    try:
        query.encode()
    except UnicodeEncodeError:
        return "it is not Unicode"
    return None


def _utf8(key: bytes) -> str | None:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def _search(lake: LakeDirectory, name: str, operands: Mapping[str, str | None], limit: int) -> pa.Table:
    return FullText.stored(lake, name).search(str(operands["query"]), limit)


@register_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class FullTextKind(DependentKind):
    """A full-text index over the strings at some paths of the documents; over all strings, if no paths are given.

    Its searches find only applied changes, so it applies them at once; the changes alone decide what that costs.
    """

    title = kind = "fulltext"
    directory = "indexes"
    order = 20
    question = Question(
        command="search",
        help="""Find documents by a full-text index, best first.

    As of the last batch that the index has taken in; a run may go on
    meanwhile. Found words are in brackets. With --json a line is one document.
    """,
        examples=(
            "penstock pipeline search ./lake words 'citrus hop*'",
            "penstock pipeline search pipeline.toml words '\"dry finish\" NOT stout' --limit 3 --json",
        ),
        operands=(Operand("query", "QUERY", 'Words, "a phrase", AND, OR, NOT, NEAR(a b), prefix*.'),),
        columns=("score", "key", "snippet"),
        answer=_search,
    )

    paths: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_declared_name("fulltext", self.name)
        for path in self.paths:
            parse_path(path)

    def open(self, lake: LakeDirectory, session: SparkSession | None = None) -> FullText:
        return FullText(lake, self.name, self.paths)

    def describe(self) -> str:
        return ", ".join(self.paths) or "all text"

    def place(self, lake: LakeDirectory) -> str:
        return str(lake.path / self.directory / f"{self.name}.sqlite")

    @classmethod
    def files(cls, lake: LakeDirectory, name: str) -> list[Path]:
        return sorted((lake.path / cls.directory).glob(f"{name}.sqlite*"))
