"""The catalog of a lake's Iceberg tables: which metadata file of a table is the newest one.

A lake has a catalog of its own: an SQLite file in its directory. A pipeline may name another SQLite file, or the URI of
a REST catalog. The file `_iceberg.json` in the lake's directory marks its tables as Iceberg and names the
catalog. Credentials are neither in this file nor in a table. PyIceberg reads them itself, for the catalog `penstock`,
from the environment (`PYICEBERG_CATALOG__PENSTOCK__TOKEN`) or from its file `.pyiceberg.yaml`.

PyIceberg is imported late everywhere: tasks that only write files do not need it.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.errors import Error, UsageError
from penstock.spark.storage.object_path import LakePath, ObjectPath
from penstock.spark.storage.stored_documents import replace_document

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

CATALOG_NAME = "penstock"
"""The name of the catalog in PyIceberg's configuration, where credentials are."""
MARKER = "_iceberg.json"
"""The file of a lake that names its catalog."""
OWN_CATALOG = "_catalog.sqlite"
"""The file of a lake's own catalog."""
_SQLITE = "sqlite:///"
_PAUSES = (0.2, 0.4, 0.8, 1.6)
"""Seconds before a request to a REST catalog is sent again."""
_OBJECT_IO = "penstock.spark.lake.tables.iceberg.object_io.ObjectFileIO"
_EXPECTED = "expected sqlite:///PATH, or the http or https URI of a REST catalog"


def name_namespace(lake: LakePath) -> str:
    """Return the namespace of a lake's tables: the name of its directory, in letters, digits and _ only."""
    return re.sub(r"\W", "_", lake.name) or CATALOG_NAME


def check_catalog(uri: str) -> None:
    """Check the URI of a catalog, which errors never show: it may hold a password.

    Raises:
        UsageError: it is of another kind, or holds credentials.
    """
    parts = urlsplit(uri)
    if parts.username or parts.password or parts.query:
        raise UsageError(
            "catalog must not hold credentials or a query; PyIceberg reads them from its environment variables, such as"
            f" PYICEBERG_CATALOG__{CATALOG_NAME.upper()}__TOKEN, or from its file .pyiceberg.yaml"
        )
    if parts.scheme in ("http", "https") and parts.netloc:
        return
    if not uri.startswith(_SQLITE) or uri == _SQLITE:
        raise UsageError(f"catalog is {uri!r}, {_EXPECTED}")


def check_remote_catalog(lake: LakePath, uri: str | None) -> None:
    """Check that all machines reach the catalog of a lake in an object store.

    Raises:
        UsageError: the catalog is a file of one machine, or there is none.
    """
    if uri is None or uri.startswith(_SQLITE):
        found = "has no catalog" if uri is None else f"has the catalog {uri}, a file of one machine"
        raise UsageError(
            f"the lake is {lake}, whose format is 'iceberg', and {found}; expected catalog = the http or https URI of a"
            " REST catalog"
        )


def resolve_catalog(uri: str, base: Path) -> str:
    """Return the URI of a catalog with an absolute path, for one that is relative to the directory `base`."""
    if not uri.startswith(_SQLITE):
        return uri
    return f"{_SQLITE}{os.path.normpath(base / Path(uri.removeprefix(_SQLITE)).expanduser())}"


