"""`plan` and `run` agree about each configuration: both refuse it with one sentence, or neither does."""

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.errors import Error, UsageError
from penstock.node import Node
from penstock.spark.pipeline.definition.definition import PipelineDefinition, read_definition
from penstock.spark.pipeline.run.pipeline_run import run_pipeline
from penstock.spark.pipeline.run.run_plan import RunPlan, plan_run
from penstock.spark.source.offsets import make_first_offset

SCHEMA = 'value_schema = "abv DOUBLE, name STRING, tags ARRAY<STRING>, address STRUCT<city: STRING>"\n'
SINK = '[[sink]]\nkind = "bucket"\nname = "copy"\nurl = "{copy}"\n'
CACHE = '[[sink]]\nkind = "invalidate"\nname = "cache"\nurl = "{http}"\n'
KAFKA = '[[sink]]\nkind = "kafka"\nname = "events"\nbrokers = ["127.0.0.1:1"]\ntopic = "beer"\ntimeout = 0.5\n'
DEAD = "couchbase://127.0.0.1:1/beer?retrySeconds=0.05"
OFFSET = json.dumps(make_first_offset(8).to_json())


def where(text: str) -> str:
    return f"{SCHEMA}where = {json.dumps(text)}\n"


TABLE = """
[[table]]
collection = "ales"
schema = "abv DOUBLE"
"""


def sql(text: str, **keys: str) -> str:
    return SINK + "".join(f"{name} = {json.dumps(value)}\n" for name, value in {"sql": text, **keys}.items())


def source(name: str, **keys: str) -> str:
    given = "".join(f"{key} = {json.dumps(value)}\n" for key, value in {"url": "{beer}", **keys}.items())
    return f"[source.{name}]\n{given}"


