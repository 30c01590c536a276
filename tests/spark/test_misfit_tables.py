"""Misfits of typed tables as dead letters, or as the end of a run."""

import json
from dataclasses import replace
from itertools import pairwise
from tempfile import TemporaryDirectory

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.spark import Lake, vacuum
from penstock.spark.lake.current.current_table import merge_tables
from penstock.spark.lake.current.inferred_table import InferredTable
from penstock.spark.lake.current.misfit_table import MisfitTable
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable, list_typed_tables
from penstock.spark.lake.maintenance import lake_compaction
from penstock.spark.pipeline.definition.definition import read_definition
from penstock.spark.pipeline.maintenance.document_selection import DocumentSelection
from penstock.spark.pipeline.maintenance.erasure import erase_documents
from penstock.spark.pipeline.run.dependent_tasks import create_tasks
from penstock.spark.pipeline.state.lake_status import read_status
from penstock.spark.tables.key_pattern import KeyPattern
from penstock.spark.tables.misfit_documents import Misfits, find_misfit_rows
from penstock.spark.tables.misfits import MisfitFinder
from penstock.spark.values.json_types import from_ddl
from tests.examples import scaled
from tests.spark.lakes import append, checkpoint, model, rollback, row
from tests.spark.test_current import histories
from tests.spark.test_erasure import find_secrets

FIELDS = from_ddl("n BIGINT, tags ARRAY<STRING>")
ORDERS = TableShape(name="orders", fields=FIELDS, misfits="dead_letter")
INFERRED = TableShape(name="orders", fields=pa.schema([]), misfits="dead_letter")
HANDLED: dict[str, Misfits] = {"rests": "rest", "letters": "dead_letter"}
FITTING = [b'{"n": 1}', b'{"n": 2, "new": {"a": [1]}}', b'{"tags": ["a"]}', b"{}"]
ODD = [b'{"n": "1"}', b'{"tags": [1, 2, 3, 4, 5]}', b"[1]", b"no json", b"\xff", b'{"n": 1, "n": 2}', b'{"n": 1e400}']


def read(lake, name):
    """Return the rows of a table by document; fails if a document has two rows."""
    if not (lake.path / "tables" / name).exists():
        return {}
    found = {}
    for line in DeltaTable(str(lake.path / "tables" / name)).to_pyarrow_table().to_pylist():
        key = line["_key_bytes"] if line["_key"] is None else line["_key"].encode()
        identity = (line["_vbucket"], line["_collection_id"], key)
        assert identity not in found
        found[identity] = line
    return found


@settings(max_examples=scaled(100))
@given(st.lists(st.sampled_from([*FITTING, *ODD, None]), max_size=60))
def test_misfit_documents_are_found(values):
    found = find_misfit_rows(MisfitFinder(FIELDS, ()), pa.array(values, pa.binary()))
    assert found == [row for row, value in enumerate(values) if value in ODD]


@settings(max_examples=scaled(40))
@given(histories(), st.lists(st.integers(0, 40), max_size=4), st.booleans(), st.randoms())
def test_two_tables_have_each_document_once(rows, ends, is_inferred, chance):
    rows = [each | ({"value": chance.choice(FITTING + ODD)} if each.get("value") is not None else {}) for each in rows]
    with TemporaryDirectory() as directory:
        lake = Lake(directory)
        table = InferredTable(lake, INFERRED) if is_inferred else TypedTable(lake, ORDERS)
        letters = MisfitTable(table)
        cuts = sorted({0, len(rows), *(min(end, len(rows)) for end in ends)})
        for batch, (start, end) in enumerate(pairwise(cuts)):
            append(lake, batch, rows[start:end])
            merge_tables([table.describe(), letters.describe()])
            bucket = {key: value for key, (_, value) in model(rows[:end]).items() if key[1] == 0}
            rows_found, letters_found = read(lake, "orders"), read(lake, "orders_misfits")
            assert {*rows_found}.isdisjoint(letters_found)
            assert {*rows_found, *letters_found} == {*bucket}
            if not is_inferred:
                assert {*letters_found} == {key for key, value in bucket.items() if value in ODD}
            for key, line in letters_found.items():
                try:
                    assert json.loads(line["_document"]).items() <= json.loads(bucket[key]).items()
                except (ValueError, AttributeError):
                    assert line["_reason"] == "no JSON object" or "1e400" in line["_document"]


