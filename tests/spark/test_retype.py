"""Retyping: a typed table gets another schema from the changelog, in one commit that a kill cannot tear."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import LakeRefused, UsageError
from penstock.spark import Lake
from penstock.spark.dependents.dependent import catch_up
from penstock.spark.lake.current.current_table import PreparedMerge
from penstock.spark.lake.current.shape_changes import list_shape_changes
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.lake.tables.lake_lock import hold_lock
from penstock.spark.pipeline.checks.lake_checks import check_lake
from penstock.spark.pipeline.definition.definition import PipelineDefinition, read_definition
from penstock.spark.pipeline.maintenance.retyping import retype_tables
from penstock.spark.pipeline.run.run_plan import plan_run
from penstock.spark.tables.column_rules import parse_rule
from penstock.spark.tables.key_pattern import KeyPattern
from penstock.spark.values.json_types import from_ddl
from tests.examples import scaled
from tests.patience import PATIENCE
from tests.spark.lakes import append, checkpoint, row
from tests.spark.test_current import histories

PIPELINE = """
lake = "lake"
[source.shop]
url = "couchbase://127.0.0.1:1/shop?retrySeconds=0.05"
[[table]]
collection = "_default"
name = "orders"
"""
OWN = {"_loaded_at", "_batch", "vbucket_range"}
OLD, NEW = 'schema = "n INT, total BIGINT"', 'schema = "n BIGINT, total DECIMAL(8,2), city STRING"'


def declare(root: Path, keys: str) -> PipelineDefinition:
    """Write the pipeline's file with the keys of its table."""
    file = root / "pipeline.toml"
    file.write_text(PIPELINE + keys)
    return read_definition(str(file))


def merge(definition: PipelineDefinition, lake: Lake) -> None:
    """Merge the changes of the changelog into the table."""
    catch_up(definition.dependents[0].open(lake), lake)


def build(root: Path, keys: str) -> PipelineDefinition:
    """Merge the table of a declaration."""
    definition = declare(root, keys)
    merge(definition, Lake(root / "lake"))
    return definition


def read(root: Path, name: str = "orders", version: int | None = None) -> pa.Table:
    return DeltaTable(str(root / "lake" / "tables" / name), version=version).to_pyarrow_table().sort_by("_key")


def drop_own(rows: pa.Table) -> list[dict[str, object]]:
    """Return rows without the columns of their merge, by document."""
    lines = [{name: value for name, value in line.items() if name not in OWN} for line in rows.to_pylist()]
    return sorted(lines, key=lambda line: (line["_vbucket"], line["_seqno"], str(line["_key"])))


@pytest.fixture
def lake(tmp_path):
    lake = Lake(tmp_path / "lake")
    checkpoint(lake.checkpoint, batches=1)
    append(
        lake,
        0,
        [
            row(n % 64, n + 1, b"o%03d" % n, json.dumps({"n": n, "total": n / 4, "city": "x" if n % 3 else 5}).encode())
            for n in range(300)
        ],
    )
    return lake


def test_a_table_gets_the_declared_columns_in_one_commit(lake, tmp_path):
    build(tmp_path, OLD)
    reader = DeltaTable(str(tmp_path / "lake" / "tables" / "orders"))
    before, version = read(tmp_path), reader.version()
    definition = declare(tmp_path, NEW)
    source = definition.sources[0]
    with pytest.raises(UsageError, match=r"a table of another declaration: n was INT and is BIGINT; .*retype"):
        check_lake(definition, source, lake)
    states: list[str] = []
    (found,) = retype_tables(definition, report=states.append)
    assert states[-1] == "Building orders 300 rows"
    assert found.changes == ("n was INT and is BIGINT", "total was BIGINT and is DECIMAL(8, 2)", "city STRING is new")
    assert (found.before.columns, found.before.rows) == ({"n": "INT", "total": "BIGINT"}, 300)
    assert (found.after.columns["total"], found.after.rows) == ("DECIMAL(8, 2)", 300)
    assert (found.before.rest.rows, found.after.rest.rows) == (300, 100)
    assert reader.version() == version
    assert reader.to_pyarrow_table().num_rows == before.num_rows
    assert DeltaTable(str(tmp_path / "lake" / "tables" / "orders")).version() == version + 1
    check_lake(definition, source, lake)
    place = str(tmp_path / "lake" / "tables" / "orders")
    assert pl.scan_delta(place).select(pl.col("total").sum(), pl.col("n").max()).collect().rows() == [
        (sum(n / 4 for n in range(300)), 299)
    ]
    rows = DeltaTable(place).to_pyarrow_dataset()
    typed = duckdb.sql("SELECT typeof(total), count(city) FROM rows GROUP BY 1")
    assert typed is not None
    assert typed.fetchall() == [("DECIMAL(8,2)", 200)]
    assert rows.count_rows() == 300
    assert read(tmp_path, version=version).column_names == before.column_names
    (again,) = retype_tables(definition, ["orders"])
    assert (again.changes, again.before) == ((), again.after)
    assert DeltaTable(place).version() == version + 1


