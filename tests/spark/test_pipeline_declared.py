"""A declared pipeline through Spark: filters, several sources, indexes and sinks behind one run."""

import json
import socket

import pytest

from penstock.errors import LakeRefused, UsageError
from penstock.node import Node
from penstock.spark import Lake
from penstock.spark.dependents.kinds.fulltext import FullText
from penstock.spark.dependents.kinds.secondary_index import SecondaryIndex
from penstock.spark.lake.reading.lake_readers import read_changelog
from penstock.spark.pipeline.definition.definition import read_definition
from penstock.spark.pipeline.run.pipeline_run import run_pipeline
from penstock.spark.pipeline.run.run_plan import plan_run
from penstock.spark.pipeline.state.lake_status import read_status
from penstock.spark.pipeline.state.stopping import plan_removal, remove_tables
from tests.spark.buckets import Documents, check_changelog, compact, current_of

pytestmark = pytest.mark.spark

PIPELINE = """
lake = "lake"

[source.strong]
url = "{url}"
where = "abv > 5 and _change.key <> 'beer-9' -- and so on"
value_schema = "abv DOUBLE, name STRING"

[source.breweries]
url = "{url}"
key_pattern = "^brewery"
trigger_seconds = 0.2

[[index]]
name = "by_abv"
source = "strong"
path = "abv"
type = "double"

[[fulltext]]
name = "words"
source = "breweries"

[[sink]]
kind = "bucket"
name = "copy"
source = "strong"
url = "{copy}"
sql = "SELECT * EXCEPT (value), encode(upper(decode(value, 'utf-8')), 'utf-8') AS value FROM changes"

[[sink]]
kind = "invalidate"
name = "cache"
source = "breweries"
url = "http://127.0.0.1:{closed_port}/gone"
retries = 0
"""


def beers(first: int, behind: int, more: float = 0.0, **fields: object) -> dict[str, bytes]:
    return {f"beer-{n}": compact({"abv": n % 10 + more, "name": f"No {n}", **fields}) for n in range(first, behind)}