def test_a_dead_letter_has_its_reason_and_goes_with_a_correction_and_a_rollback(lake):
    shape = TableShape(name="orders", fields=FIELDS, key=KeyPattern.parse("o::{id INT}"), misfits="dead_letter")
    table = TypedTable(lake, shape)
    letters = MisfitTable(table)

    def merge():
        merge_tables([table.describe(), letters.describe()])
        columns = ["id", "_field", "_reason", "_found", "_expected", "_document"]
        return pl.read_delta(str(lake.path / "tables" / "orders_misfits")).select(columns).sort("id").rows()

    append(
        lake, 0, [row(1, 1, b"o::1", b'{"n": 1}'), row(1, 2, b"o::2", b'{"n": "x", "a": 1}'), row(2, 1, b"o::3", b"3")]
    )
    assert merge() == [
        (2, "n", "other type", "text", "BIGINT", '{"n":"x","a":1}'),
        (3, "", "no JSON object", "no object", None, "3"),
    ]
    append(
        lake,
        1,
        [row(1, 3, b"o::1", b'{"n": true}'), row(1, 4, b"o::2", b'{"n": 2}'), row(2, 2, b"o::3", None, "deletion")],
    )
    assert merge() == [(1, "n", "other type", "boolean", "BIGINT", '{"n":true}')]
    append(lake, 3, [rollback(1, 2, 1)])
    assert [line[:2] for line in merge()] == [(2, "n")]
    assert [line["n"] for line in read(lake, "orders").values()] == [1]
    assert [each.name for each in list_typed_tables(lake)] == ["orders", "orders_misfits"]
    lake_compaction.compact(lake)
    assert [line[:2] for line in merge()] == [(2, "n")]
    with pytest.raises(UsageError, match="orders_misfits is a table of "):
        MisfitTable(TypedTable(lake, TableShape(name="orders", fields=FIELDS, misfits="dead_letter"))).describe()


def test_dead_letters_return_when_a_column_becomes_wider(lake):
    table = InferredTable(lake, INFERRED)
    letters = MisfitTable(table)
    append(lake, 0, [row(1, n, b"%d" % n, b'{"n": %d}' % n) for n in range(1, 9)])
    merge_tables([table.describe(), letters.describe()])
    append(lake, 1, [row(1, 10, b"a", b'{"n": "x"}'), row(1, 11, b"b", b'{"n": 1.5}')])
    merge_tables([table.describe(), letters.describe()])
    assert {key for _, _, key in read(lake, "orders_misfits")} == {b"a", b"b"}
    append(lake, 2, [row(2, n, b"%d" % n, b'{"n": 0.5}') for n in range(10, 30)])
    merge_tables([table.describe(), letters.describe()])
    assert {key for _, _, key in read(lake, "orders_misfits")} == {b"a"}
    assert {line["n"] for key, line in read(lake, "orders").items() if key[2] == b"b"} == {1.5}