def test_the_plan_shows_the_differences(lake, tmp_path):
    build(tmp_path, OLD)
    definition = declare(tmp_path, NEW)
    plan = plan_run(definition)
    part = next(each for each in plan.sources[0].parts if each.name == "orders")
    assert part.changes == (
        "n was INT and is BIGINT",
        "total was BIGINT and is DECIMAL(8, 2)",
        "city STRING is new",
    )
    assert "penstock pipeline retype FILE --table orders" in str(plan.refusal)


def test_merges_go_on_after_it(lake, tmp_path):
    build(tmp_path, OLD)
    definition = declare(tmp_path, NEW)
    retype_tables(definition)
    append(lake, 1, [row(1, 1000, b"o001", b'{"n": 7, "total": 1.25, "city": "y"}'), row(2, 1001, b"new", b'{"n": 8}')])
    merge(definition, lake)
    found = {line["_key"]: line for line in read(tmp_path).to_pylist()}
    assert len(found) == 301
    assert (found["o001"]["n"], str(found["o001"]["total"]), found["o001"]["city"]) == (7, "1.25", "y")
    feed = pa.table(DeltaTable(str(tmp_path / "lake/tables/orders")).load_cdf(starting_version=2).read_all())
    assert sorted(feed["_change_type"].to_pylist()) == ["insert", "update_postimage", "update_preimage"]


def test_inferred_columns_are_those_of_all_documents(lake, tmp_path):
    build(tmp_path, OLD)
    append(lake, 1, [row(n % 64, 1000 + n, b"p%04d" % n, b'{"n": 1}') for n in range(2000)])
    append(lake, 2, [row(5, 9000, b"rare", b'{"rare": {"at": true}}')])
    (found,) = retype_tables(declare(tmp_path, 'schema = "infer"'))
    assert found.after.columns == {"n": "BIGINT", "total": "DOUBLE", "city": "STRING", "rare": "STRUCT<at: BOOLEAN>"}
    assert found.after.rest.rows == 100
    # Later, also a rule for an inferred field needs no other declaration.
    columns = 'schema = "infer"\n[table.columns]\ntotal = "DECIMAL(8,2)"'
    definition = declare(tmp_path, columns)
    with pytest.raises(UsageError, match=r"another declaration: total was DOUBLE and is DECIMAL\(8, 2\)\. Build it"):
        merge(definition, lake)
    assert retype_tables(definition)[0].after.columns["total"] == "DECIMAL(8, 2)"


def test_a_run_and_retype_exclude_each_other(lake, tmp_path):
    build(tmp_path, OLD)
    definition = declare(tmp_path, NEW)
    with hold_lock(lake.path, 0), pytest.raises(LakeRefused, match=r"another run writes .*lake; stop it first"):
        retype_tables(definition)

    def report(text: str) -> None:
        with pytest.raises(LakeRefused, match="another run writes"):
            hold_lock(lake.path, 0).__enter__()

    assert retype_tables(definition, report=report)[0].changes


def test_tables_that_are_not_there(lake, tmp_path):
    definition = declare(tmp_path, NEW)
    assert retype_tables(definition) == []
    with pytest.raises(UsageError, match="table 'orders' does not exist yet; penstock pipeline run builds it"):
        retype_tables(definition, ["orders"])
    with pytest.raises(UsageError, match="the pipeline declares no table 'order', expected orders"):
        retype_tables(definition, ["order"])
    with pytest.raises(UsageError, match="source is 'beer', expected shop"):
        retype_tables(definition, source="beer")
    nothing = declare(tmp_path / "..", NEW)
    assert retype_tables(replace(nothing, lake=str(tmp_path / "nowhere"))) == []
    assert not (tmp_path / "nowhere").exists()


