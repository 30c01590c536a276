"""Keep a full-text index of a bucket in SQLite, and search in it.

A change is in the database before its position is saved there. After a crash some changes come again, and replace the
same rows: the index is exact. After a rollback the stream reads the vbucket again from the beginning.
"""

import argparse
import asyncio
import sqlite3
from contextlib import closing
from typing import Literal

import penstock

# Writes wait for the disk when a position is saved: that write syncs the rows before it too.
TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS documents (id INTEGER PRIMARY KEY, vbucket INTEGER, collection INTEGER, key BLOB,
    UNIQUE (vbucket, collection, key));
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(text);
"""
REMOVE_WORDS = "DELETE FROM words WHERE rowid IN (SELECT id FROM documents WHERE "


def open_index(path: str) -> sqlite3.Connection:
    """Return the database, with its tables."""
    database = sqlite3.connect(path)
    database.executescript(TABLES)
    return database


def apply(database: sqlite3.Connection, change: penstock.Change) -> None:
    """Bring the index to the state after a change."""
    if change.event == "mutation":
        store(database, change)
    elif change.event in ("deletion", "expiration"):
        remove(database, "vbucket = ? AND collection = ? AND key = ?", change.vbucket, change.collection_id, change.key)
    elif change.event == "end_collection":
        remove(database, "vbucket = ? AND collection = ?", change.vbucket, change.collection_id)
    elif change.event in ("rollback", "flush"):  # to seqno 0: the policy of the stream is to restart
        remove(database, "vbucket = ?", change.vbucket)


def store(database: sqlite3.Connection, change: penstock.Change) -> None:
    """Store a document instead of its older version."""
    identity = change.vbucket, change.collection_id, change.key
    database.execute("INSERT OR IGNORE INTO documents (vbucket, collection, key) VALUES (?, ?, ?)", identity)
    found = "SELECT id FROM documents WHERE vbucket = ? AND collection = ? AND key = ?"
    (number,) = database.execute(found, identity).fetchone()
    text = (change.value or b"").decode(errors="replace")
    database.execute("INSERT OR REPLACE INTO words (rowid, text) VALUES (?, ?)", (number, text))


def remove(database: sqlite3.Connection, condition: str, *values: object) -> None:
    """Remove the documents for which a condition holds."""
    database.execute(f"{REMOVE_WORDS}{condition})", values)
    database.execute(f"DELETE FROM documents WHERE {condition}", values)


def search(path: str, query: str) -> list[str]:
    """Return the keys of the documents that match a query of FTS5, the best ones first."""
    found = "SELECT key FROM words JOIN documents ON id = words.rowid WHERE words MATCH ? ORDER BY rank"
    with closing(open_index(path)) as database:
        return [key.decode(errors="replace") for (key,) in database.execute(found, (query,))]


async def follow(url: str, path: str, stop: Literal["now"] | None = None) -> None:
    """Follow a bucket into the index."""
    positions = penstock.SqlitePositions(path)
    with closing(open_index(path)) as database:
        async with (
            penstock.connect(url) as bucket,
            penstock.Consumer(bucket, positions, stop=stop, rollback="restart") as consumer,
        ):
            async for change in consumer.changes():
                with database:
                    apply(database, change)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Follow a bucket into a full-text index, or search in the index.")
    parser.add_argument("index", help="the file of the database")
    parser.add_argument("--follow", metavar="URL", help="for example couchbase://127.0.0.1:11210/beer")
    parser.add_argument("--search", metavar="QUERY", help="for example 'amber OR stout'")
    options = parser.parse_args()
    if options.search:
        print(*search(options.index, options.search), sep="\n")
    if options.follow:
        asyncio.run(follow(options.follow, options.index))
