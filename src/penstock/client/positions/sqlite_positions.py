"""Positions in a table of an SQLite database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from penstock.argument_types import check_arguments
from penstock.client.finished_work import finish_in_thread
from penstock.client.positions.position_store import PositionStore
from penstock.client.positions.saved_positions import SavedPositions, decode_positions, encode_positions
from penstock.errors import Error, PositionsLocked

T = TypeVar("T")

_CREATE = "CREATE TABLE IF NOT EXISTS penstock_positions (name TEXT PRIMARY KEY, saved TEXT NOT NULL)"
_BUSY_SECONDS = 10.0
"""Seconds that a statement waits for another program's lock on the database."""

_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@check_arguments
class SqlitePositions(PositionStore):
    """Keeps positions in the table `penstock_positions` of an SQLite database, which is created if needed.

    Args:
        path: the database file; its directory must exist.
        name: the name of the consumer, which is the key of its row.
    """

    def __init__(self, path: Path | str, name: str = "default") -> None:
        self.path = Path(path).expanduser()
        self.name = name

    def __str__(self) -> str:
        return f"sqlite:{self.path}#{self.name}"

    async def read(self) -> SavedPositions | None:
        """Return the positions in the row; None if there is no row or no database."""
        query = "SELECT saved FROM penstock_positions WHERE name = ?"
        row = await _run_in_database(self.path, lambda database: database.execute(query, (self.name,)).fetchone())
        return None if row is None else decode_positions(str(row[0]).encode(), str(self))

    async def write(self, saved: SavedPositions) -> None:
        """Replace the row in one transaction."""
        statement = "INSERT OR REPLACE INTO penstock_positions VALUES (?, ?)"
        values = (self.name, encode_positions(saved).decode())
        await _run_in_database(self.path, lambda database: database.execute(statement, values))

    async def remove(self) -> None:
        """Remove the row, if it exists."""
        statement = "DELETE FROM penstock_positions WHERE name = ?"
        await _run_in_database(self.path, lambda database: database.execute(statement, (self.name,)))


async def list_sqlite_names(path: Path | str) -> list[str]:
    """Return the names of all consumers in a database, in alphabetical order. Raises Error if it cannot be read."""
    query = "SELECT name FROM penstock_positions ORDER BY name"
    rows = await _run_in_database(SqlitePositions(path).path, lambda database: database.execute(query).fetchall())
    return [str(row[0]) for row in rows]


async def _run_in_database(path: Path, action: Callable[[sqlite3.Connection], T]) -> T:
    """Return the result of an action in a transaction of its own.

    Raises:
        PositionsLocked: another program has locked the database for longer than _BUSY_SECONDS.
        Error: SQLite refuses for another reason.
    """

    def run() -> T:
        with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as database:
            database.execute("PRAGMA synchronous = FULL")
            with database:
                database.execute(_CREATE)
                return action(database)

    try:
        return await finish_in_thread(run)
    except sqlite3.Error as error:
        text = f"{path}: SQLite reports {error}"
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _LOCKED or "locked" in str(error):
            raise PositionsLocked(text) from error
        raise Error(f"{text}, expected a database for positions") from error