@settings(max_examples=scaled(25))
@given(histories(), st.lists(st.integers(0, 40), max_size=3), st.sampled_from(["remove", "mark"]))
def test_a_table_equals_one_that_had_the_columns_from_the_start(rows, ends, deletes):
    rows = [
        each | ({} if each.get("value") is None else {"value": json.dumps({"n": each["seqno"], "t": "x"}).encode()})
        for each in rows
    ]
    with TemporaryDirectory() as directory:
        root = Path(directory)
        lake = Lake(root / "lake")
        cuts = sorted({0, len(rows), *(min(end, len(rows)) for end in ends)})
        old, new = 'schema = "n STRING"', f'schema = "t STRING, n BIGINT"\ndeletes = "{deletes}"\nkey = "k{{i INT}}"'
        for batch, (start, end) in enumerate(pairwise(cuts)):
            append(lake, batch, rows[start:end])
            if not batch:
                build(root, old)
                definition = declare(root, new)
                assert retype_tables(definition)[0].changes
        if len(cuts) < 2:
            return
        merge(definition, lake)
        table = TypedTable.find(lake, "orders")
        assert table is not None
        assert isinstance(table.shape, TableShape)
        once = TypedTable(lake, replace(table.shape, name="once"))
        once.merge()
        assert drop_own(read(root)) == drop_own(read(root, "once"))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, []),
        ({"fields": from_ddl("n INT")}, ["n was BIGINT and is INT", "o was removed"]),
        ({"fields": from_ddl("o STRUCT<a: INT, b: INT>, n BIGINT")}, ["the order of the columns, or of fields inside"]),
        ({"fields": from_ddl("n BIGINT, o STRUCT<a: INT, c: INT>")}, ["o.c INT is new", "o.b was removed"]),
        ({"collection": "c"}, ["collection was '_default._default' and is '_default.c'"]),
        ({"deletes": "mark"}, ["deletes was 'remove' and is 'mark'"]),
        ({"metadata": ()}, ["metadata was changed_at, loaded_at, batch and is none"]),
        (
            {"key": KeyPattern.parse("k{i INT}")},
            ["i INT is new", "key was '_key STRING' and is 'k{i INT}'"],
        ),
        (
            {"rules": (parse_rule(("at",), "seen TIMESTAMP FROM 'unix_ms'"),)},
            ["seen was field 'at' FROM 'unix_s' and is field 'at' FROM 'unix_ms'"],
        ),
    ],
)
def test_differences_are_named(changed, words):
    fields = from_ddl("n BIGINT, o STRUCT<a: INT, b: INT>")
    before = TableShape(name="orders", fields=fields, rules=(parse_rule(("at",), "seen TIMESTAMP FROM 'unix_s'"),))
    found = list_shape_changes(before, replace(before, **changed))
    assert len(found) == len(words)
    assert all(text.startswith(word) for text, word in zip(found, words, strict=True))


def drive(root: Path, point: str) -> None:
    """Retype a table, and kill the process before or after the commit."""
    patch, commit = pytest.MonkeyPatch(), PreparedMerge.commit

    def kill(merge: PreparedMerge) -> None:
        if point == "committed":
            commit(merge)
        os.kill(os.getpid(), signal.SIGKILL)

    patch.setattr(PreparedMerge, "commit", kill)
    retype_tables(read_definition(str(root / "pipeline.toml")))


@pytest.mark.process
def test_a_killed_process_leaves_the_old_table_or_the_new_one(lake, tmp_path):
    build(tmp_path, OLD)
    before, files = drop_own(read(tmp_path)), len([*(lake.path / "tables").rglob("*.parquet")])
    definition = declare(tmp_path, NEW)
    command = [sys.executable, "-m", "tests.spark.test_retype", str(tmp_path)]

    def run(point: str) -> None:
        done = subprocess.run([*command, point], timeout=PATIENCE, check=False, cwd=Path(__file__).parents[2])
        assert done.returncode == -signal.SIGKILL

    run("written")
    assert drop_own(read(tmp_path)) == before
    assert len([*(lake.path / "tables").rglob("*.parquet")]) == 2 * files
    run("committed")
    assert read(tmp_path)["city"].null_count == 100
    (found,) = retype_tables(definition)  # the lock is free, and nothing is left to do
    assert found.changes == ()


if __name__ == "__main__":
    drive(Path(sys.argv[1]), sys.argv[2])
