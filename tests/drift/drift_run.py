"""The run of a month: each day's changes, a run of the pipeline, and the comparison of all tables with the bucket."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import pytest

from penstock.errors import UsageError
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.runtime.spark_session import local_session
from tests.drift import table_readers
from tests.drift.drifting_bucket import DriftingBucket
from tests.drift.month import Day, Shop, list_days
from tests.drift.pipelines import BatchPipeline, DriftPipeline, SparkPipeline, open_lake
from tests.drift.rebuilt_documents import is_of_field, normalize_document, rebuild_document

LETTERS = "_misfits"


def run_month(directory: str, *, is_short: bool, with_spark: bool, seed: int = 1) -> Iterator[str]:
    """Run a month.

    Args:
        directory: an empty directory.
        is_short: whether it has five days.
        with_spark: whether Spark reads the bucket.
        seed: the seed of the daily work.

    Yields:
        A line for each table after each day.
    """
    file = Path(directory) / "pipeline.toml"
    with ExitStack() as stack:
        bucket = stack.enter_context(DriftingBucket.running())
        readers = stack.enter_context(OtherReaders.running())
        shop = Shop(bucket, seed)
        pipeline: DriftPipeline = BatchPipeline(file, bucket.url)
        if with_spark:
            spark = local_session(2)
            stack.callback(spark.stop)
            pipeline = SparkPipeline(file, spark)
        known: dict[str, set[str]] = {}
        for number, day in list_days(is_short=is_short):
            shop.day = number
            day.change(shop)
            if number % 6 != 3:  # on other days the work of the day before is lost in a rollback
                shop.bucket.mark()
            shop.work()
            shop.declared.write(file, bucket.url)
            run_day(day, pipeline)
            yield f"day {number + 1:>2}  {day.title}"
            if not day.refusal:
                yield from compare_tables(shop, readers, file, known)


def run_day(day: Day, pipeline: DriftPipeline) -> None:
    """Run the pipeline as a day demands."""
    if day.is_killed:
        pipeline.run_killed()
    if day.refusal:
        with pytest.raises(UsageError, match=day.refusal):
            pipeline.run()
        return
    pipeline.run()


def compare_tables(shop: Shop, readers: OtherReaders, file: Path, known: dict[str, set[str]]) -> Iterator[str]:
    """Compare all tables with the bucket.

    Args:
        readers: read the tables.
        shop: the bucket.
        file: the pipeline's file.
        known: the columns of each table on the day before, which are updated.

    Yields:
        A line for each table.
    """
    lake = open_lake(file)
    documents = shop.bucket.read()
    assert documents == shop.bucket.documents
    names = [*shop.declared.keys]
    found = readers.read(str(lake.path / "tables"), names)
    for name in names:
        table = TypedTable.find(lake, name)
        assert table is not None
        columns, rows = check_readers(name, found[name])
        collection = shop.declared.tables.get(name.removesuffix(LETTERS), "").split('"')[1].partition(".")[2]
        expected = {key: read_document(value) for key, value in documents[collection].items()}
        letters = found.get(f"{name}{LETTERS}", {}).get("polars", {"rows": []})["rows"]
        if name.endswith(LETTERS):
            assert {row["_key"] for row in rows} <= {*expected}
        else:
            own = {
                name_key(row, shop.declared.keys[name]): rebuild_document(row, shop.declared.keys[name]) for row in rows
            }
            others = {row["_key"]: read_document(row["_document"].encode()) for row in letters}
            assert len(own) + len(others) == len(rows) + len(letters)
            assert_equal(name, own | others, expected)
            visible = {column: of for column, of in columns.items() if is_of_field(column)}
            assert visible == shop.columns[name], (name, visible, shop.columns[name])
        report = table.report_rest()
        assert report.rows == report.examined == sum(row.get("_rest") is not None for row in rows)
        conflicts = sum(each.values for each in report.misfits if each.is_conflict)
        new = sorted({*columns} - known.get(name, {*columns}))
        known[name] = {*columns}
        yield (
            f"        {name:<16} {len(rows):>5} rows {len(columns):>3} columns {conflicts:>5} misfits"
            f" {report.rows:>5} with _rest  {', '.join(new)}".rstrip()
        )


def name_key(row: dict[str, Any], keys: tuple[str, ...]) -> str:
    """Return the key of a row's document."""
    return f"order::{row['number']}" if keys else row["_key"]


def read_document(value: bytes) -> Any:
    """Return a document in the form that is compared; text for a value that is no JSON."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return {"_binary": base64.b64encode(value).decode()}
    try:
        return normalize_document(json.loads(text, parse_float=Decimal))
    except ValueError:
        return text


def assert_equal(name: str, found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Fail with the first documents that differ."""
    odd = [key for key in {*found, *expected} if found.get(key, "nothing") != expected.get(key, "nothing")]
    assert not odd, (name, len(odd), [(key, found.get(key), expected.get(key)) for key in sorted(odd)[:3]])


def check_readers(name: str, found: dict[str, Any]) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return columns and rows of a table; fails if two readers differ."""
    first, *others = ((each["columns"], sorted(map(json.dumps, each["rows"]))) for each in found.values())
    for reader, other in zip([*found][1:], others, strict=True):
        assert other[0] == first[0], (name, reader, other[0], first[0])
        assert other[1] == first[1], (name, reader, [*zip(other[1], first[1], strict=False)][:2])
    return first[0], [json.loads(row) for row in first[1]]


class OtherReaders:
    """A process without Penstock that reads tables with other programs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Self]:
        """Start the process."""
        command = [sys.executable, "-I", table_readers.__file__]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            yield cls(process)

    def read(self, directory: str, names: list[str]) -> dict[str, Any]:
        """Return table -> reader -> columns and rows."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([directory, names]), file=self._process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found
