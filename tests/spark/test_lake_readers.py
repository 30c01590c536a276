"""Other programs read the written rows from both tables; Spark reads them by lists of files."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from penstock.spark import Lake
from penstock.spark.lake.changelog.merge_rules import merge_changes
from penstock.spark.lake.current.current_table import merge_current
from penstock.spark.lake.tables.data_files import RANGE_COLUMN
from penstock.spark.lake.tables.lake_table import AnyTable
from penstock.wire.columns.schema import CHANGE_SCHEMA
from tests.spark import lakes
from tests.spark.lakes import append, as_documents, model, rollback, row, table

pd: Any = importlib.import_module("pandas")  # pandas has no type annotations

ROWS = [
    *(row(n % 64, n, b"document %d" % n, b'{"n": %d}' % n) for n in range(1, 200)),
    row(5, 300, b"\xff\xfe", b"\x00", xattrs={"_sync": b"\x00\x01", "empty": b""}),
    row(5, 301, b"document 5", event="deletion"),
    row(7, 302, b"", b"", collection_id=None),
    row(11, -2, b"high", b"unsigned", collection_id=9, expiry=4_294_967_295),
    row(3, 303, None, event="end_collection", collection_id=8),
    rollback(9, 100, 1),
    row(9, 101, b"document 137", b"again", history=1),
]


def as_delta(part: AnyTable) -> str:
    return str(part.path)


def files_of(part: AnyTable) -> list[str]:
    opened = part.open()
    assert opened is not None
    return part.list_paths(part.list_files(opened))


def from_pandas(frame: Any) -> list[dict[str, Any]]:
    """Return a frame's rows; as objects, because pandas turns an integer column with nulls into floats."""
    lines: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return lines


READERS: dict[str, Callable[[AnyTable], Any]] = {
    "deltalake": lambda part: DeltaTable(str(part.path)).to_pyarrow_table().to_pylist(),
    "pyarrow, files": lambda part: pa.concat_tables(pq.ParquetFile(path).read() for path in files_of(part)).to_pylist(),
    "pandas, Delta": lambda part: from_pandas(DeltaTable(str(part.path)).to_pandas(types_mapper=pd.ArrowDtype)),
    "pandas, files": lambda part: from_pandas(
        pd.concat(pd.read_parquet(p, partitioning=None, dtype_backend="pyarrow") for p in files_of(part))
    ),
    "Polars, Delta": lambda part: pl.scan_delta(as_delta(part)).collect().to_dicts(),
    "Polars, files": lambda part: pl.read_parquet(files_of(part), hive_partitioning=False).to_dicts(),
    "DuckDB, files": lambda part: (
        duckdb.read_parquet(files_of(part), hive_partitioning=False).to_arrow_table().to_pylist()
    ),
}


def plain(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of any program in one form; programs return a map as pairs, as a list of structs, or as a dict."""

    def value(name: str, content: Any) -> Any:
        if name == "xattrs" and content is not None:
            pairs = content.items() if isinstance(content, dict) else content
            pairs = [tuple(pair.values()) if isinstance(pair, dict) else tuple(pair) for pair in pairs]
            return {key: bytes(text) for key, text in pairs}
        if isinstance(content, bytearray):
            return bytes(content)
        return content

    found = [{name: value(name, line[name]) for name in sorted(line)} for line in lines]
    return sorted(found, key=lambda line: (line["vbucket"], line["history"], line["seqno"]))


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    lake = Lake(tmp_path_factory.mktemp("readers") / "lake")
    append(lake, 0, ROWS[:150])
    merge_current(lake)
    append(lake, 1, ROWS[150:])
    merge_current(lake)
    return lake


def ranged(rows: pa.Table) -> list[dict[str, Any]]:
    return plain([line | {RANGE_COLUMN: line["vbucket"] // 4} for line in rows.to_pylist()])


@pytest.mark.parametrize("reader", READERS)
def test_another_program_reads_both_tables(lake, reader):
    assert plain(READERS[reader](lake.changelog_table)) == ranged(table(ROWS))
    assert plain(READERS[reader](lake.current_table)) == ranged(merge_changes(table(ROWS)))


@pytest.mark.spark
def test_spark_reads_both_tables(lake, spark):
    def lines(frame):
        return plain([line.asDict(recursive=True) for line in frame.collect()])

    assert lines(lake.changelog_frame(spark)) == plain(table(ROWS).to_pylist())
    assert lines(lake.current_frame(spark)) == plain(merge_changes(table(ROWS)).to_pylist())


@pytest.mark.spark
def test_spark_frame_has_pending_changes_and_does_not_change(spark, tmp_path):
    lake = Lake(tmp_path / "a [lake] of * {two}?")
    steps = [
        ROWS,
        [
            row(9, 500, b"document 9", b"new", history=1),
            row(5, 501, b"document 69", event="deletion"),
            rollback(7, 7, 1),
        ],
        [row(3, 502, None, event="end_collection", collection_id=0), row(3, 503, b"document 3", b"3")],
    ]
    rows, frames = [], []
    for batch, step in enumerate(steps):
        append(lake, batch, step)
        rows += step
        frames.append((lake.current_frame(spark), model(rows)))
        if batch == 1:
            merge_current(lake)
    for frame, wanted in frames:
        documents = frame.toArrow()
        assert documents.schema.names == lake.current().schema.names
        assert as_documents(documents) == wanted
    assert lake.changelog_frame(spark).count() == len(rows)


def test_lakes_are_read_as_a_whole_or_in_part(lake):
    assert plain(lake.changelog().to_pylist()) == plain(table(ROWS).to_pylist())
    assert lake.changelog().schema.equals(CHANGE_SCHEMA)
    assert lake.changelog(["seqno"]).schema.names == ["seqno"]
    assert as_documents(lake.current()) == model(ROWS) == as_documents(lakes.read_table_documents(lake))


RECIPE = re.search(
    r"# Other programs read current as of its last merge\.\n(.*?)```",
    (Path(__file__).parents[2] / "docs" / "tables.md").read_text(),
    re.DOTALL,
)
BLANKS_AND_LETTERS = ["with blank", "é", "e\u0301", "東京"]
SIGNS = ["x%y", "100%", "a#b", "a?b", "a*b", "[x]", "{a,b}", "a'b", 'a"b', "a+b", "a=b", "a&b"]


@pytest.mark.parametrize("name", [*BLANKS_AND_LETTERS, *SIGNS])
def test_documented_recipe_reads_a_lake_in_any_directory(name, tmp_path, monkeypatch):
    """Spark's own reader is left out: the page names the paths that it cannot read."""
    assert RECIPE is not None
    lines = [line for line in RECIPE[1].splitlines() if not line.startswith("assert spark")]
    assert len([line for line in lines if line.startswith("assert")]) == 6
    lake = Lake(tmp_path / name / "lake")
    append(lake, 0, [row(number, 1, b"%d" % number, b"{}") for number in range(10)])
    merge_current(lake)
    monkeypatch.chdir(tmp_path / name)
    names = {"duckdb": duckdb, "pl": pl, "pd": pd, "DeltaTable": DeltaTable, "unquote": unquote}
    exec("\n".join(lines), names)
