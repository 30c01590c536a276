"""The tables and keys of a pipeline's file, and the errors for invalid files."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.client.connect.address import RecreatedBucket
from penstock.errors import UsageError
from penstock.spark import Lake
from penstock.spark.dependents.kinds.fulltext import FullTextKind
from penstock.spark.dependents.kinds.invalidation import InvalidationKind
from penstock.spark.dependents.kinds.secondary_index import SecondaryIndexKind
from penstock.spark.dependents.kinds.xdcr_target import XdcrTargetKind
from penstock.spark.dependents.registry import list_kinds
from penstock.spark.pipeline.definition.definition import (
    CurrentSettings,
    PipelineDefinition,
    SourceDefinition,
    TableSettings,
    define_bucket_pipeline,
    parse_definition,
    read_definition,
)
from penstock.spark.pipeline.definition.lineage_settings import LineageSettings
from penstock.spark.pipeline.definition.run_options import DashboardSettings, Metrics
from penstock.toml_tables import list_keys
from penstock.wire.codec.constants import Dialect

WHOLE = """
lake = "lake"

[source.beer]
url = "couchbase://127.0.0.1:11210/beer"
username = "reader"
password_file = "secret"
scope = "brew"
collections = ["ales", "stouts"]
max_changes_per_trigger = 1000
protocol = "dcp"
where = "abv > 5"
value_schema = "abv DOUBLE"
trigger_seconds = 2

[source.orders]
url = "couchbase://127.0.0.1:11210/orders"
protocol = "upr"

[tables]
current = false

[current]
merge_rows = 10
merge_share = 0.5
merge_age_seconds = 3

[[index]]
name = "by_abv"
source = "beer"
path = "abv"
type = "double"

[[fulltext]]
name = "words"
source = "beer"
paths = ["name", "description"]

[[sink]]
kind = "invalidate"
name = "cache"
source = "orders"
url = "http://127.0.0.1:8080/gone"

[[sink]]
kind = "bucket"
name = "copy"
source = "orders"
url = "couchbase://127.0.0.1:11210/copy"
dead_letter_path = "refused"
sql = "SELECT * FROM changes"
lost = "keep"

[dashboard]
port = 9100
host = "10.0.0.1"
login = "viewer.json"

