"""A program that reads Delta tables with DuckDB, Polars and delta-rs, and never with Penstock.

Each line that it reads is a JSON array: a directory and the names of tables in it. For each it writes a line with a
JSON object: table -> reader -> columns and rows. Types have one name in all readers. Values that JSON does not have are
objects with one member, such as `{"$decimal": "1.50"}`.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import polars as pl
from deltalake import DeltaTable

Columns = dict[str, str]


def read_with_delta_rs(path: str) -> tuple[Columns, list[dict[str, Any]]]:
    """Return columns and rows as deltalake reads them."""
    table = DeltaTable(path)
    types = {field.name: name_delta_type(json.loads(field.type.to_json())) for field in table.schema().fields}
    return types, table.to_pyarrow_table().to_pylist()


def name_delta_type(of: Any) -> str:
    """Return the name of a type of Delta's protocol."""
    if isinstance(of, str):
        names = {"long": "bigint", "integer": "int"}
        return names.get(of, of.replace(" ", ""))
    if of["type"] == "array":
        return f"array<{name_delta_type(of['elementType'])}>"
    fields = [f"{each['name']}:{name_delta_type(each['type'])}" for each in of["fields"]]
    return f"struct<{','.join(fields)}>"


def read_with_polars(path: str) -> tuple[Columns, list[dict[str, Any]]]:
    """Return columns and rows as Polars reads them."""
    frame = pl.read_delta(path)
    return {name: name_polars_type(of) for name, of in frame.schema.items()}, frame.to_dicts()


def name_polars_type(of: Any) -> str:
    """Return the name of a type of Polars."""
    if isinstance(of, pl.List):
        return f"array<{name_polars_type(of.inner)}>"
    if isinstance(of, pl.Struct):
        return f"struct<{','.join(f'{each.name}:{name_polars_type(each.dtype)}' for each in of.fields)}>"
    if isinstance(of, pl.Decimal):
        return f"decimal({of.precision},{of.scale})"
    if isinstance(of, pl.Datetime):
        return "timestamp"
    names = {"Int64": "bigint", "Int32": "int", "Float64": "double"}
    return names.get(str(of), str(of).lower())


def read_with_duckdb(path: str) -> tuple[Columns, list[dict[str, Any]]]:
    """Return columns and rows as DuckDB reads them."""
    dataset = DeltaTable(path).to_pyarrow_dataset()  # noqa: F841 - DuckDB reads the variable
    with duckdb.connect() as connection:
        found = connection.sql("FROM dataset")
        columns = {name: name_duckdb_type(of) for name, of in zip(found.columns, found.types, strict=True)}
        return columns, found.to_arrow_table().to_pylist()


def name_duckdb_type(of: Any) -> str:
    """Return the name of a type of DuckDB."""
    if of.id == "list":
        return f"array<{name_duckdb_type(of.children[0][1])}>"
    if of.id == "struct":
        return f"struct<{','.join(f'{name}:{name_duckdb_type(child)}' for name, child in of.children)}>"
    if of.id == "decimal":
        precision, scale = (value for _, value in of.children)
        return f"decimal({precision},{scale})"
    kind = str(of.id)
    names = {"varchar": "string", "integer": "int", "blob": "binary", "timestamp with time zone": "timestamp"}
    return names.get(kind, kind)


READERS: dict[str, Callable[[str], tuple[Columns, list[dict[str, Any]]]]] = {
    "delta-rs": read_with_delta_rs,
    "polars": read_with_polars,
    "duckdb": read_with_duckdb,
}


def to_json(value: Any) -> Any:
    """Return a value of a column as JSON has it."""
    if isinstance(value, dict):
        return {name: to_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [to_json(each) for each in value]
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, datetime):
        return {"$time": value.astimezone(UTC).isoformat()}
    return {"$date": value.isoformat()} if isinstance(value, date) else value


def read_tables(directory: str, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return table -> reader -> columns and rows."""
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        for reader, read in READERS.items():
            columns, rows = read(f"{directory}/{name}")
            found.setdefault(name, {})[reader] = {"columns": columns, "rows": to_json(rows)}
    return found


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(read_tables(*json.loads(line))) + "\n")
        sys.stdout.flush()
        assert not any(module.partition(".")[0] == "penstock" for module in sys.modules)
