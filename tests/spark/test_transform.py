"""Transforms: a user's function before the tables, which may change values and nothing else."""

import json
import pickle
import sys

import pyarrow as pa
import pytest

from penstock.errors import LakeRefused, TransformFailed, UsageError
from penstock.spark import Lake
from penstock.spark.pipeline.definition.definition import define_bucket_pipeline, read_definition
from penstock.spark.pipeline.run.pipeline_run import run_pipeline
from penstock.spark.pipeline.run.run_plan import plan_run, validate_definition
from penstock.spark.pipeline.transform.transform import Transform
from penstock.spark.pipeline.transform.transform_rows import check_transform, transform_batch
from penstock.wire.columns.schema import CHANGE_SCHEMA
from tests.spark.lakes import rollback, row

TOOLS = """
import re
import threading

LOCK = threading.Lock()  # no process can receive this object from another
PATTERN = re.compile("light")
"""
BEERS = """
import json

import pyarrow as pa

from tools import LOCK, PATTERN


def clean(changes):
    with LOCK:
        values = [clean_value(value) for value in changes["value"].to_pylist()]
    return changes.set_column(changes.column_names.index("value"), "value", pa.array(values, pa.binary()))


def clean_value(value):
    beer = json.loads(value)
    if beer["abv"] < 0:
        return None
    return json.dumps({"name": PATTERN.sub("heavy", beer["name"]), "abv": beer["abv"] * 2}).encode()


NUMBER = 17
"""


@pytest.fixture
def modules(tmp_path):
    """A directory with a module and one that it imports."""
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "beers.py").write_text(BEERS)
    return tmp_path


def make_batch(rows):
    return pa.RecordBatch.from_pylist(rows, CHANGE_SCHEMA)


def make_beer(name, abv):
    return json.dumps({"name": name, "abv": abv}).encode()


ROWS = [
    row(1, 1, b"a", make_beer("light", 1), datatype=1),
    row(1, 2, b"b", event="deletion"),
    rollback(2, 5, 1),
    row(2, 6, b"c", make_beer("gone", -1), datatype=1, xattrs=[("x", b"1")], history=1),
    row(2, 7, b"d", make_beer("dark", 3), datatype=1, xattrs=[("x", b"1")], history=1),
    row(3, 1, None, b'{"uid": 7}', event="end_collection") | {"value": b'{"uid": 7}'},
]


def test_values_change_and_all_other_rows_pass(modules):
    before = set(sys.modules)
    transform = pickle.loads(pickle.dumps(Transform.find("beers:clean", str(modules))))
    (modules / "beers.py").unlink()  # as on a worker of a cluster
    check_transform(transform)
    batch = make_batch(ROWS)
    found = transform_batch(transform, batch)
    expected = [dict(each) for each in batch.to_pylist()]
    expected[0]["value"] = make_beer("heavy", 2)
    expected[3] |= {"value": None, "event": "deletion", "xattrs": None, "datatype": 0}
    expected[4]["value"] = make_beer("dark", 6)
    assert found.to_pylist() == expected
    assert transform_batch(transform, batch.slice(1, 2)).equals(batch.slice(1, 2))
    assert not {"beers", "tools"} & (set(sys.modules) - before)


def test_a_changed_module_is_read_again(modules):
    batch = make_batch(ROWS[:1])
    transform_batch(Transform.find("beers:clean", str(modules)), batch)
    (modules / "tools.py").write_text(TOOLS.replace('"light"', '"l"'))
    found = transform_batch(Transform.find("beers:clean", str(modules)), batch)
    assert json.loads(found["value"][0].as_py())["name"] == "heavyight"


FUNCTION = "import pyarrow as pa\nimport pyarrow.compute as pc\n\n\ndef clean(changes):\n    {}\n"


def fail_import(text):
    return rf"whose import failed: {text} \(.*mine.py, line 1\)"


MISSING = [
    ("nothing:clean", "", r"there is no module nothing; expected nothing.py in /.*, or an installed module"),
    ("beers.x:clean", "", r"there is no module beers.x; expected beers/x.py in /.*, or an installed module"),
    ("beers:missing", "", r"beers.py has no function missing"),
    ("beers:NUMBER", "", r"NUMBER is int, expected a function"),
    ("beers", "", r"'beers', expected MODULE:FUNCTION such as beers:clean"),
    ("mine:clean", "import absent", fail_import("ModuleNotFoundError: No module named 'absent'")),
    ("mine:clean", "1 / 0", fail_import("ZeroDivisionError: division by zero")),
    ("mine:clean", "def clean(", r"whose import failed: SyntaxError: '\(' was never closed"),
    ("mine:clean", "return 5", r"returned int, expected a RecordBatch or Table of pyarrow"),
    ("mine:clean", "return changes.drop_columns(['cas'])", r"returned columns without cas, expected"),
    ("mine:clean", "return changes.append_column('abv', changes['cas'])", r"with the new abv, expected"),
    (
        "mine:clean",
        "return changes.set_column(7, 'value', pa.array([], pa.list_(pa.int8())))",
        r"returned the column value as list<item: int8>, expected binary",
    ),
    ("mine:clean", "return changes['value'][0]", r"raised for a batch without rows: IndexError: .*mine.py, line 6"),
]


