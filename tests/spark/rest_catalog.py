"""A REST catalog of Iceberg tables for tests: the part of the protocol that a lake needs, over an SQLite catalog."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.metadata import new_table_metadata


class _Handler(BaseHTTPRequestHandler):
    catalog: SqlCatalog
    token: str

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        if self.headers.get("Authorization") != f"Bearer {self.token}":
            status, found = 401, self._describe(401, "NotAuthorizedException")
        else:
            try:
                status, found = 200, self._route(self.command, self.path.partition("?")[0].strip("/").split("/"), body)
            except NoSuchTableError:
                status, found = 404, self._describe(404, "NoSuchTableException")
            except (CommitFailedException, NamespaceAlreadyExistsError):
                status, found = 409, self._describe(409, "CommitFailedException")
        text = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else text)

    def _describe(self, code: int, kind: str) -> dict[str, Any]:
        return {"error": {"message": kind, "type": kind, "code": code}}

    def _route(self, method: str, path: list[str], body: str) -> dict[str, Any]:
        match method, path:
            case "GET", ["v1", "config"]:
                return {"defaults": {}, "overrides": {}}
            case "POST", ["v1", "namespaces"]:
                namespace = json.loads(body)["namespace"]
                self.catalog.create_namespace(tuple(namespace))
                return {"namespace": namespace, "properties": {}}
            case "GET", ["v1", "namespaces", namespace]:
                return {"namespace": [namespace], "properties": {}}
            case "GET", ["v1", "namespaces", namespace, "tables"]:
                names = [each[-1] for each in self.catalog.list_tables(namespace)]
                return {"identifiers": [{"namespace": [namespace], "name": name} for name in names]}
            case "GET", ["v1", "namespaces", _, "tables", _]:
                return self._describe_table(self.catalog.load_table((path[2], path[4])))
            case "POST", ["v1", "namespaces", _, "tables"]:
                # A staged table exists only once its first commit is made.
                made: Any = CreateTableRequest.model_validate_json(body)
                metadata = new_table_metadata(
                    made.table_schema, made.partition_spec, made.write_order, made.location, made.properties
                )
                return {"metadata": json.loads(metadata.model_dump_json()), "config": {}}
            case "POST", ["v1", "namespaces", _, "tables", _]:
                change = CommitTableRequest.model_validate_json(body)
                table: Any = SimpleNamespace(name=lambda: (path[2], path[4]))
                self.catalog.commit_table(table, change.requirements, change.updates)
                return self._describe_table(self.catalog.load_table((path[2], path[4])))
            case "DELETE", ["v1", "namespaces", _, "tables", _]:
                self.catalog.drop_table((path[2], path[4]))
                return {}
        raise AssertionError(f"{method} {path}")

    def _describe_table(self, table: Any) -> dict[str, Any]:
        metadata = json.loads(table.metadata.model_dump_json())
        return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}


@contextmanager
def serve_catalog(directory: Path, token: str, properties: Mapping[str, str] | None = None) -> Iterator[str]:
    """Serve a catalog that keeps its tables in an SQLite file of a directory.

    Args:
        directory: the directory.
        token: the token that clients must send.
        properties: with which the server finds the files of tables in an object store.

    Yields:
        The URI of the catalog.
    """
    catalog = SqlCatalog("served", **{"uri": f"sqlite:///{directory / 'served.sqlite'}"}, **(properties or {}))
    handler = type("Handler", (_Handler,), {"catalog": catalog, "token": token})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
