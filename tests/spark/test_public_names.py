"""The public names of `penstock.spark`: each can be imported, and pages and examples import from nowhere else."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock.spark
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
PUBLIC_MODULES = {"penstock.spark", "penstock.spark.declarative", "penstock.spark.shipping"}


@pytest.mark.parametrize("name", penstock.spark.__all__)
def test_each_public_name_can_be_imported(name):
    found = getattr(penstock.spark, name)
    assert found.__doc__, name
    assert getattr(found, "__name__", name).rpartition(".")[2] == name


def test_lists_of_public_names_agree():
    assert set(penstock.spark._HOMES) <= set(penstock.spark.__all__) <= set(dir(penstock.spark))
    assert sorted(penstock.spark.__all__) == penstock.spark.__all__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = penstock.spark.nothing


@pytest.mark.process
def test_import_loads_neither_arrow_nor_spark():
    script = "import sys, penstock.spark; assert not {'pyarrow', 'pyspark', 'deltalake'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE)


@pytest.mark.process
def test_readers_load_neither_pandas_nor_the_writer():
    script = (
        "import sys, penstock.spark.runtime.data_source; "
        "assert not {'pandas', 'penstock.spark.sink.spark_writer'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE)


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES], ids=lambda path: path.name)
def test_pages_import_only_from_public_modules(path):
    text = path.read_text("utf-8")
    blocks = [text] if path.suffix == ".py" else re.findall(r"^```python[^\n]*\n(.*?)^```$", text, re.M | re.S)
    modules = {
        node.module
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("penstock.spark")
    }
    assert modules <= PUBLIC_MODULES