# The configuration after `lake` and [source.beer] with its url, and a part of the sentence. REFUSED ends a run with 2,
# FAILED with 1. AWAY is of systems that a run tries again: it starts, and ends with 1.
REFUSED = [
    (where("abv >"), "PARSE_SYNTAX_ERROR"),
    (where("abv > 5) or (abv < 3"), "PARSE_SYNTAX_ERROR"),
    (where("abv > 5; drop table x"), "PARSE_SYNTAX_ERROR"),
    (where("select abv"), "DATATYPE_MISMATCH"),
    (where("strength > 5"), "UNRESOLVED_COLUMN"),
    (where("beer.abv > 5"), "UNRESOLVED_COLUMN"),
    (where("address.town = 'x'"), "FIELD_NOT_FOUND"),
    (where("name.first = 'x'"), "INVALID_EXTRACT_BASE_FIELD_TYPE"),
    (where("_change.age > 5"), "FIELD_NOT_FOUND"),
    (where("abv"), "DATATYPE_MISMATCH"),
    (where("abv + 1"), "DATATYPE_MISMATCH"),
    (where("tags"), "DATATYPE_MISMATCH"),
    (where("struct(abv)"), "DATATYPE_MISMATCH"),
    (where("abv > 5 and tags"), "DATATYPE_MISMATCH"),
    (where("tags > 5"), "DATATYPE_MISMATCH"),
    (where("not abv"), "DATATYPE_MISMATCH"),
    (where("max(abv) > 5"), "INVALID_WHERE_CONDITION"),
    (where("count(*) > 1"), "INVALID_WHERE_CONDITION"),
    (where("any(abv > 5)"), "INVALID_WHERE_CONDITION"),
    (where("count(distinct name) > 1"), "INVALID_WHERE_CONDITION"),
    (where("sum(abv) over () > 5"), "WINDOW_FUNCTION_NOT_ALLOWED_IN_CLAUSE"),
    (where("row_number() over (order by abv) = 1"), "WINDOW_FUNCTION_NOT_ALLOWED_IN_CLAUSE"),
    (where("explode(tags) = 'a'"), "UNSUPPORTED_GENERATOR"),
    (where("explode(tags)"), "UNSUPPORTED_GENERATOR"),
    (where("abv > (select max(abv))"), "UNSUPPORTED_SUBQUERY"),
    (where("abv in (select abv from other)"), "TABLE_OR_VIEW_NOT_FOUND"),
    (where("strong(abv)"), "strong"),
    (where("upper(name, name) = 'a'"), "WRONG_NUM_ARGS"),
    (where("abv > :limit"), "UNBOUND_SQL_PARAMETER"),
    (where("abv > ?"), "UNBOUND_SQL_PARAMETER"),
    (where("monotonically_increasing_id() = 0"), "monotonically_increasing_id"),
    (where("grouping(abv) = 0"), "UNSUPPORTED_GROUPING_EXPRESSION"),
    (where("*"), "DATATYPE_MISMATCH"),
    ('where = "abv > 5"\n', "no JSON objects to infer option valueSchema from"),
    ('value_schema = "infer"\n', "no JSON objects to infer option valueSchema from"),
    ('collections = ["ale"]\n', "no collection '_default.ale'"),
    ('scope = "brewing"\n', "no scope 'brewing'"),
    ('scope = "brewing"\ncollections = ["ale"]\n', "brewing"),
    ('collections = ["_default", "ale"]\n', "no collection '_default.ale'"),
    ('vbuckets = "0-4"\n', "vbuckets has 4, but "),
    ('vbuckets = "1000"\n', "vbuckets has 1000, but "),
    (f"starting_offsets = {json.dumps(OFFSET)}\n", "the bucket has 4 vbuckets, expected 8"),
    ('starting_offsets = \'{"9": {"vbuuid": 1, "seqno": 1}}\'\n', "9"),
    ('transform = "absent:clean"\n', "there is no module absent"),
    ('transform = "beers:absent"\n', "has no function absent"),
    ('transform = "beers:NUMBER"\n', "NUMBER is int, expected a function"),
    ('transform = "beers:fail"\n', "raised for a batch without rows: ZeroDivisionError"),
    ('transform = "beers:drop"\n', "returned columns without cas"),
    ('transform = "beers:nothing"\n', "returned NoneType, expected a RecordBatch"),
    ('transform = "broken:clean"\n', "whose import failed"),
    ("paused = true\n", "all sources are paused: beer"),
    (SINK.replace("{copy}", "{root}/absent"), "no bucket 'absent'"),
    (SINK.replace("{copy}", "{spelt}"), "the bucket of its source; expected another bucket"),
    (SINK.replace("{copy}", "{spelt}") + 'operation = "change"\n', "the bucket of its source; expected another"),
    (SINK + 'collection = "ale"\n', "no collection '_default.ale'"),
    (SINK + 'scope = "brewing"\n', "no scope 'brewing'"),
    (SINK + 'conflict_resolution = "lww"\n', "conflict_resolution is 'lww', and that of "),
    (TABLE, "[[table]] ales collection is '_default.ales', but the bucket has no collection '_default.ales'"),
    (TABLE.replace('"ales"', '"brewing.ales"'), "collection is 'brewing.ales', but the bucket has no scope 'brewing'"),
    (sql("SELEC * FROM changes"), "PARSE_SYNTAX_ERROR"),
    (sql("DROP VIEW changes"), "PARSE_SYNTAX_ERROR"),
    (sql("SELECT * FROM changes; SELECT 1"), "PARSE_SYNTAX_ERROR"),
    (sql("SELECT * FROM change"), "TABLE_OR_VIEW_NOT_FOUND"),
    (sql("SELECT *, abv FROM changes"), "UNRESOLVED_COLUMN"),
    (sql("SELECT *, value.abv FROM changes"), "INVALID_EXTRACT_BASE_FIELD_TYPE"),
    (sql("SELECT * FROM changes WHERE max(cas) > 0"), "INVALID_WHERE_CONDITION"),
    (sql("SELECT key, max(cas) AS cas FROM changes"), "MISSING_GROUP_BY"),
    (sql("SELECT key, value, rev_seqno FROM changes"), "no column 'cas'"),
    (sql("SELECT key, value, cas FROM changes"), "no column 'rev_seqno'"),
    (sql("SELECT key, value, cas FROM changes", operation="change"), "no column 'event'"),
    (sql("SELECT *, 1 AS abv FROM changes"), "column 'abv' means nothing"),
    (sql("SELECT *, key FROM changes"), "column 'key' twice"),
    (sql("SELECT * EXCEPT (key), 5 AS key FROM changes"), "column 'key' is int32"),
    (sql("SELECT * EXCEPT (cas), 'a' AS cas FROM changes"), "column 'cas' is string"),
    (source("two", collections=["ale"]), "no collection '_default.ale'"),  # type: ignore[arg-type]
    (source("two", url="{root}/absent"), "no bucket 'absent'"),
]
FAILED = [
    ("URL", DEAD, "127.0.0.1:1/beer did not serve for"),
    ("URL", DEAD + "&bootstrap=cccp", "127.0.0.1:1/beer did not serve for"),
    ("ADD", source("two", url=DEAD), "127.0.0.1:1/beer did not serve for"),
    ("ADD", f"{where('abv > 5')}{source('two', url=DEAD)}", "127.0.0.1:1/beer did not serve for"),
]
AWAY = [
    (CACHE.replace("{http}", "http://127.0.0.1:1/"), "http://127.0.0.1:1/ cannot be reached: Connection refused"),
    (CACHE.replace("{http}", "https://127.0.0.1:1/"), "https://127.0.0.1:1/ cannot be reached"),
    (KAFKA, "Kafka at 127.0.0.1:1 did not answer within 0.5 s"),
    (SINK.replace("{copy}", DEAD), "127.0.0.1:1/beer did not serve for"),
]
FINE = [
    "",
    where("abv > 5 and _change.key <> 'a' -- and so on"),
    where("abv > (select 3) and rand() < 2"),
    where("exists(tags, tag -> tag = upper('a')) or address.city = 'x' or null"),
    'transform = "beers:clean"\nvbuckets = "0-3"\n',
    sql("SELECT * EXCEPT (value), upper(decode(value, 'utf-8')) AS value FROM changes -- all"),
    sql("SELECT key, value, cas, rev_seqno FROM changes"),
    SINK,
    TABLE.replace("ales", "_default"),
    source("two", url="{copy}"),
]