[metrics]
port = 9100
"""

TABLE = '\n[[table]]\ncollection = "ales"\n'
TYPED = 'schema = "n BIGINT"\n'
LINES = 'schema = "n BIGINT, lines ARRAY<INT>"\nchildren = ["lines"]\n'
BACK = '\n[[sink]]\nkind = "bucket"\nname = "s"\nurl = "couchbase://127.0.0.1:11210/beer"\n'
SMALL = 'lake = "lake"\n[source.beer]\nurl = "couchbase://127.0.0.1/beer"\n'


@pytest.fixture
def parse(tmp_path, monkeypatch):
    """Return a function that writes a file and parses it."""
    (tmp_path / "secret").write_text("correct horse\n")
    monkeypatch.setenv("PENSTOCK_URL", "couchbase://127.0.0.1/default")

    def parse(text: str) -> PipelineDefinition:
        path = tmp_path / "pipeline.toml"
        path.write_text(text)
        return read_definition(str(path))

    return parse


def test_all_keys_are_parsed(parse, tmp_path):
    found = parse(WHOLE)
    beer, orders = found.sources
    assert found.lake == str(tmp_path / "lake")
    assert found.locate_lake(beer) == str(tmp_path / "lake" / "beer")
    assert beer.format_options() == {
        "url": "couchbase://127.0.0.1:11210/beer",
        "username": "reader",
        "passwordFile": str(tmp_path / "secret"),
        "scope": "brew",
        "collections": "ales,stouts",
        "maxChangesPerTrigger": "1000",
        "protocol": "dcp",
    }
    assert beer.parse_options().address.options.collections == ("ales", "stouts")
    assert orders.parse_options().dialect is Dialect.UPR
    filters = {"scope": "brew", "collections": "ales,stouts", "where": "abv > 5", "value_schema": "abv DOUBLE"}
    assert beer.list_content_options() == filters
    assert (beer.trigger_seconds, orders.trigger_seconds) == (2.0, 1.0)
    assert found.tables == TableSettings(current=False)
    assert found.current == CurrentSettings(merge_rows=10, merge_share=0.5, merge_age_seconds=3.0)
    index, text, cache, copy = found.dependents
    assert index == SecondaryIndexKind(name="by_abv", source="beer", path="abv", type="double")
    assert text == FullTextKind(name="words", source="beer", paths=("name", "description"))
    assert isinstance(cache, InvalidationKind)
    assert isinstance(copy, XdcrTargetKind)
    assert (copy.operation, copy.lost) == ("with-meta", "keep")
    assert copy.format_options() == {
        "url": "couchbase://127.0.0.1:11210/copy",
        "operation": "with-meta",
        "deadLetterPath": str(tmp_path / "refused"),
        "errors": "deadletter",
    }
    assert cache.url == "http://127.0.0.1:8080/gone"
    assert (found.list_dependents(beer), found.list_dependents(orders)) == ([index, text], [cache, copy])
    assert found.metrics == Metrics(port=9100)
    assert found.dashboard == DashboardSettings(port=9100, host="10.0.0.1", login=str(tmp_path / "viewer.json"))


def test_only_source_uses_the_lake_directory(parse, tmp_path):
    found = parse(SMALL + '[[index]]\nname = "i"\npath = "abv"\n')
    (beer,) = found.sources
    assert found.locate_lake(beer) == str(tmp_path / "lake")
    assert found.list_dependents(beer) == list(found.dependents)


def test_iceberg_without_its_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    path = tmp_path / "p.toml"
    path.write_text(SMALL + '[tables]\nformat = "iceberg"')
    with pytest.raises(UsageError, match=r"needs pyiceberg: pip install 'penstock\[iceberg\]'"):
        read_definition(str(path))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lake = ", "not TOML: "),
        ("", "has no lake"),
        ("lake = 5", "lake is 5, expected a directory such as ./lake"),
        ('lake = "l"\nsources = 1', "has an unknown key 'sources'; did you mean source?"),
        ('lake = "l"', "has no source, expected a table [source.NAME] with the url of a bucket"),
        ('lake = "l"\n[source]\nurl = "x"', "[source] has the key 'url', expected a table [source.NAME]"),
        (SMALL + "max_changes = 5", "[source.beer] has an unknown key 'max_changes'; did you mean max_changes_per_"),
        (SMALL + "zzz = 5", "[source.beer] has an unknown key 'zzz'; known are trigger_seconds, url, bucket, "),
        (SMALL + 'trigger_seconds = "5"', "[source.beer] trigger_seconds is '5', expected a number"),
        (SMALL + "trigger_seconds = -1", "[source.beer] trigger_seconds is -1.0, expected 0 to 86400"),
        (SMALL + "keys_only = 1", "[source.beer] keys_only is 1, expected true or false"),
        (SMALL + 'collections = "a"', "[source.beer] collections is 'a', expected a list of texts"),
        (SMALL + "collections = []", "[source.beer] collections is an empty list, expected a list of texts"),
        (SMALL + 'rollback = "stop"', "[source.beer] rollback is 'stop', expected 'row' or 'fail'"),
        (SMALL + 'protocol = "tap"', "[source.beer] option protocol is 'tap', but TAP cannot resume"),
        (SMALL + 'where = "a"\nkeys_only = true', "[source.beer] has where and keys_only, but SQL on the value needs"),
        (SMALL + '["source"."a b"]', "[source.a b] the name of the source is 'a b', expected 1 to 64 letters"),
        (SMALL + 'username = "ada"\npassword_file = "none"', "none: No such file or directory"),
        (SMALL + '[tables]\nformat = "csv"', "[tables] format is 'csv', expected 'delta' or 'iceberg'"),
        (SMALL + '[tables]\ncatalog = "sqlite:///c"', "[tables] catalog is for Iceberg tables, and format is 'delta'"),
        (
            SMALL + '[tables]\nformat = "iceberg"\ncatalog = "hive://h"',
            "[tables] catalog is 'hive://h', expected sqlite",
        ),
        (
            SMALL + '[tables]\nformat = "iceberg"\ncatalog = "https://me:secret@host/"',
            "[tables] catalog must not hold credentials or a query; PyIceberg reads them from",
        ),
        (
            SMALL.replace('lake = "lake"', 'lake = "s3://b/l"') + '[tables]\nformat = "iceberg"',
            "the lake is s3://b/l, whose format is 'iceberg', and has no catalog; expected catalog = the http or https",
        ),
        (
            SMALL.replace('lake = "lake"', 'lake = "s3://b/l"')
            + '[tables]\nformat = "iceberg"\ncatalog = "sqlite:////c"',
            "s3://b/l, whose format is 'iceberg', and has the catalog sqlite:////c, a file of one machine; expected",
        ),
        (
            SMALL + '[tables]\nformat = "parquet"',
            "[tables] format is 'parquet', whose files have no versions",
        ),
        (
            SMALL + '[tables]\nformat = "parquet"\ncurrent = false\n[[fulltext]]\nname = "t"',
            "[[fulltext]] 1 depends on a changelog of plain parquet, which has no versions; expected 'delta'",
        ),
        (SMALL + 'renamed_from = "beer"', "[source.beer] renamed_from is 'beer', expected a name that no other source"),
        (SMALL + "[source.indexes]", "[source.indexes] the name of the source is 'indexes', which is a directory in a"),
        (SMALL + "[current]\nmerge_share = 2", "[current] merge_share is 2.0, expected 0 to 1"),
        (SMALL + '[index]\nname = "i"', "[index] is one table, expected [[index]]"),
        (SMALL + '[[index]]\nname = "i"', "[[index]] 1 has no path"),
        (SMALL + '[[index]]\nname = "current"\npath = "p"', "[[index]] 1 name is 'current', which is a table of the"),
        (
            SMALL + '[[index]]\nname = "i"\npath = "p"\n[[fulltext]]\nname = "i"\npaths = ["p"]',
            "[[fulltext]] 1 name is 'i', and so is that of [[index]] 1",
        ),
        (SMALL + '[[fulltext]]\nname = "i"\npaths = ["p"]\nsource = "x"', "source is 'x', expected one of beer"),
        (
            SMALL + '[source.two]\n[[sink]]\nkind="bucket"\nname="s"\nurl="couchbase://h"',
            "[[sink]] 1 has no source, expected one of",
        ),
        (
            SMALL + '[[index]]\nname = "i"\npath = "a..b"',
            "[[index]] 1 the path is 'a..b'; expected names",
        ),
        (SMALL + '[[fulltext]]\nname = "i"\npaths = ["a", "b["]', "[[fulltext]] 1 the path is 'b['; expected names"),
        (SMALL + '[[fulltext]]\nname = "i"\npaths = []', "[[fulltext]] 1 paths is an empty list, expected a list of"),
        (SMALL + TABLE + 'schema = "n INTT"', "[[table]] 1 schema 'n INTT' has 'INTT' where BOOLEAN, TINYINT"),
        (SMALL + TABLE, "[[table]] 1 has no schema"),
        (
            SMALL + TABLE + TYPED + 'mode = "scd2"',
            "[[table]] 1 mode is 'scd2', expected 'current' or 'history' or 'changes'",
        ),
        (
            SMALL + TABLE + TYPED + 'mode = "history"\ndeletes = "mark"',
            "[[table]] 1 deletes is 'mark', and mode is 'history', which keeps the rows of deleted documents anyway;",
        ),
        (SMALL + TABLE + TYPED + 'deletes = "keep"', "deletes is 'keep', expected 'remove' or 'mark'"),
        (SMALL + TABLE + TYPED + 'cluster_by = ["m"]', "cluster_by has 'm', expected some of "),
        (
            SMALL + TABLE + 'schema = "n BIGINT, tags ARRAY<STRING>"\ncluster_by = ["tags"]',
            "cluster_by has 'tags', a column of arrays or objects; expected single values",
        ),
        (SMALL + TABLE + TYPED + 'metadata = ["cas"]', "metadata has 'cas', expected some of changed_at, loaded_at"),
        (SMALL + TABLE + TYPED + 'key = "{n}"', "key is '{n}', where 'n' is no column with its type; expected such as"),
        (SMALL + TABLE + TYPED + 'key = "n BIGINT"', "column 'n' is in schema and in key 'n BIGINT', expected another"),
        (SMALL + TABLE + TYPED + 'name = "a b"', "the name of the table is 'a b', expected 1 to 64 letters"),
        (SMALL + TABLE + TYPED + 'name = "changelog"', "name is 'changelog', which is a table of the lake"),
        (SMALL + TABLE.replace("ales", "a.b.c") + TYPED, "collection 'a.b.c', expected name or scope.name"),
        (SMALL + TABLE + TYPED + TABLE + TYPED, "[[table]] 2 name is 'ales', and so is that of [[table]] 1"),
        (
            SMALL + TABLE + TYPED + TABLE.replace("ales", "Ales") + TYPED,
            "[[table]] 2 name is 'Ales', beside 'ales'; expected names that differ without case",
        ),
        (
            SMALL + 'collections = ["a.b", "c"]' + TABLE + TYPED,
            "collection is '_default.ales', which the source does not read; expected one of a.b, _default.c",
        ),
        (
            SMALL + 'scope = "a"' + TABLE.replace("ales", "b.ales") + TYPED,
            "collection is 'b.ales', which the source does not read; expected one of a.*",
        ),
        (
            SMALL + 'protocol = "upr"' + TABLE + TYPED,
            "collection is 'ales', and protocol is 'upr', which does not support collections; expected '_default'",
        ),
        (
            SMALL + TABLE + TYPED + 'evolve = "add"',
            "evolve is 'add', and schema has the fields; expected",
        ),
        (SMALL + TABLE + 'schema = "infer"\nevolve = "no"', "evolve is 'no', expected 'add' or 'keep' or 'fail'"),
        (SMALL + TABLE + TYPED + "columns.a.b = 'INT'", "columns is a table, expected a table of texts, where a key"),
        (SMALL + TABLE + TYPED + "columns = { a = 'x INTT' }", "[[table]] 1 column of field 'a' is 'x INTT'; expected"),
        (
            SMALL + TABLE + LINES + TABLE.replace("ales", "ales_lines") + TYPED,
            "[[table]] 2 name is 'ales_lines', and so is that of [[table]] 1",
        ),
        (
            SMALL + TABLE.replace("ales", "Ales_lines") + TYPED + TABLE + LINES,
            "[[table]] 2 name is 'ales_lines', beside 'Ales_lines'; expected names that differ without case",
        ),
        (
            SMALL + TABLE + LINES.replace('"]', '", "Lines"]').replace("n BIGINT", "Lines ARRAY<INT>"),
            "[[table]] 1 name is 'ales_Lines', beside 'ales_lines'; expected names that differ without case",
        ),
        (
            SMALL + TABLE + LINES.replace('["', '["lines[].'),
            "[[table]] 1 children has 'lines[].lines', which is inside",
        ),
        (SMALL + TABLE + LINES.replace('["', '"').replace('"]', '"'), "children is 'lines', expected a list of texts"),
        (SMALL + "keys_only = true" + TABLE + TYPED, "[[table]] 1 needs values, and the source has keys_only"),
        (SMALL + 'where = " "', "[source.beer] where is ' ', expected a condition in SQL"),
        (SMALL + '[[sink]]\nname = "s"', "[[sink]] 1 has no kind, expected 'invalidate' or 'bucket'"),
        (SMALL + '[[sink]]\nkind = "mail"', "[[sink]] 1 kind is 'mail', expected 'invalidate' or 'bucket'"),
        (SMALL + '[[sink]]\nkind = "invalidate"\nname = "s"\nurl = "ftp://x"', "ftp://x"),
        (
            SMALL.replace('"lake"', '"hdfs://bucket/lake"'),
            "lake: the scheme is 'hdfs'; expected a directory such as ./lake, or a URL with file, s3, abfss or gs",
        ),
        (
            SMALL + BACK,
            "[[sink]] 1 url is couchbase://127.0.0.1:11210/beer, the bucket of its source; expected another",
        ),
        (
            SMALL + 'collections = ["ales"]' + BACK + 'collection = "ales"',
            "[[sink]] 1 url is couchbase://127.0.0.1:11210/beer, the bucket of its source; expected another bucket",
        ),
        (SMALL + "[metrics]\nport = 70000", "[metrics] port is 70000, expected 0 to 65535"),
        (SMALL + "[dashboard]\nhost = '10.0.0.1'", "[dashboard] host is '10.0.0.1', which other machines reach"),
        (SMALL + "[dashboard]\nenabled = 1", "[dashboard] enabled is 1, expected true or false"),
    ],
)
def test_errors_name_their_place(parse, tmp_path, text, sentence):
    with pytest.raises(UsageError) as raised:
        parse(text)
    assert str(raised.value).startswith(f"{tmp_path / 'pipeline.toml'}: ")
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("lines", "collection", "name"),
    [
        ("", "ales", "ales"),
        ("", "brewing.ales", "brewing_x2e_ales"),
        ('scope = "brewing"', "ales", "ales"),
        ('scope = "brewing"', "brewing.ales", "brewing_x2e_ales"),
        ('collections = ["ales", "brewing.ales"]', "brewing.ales", "brewing_x2e_ales"),
        ('protocol = "upr"', "_default", "default"),
    ],
)
def test_a_table_is_named_like_its_collection(parse, lines, collection, name):
    found = parse(SMALL + lines + TABLE.replace("ales", collection) + TYPED)
    (table,) = found.list_dependents(found.sources[0])
    scope = "brewing" if "brewing" in lines + collection else "_default"
    assert (table.name, table.find_collection()) == (name, (scope, collection.rpartition(".")[2]))
    assert (table.make_shape().scope, table.make_shape().collection) == table.find_collection()


def test_children_are_dependents_of_their_source(parse):
    found = parse(SMALL + 'scope = "brewing"' + TABLE + LINES)
    parts = found.list_dependents(found.sources[0])
    assert [(each.name, each.describe()) for each in parts] == [
        ("ales", "brewing.ales in 11 columns"),
        ("ales_lines", "lines of ales in 12 columns"),
    ]


def test_a_sink_may_write_a_collection_that_its_source_does_not_read(parse):
    assert parse(SMALL + 'collections = ["ales"]' + BACK + 'collection = "stouts"').dependents
    assert parse(SMALL + 'scope = "a"' + BACK + 'scope = "b"').dependents
    assert parse(SMALL + BACK.replace("/beer", "/copy")).dependents


@pytest.mark.parametrize("line", ['password = "hunter2"', 'pasword = "hunter2"', 'my_password = "hunter2"'])
def test_a_password_in_the_file_is_refused_and_not_shown(parse, line):
    with pytest.raises(UsageError) as raised:
        parse(SMALL + line)
    assert "hunter2" not in str(raised.value)
    if "pasword" not in line:
        assert "use password_file, password_command, password_from, credentials_file or" in str(raised.value)


def test_a_login_in_the_url_is_refused_and_not_shown(parse):
    with pytest.raises(UsageError, match="contains a login") as raised:
        parse(SMALL.replace("couchbase://", "couchbase://me:hunter2@"))
    assert "hunter2" not in str(raised.value)


def test_a_password_is_in_no_representation(parse):
    assert "correct horse" not in repr(parse(WHOLE)) + repr(parse(WHOLE).sources[0].parse_options())


def test_unreadable_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="No such file or directory, expected a TOML file"):
        read_definition(str(tmp_path / "nothing.toml"))
    with pytest.raises(UsageError, match="Is a directory, expected"):
        read_definition(str(tmp_path))


def tables_of(inner):
    names = ["name", "path", "paths", "kind", "url", "source", "where", "port", "merge_rows", "x"]
    return st.dictionaries(st.sampled_from(names), inner, max_size=4)


values = st.recursive(
    st.one_of(st.text(max_size=5), st.integers(-5, 5), st.booleans(), st.floats(0, 9, width=16)),
    lambda inner: st.lists(inner, max_size=2) | tables_of(inner),
    max_leaves=6,
)
tops = st.dictionaries(
    st.sampled_from(["source", "tables", "current", "index", "fulltext", "sink", "metrics", "dashboard"]), values
)


@given(tops, tables_of(values))
@example({"sink": [{"kind": []}]}, {})  # a list is not hashable and cannot be looked up among the kinds
def test_anything_is_a_definition_or_one_sentence(top, source):
    try:
        sentence = f"p.toml: {parse_definition({'lake': 'l', 'source': {'s': source}} | top, 'p.toml')}"
    except UsageError as error:
        sentence = str(error)
    assert sentence.startswith("p.toml: ")
    assert "\n" not in sentence


def test_source_and_its_options_agree():
    assert SourceDefinition().format_options() == {}
    assert SourceDefinition().parse_options().place.options.recreated_bucket is RecreatedBucket.FAIL
    (source,) = define_bucket_pipeline(
        "lake", xattrs=True, collections=("a", "b"), url=None, recreated_bucket="rollback"
    ).sources
    assert source.format_options() == {"xattrs": "true", "collections": "a,b", "recreatedBucket": "rollback"}
    (source,) = define_bucket_pipeline("lake", url="couchbase://h/b?recreatedBucket=rollback").sources
    assert source.parse_options().address.options.recreated_bucket is RecreatedBucket.ROLLBACK
    with pytest.raises(TypeError, match="columns"):
        define_bucket_pipeline("lake", columns="key")


def test_documented_columns_are_valid(parse):
    page = (Path(__file__).parents[2] / "docs" / "howto" / "typed-tables.md").read_text("utf-8")
    (text,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (table,) = parse(SMALL + text).dependents
    assert [rule.name for rule in table.make_shape().rules] == ["ordered_at", "total", "city", "payload"]


def test_documented_file_is_valid(parse, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text("utf-8")
    (whole,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "reader.password").write_text("secret\n")
    found = parse(whole)
    assert [source.name for source in found.sources] == ["beer", "orders"]
    # The page shows the defaults of these two tables.
    assert (found.tables, found.current) == (TableSettings(), CurrentSettings())
    tables: list[Any] = [SourceDefinition, *list_kinds(), TableSettings, CurrentSettings, Metrics, LineageSettings]
    tables.append(DashboardSettings)
    for declared in tables:
        for name in set(list_keys(declared)) - {"name", "transform_directory"}:  # the parser gives these two to sources
            assert re.search(rf"\b{name}\b", whole), name


LAKES = [
    ("a%41b", "delta", "without backslashes and percent escapes"),
    ("a\\b", "delta", "without backslashes and percent escapes"),
    ("a\nb", "delta", r"a\\nb; expected a path without control characters"),
    ("a\x1bb", "iceberg", r"a\\x1bb; expected a path without control characters"),
    ("a?b", "iceberg", "without # and [?] for Iceberg tables"),
    ("a#b", "iceberg", "without # and [?] for Iceberg tables"),
]


@pytest.mark.parametrize(("lake", "table_format", "wanted"), LAKES)
def test_place_that_no_lake_can_have_is_refused_before_a_run(lake, table_format, wanted, tmp_path):
    given = {"lake": lake, "source": {"beer": {"url": "couchbase://a/beer"}}, "tables": {"format": table_format}}
    with pytest.raises(UsageError, match=wanted):
        parse_definition(given, str(tmp_path / "p.toml"))
    with pytest.raises(UsageError, match=wanted):
        Lake(tmp_path / lake, table_format)
    assert not list(tmp_path.iterdir())


def test_sources_have_their_own_namespaces_in_a_catalog(tmp_path):
    given = {
        "lake": "lake",
        "source": {name: {"url": f"couchbase://a/{name}"} for name in ("beer-eu", "beer_eu")},
        "tables": {"format": "iceberg", "catalog": "sqlite:///catalog.db"},
    }
    with pytest.raises(UsageError, match="sources 'beer-eu' and 'beer_eu' have the same namespace 'beer_eu'"):
        parse_definition(given, str(tmp_path / "p.toml"))
    given["tables"] = {"format": "iceberg"}  # each lake has a catalog of its own
    parse_definition(given, str(tmp_path / "p.toml"))


SHARED_TOPICS = [
    ({"topic": "t"}, {"topic": "t"}),
    ({"topic": "t.{scope}.{collection}"}, {"topic": "t.{scope}.{collection}", "unique_keys": True}),
    ({"topic": "t"}, {"topic": "t.rollbacks"}),
    ({"topic": "t", "position_topic": "u"}, {"topic": "u"}),
]


@pytest.mark.parametrize(("first", "second"), SHARED_TOPICS)
def test_two_sinks_do_not_mix_their_documents(first, second, tmp_path):
    shared = {"kind": "kafka", "brokers": ["a:1", "b:1"]}
    sinks = [
        {"name": "one", "source": "beer", **shared, **first},
        {"name": "two", "source": "wine", **shared, **second},
    ]
    given = {
        "lake": "lake",
        "source": {name: {"url": f"couchbase://a/{name}"} for name in ("beer", "wine")},
        "sink": sinks,
    }
    with pytest.raises(UsageError, match=r"\[\[sink\]\] 2 topic is '.*', and so is one of the sink 'one'"):
        parse_definition(given, str(tmp_path / "p.toml"))
    sinks[1]["brokers"] = ["c:1"]
    parse_definition(given, str(tmp_path / "p.toml"))