def read_catalog_uri(lake: LakePath) -> str | None:
    """Return the URI of the catalog that holds the tables of a lake, None if the lake has no Iceberg tables.

    Raises:
        UsageError: the lake's marker is damaged.
    """
    path = lake / MARKER
    try:
        return str(json.loads(path.read_text())["catalog"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is damaged; expected the catalog of the Iceberg tables as JSON") from None


@dataclass(slots=True)
class IcebergCatalog:
    """The catalog of a lake, and the names of its tables: the namespace is the name of the lake's directory.

    Attributes:
        lake: the lake's directory.
        given: the URI that the pipeline names, None for the catalog that the lake has.
    """

    lake: LakePath
    given: str | None = None
    _loaded: Catalog | None = field(default=None, repr=False)
    _known: str | None = field(default=None, repr=False)

    def __getstate__(self) -> tuple[LakePath, str | None]:
        return self.lake, self.given

    def __setstate__(self, state: tuple[LakePath, str | None]) -> None:
        self.lake, self.given = state
        self._loaded = self._known = None

    @property
    def uri(self) -> str:
        """The URI of the catalog.

        Raises:
            UsageError: the lake has tables in another catalog.
        """
        if self._known is not None:
            return self._known
        stored = read_catalog_uri(self.lake)
        if isinstance(self.lake, ObjectPath):
            check_remote_catalog(self.lake, stored or self.given)
        if self.given is not None and stored not in (None, self.given):
            raise UsageError(f"the tables of {self.lake} are in the catalog {stored}; expected it, not {self.given}")
        if isinstance(self.lake, ObjectPath):
            self._known = stored  # reading it again would cost a request each time
        return stored or self.given or f"{_SQLITE}{self.lake / OWN_CATALOG}"

    def name_table(self, path: LakePath) -> tuple[str, str]:
        """Return namespace and name of a table in the catalog."""
        return name_namespace(self.lake), path.name

    def load_table(self, path: LakePath) -> Table | None:
        """Return a table with its newest metadata, None if the catalog does not have it.

        Args:
            path: the directory of the table.

        Returns:
            The table.

        Raises:
            UsageError: the catalog has a table of another directory under this name.
        """
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        catalog = self._load(create=False)
        if catalog is None:
            return None
        name = self.name_table(path)
        try:
            table: Table = self._ask(catalog.load_table, name)
        except (NoSuchTableError, NoSuchNamespaceError, FileNotFoundError):
            return None  # without its metadata, the table's directory was removed
        location = table.location()
        if location != locate(path):
            raise UsageError(
                f"the catalog {self.uri} has the table {'.'.join(name)} at {location}, and not at {path}: Iceberg"
                " tables cannot be moved, and two lakes in a catalog must differ in the names of their directories"
            )
        return table

    def read_change_counter(self) -> bytes | None:
        """Return a counter that each transaction of an SQLite catalog raises, None for all other catalogs."""
        uri = self.uri
        if not uri.startswith(_SQLITE):
            return None
        try:
            with open(uri.removeprefix(_SQLITE), "rb") as file:
                header = file.read(28)
        except FileNotFoundError:
            return None
        # The file's header has the counter in its last bytes, except in the mode with a write-ahead log (2).
        return header[24:] if len(header) == 28 and header[18] == 1 else None

    def begin_table(self, path: LakePath, **arguments: Any) -> Any:
        """Return the transaction that creates a table with its first commit.

        Args:
            path: the directory of the table.
            arguments: schema, partitions and properties.

        Returns:
            The transaction of PyIceberg.
        """
        from pyiceberg.exceptions import NoSuchTableError

        catalog = self._load(create=True)
        assert catalog is not None
        name = self.name_table(path)
        with suppress(Error):  # another process may create it at this moment; another failure repeats below
            self._ask(catalog.create_namespace_if_not_exists, name[0])
        try:
            self._ask(catalog.load_table, name)
        except FileNotFoundError:  # the directory of an earlier table was removed
            self._ask(catalog.drop_table, name)
        except NoSuchTableError:
            pass
        return self._ask(catalog.create_table_transaction, name, location=locate(path), **arguments)

    def drop_table(self, path: LakePath) -> None:
        """Remove a table from the catalog; its files stay."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        catalog = self._load(create=False)
        if catalog is not None:
            with suppress(NoSuchTableError, NoSuchNamespaceError):
                self._ask(catalog.drop_table, self.name_table(path))

    def _load(self, *, create: bool) -> Catalog | None:
        """Return the catalog, None if it does not exist and is not to be created."""
        from pyiceberg.catalog import load_catalog

        uri = self.uri
        is_file = uri.startswith(_SQLITE)
        if is_file and not create and not os.path.exists(uri.removeprefix(_SQLITE)):
            self._loaded = None
            return None
        if create:
            self._write_marker(uri)
        if self._loaded is None:
            given = {"uri": uri, "type": "sql" if is_file else "rest"}
            if isinstance(self.lake, ObjectPath):
                given["py-io-impl"] = _OBJECT_IO
            try:
                self._loaded = load_catalog(CATALOG_NAME, **given)
            except Exception as error:
                if not is_catalog_failure(error):
                    raise
                # Another process may have created the SQL tables at the same moment.
                self._loaded = self._ask(load_catalog, CATALOG_NAME, **given)
        return self._loaded

    def _write_marker(self, uri: str) -> None:
        if read_catalog_uri(self.lake) is None:
            self.lake.mkdir(parents=True, exist_ok=True)
            replace_document(self.lake / MARKER, json.dumps({"catalog": uri}), is_synced=True)

    def _ask(self, call: Any, *arguments: Any, **named: Any) -> Any:
        """Return the answer of the catalog. A request that a REST catalog does not answer is sent again.

        Raises:
            FileNotFoundError: the metadata file of a table was removed.
            Error: it does not answer, or refuses the login.
        """
        pauses = iter(_PAUSES)
        while True:
            try:
                return call(*arguments, **named)
            except FileNotFoundError as error:
                raise FileNotFoundError(str(error)) from None
            except Exception as error:
                if not is_catalog_failure(error):
                    raise
                is_passing = not self.uri.startswith(_SQLITE) and is_passing_failure(error)
                pause = next(pauses, None) if is_passing else None
                if pause is None:
                    reason = type(error).__name__
                    raise Error(f"the catalog {self.uri} did not answer as expected ({reason})") from error
            time.sleep(pause)


def is_passing_failure(error: Exception) -> bool:
    """Return whether a REST catalog may answer the same request later."""
    from pyiceberg.exceptions import ServerError, ServiceUnavailableError, TooManyRequestsError

    return isinstance(error, ServerError | ServiceUnavailableError | TooManyRequestsError | OSError)


def is_catalog_failure(error: Exception) -> bool:
    """Return whether a catalog failed: its server, the connection to it, or its database."""
    from pyiceberg.exceptions import RESTError

    # PyIceberg passes on the errors of SQLAlchemy, which Penstock does not require by itself.
    return isinstance(error, RESTError | OSError) or type(error).__module__.startswith("sqlalchemy.")


def locate(path: LakePath) -> str:
    """Return the URI of a table's place."""
    return f"file://{path}" if isinstance(path, Path) else str(path)