MODULE = """
NUMBER = 5
def clean(changes):
    return changes
def fail(changes):
    return 1 / 0
def drop(changes):
    return changes.drop_columns(["cas"])
def nothing(changes):
    pass
"""


class Site(NamedTuple):
    """A node and servers, and the directory of a pipeline's file."""

    places: dict[str, str]
    directory: Path

    def read(self, text: str, url: str = "{beer}") -> PipelineDefinition:
        """Return the definition in a file. [source.beer] has the first lines of the text."""
        path = self.directory / "pipeline.toml"
        whole = f'lake = "lake"\n[source.beer]\nurl = "{url}"\n{text}'
        for name, place in self.places.items():
            whole = whole.replace("{" + name + "}", place)
        if "[source.two]" in whole:  # every dependent needs its source
            whole = whole.replace("[[sink]]\n", '[[sink]]\nsource = "beer"\n')
        path.write_text(whole)
        return read_definition(str(path))


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, str]]:
    with Node.running(["beer", "copy"], vbuckets=4) as node, socket.create_server(("127.0.0.1", 0)) as listener:
        url = node.url("beer")
        root = url.removesuffix("/beer")

        async def write() -> None:
            async with penstock.connect(url) as bucket:
                await bucket.upsert("not-json", b"\xff")

        asyncio.run(write())
        yield {
            "beer": url,
            "copy": node.url("copy"),
            "root": root,
            "spelt": url.replace("127.0.0.1", "localhost"),
            "http": f"http://127.0.0.1:{listener.getsockname()[1]}/",
        }


@pytest.fixture
def site(places: dict[str, str], tmp_path: Path) -> Site:
    (tmp_path / "beers.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    return Site(places, tmp_path)


def plan(definition: PipelineDefinition, spark: SparkSession) -> RunPlan:
    """Return the plan, which has created nothing."""
    found = plan_run(definition, execute=True, spark=spark)
    assert not Path(definition.lake).exists()
    return found


def run(definition: PipelineDefinition, spark: SparkSession) -> Error | None:
    """Run to the end, and return the error."""
    try:
        run_pipeline(definition, available_now=True, spark=spark)
    except Error as error:
        return error
    return None


def normalize(error: Error | None) -> str | None:
    """Return a sentence without the figures that differ each time: seconds, and ids of expressions."""
    return None if error is None else re.sub(r"for [0-9.e-]+ s |#[0-9]+|_[0-9]+|__auto_generated\w*", "", str(error))


def check_agreement(definition: PipelineDefinition, spark: SparkSession, kind: type[Error], sentence: str) -> None:
    planned = plan(definition, spark).refusal
    assert planned is not None
    assert sentence in str(planned)
    assert isinstance(planned, UsageError) == (kind is UsageError)
    ended = run(definition, spark)
    assert normalize(ended) == normalize(planned)
    assert isinstance(ended, UsageError) == isinstance(planned, UsageError)


@pytest.mark.spark
@pytest.mark.parametrize(("text", "sentence"), REFUSED)
def test_run_ends_with_the_sentence_of_the_plan(spark, site, text, sentence):
    check_agreement(site.read(text), spark, UsageError, sentence)


@pytest.mark.spark
@pytest.mark.parametrize(("part", "text", "sentence"), FAILED)
def test_a_dead_node_ends_both(spark, site, part, text, sentence):
    definition = site.read("", text) if part == "URL" else site.read(text)
    check_agreement(definition, spark, Error, sentence)


@pytest.mark.spark
@pytest.mark.parametrize(("text", "sentence"), AWAY)
def test_a_system_that_is_away_is_a_warning(spark, site, text, sentence):
    found = plan(site.read(text), spark)
    assert found.refusal is None
    (warning,) = found.sources[0].warnings
    assert sentence in warning


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("text", FINE)
def test_an_accepted_file_runs(spark, site, text):
    definition = site.read(text)
    found = plan(definition, spark)
    assert found.refusal is None
    assert [each.warnings + each.unchecked for each in found.sources] == [() for _ in definition.sources]
    assert run(definition, spark) is None


@pytest.mark.spark
@pytest.mark.parametrize("place", ["lake", "lake/changelog", "lake/_checkpoint"])
def test_a_file_in_the_place_of_a_directory_ends_both(spark, site, place):
    (site.directory / place).parent.mkdir(parents=True, exist_ok=True)
    (site.directory / place).write_text("a file")
    definition = site.read("")
    try:
        planned: Error | None = plan_run(definition, spark=spark).refusal
    except UsageError as error:
        planned = error
    assert isinstance(planned, UsageError)
    assert str(run(definition, spark)) == str(planned)


def test_the_table_is_long():
    assert len(REFUSED) + len(FAILED) + len(AWAY) + len(FINE) >= 80
