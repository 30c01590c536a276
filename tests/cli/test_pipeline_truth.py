"""`penstock pipeline plan` and `validate` agree with `run`: refusals that are found before Spark starts."""

import json
import re

import pytest

from penstock.client.blocking import LoopThread
from penstock.errors import UsageError
from penstock.spark import Lake
from penstock.spark.dependents.bucket_state import BucketAnswers
from penstock.spark.dependents.dependent import catch_up
from penstock.spark.pipeline.checks.check_list import list_checks
from penstock.spark.pipeline.checks.run_check import CheckContext, Need, walk_checks
from penstock.spark.pipeline.definition.definition import read_definition
from penstock.spark.pipeline.run.pipeline_run import run_pipeline
from penstock.spark.pipeline.state.run_state import store_content
from penstock.spark.pipeline.state.source_lakes import find_source_lakes
from penstock.spark.runtime.sql_analyzer import open_analyzer
from penstock.spark.source.offsets import make_first_offset
from tests.spark.lakes import append, checkpoint, row

DECLARED = """
lake = "lake"
[source.beer]
url = "{url}"
where = "abv > 5"
value_schema = "abv DOUBLE"
[[index]]
name = "by_abv"
path = "abv"
type = "double"
[[fulltext]]
name = "words"
paths = ["name"]
"""

TWO = '[source.two]\nurl = "{url}"\n'


@pytest.fixture
def file(tmp_path, node):
    """The file of a pipeline whose tables exist, as a run leaves them."""
    path = tmp_path / "pipeline.toml"
    path.write_text(DECLARED.format(url=node.url("beer")))
    definition = read_definition(str(path))
    (source,) = definition.sources
    lake = Lake(definition.lake)
    checkpoint(lake.checkpoint, batches=1)
    offset = json.dumps(make_first_offset(16).to_json())
    (lake.checkpoint / "offsets" / "0").write_text(f"v1\n{{}}\n{offset}")
    append(lake, 0, [row(1, 1, b"pale", b'{"abv": 5.1, "name": "Pale"}')])
    store_content(lake, source.list_content_options())
    for each in definition.dependents:
        catch_up(each.open(lake), lake)
    return path


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"abv > 5"', '"abv > 6"', "was written with where 'abv > 5', and where is 'abv > 6' now"),
        (
            "[[index]]",
            'key_pattern = "^a"\n[[index]]',
            "was written with key_pattern unset, and key_pattern is '^a' now",
        ),
        ('type = "double"', 'type = "long"', 'by_abv is an index of {"path": "abv", "type": "double"}, expected '),
        ('path = "abv"', 'path = "ibu"', 'by_abv is an index of {"path": "abv", "type": "double"}, expected '),
        ('["name"]', '["name", "style"]', 'words.sqlite is an index of the paths ["name"], expected '),
        (
            DECLARED[DECLARED.index("[[index]]") :],
            TWO,
            "lake has tables that a run without this file made; expected a first run of the file with",
        ),
        (
            DECLARED[DECLARED.index("[[index]]") :],
            '[tables]\nformat = "parquet"\ncurrent = false',
            "changelog is a file or a Delta table; expected a changelog of plain Parquet files, or nothing",
        ),
    ],
)
def test_plan_and_run_refuse_a_changed_declaration_with_one_sentence(run, file, node, old, new, sentence):
    file.write_text(file.read_text().replace(old, new.format(url=node.url("default"))))
    code, out, _ = run("pipeline", "plan", file, "--json")
    refusal = json.loads(out.splitlines()[0])["refusal"]
    assert (code, sentence in refusal) == (2, True), refusal
    assert refusal in run("pipeline", "plan", file).out
    with pytest.raises(UsageError) as raised:
        run_pipeline(read_definition(str(file)))
    assert str(raised.value) == refusal


