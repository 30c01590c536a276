"""`penstock pipeline plan` and `validate` agree with `run`: refusals that are found before Spark starts."""

import json

import pytest

from penstock.errors import UsageError
from penstock.spark import Lake
from penstock.spark.dependents.dependent import catch_up
from penstock.spark.pipeline.definition.definition import read_definition
from penstock.spark.pipeline.run.pipeline_run import run_pipeline
from penstock.spark.pipeline.state.run_state import store_content
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
        (DECLARED[DECLARED.index("[[index]]") :], TWO, "holds the tables of one source; expected a direc"),
        (
            DECLARED[DECLARED.index("[[index]]") :],
            '[tables]\nchangelog_format = "parquet"\ncurrent = false',
            "changelog is a file or a Delta table; expected a changelog of plain Parquet files, or nothing",
        ),
    ],
)
def test_plan_and_run_refuse_a_changed_declaration_with_one_sentence(run, file, node, old, new, sentence):
    assert run("pipeline", "plan", file).code == 0
    file.write_text(file.read_text().replace(old, new.format(url=node.url("default"))))
    code, out, _ = run("pipeline", "plan", file, "--json")
    refusal = json.loads(out.splitlines()[0])["refusal"]
    assert (code, sentence in refusal) == (2, True), refusal
    assert refusal in run("pipeline", "plan", file).out
    with pytest.raises(UsageError) as raised:
        run_pipeline(read_definition(str(file)))
    assert str(raised.value) == refusal
