"""The text of a pipeline's file gives the same tables back, with all names and types."""

import tomllib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.feeds.collection_selection import qualify_name
from penstock.spark.dependents.checks import check_declared_name
from penstock.spark.dependents.kinds.table_definition import TableDefinition
from penstock.spark.pipeline.definition.definition import parse_definition
from penstock.spark.pipeline.definition.definition_text import (
    MOST_SCHEMA,
    DraftTable,
    choose_source_name,
    choose_table_names,
    format_definition,
)
from penstock.spark.values.json_types import from_ddl, may_be_column
from tests.naughty_names import BUCKETS, TEXTS

NAMES = (st.sampled_from([*TEXTS, "COMMENT", '"""', "\\", "a`b", "\x7f"]) | st.text(max_size=6)).filter(may_be_column)
PLAIN_TYPES = st.sampled_from([pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.decimal128(38, 0)])


def make_fields(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[tuple[str, pa.DataType]]]:
    return st.dictionaries(NAMES, types, min_size=1, max_size=4).map(lambda fields: [*fields.items()])


TYPES = st.recursive(PLAIN_TYPES, lambda inner: inner.map(pa.list_) | make_fields(inner).map(pa.struct), max_leaves=5)
URL = "couchbase://127.0.0.1:11210/beer"


def write_and_parse(source: str, *tables: DraftTable, **options: str | list[str]) -> list[TableDefinition]:
    text = format_definition("./lake", source, {"url": URL, **options}, tables)
    found = parse_definition(tomllib.loads(text), "/p.toml")
    return [each for each in found.dependents if isinstance(each, TableDefinition)]


@given(make_fields(TYPES).map(pa.schema), st.lists(st.text(), max_size=3))
def test_the_text_gives_the_table_back(fields, comments):
    draft = DraftTable(
        collection="shop.orders", name="orders", fields=fields, key="_key STRING", comments=tuple(comments)
    )
    (found,) = write_and_parse("beer", draft)
    assert (found.collection, found.name, found.key) == (draft.collection, draft.name, draft.key)
    assert from_ddl(found.schema) == fields


@pytest.mark.parametrize("fields", [pa.schema([]), pa.schema([("x" * MOST_SCHEMA, pa.int64())])])
def test_an_empty_or_long_schema_is_inferred(fields):
    (found,) = write_and_parse("beer", DraftTable(collection="_default", name="t", fields=fields, key="_key STRING"))
    assert found.schema == "infer"


COLLECTION = st.text("aAb_%-1", min_size=1, max_size=4) | st.just("x" * 251)


@given(st.sets(COLLECTION | st.tuples(COLLECTION, COLLECTION).map(".".join), max_size=8))
def test_tables_have_different_names(collections):
    names = choose_table_names([*collections])
    for name in names:
        check_declared_name("table", name)
    assert len({name.lower() for name in names}) == len(collections)
    drafts = [
        DraftTable(collection=".".join(qualify_name(each)), name=name, fields=pa.schema([]), key="_key STRING")
        for each, name in zip(collections, names, strict=True)
    ]
    assert [each.name for each in write_and_parse("beer", *drafts)] == names


@pytest.mark.parametrize("bucket", [*BUCKETS, "changelog", "current", "tables"])
def test_each_bucket_gives_a_source(bucket):
    draft = DraftTable(collection="_default", name="t", fields=pa.schema([]), key="_key STRING")
    assert len(write_and_parse(choose_source_name(bucket), draft, key_pattern='a"b', collections=["_default"])) == 1
