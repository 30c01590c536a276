"""Typed tables as Trino reads them, with its own catalog and without Penstock.

Trino is a download of 800 MB, which needs Java 24 or newer. So these tests run only with TRINO_HOME, the directory of
an unpacked `trino-server` (476 from Maven Central was used), and TRINO_JAVA, the path of `java`.
"""

import asyncio
import json
import os
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from penstock.spark import Lake
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.tables.column_rules import parse_rule
from penstock.spark.tables.key_pattern import KeyPattern
from penstock.spark.values.json_types import from_ddl
from tests.compat.running import Program
from tests.spark.lakes import append, rollback, row
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif("TRINO_HOME" not in os.environ, reason="TRINO_HOME names no Trino")

PROPERTIES = """
coordinator=true
node-scheduler.include-coordinator=true
http-server.http.port={port}
discovery.uri=http://127.0.0.1:{port}
query.max-memory-per-node=400MB
"""
CATALOG = """
connector.name=delta_lake
hive.metastore=file
hive.metastore.catalog.dir=local:///catalog
fs.native-local.enabled=true
local.location={place}
delta.register-table-procedure.enabled=true
"""
DEFAULT: dict[str, Any] = {"scope": "_default", "collection": "_default"}
OPTIONS = ["-Xmx1500m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "--enable-native-access=ALL-UNNAMED"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The directory that Trino reads."""
    return tmp_path_factory.mktemp("trino")


@pytest.fixture(scope="module")
def trino(place):
    """A function that runs a statement, and returns its rows."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home, etc = Path(os.environ["TRINO_HOME"]), place / "etc"
    (etc / "catalog").mkdir(parents=True)
    (etc / "config.properties").write_text(PROPERTIES.format(port=port))
    (etc / "catalog" / "delta.properties").write_text(CATALOG.format(place=place))
    (place / "catalog").mkdir()
    java = os.environ.get("TRINO_JAVA", "java")
    settings = {
        "config": etc / "config.properties",
        "catalog.config-dir": etc / "catalog",
        "plugin.dir": home / "plugin",
        "node.environment": "test",
        "node.data-dir": place / "data",
    }
    options = [*OPTIONS, *(f"-D{name}={value}" for name, value in settings.items()), "-cp", f"{home}/lib/*"]
    with Program.running([java, *options, "io.trino.server.TrinoServer"]):
        asyncio.run(wait_until(lambda: has_started(port)))

        def query(statement):
            headers = {"X-Trino-User": "test"}
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/statement", statement.encode(), headers)
            rows = []
            while True:
                with urllib.request.urlopen(request) as reply:
                    found = json.load(reply)
                if "error" in found:
                    raise AssertionError(found["error"]["message"])
                rows += found.get("data", [])
                if "nextUri" not in found:
                    return rows
                request = urllib.request.Request(found["nextUri"], headers=headers)

        query("CREATE SCHEMA delta.lake")
        yield query


def has_started(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/info") as reply:
            return not json.load(reply)["starting"]
    except OSError:
        return False


def make_value(number, **more):
    document = {"name": f"ä{number}", "tags": ["a", None], "inside": {"x": number}, "day": "2026-02-03"}
    return json.dumps(document | {"at": 1_700_000_000_123, "price": 0.25, "ok": True} | more).encode()


def test_trino_reads_the_same_rows_and_changes(trino, place):
    lake = Lake(place / "lake")
    rules = tuple(
        parse_rule((name,), text)
        for name, text in (("at", "sold_at TIMESTAMP FROM 'unix_ms'"), ("price", "DECIMAL(12,2)"))
    )
    fields = from_ddl("name STRING, tags ARRAY<STRING>, inside STRUCT<x: BIGINT>, day DATE, ok BOOLEAN")
    shape = TableShape(name="orders", fields=fields, rules=rules, key=KeyPattern.parse("o::{number INT}"))
    table = TypedTable(lake, shape)
    changes = [row(number % 4, 1 + number, b"o::%d" % number, make_value(number), **DEFAULT) for number in range(8)]
    append(lake, 0, changes)
    table.merge()
    trino("CALL delta.system.register_table('lake', 'orders', 'local:///lake/tables/orders')")
    columns = (
        "number, name, tags, inside.x, cast(day AS varchar), to_unixtime(sold_at), cast(price AS varchar), ok, _rest"
    )

    def expect(number, rest=None):
        return [number, f"ä{number}", ["a", None], number, "2026-02-03", 1_700_000_000.123, "0.25", rest is None, rest]

    read = f"SELECT {columns} FROM delta.lake.orders ORDER BY number"
    assert trino(read) == [expect(number) for number in range(8)]

    # An update with a value that does not fit, a deletion, and a rollback of both vbuckets' other changes.
    more = [
        row(1, 20, b"o::1", make_value(1, ok="yes"), **DEFAULT),
        row(2, 21, b"o::2", event="deletion", **DEFAULT),
        row(3, 22, b"o::3", make_value(33), **DEFAULT),
        rollback(3, 8, 1),
    ]
    append(lake, 1, more)
    table.merge()
    assert trino(read) == [expect(0), [*expect(1)[:7], None, '{"ok":"yes"}'], *map(expect, range(3, 8))]
    feed = "TABLE(delta.system.table_changes(schema_name => 'lake', table_name => 'orders', since_version => 0))"
    found = trino(f"SELECT _change_type, number FROM {feed} ORDER BY number, 1")
    assert found == [["update_postimage", 1], ["update_preimage", 1], ["delete", 2]]
    assert trino("SELECT count(*) FROM delta.lake.orders FOR VERSION AS OF 0") == [[8]]