@pytest.fixture
def closed_port():
    """A port of 127.0.0.1 without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def strong(documents: Documents) -> dict[bytes, tuple[int, bytes]]:
    def is_wanted(key: bytes, value: bytes) -> bool:
        return key.startswith(b"beer") and key != b"beer-9" and json.loads(value)["abv"] > 5

    return {key: (cas, value) for key, (cas, value) in documents.contents().items() if is_wanted(key, value)}


def test_every_table_of_a_file_takes_effect(spark, tmp_path, closed_port):
    with (
        Node.running(["beer", "copy"], vbuckets=16) as node,
        Documents.of(node.url("beer")) as documents,
        Documents.of(node.url("copy")) as copy,
    ):
        path = tmp_path / "pipeline.toml"
        path.write_text(PIPELINE.format(url=node.url("beer"), copy=node.url("copy"), closed_port=closed_port))
        definition = read_definition(str(path))
        lakes = [Lake(definition.locate_lake(source)) for source in definition.sources]
        documents.store(beers(0, 200) | {"brewery-1": b'{"name": "Bamberg"}', "note": b"\xff not JSON"})
        assert [source.lag for source in plan_run(definition).sources] == [202, 202]
        copy.keys = documents.keys

        ended = run_pipeline(definition, available_now=True, spark=spark)
        assert [each.rows for each in ended] == [202, 1]
        assert current_of(lakes[0]) == strong(documents)
        assert {key for key, _ in current_of(lakes[1]).items()} == {b"brewery-1"}
        assert copy.contents() == {key: (cas, value.upper()) for key, (cas, value) in strong(documents).items()}
        assert SecondaryIndex(lakes[0], "by_abv", "abv", "double").range(8).num_rows == 39
        assert FullText(lakes[1], "words").search("bamberg")["key"].to_pylist() == ["brewery-1"]
        dependents = {each.name: each for each in ended[1].dependents}
        assert (dependents["current"].error, dependents["words"].version) == (None, 1)  # with the end without rows
        assert f"127.0.0.1:{closed_port}" in (dependents["cache"].error or "")
        assert ended[0].schema_changes == ()
        assert [source.lag for source in plan_run(definition).sources] == [0, 0]

        documents.store(beers(0, 50, more=0.5) | beers(50, 100, more=-6.0) | {"beer-500": b'{"abv": 9, "ibu": 30}'})
        documents.remove(["beer-197", "beer-1"])
        copy.keys = documents.keys
        ended = run_pipeline(definition, available_now=True, spark=spark)
        assert current_of(lakes[0]) == strong(documents)
        assert copy.contents() == {key: (cas, value.upper()) for key, (cas, value) in strong(documents).items()}
        assert ended[0].schema_changes == ("the new field ibu BIGINT",)
        rows = {row["key"]: row for row in read_changelog(lakes[0], 103).to_pylist()}
        assert (rows[b"beer-58"]["event"], rows[b"beer-58"]["value"], rows[b"beer-58"]["datatype"]) == (
            "deletion",
            None,
            0,
        )
        assert rows[b"beer-44"]["event"] == "deletion"  # it did not match the filter before either
        check_changelog(lakes[0])

        path.write_text(path.read_text().replace("abv > 5", "abv > 6"))
        with pytest.raises(LakeRefused, match=r'was written with where "abv > 5 .*, and where is "abv > 6 '):
            run_pipeline(read_definition(str(path)), available_now=True, spark=spark)


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("abv >", "where is 'abv >', expected a condition on abv DOUBLE: "),
        ("strength > 5", "where is 'strength > 5', expected a condition on abv DOUBLE: "),
        ("abv", "where is 'abv', expected a condition on abv DOUBLE: "),
    ],
)
def test_invalid_filter_raises_one_sentence(spark, documents, tmp_path, capfd, where, sentence):
    documents.store(beers(0, 5))
    path = tmp_path / "pipeline.toml"
    path.write_text(
        f'lake = "lake"\n[source.s]\nurl = "{documents.url}"\nwhere = "{where}"\nvalue_schema = "abv DOUBLE"\n'
    )
    with pytest.raises(UsageError) as raised:
        run_pipeline(read_definition(str(path)), available_now=True, spark=spark)
    assert str(raised.value).startswith(f"[source.s] {sentence}")
    assert "\n" not in str(raised.value)
    assert capfd.readouterr().err == ""
    path.write_text(path.read_text().replace(f'"{where}"', '"abv > 3"'))
    (done,) = run_pipeline(read_definition(str(path)), available_now=True, spark=spark)
    assert done.rows == 5


def test_a_filter_without_a_schema_infers_one_and_keeps_it(spark, documents, lake, tmp_path):
    path = tmp_path / "pipeline.toml"
    path.write_text(f'lake = "lake"\n[source.s]\nurl = "{documents.url}"\nwhere = "abv >= 3"\n')
    definition = read_definition(str(path))
    with pytest.raises(UsageError, match="no JSON objects to infer"):
        run_pipeline(definition, available_now=True, spark=spark)
    documents.store(beers(0, 6))
    run_pipeline(definition, available_now=True, spark=spark)
    assert set(current_of(lake)) == {b"beer-3", b"beer-4", b"beer-5"}
    assert json.loads((lake.path / "_schema.json").read_text()) == {"ddl": "`abv` DOUBLE, `name` STRING"}


def test_plain_parquet_has_only_a_changelog(spark, documents, lake, tmp_path):
    path = tmp_path / "pipeline.toml"
    tables = 'format = "parquet"\ncurrent = false'
    path.write_text(f'lake = "lake"\n[source.s]\nurl = "{documents.url}"\n[tables]\n{tables}\n')
    definition = read_definition(str(path))
    documents.store(beers(0, 20))
    for rows in (20, 0):
        (progress,) = run_pipeline(definition, available_now=True, spark=spark)
        assert (progress.rows, progress.changelog_rows, progress.lag, progress.dependents) == (rows, 20, 0, ())
    assert [source.lag for source in plan_run(definition).sources] == [0]
    found = read_status(lake)
    assert found.changelog is not None
    assert (found.state, found.changelog.rows, found.version) == ("ended", 20, 1)  # the last batch has no rows
    assert spark.read.parquet(str(lake.changelog_table.path)).count() == 20
    remove_tables(plan_removal(lake, []))
    (progress,) = run_pipeline(definition, available_now=True, spark=spark)
    assert progress.rows == 20


def test_iceberg_tables_have_dependents_and_all_readers(spark, documents, lake, tmp_path):
    path = tmp_path / "pipeline.toml"
    tables = 'format = "iceberg"\ncatalog = "sqlite:///catalog.sqlite"\n[[index]]\nname = "by_abv"\npath = "abv"'
    path.write_text(f'lake = "lake"\n[source.s]\nurl = "{documents.url}"\n[tables]\n{tables}\ntype = "double"\n')
    definition = read_definition(str(path))
    (planned,) = plan_run(definition).sources
    formats = [("changelog", "iceberg"), ("tables", "table"), ("current", "iceberg")]
    assert [(part.name, part.kind) for part in planned.parts[:3]] == formats
    documents.store(beers(0, 20))
    for rows in (20, 0, 1):
        (progress,) = run_pipeline(definition, available_now=True, spark=spark)
        assert (progress.rows, progress.lag) == (rows, 0)
        assert [each.error for each in progress.dependents] == [None, None, None]
        if not rows:
            documents.store({"beer-3": b'{"abv": 99}'})
    assert current_of(lake) == documents.contents()
    assert SecondaryIndex(lake, "by_abv", "abv", "double").lookup(99.0)["key"].to_pylist() == ["beer-3"]
    assert spark.read.format("penstock-lake").load(str(lake.path)).count() == 20
    assert lake.changelog_frame(spark).count() == 21
    found = read_status(lake)
    assert (found.format, found.state, found.changelog and found.changelog.rows) == ("iceberg", "ended", 21)
    assert (tmp_path / "catalog.sqlite").exists()


def test_keys_only_source_has_all_other_columns(spark, documents, lake, tmp_path):
    path = tmp_path / "pipeline.toml"
    path.write_text(f'lake = "lake"\n[source.s]\nurl = "{documents.url}"\nkeys_only = true\n')
    documents.store(beers(0, 20))
    run_pipeline(read_definition(str(path)), available_now=True, spark=spark)
    assert {key: cas for key, (cas, _) in current_of(lake).items()} == {
        key: cas for key, (cas, _) in documents.contents().items()
    }
    assert {value for _, value in current_of(lake).values()} == {None}
