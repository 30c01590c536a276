"""The fields of a source's values: the comparison with all documents of a run, and inferred fields that grow."""

import json

import pytest

from penstock.errors import UsageError
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.checks.value_fields import MAX_CHANGES, ValueFields, load_fields
from penstock.spark.pipeline.definition.definition import SourceDefinition
from penstock.spark.values.json_types import from_ddl
from tests.spark.buckets import compact
from tests.spark.lakes import append, rollback, row


def write(lake, batch, *rows):
    """Append rows to the changelog and return the paths of its files."""
    append(lake, batch, rows)
    table = lake.changelog_table
    return table.list_paths(table.list_files(table.open()))


def compare(ddl, paths):
    fields = ValueFields(ddl)
    fields.add_pending(paths)
    assert fields.is_due(0.0)
    fields.run()
    assert not fields.is_behind
    return fields.changes


def load(source, directory, guard=lambda: None):
    fields = load_fields(source, directory, None, guard)
    assert fields is not None
    return fields


def stored(*values):
    return [row(1, seqno, b"k%d" % seqno, value) for seqno, value in enumerate(values, 1)]


@pytest.mark.parametrize(
    ("rows", "changes"),
    [
        (stored(b'{"a": 1}', b'{"a": null}', b"{}"), ()),
        (stored(b'{"a": 1, "b": "x"}'), ("the new field b STRING",)),
        (stored(b'{"a": "x"}', b'{"a": "y"}'), ("a is BIGINT, found STRING",)),
        (stored(b"[1]"), ("values that are no JSON objects",)),
        (stored(b"\xff"), ("values that are no JSON objects",)),
        ([row(1, 1, None, event="begin_collection") | {"value": b'{"name": "hotel"}'}], ()),
        ([row(1, 1, b"k", event="deletion") | {"value": b'{"b": 1}'}, rollback(1, 0, 1)], ()),
        ([], ()),
    ],
)
def test_documents_and_nothing_else_are_compared(lake, rows, changes):
    assert compare("a BIGINT", write(lake, 0, row(2, 1, b"first", b'{"a": 1}'), *rows)) == changes


@pytest.mark.parametrize("place", [0, 999, 1_000, 5_000, 9_999])
def test_every_document_is_compared(lake, place):
    values = [b'{"a": 1}'] * 10_000
    values[place] = b'{"a": 1, "odd": true}'
    assert compare("a BIGINT", write(lake, 0, *stored(*values))) == ("the new field odd BOOLEAN",)


def test_fields_without_end_are_not_compared_further(lake):
    values = [compact({f"at {number}": 1}) for number in range(10_000)]
    changes = compare("a BIGINT", write(lake, 0, *stored(*values)))
    assert len(changes) == MAX_CHANGES + 1
    assert changes[-1] == "more differences than these, and are no longer compared"


def test_files_that_were_compacted_meanwhile_are_reported(lake):
    assert compare("a BIGINT", [str(lake.path / "gone.parquet")]) == (
        "changes that were compacted before they could be compared",
    )


class TestInferredFields:
    @pytest.fixture
    def source(self):
        return SourceDefinition(reader_options={"url": "couchbase://127.0.0.1:1/beer"}, value_schema="infer")

    @pytest.fixture
    def directory(self, lake):
        found = LakeDirectory(lake.path)
        found.create()
        (found.path / "_schema.json").write_text(json.dumps({"ddl": "a BIGINT, s STRUCT<x: STRING>"}))
        return found

    def test_grow_for_the_next_run(self, lake, source, directory):
        fields = load(source, directory)
        first = stored(b'{"a": "text", "b": 1}', b'{"A": 1, "s": {"x": "", "y": 2.5, "X": 1}, "t": {}}')
        fields.add_pending(write(lake, 0, *first))
        fields.run()
        assert fields.ddl == "a BIGINT, s STRUCT<x: STRING>"  # the filter of this run has these
        again = load(source, directory)
        assert from_ddl(again.ddl) == from_ddl("a BIGINT, s STRUCT<x: STRING, y: DOUBLE>, b BIGINT")
        again.add_pending(write(lake, 1, row(3, 1, b"new", b'{"b": 2, "c": 1}')))
        again.run()
        assert "the new field b BIGINT" not in again.changes
        assert {"the new field c BIGINT", "a is BIGINT, found STRING"} <= {*again.changes}
        assert "c" in from_ddl(load(source, directory).ddl).names

    def test_are_not_stored_by_a_run_that_was_taken_over(self, lake, source, directory):
        def refuse():
            raise UsageError("taken over")

        fields = load(source, directory, refuse)
        fields.add_pending(write(lake, 0, *stored(b'{"b": 1}')))
        with pytest.raises(UsageError, match="taken over"):
            fields.run()
        assert load(source, directory).ddl == "a BIGINT, s STRUCT<x: STRING>"


def test_declared_fields_are_not_stored(lake):
    directory = LakeDirectory(lake.path)
    source = SourceDefinition(reader_options={"url": "couchbase://127.0.0.1:1/beer"}, value_schema="a BIGINT")
    fields = load(source, directory)
    fields.add_pending(write(lake, 0, *stored(b'{"b": 1}')))
    fields.run()
    assert fields.changes == ("the new field b BIGINT",)
    assert not (directory.path / "_schema.json").exists()
