"""Programs that start with the path of their Python, and find another python3 in the PATH."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.node import Node
from tests.patience import PATIENCE
from tests.spark.cluster import bare_python, environment_with
from tests.test_docs import DEFAULT_PORT, FENCE, ROOT

pytestmark = pytest.mark.spark

START = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
"""
CHECKS = """
changes.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
spark.sql("CREATE TABLE beers USING dcp OPTIONS (url 'couchbase://127.0.0.1:11210/beer')")
print("counted", spark.table("beers").count())
"""


def run(program: str, directory: Path, **environment: str) -> str:
    """Run a program whose PATH has a python3 without this package, and return all its output."""
    with Node.running(buckets=["beer"]) as node:
        text = program.replace(DEFAULT_PORT, str(node.kv_port))
        ran = subprocess.run(
            [sys.executable, "-c", text],
            cwd=directory,
            env=environment_with(bare_python(directory / "bare")) | environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    return ran.stdout + ran.stderr


def test_readme_runs_without_an_activated_environment(tmp_path):
    blocks = FENCE.finditer((ROOT / "README.md").read_text(encoding="utf-8"))
    readme = "".join(block["text"] for block in blocks if block["kind"] == "python spark")
    assert "counted 0\n" in run(START + readme + CHECKS, tmp_path)


def test_chosen_python_without_the_package_is_named(tmp_path):
    output = run(START + "from penstock.spark import register\nregister(spark)", tmp_path, PYSPARK_PYTHON="python3")
    assert "penstock.errors.UsageError: Spark starts its workers with 'python3'" in output
    assert f"set PYSPARK_PYTHON to a Python that has it, such as {sys.executable}," in output