@pytest.mark.parametrize(
    ("value", "place", "reason", "expected"),
    [
        (b'{"n": "x"}', "field n of document", "other type: text", "BIGINT"),
        (b"5", "document", "no JSON object: no object", "a JSON object"),
        (b'{"new": 1}', None, None, None),
    ],
)
@pytest.mark.parametrize("is_inferred", [True, False])
def test_fail_commits_nothing_and_names_the_document(lake, value, place, reason, expected, is_inferred):
    shape = TableShape(name="orders", fields=pa.schema([]) if is_inferred else FIELDS, misfits="fail")

    def merge():
        table = InferredTable(lake, shape, "keep") if is_inferred else TypedTable(lake, shape)
        return merge_tables([table.describe()])

    append(lake, 0, [row(1, n, b"%d" % n, b'{"n": %d}' % n) for n in range(1, 9)])
    merge()
    append(lake, 1, [row(2, 1, b"a", b'{"n": 1}'), row(1, 10, b"k\xff", value)])
    if place is None:
        merge()
        return
    for _ in range(2):
        with pytest.raises(UsageError) as raised:
            merge()
        assert str(raised.value).startswith(
            rf"table orders: {place} k\xff has a value that does not fit ({reason}), and misfits is 'fail'; expected"
            f" {expected}"
        )
        assert len(read(lake, "orders")) == 8
    append(lake, 2, [row(1, 11, b"k\xff", b'{"n": 2}')])
    merge()
    assert len(read(lake, "orders")) == 10
    rest = replace(shape, misfits="rest")  # makes the same rows, so the table stays
    table = InferredTable(lake, rest) if is_inferred else TypedTable(lake, rest)
    assert table.position() is not None


def test_an_erased_document_is_in_no_count_and_no_dead_letter(lake):
    tables = [TypedTable(lake, replace(ORDERS, name=name, misfits=misfits)) for name, misfits in HANDLED.items()]
    targets: list[TypedTable | MisfitTable] = [*tables, MisfitTable(tables[1])]
    others = [row(vbucket, 1, b"other %d" % vbucket, b'{"n": "1"}') for vbucket in (0, 4)]
    append(lake, 0, [*others, row(8, 2, b"zqkey", b'{"n": "zqvalue"}')])
    merge_tables([each.describe() for each in targets])
    append(lake, 1, [row(8, 3, b"zqkey", b'{"n": ["zqvalue"]}')])
    merge_tables([each.describe() for each in targets])
    assert {"zqkey"} <= {key for each in tables[0].report_rest().misfits for key in each.keys}
    found = {name.partition("/")[0] for name, _ in find_secrets(lake.path / "tables")}
    assert found == {"rests", "letters_misfits"}
    erase_documents(lake, DocumentSelection((b"zqkey",)))
    vacuum(lake, 0)
    assert find_secrets(lake.path) == []
    assert [tables[0].report_rest().rows, len(read(lake, "letters")), len(read(lake, "letters_misfits"))] == [2, 0, 2]


FILE = """
lake = "lake"
[source.beer]
url = "couchbase://127.0.0.1:1/beer"
[[table]]
collection = "_default"
name = "orders"
schema = "infer"
misfits = "dead_letter"
"""


def test_a_pipeline_keeps_dead_letters(tmp_path):
    file = tmp_path / "pipeline.toml"
    file.write_text(FILE)
    definition = read_definition(str(file))
    source = definition.sources[0]
    lake = Lake(definition.locate_lake(source))
    checkpoint(lake.checkpoint, batches=1)
    append(lake, 0, [row(1, n, b"%d" % n, b'{"n": 1}') for n in range(1, 9)] + [row(2, 1, b"x", b"x")])
    for task in create_tasks(definition, source, lake):
        task.run()
    assert (len(read(lake, "orders")), len(read(lake, "orders_misfits"))) == (8, 1)
    names = {each.name for each in definition.list_dependents(source)}
    status = read_status(lake, "beer", names)
    assert [(each.name, each.size and each.size.rows) for each in status.dependents] == [
        ("orders", 8), ("orders_misfits", 1), ("current", 9),
    ]  # fmt: skip
    assert status.removed == ()
    file.write_text(FILE.replace("dead_letter", "letters"))
    with pytest.raises(UsageError, match="misfits"):
        read_definition(str(file))
    file.write_text(FILE + '[[table]]\ncollection = "_default"\nname = "Orders_misfits"\nschema = "n INT"\n')
    with pytest.raises(UsageError, match="expected names that differ without case"):
        read_definition(str(file))