@pytest.mark.parametrize(
    ("lines", "code", "sentence"),
    [
        ('collections = ["ale"]\n', 2, "the bucket has no collection '_default.ale'"),
        ('vbuckets = "16-20"\n', 2, "vbuckets has 16, but "),
        ("paused = true\n", 2, "all sources are paused: s"),
        ("[source.two]\nurl = 'couchbase://127.0.0.1:1/b?retrySeconds=0.05'\n", 1, "127.0.0.1:1/b did not serve for"),
        ("[source.two]\nurl = '{root}/absent'\n", 2, "no bucket 'absent'"),
        ("[[sink]]\nkind = 'bucket'\nname = 'a'\nurl = '{root}/absent'\n", 2, "no bucket 'absent'"),
        ("[[sink]]\nkind = 'bucket'\nname = 'a'\nurl = '{spelt}'\n", 2, "the bucket of its source; expected another"),
    ],
)
def test_plan_and_run_end_with_one_exit_code(run, node, tmp_path, lines, code, sentence):
    url, path = node.url("beer"), tmp_path / "pipeline.toml"
    places = {"root": url.removesuffix("/beer"), "spelt": url.replace("127.0.0.1", "localhost")}
    path.write_text(f'lake = "lake"\n[source.s]\nurl = "{url}"\n{lines.format(**places)}')
    planned, ran = run("pipeline", "plan", path, "--json"), run("pipeline", "run", path, "--available-now")
    (refusal,) = {each["refusal"] for each in planned.json_lines} - {None}
    assert (planned.code, ran.code) == (code, code)
    assert sentence in refusal
    assert re.sub(r" [0-9.]+ s ", "", f"penstock: {refusal}\n") in re.sub(r" [0-9.]+ s ", "", ran.err)
    assert not (tmp_path / "lake").exists()


def test_an_index_of_one_source_is_found_without_the_source(run, tmp_path):
    path = tmp_path / "pipeline.toml"
    path.write_text(
        'lake = "two"\n[source.a]\nurl = "couchbase://h/a"\n[source.b]\nurl = "couchbase://h/b"\n'
        '[[index]]\nname = "by_abv"\nsource = "b"\npath = "abv"\ntype = "double"\n'
    )
    definition = read_definition(str(path))
    for source in definition.sources:
        lake = Lake(definition.locate_lake(source))
        checkpoint(lake.checkpoint, batches=1)
        append(lake, 0, [row(1, 1, b"pale", b'{"abv": 5.1}')])
        for each in definition.list_dependents(source):
            catch_up(each.open(lake), lake)
    for where in (path, tmp_path / "two"):
        assert run("pipeline", "find", where, "by_abv", 5.1, "--json").json["key"] == "pale"
        assert "there is no index 'by_abv'" in run("pipeline", "find", where, "by_abv", 5.1, "--source", "a").err
    path.write_text(path.read_text().replace('"abv"', '"ibu"'))
    code, _, err = run("pipeline", "find", path, "by_abv", 5.1)
    assert (code, 'is an index of {"path": "abv", "type": "double"}, expected {"path": "ibu"' in err) == (2, True)
    path.write_text(path.read_text() + '[[index]]\nname = "by_abv"\nsource = "a"\npath = "abv"\n')
    assert "--source is not given, expected a, b" in run("pipeline", "find", path, "by_abv", 5.1).err


@pytest.mark.process
@pytest.mark.long
def test_removed_indexes_are_named_by_plan_and_status(run, file):
    text = file.read_text()
    assert run("pipeline", "status", file, "--json").json["removed"] == []
    assert run("pipeline", "status", file.parent / "lake", "--json").json["removed"] == []
    file.write_text(text[: text.index("[[index]]")])
    expected = [{"name": "by_abv", "kind": "index"}, {"name": "words", "kind": "fulltext"}]
    assert run("pipeline", "status", file, "--json").json["removed"] == expected
    planned = run("pipeline", "plan", file, "--json")
    assert (planned.code, planned.json["lake"]["removed"]) == (0, expected)
    assert re.search(r"^  by_abv +index +no longer declared$", run("pipeline", "status", file).out, re.M)
    assert " removed  no longer declared; its files stay" in run("pipeline", "plan", file).out
    assert run("pipeline", "reset", file, "--table", "by_abv", "--table", "words", "--yes").code == 0
    assert run("pipeline", "status", file, "--json").json["removed"] == []


def test_validate_names_the_place_of_an_unusable_transform(run, tmp_path):
    (tmp_path / "beers.py").write_text("def clean(changes):\n    return 5\n")
    path = tmp_path / "pipeline.toml"
    path.write_text('lake = "lake"\n[source.s]\nurl = "couchbase://h/b"\ntransform = "beers:clean"\n')
    assert run("pipeline", "validate", path).code == 0
    code, _, err = run("pipeline", "validate", path, "--execute")
    assert (code, err) == (
        2,
        f"penstock: {path}: [source.s] the transform beers:clean returned int, expected a RecordBatch or Table of"
        " pyarrow (checked with a batch without rows)\n",
    )


