"""The recipes of examples/: the dbt project and the notebook on a lake, and a job with its lake in an object store."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import jinja2
import pytest
import yaml
from deltalake import DeltaTable

from penstock import Node
from penstock.spark import Lake
from tests.patience import PATIENCE
from tests.spark.buckets import Documents
from tests.spark.object_store import BUCKET, SECRET, list_objects, make_environment, serve_objects
from tests.spark.running import catch_up

EXAMPLES = Path(__file__).parents[2] / "examples"
DBT = EXAMPLES / "dbt"

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def lake(spark, tmp_path_factory):
    """A lake with 10 documents and 11 changes."""
    lake = Lake(tmp_path_factory.mktemp("recipes") / "lake")
    with Node.running(["beer"], vbuckets=4) as node, Documents.of(node.url("beer")) as documents:
        documents.store({f"beer-{n}": b'{"name": "Beer %d", "abv": %d}' % (n, n) for n in range(10)})
        catch_up(spark, node.url("beer"), lake)
        documents.store({"beer-9": b'{"name": "Bock", "abv": 9.5}'})
        catch_up(spark, node.url("beer"), lake)
    return lake


def test_dbt_project_runs_in_duckdb(lake):
    """Its SQL runs as dbt would render it: sources are Delta tables, and models are tables."""
    database = duckdb.connect()
    schema = yaml.safe_load((DBT / "models" / "lake.yml").read_text())
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    sources = {}
    for table in schema["sources"][0]["tables"]:
        path = environment.from_string(table["meta"]["delta_table_path"]).render(env_var={"LAKE": str(lake.path)}.get)
        database.register(f"source_{table['name']}", DeltaTable(path).to_pyarrow_dataset())
        sources["lake", table["name"]] = f"source_{table['name']}"
    texts = {path.stem: path.read_text() for path in DBT.glob("*/*.sql")}
    made: set[str] = set()

    def find_model(name):
        assert name in made
        return name

    needs = {name: set(re.findall(r"ref\('(\w+)'\)", text)) for name, text in texts.items()}
    while pending := [name for name in texts if name not in made]:
        name = next(each for each in pending if needs[each] <= made)
        sql = environment.from_string(texts[name]).render(ref=find_model, source=lambda *given: sources[given])
        database.execute(f"create table {name} as {sql}")
        made.add(name)
    assert made == {"beers", "strengths", "daily_changes", "keys_are_unique"}
    assert database.sql("select name, abv from beers where key = 'beer-9'").fetchall() == [("Bock", 9.5)]
    assert database.sql("select * from strengths order by strength").fetchall() == [
        ("light", 3, 2.0),
        ("medium", 3, 5.0),
        ("strong", 4, 9.5),
    ]
    assert database.sql("select event, sum(changes) from daily_changes group by event").fetchall() == [("mutation", 11)]
    assert database.sql("select * from keys_are_unique").fetchall() == []


def test_notebook_runs(lake, monkeypatch):
    """Its cells run in one namespace, as in a kernel."""
    monkeypatch.setenv("LAKE", str(lake.path))
    notebook = json.loads((EXAMPLES / "notebook" / "beers.ipynb").read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    namespace: dict[str, object] = {}
    shown = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == []
        *statements, last = ast.parse("".join(cell["source"])).body
        if not isinstance(last, ast.Expr):
            statements.append(last)
        exec(compile(ast.Module(statements, []), "cell", "exec"), namespace)
        if isinstance(last, ast.Expr):  # a notebook shows the value of a cell's last expression
            shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), namespace))
    beers, changes, counts = shown
    assert beers.row(0) == ("beer-9", "Bock", 9.5)
    assert changes["value"].to_list() == ['{"name": "Beer 9", "abv": 9}', '{"name": "Bock", "abv": 9.5}']
    assert counts == "10 documents after the first batch, 10 now"


GIVEN_SESSION = """
import runpy, sys
from penstock.spark.runtime.spark_session import local_session
session = local_session(2)  # as on a cluster, where the program finds a session
sys.argv = sys.argv[1:]
for _ in range(2):
    runpy.run_path(sys.argv[0], run_name="__main__")
session.stop()
"""


@pytest.mark.long
def test_job_keeps_nothing_on_its_machine(tmp_path, monkeypatch):
    """The program of the Databricks job and of the Spark operator: its lake and all of its state are in the store."""
    with serve_objects() as port, Node.running(["beer"], vbuckets=4) as node:
        with Documents.of(node.url("beer")) as documents:
            documents.store({f"beer-{number}": b"{}" for number in range(10)})
        for name, value in (make_environment(port) | {"TMPDIR": str(tmp_path)}).items():
            monkeypatch.setenv(name, value)
        program = str(EXAMPLES / "cluster" / "follow.py")
        done = subprocess.run(
            [sys.executable, "-c", GIVEN_SESSION, program, node.url("beer"), f"s3://{BUCKET}/beer"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert re.findall(r"(\d+) rows written", done.stdout) == ["10", "0"]
        assert SECRET not in done.stdout + done.stderr
        assert not [*tmp_path.rglob("*.parquet"), *tmp_path.rglob("_checkpoint")]
        assert list_objects("beer/_checkpoint/")
