"""JSON documents to typed Arrow columns: Penstock's parser against DuckDB, pyarrow.json and Polars.

The documents are nested orders of about 360 B. Where all fits, the schemas of all cases are the same. Then Penstock has
schemas that do not fit, against its own time where all fits. The others drop or refuse such values, or make null of
them, so only Penstock is measured there. Times are CPU times of one thread, in turns.
"""

from __future__ import annotations

import io
import json
import random
from functools import partial
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.json as pj

from benchmarks.report import Case, Report, Times, make_parser, time_in_turns
from penstock.spark.values.typed_documents import ColumnRule, DocumentParser

TIMESTAMP = pa.timestamp("us", "UTC")
ADDRESS = pa.struct([("street", pa.string()), ("city", pa.string()), ("zip", pa.string())])
CUSTOMER = pa.struct([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.string())), ("address", ADDRESS)])
LINES = pa.list_(pa.struct([("sku", pa.string()), ("qty", pa.int64()), ("price", pa.float64())]))
SCHEMA = pa.schema(
    [
        ("order_id", pa.string()),
        ("customer", CUSTOMER),
        ("total", pa.float64()),
        ("ordered_at", pa.string()),
        ("status", pa.string()),
        ("lines", LINES),
        ("paid", pa.bool_()),
        ("weight", pa.float64()),
    ]
)
DUCKDB_TYPES = {pa.string(): "VARCHAR", pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN"}


def make_line(chance: random.Random) -> dict[str, Any]:
    """Return a line of an order."""
    price = chance.randrange(10_000) / 100
    return {"sku": f"A-{chance.randrange(10_000)}", "qty": chance.randrange(1, 9), "price": price}


def make_documents(count: int) -> list[bytes]:
    """Return orders, the same in each run."""
    chance = random.Random(32)
    cities = ("London", "Köln", "Port Louis", "Zürich", "São Paulo")
    documents = []
    for number in range(count):
        lines = [make_line(chance) for _ in range(chance.randrange(1, 4))]
        address = {"street": f"{chance.randrange(300)} Main St", "city": chance.choice(cities), "zip": "N1 9GU"}
        customer = {"id": chance.randrange(10**6), "name": "Ada Lovelace", "tags": ["a", "vip"], "address": address}
        document = {
            "order_id": f"order::{number:09}",
            "customer": customer,
            "total": round(sum(line["qty"] * line["price"] for line in lines), 2),
            "ordered_at": f"2026-11-{chance.randrange(1, 31):02}T09:30:{chance.randrange(60):02}Z",
            "status": chance.choice(("shipped", "open", "returned")),
            "lines": lines,
            "paid": chance.random() < 0.9,
            "weight": chance.random() * 100,
        }
        documents.append(json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())
    return documents


def describe_for_duckdb(of: pa.DataType) -> object:
    """Return a type as json_transform expects it."""
    if pa.types.is_struct(of):
        return {field.name: describe_for_duckdb(field.type) for field in of}
    return [describe_for_duckdb(of.value_type)] if pa.types.is_list(of) else DUCKDB_TYPES[of]


def describe_for_polars(of: pa.DataType) -> pl.DataType:
    return pl.Series(pl.from_arrow(pa.array([], of))).dtype


def read_with_duckdb(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    return connection.sql("SELECT unnest(json_transform(d, getvariable('shape'))) FROM documents").to_arrow_table()


def read_with_polars(values: pl.Series, dtype: pl.DataType) -> pa.Table:
    return values.str.json_decode(dtype).struct.unnest().to_arrow()


def read_with_arrow(lines: bytes) -> pa.Table:
    """Return the columns of lines. The join of documents to lines is not part of it."""
    options = pj.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="ignore")
    return pj.read_json(io.BytesIO(lines), pj.ReadOptions(use_threads=False, block_size=len(lines)), options)


def make_rules(**types: pa.DataType) -> list[ColumnRule]:
    """Return the rules of the schema, with other types of some columns; None leaves a column out."""
    schema = [(field.name, types.get(field.name, field.type)) for field in SCHEMA]
    return [ColumnRule(name, of) for name, of in schema if of is not None]


MISFITS = {
    "an unknown field": make_rules(status=None),
    "an unknown field of a struct": make_rules(
        customer=pa.struct([field for field in CUSTOMER if field.name != "name"]),
    ),
    "conflicting type": make_rules(status=pa.int64()),
    "half of the fields unknown, two conflicts": make_rules(
        customer=None, lines=None, weight=None, order_id=None, status=pa.int64(), paid=pa.string()
    ),
    "decimals and a time": make_rules(
        total=pa.decimal128(12, 2),
        ordered_at=TIMESTAMP,
        lines=pa.list_(pa.struct([("sku", pa.string()), ("qty", pa.int64()), ("price", pa.decimal128(12, 2))])),
    ),
    "time of another form": make_rules(order_id=TIMESTAMP),
}
"""Rules against which a part of each document does not fit, or needs a conversion."""


def format_time(taken: Times, count: int, other: Times, name: str) -> str:
    """Return the time of a document, and its ratio to that of another case."""
    return f"{taken.median / count * 1e6:.2f} us/document, {taken.median / other.median:.2f} of {name}"


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--documents", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    documents = make_documents(chosen.documents)
    values = pa.array(documents, pa.binary())
    texts = pl.Series("d", [document.decode() for document in documents])
    connection = duckdb.connect(config={"threads": 1})
    connection.register("documents", pa.table({"d": values.cast(pa.string())}))
    connection.execute("SET VARIABLE shape = ?", [json.dumps(describe_for_duckdb(pa.struct(SCHEMA)))])
    cases: dict[str, Case] = {
        "penstock": partial(DocumentParser(make_rules()).parse, values),
        "DuckDB json_transform": partial(read_with_duckdb, connection),
        "pyarrow.json": partial(read_with_arrow, b"\n".join(documents)),
        "Polars json_decode": partial(read_with_polars, texts, describe_for_polars(pa.struct(SCHEMA))),
    }
    expected = DocumentParser(make_rules()).parse(values)
    assert expected.rest.null_count == len(values)
    for name in ("DuckDB json_transform", "pyarrow.json"):
        found = cases[name]()
        assert isinstance(found, pa.Table)
        assert found.cast(SCHEMA).combine_chunks().to_batches()[0].equals(expected.columns), name
    odd: dict[str, Case] = {name: partial(DocumentParser(rules).parse, values) for name, rules in MISFITS.items()}
    report = Report("JSON documents to typed Arrow columns", chosen)
    report.add_row("documents", f"{len(values)} of {sum(map(len, documents)) / len(values):.0f} B")
    times = time_in_turns(cases, chosen.rounds)
    for name, taken in times.items():
        report.add_row(f"all fits, {name}", format_time(taken, len(values), times["DuckDB json_transform"], "DuckDB"))
    times = time_in_turns({"all fits": cases["penstock"], **odd}, chosen.rounds)
    for name, taken in times.items():
        report.add_row(f"penstock, {name}", format_time(taken, len(values), times["all fits"], "all fits"))
    report.finish()


if __name__ == "__main__":
    main()