@pytest.mark.parametrize(("name", "text", "message"), MISSING)
def test_validate_and_plan_refuse_an_unusable_function(name, text, message, modules):
    (modules / "mine.py").write_text(FUNCTION.format(text) if text.startswith("return") else text)
    file = modules / "p.toml"
    file.write_text(f'lake = "lake"\n[source.s]\nurl = "couchbase://127.0.0.1:1/b"\ntransform = "{name}"\n')
    with pytest.raises(UsageError, match=message) as found:
        validate_definition(read_definition(str(file)), connect=False, execute=True)
    assert "[source.s] " in str(found.value)
    if ":" in name:
        refusal = plan_run(read_definition(str(file)), execute=True).refusal
        assert str(refusal) == str(found.value)


BROKEN = [
    ("return changes.slice(1)", r"returned 1 rows for 2 changes from key b'a' \(vbucket 1, seqno 1\)"),
    ("return changes.take([1, 0])", r"changed vbucket of key b'a' \(vbucket 1, seqno 1\) from 1 to 2; it may change"),
    (
        "return changes.set_column(6, 'key', pa.array([b'a', None], pa.binary()))",
        r"changed key of key b'd' \(vbucket 2, seqno 7\) from b'd' to None; it may change value, xattrs, datatype",
    ),
    (
        "return changes.set_column(5, 'event', pa.array(['mutation', 'deletion']))",
        r"changed event of key b'd' \(vbucket 2, seqno 7\) from 'mutation' to 'deletion'",
    ),
    (
        "raise ValueError('two\\nlines')",
        r"raised ValueError: two lines \(.*mine.py, line 6\), for 2 changes from key b'a' \(vbucket 1, seqno 1\) to key"
        r" b'd' \(vbucket 2, seqno 7\)",
    ),
]


@pytest.mark.parametrize(("body", "message"), BROKEN)
def test_a_function_that_breaks_a_rule_ends_the_attempt(body, message, tmp_path):
    (tmp_path / "mine.py").write_text(FUNCTION.format(body))
    with pytest.raises(TransformFailed, match=message):
        transform_batch(Transform.find("mine:clean", str(tmp_path)), make_batch([ROWS[0], ROWS[2], ROWS[4]]))


def test_keys_that_exclude_a_transform_are_refused(tmp_path):
    for more, message in (
        ("keys_only = true", "transform and keys_only"),
        ('where = "abv > 1"', "no fields in value_schema"),
        ("transform_version = 0", "transform_version is 0"),
    ):
        path = tmp_path / "p.toml"
        path.write_text(f'lake = "lake"\n[source.s]\ntransform = "beers:clean"\n{more}\n')
        with pytest.raises(UsageError, match=message):
            read_definition(str(path))


PIPELINE = """
lake = "lake"
[source.beer]
url = "{url}"
transform = "beers:clean"
transform_version = {version}
where = "abv > 5"
value_schema = "name STRING, abv DOUBLE"
"""


@pytest.mark.spark
def test_a_pipeline_transforms_before_where_and_remembers_the_version(spark, modules, documents):
    def run(version=1):
        path = modules / "pipeline.toml"
        path.write_text(PIPELINE.format(url=documents.url, version=version))
        return run_pipeline(read_definition(str(path)), available_now=True, spark=spark)

    documents.store({f"beer-{number}": make_beer("light", number) for number in range(-2, 8)})
    documents.store({"beer-9": make_beer("light", 9)})
    documents.remove(["beer-9"])
    (progress,) = run()
    lake = Lake(modules / "lake")
    expected = {f"beer-{number}": make_beer("heavy", 2 * number) for number in range(3, 8)}
    assert read_current(lake) == expected
    assert progress.rows == 11
    events = lake.changelog(["key", "event"]).to_pylist()
    assert sorted(row["key"] for row in events if row["event"] == "mutation") == sorted(map(str.encode, expected))

    # A value that the function cannot read ends the attempt, and the corrected function continues.
    documents.store({"beer-20": b"no JSON", "beer-21": make_beer("dark", 21)})
    with pytest.raises(TransformFailed, match=r"the transform beers:clean raised .*JSONDecodeError: .*\(.*, line \d+\)"
                       r", for \d changes? from key b'beer-2\d' \(vbucket \d+, seqno \d+\)"):  # fmt: skip
        run()
    (modules / "beers.py").write_text(
        BEERS.replace("json.loads(value)", 'json.loads(value) if value[:1] == b"{" else {"abv": -1}')
    )
    run()
    assert read_current(lake) == expected | {"beer-21": make_beer("dark", 42)}
    # Without a filter the function gets the changes too.
    alone = define_bucket_pipeline(
        str(modules / "alone"), url=documents.url, transform="beers:clean", transform_directory=str(modules)
    )
    run_pipeline(alone, available_now=True, spark=spark)
    assert read_current(Lake(modules / "alone"))["beer-1"] == make_beer("heavy", 2)
    with pytest.raises(LakeRefused, match="transform_version '1', and transform_version is '2' now"):
        run(version=2)


def read_current(lake: Lake) -> dict[str, bytes]:
    return {row["key"]: row["value"] for row in lake.current(["key", "value"]).to_pylist()}