@pytest.mark.process
@pytest.mark.long
def test_sql_that_spark_cannot_run_is_found_without_a_session(run, tmp_path):
    def errors(where: str, sql: str) -> list[str]:
        text = f'lake = "lake"\n[source.s]\nurl = "couchbase://h/b"\nwhere = "{where}"\nvalue_schema = "{SCHEMA}"\n'
        sink = f'[[sink]]\nkind = "bucket"\nname = "copy"\nurl = "couchbase://h/c"\nsql = "{sql}"\n'
        path.write_text(text + sink)
        definition = read_definition(str(path))
        checks = list_checks(definition, find_source_lakes(definition).declared)
        context = CheckContext(BucketAnswers(loop), Need.SQL, analyzer)
        return [str(each.error) for each in walk_checks(checks, context) if each.error is not None]

    path = tmp_path / "pipeline.toml"
    with open_analyzer() as analyzer, LoopThread() as loop:
        for where, sql in VALID_SQL:
            assert errors(where, sql) == []
        for where, sentence in INVALID_CONDITIONS:
            (found,) = errors(where, "SELECT * FROM changes")
            assert found.startswith(f"[source.s] where is {where!r}, expected a condition on {SCHEMA}: {sentence}"), (
                found
            )
        for sql, sentence in INVALID_QUERIES:
            (found,) = errors("abv > 5", sql)
            expected = f"[[sink]] copy sql is {sql!r}, "
            assert found.startswith(expected)
            assert sentence in found
    path.write_text('lake = "lake"\n[source.s]\nurl = "couchbase://h/b"\nwhere = "abv >"\n')
    code, _, err = run("pipeline", "validate", path)
    assert (code, err) == (
        2,
        f"penstock: {path}: [source.s] where is 'abv >', expected a condition in SQL:"
        " [PARSE_SYNTAX_ERROR] Syntax error at or near end of input\n",
    )


SCHEMA = "abv DOUBLE, address STRUCT<city: STRING>, tags ARRAY<STRING>"
VALID_SQL = [
    ("abv > 5 and _change.key <> 'a' -- and so on", "SELECT * FROM changes -- all"),
    (
        "address.city = 'x' or exists(tags, tag -> tag = upper('a'))",
        "WITH x AS (SELECT * FROM changes) SELECT * EXCEPT (value), upper(decode(value, 'utf-8')) AS value FROM x",
    ),
    ("abv is null", "SELECT changes.* FROM changes JOIN parquet.`/known/later` AS known ON true"),
]
INVALID_CONDITIONS = [
    ("abv >", "[PARSE_SYNTAX_ERROR] "),
    ("abv > 5) or (abv < 3", "[PARSE_SYNTAX_ERROR] "),
    ("strength > 5", "[UNRESOLVED_COLUMN.WITH_SUGGESTION] "),
    ("address.town = 'x'", "[FIELD_NOT_FOUND] "),
    ("_change.age > 5", "[FIELD_NOT_FOUND] "),
    ("abv", "[DATATYPE_MISMATCH.DATA_DIFF_TYPES] "),
    ("strong(abv)", "it calls a function that Spark does not have"),
    ("max(abv) > 5", "[INVALID_WHERE_CONDITION] "),
    ("count(*) > 0", "[INVALID_WHERE_CONDITION] "),
    ("row_number() OVER (ORDER BY abv) < 5", "[WINDOW_FUNCTION_NOT_ALLOWED_IN_CLAUSE] "),
    ("explode(tags) = 'a'", "[UNSUPPORTED_GENERATOR."),
    ("any(abv > 5)", "[INVALID_WHERE_CONDITION] "),
    ("(abv, abv)", "[DATATYPE_MISMATCH."),
    ("monotonically_increasing_id() = 0", "Expression(s): monotonically_increasing_id() is not supported"),
]
INVALID_QUERIES = [
    ("SELEC * FROM changes", "[PARSE_SYNTAX_ERROR] "),
    ("SELECT * FROM change", "[TABLE_OR_VIEW_NOT_FOUND] "),
    ("SELECT abv FROM changes", "[UNRESOLVED_COLUMN.WITH_SUGGESTION] "),
    ("DROP VIEW changes", "[PARSE_SYNTAX_ERROR] "),
    ("SELECT * EXCEPT (cas) FROM changes", "whose result is refused: no column 'cas', expected key, value, cas, "),
    ("SELECT *, 1 AS abv FROM changes", "whose result is refused: column 'abv' means nothing to operation with-meta"),
    ("SELECT * EXCEPT (key), 5 AS key FROM changes", "whose result is refused: column 'key' is int32, expected a "),
]
