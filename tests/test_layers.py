"""A layer imports only from those above it, and the lower ones neither do I/O nor ask for the time or for chance.

Read from the source, imports inside functions and under TYPE_CHECKING included: those too are knowledge of a layer.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE

SOURCE = Path(__file__).parent.parent / "src"

# A layer knows those before it. Two in one set know nothing of each other.
ORDER = [{"wire"}, {"store"}, {"client"}, {"node"}, {"spark", "pytest"}, {"cli", "web"}]
RANK = {layer: rank for rank, layers in enumerate(ORDER) for layer in layers}
FREE = {
    "argument_types",
    "digits",
    "errors",
    "extras",
    "lazy_names",
    "names",
    "options",
    "text_files",
    "toml_tables",
    "version",
}

OUTSIDE_WORLD = {"asyncio", "socket", "time", "random", "secrets", "threading", "os.urandom", "numpy.random"}
BANNED = {
    "wire": OUTSIDE_WORLD | {"pyspark"},
    "store": OUTSIDE_WORLD | {"pyspark"},
    "client": {"pyspark"},
    "node": {"pyspark"},
    "pytest": {"pyspark"},
}


def within(name: str, packages: set[str]) -> bool:
    """Whether the dotted name is one of the packages or lies in one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def imported(tree: ast.Module, package: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, dotted name, the name it is bound to) of each import. Relative imports start from `package`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            anchor = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*anchor, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}", alias.asname or alias.name


def used(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of all that is imported, and of all that is reached through an import's attributes."""
    bound = {}
    for line, name, binding in imported(tree, package):
        yield line, name
        bound[binding] = name if binding != name.partition(".")[0] else binding
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            if first in bound:
                yield node.lineno, f"{bound[first]}.{rest}"


def violations(text: str, module: str, package: str) -> list[str]:
    """Return a sentence for each line that breaks a rule; package: the one that the module lies in, or is."""
    layer = module.split(".")[1] if "." in module else ""
    if layer and layer not in RANK and layer not in FREE | {"__main__"}:
        return [f"{module} is in no layer: give it a place in ORDER"]
    found: dict[int, str] = {}
    for line, name in used(ast.parse(text), package):
        if within(name, BANNED.get(layer, set())):
            found[line] = f"{module}:{line} uses {name}, which {layer} must not"
        elif within(name, {"penstock"}) and not may_import(layer, name):
            found[line] = f"{module}:{line} imports {name}, which is not above {layer}"
    return list(found.values())


def may_import(layer: str, name: str) -> bool:
    """Whether a module of the layer ("" or __main__: of none) may know this name of the package."""
    target = name.split(".")[1] if "." in name else ""
    if target in FREE | {layer} or layer in {"", "__main__"}:
        return True
    # Other names are public names of the package itself, which imports all but the outermost layers.
    return layer in RANK and RANK.get(target, RANK["spark"]) < RANK[layer]


def modules() -> list[tuple[Path, str, str]]:
    """Return (path, module, package) of each module of the source."""
    found = []
    for path in sorted((SOURCE / "penstock").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        package = ".".join(parts[:-1])
        found.append((path, package if parts[-1] == "__init__" else ".".join(parts), package))
    return found


def test_layers():
    assert [line for path, module, package in modules() for line in violations(path.read_text(), module, package)] == []


BREAKS = [
    ("store", "import asyncio"),
    ("store", "import asyncio.events as later"),
    ("wire", "from time import monotonic"),
    ("wire", "def f():\n    import socket"),
    ("store", "import os\nos.urandom(8)"),
    ("store", "import os as system\nkey = lambda: system.urandom(8)"),
    ("store", "from os import urandom as chance"),
    ("wire", "import numpy as np\nnp.random.default_rng()"),
    ("wire", "import numpy.random"),
    ("client", "import pyspark.sql"),
    ("node", "from pyspark import sql"),
    ("wire", "from penstock.store import Bucket"),
    ("wire", "from penstock import store"),
    ("wire", "from penstock import connect"),
    ("wire", "import penstock"),
    ("wire", "from ..client import stream"),
    ("wire", "from .. import node"),
    ("wire", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import penstock.node.server.node"),
    ("store", "from penstock.client import connect"),
    ("client", "import penstock.node"),
    ("node", "from penstock.spark import register"),
    ("spark", "from penstock.cli import main"),
    ("spark", "import penstock\npenstock.errors.Error"),
    ("cli", "import penstock.spark\npenstock.web.page()"),
    ("cli", "from penstock.web import page"),
    ("errors", "from penstock.wire import kv"),
    ("helpers", "import os"),
]

KEEPS = [
    (
        "wire",
        "from penstock.errors import Error\nfrom penstock.wire import frame\nfrom . import hop\nfrom .. import errors",
    ),
    ("wire", "import numpy as np\nimport os.path\nnp.zeros(3).random\nos.path.join('a', 'b')\nself.time.socket"),
    ("store", "from penstock.wire.codec.constants import Opcode\nfrom timeit import default_timer"),
    ("client", "import asyncio, time, random\nfrom penstock import store, wire"),
    ("node", "import socket\nfrom penstock.client import connect\nfrom penstock.store.bucket_store import Bucket"),
    ("spark", "import pyspark\nimport penstock.client"),
    ("cli", "from penstock import spark, node, connect"),
    ("__main__", "from penstock.cli import main"),
    ("", "from penstock.client import connect\nfrom penstock.node import Node"),
]


@pytest.mark.parametrize(("layer", "text"), BREAKS)
def test_violations_are_found(layer, text):
    assert len(violations(text, f"penstock.{layer}.module", f"penstock.{layer}")) == 1


@pytest.mark.parametrize(("layer", "text"), KEEPS)
def test_valid_imports_are_accepted(layer, text):
    module = f"penstock.{layer}.module" if layer else "penstock"
    assert violations(text, module, f"penstock.{layer}".rstrip(".")) == []


def test_every_module_is_read():
    assert {"penstock.errors", "penstock.wire.codec.frame"} <= {module for _, module, _ in modules()}


def ordered_packages() -> list[tuple[Path, tuple[str, ...]]]:
    """Return the packages of spark that state the order of their packages, with that order."""
    found = []
    for path in sorted((SOURCE / "penstock" / "spark").rglob("__init__.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ORDER":
                found.append((path.parent, ast.literal_eval(node.value)))
    return found


# Within the layer that is the largest, too, a package imports only from those before it.
OF_SPARK = [(package, order, rank) for package, order in ordered_packages() for rank in range(len(order))]


@pytest.mark.parametrize(
    ("package", "order", "rank"), [pytest.param(*each, id=f"{each[0].name}.{each[1][each[2]]}") for each in OF_SPARK]
)
def test_a_package_of_spark_knows_those_before_it(package, order, rank):
    name = ".".join(package.relative_to(SOURCE).parts)
    behind = {f"{name}.{later}" for later in order[rank + 1 :]}
    modules = sorted((package / order[rank]).rglob("*.py"))
    assert modules
    found = [
        f"{path.name}:{line} uses {used_name}"
        for path in modules
        for line, used_name in used(ast.parse(path.read_text()), ".".join(path.parent.relative_to(SOURCE).parts))
        if within(used_name, behind)
    ]
    assert not found


@pytest.mark.parametrize("package", [package for package, _ in ordered_packages()], ids=lambda path: path.name)
def test_an_order_names_all_packages(package):
    order = dict(ordered_packages())[package]
    assert sorted(order) == sorted(path.parent.name for path in package.glob("*/__init__.py"))


@pytest.mark.process
def test_lakes_are_read_without_spark():
    """Users of other tools have no Spark, or do not want to wait for it."""
    packages = [SOURCE / "penstock" / "spark" / name for name in ("lake", "dependents")]
    modules = [
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for package in packages
        for path in sorted(package.rglob("*.py"))
    ]
    assert "penstock.spark.lake.current.current_table" in modules
    imports = "\n".join(f"import {module}" for module in modules)
    script = f"{imports}\nimport sys\nassert not [name for name in sys.modules if name.startswith('pyspark')]"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE)


@pytest.mark.parametrize("package", ["feeds", "tap"])
def test_the_consumer_decides_without_the_outside_world(package):
    folder = SOURCE / "penstock" / "client" / package
    found = [
        f"{path.name}:{line} uses {name}"
        for path in sorted(folder.glob("*.py"))
        for line, name in used(ast.parse(path.read_text()), f"penstock.client.{package}")
        if within(name, OUTSIDE_WORLD)
    ]
    assert list(folder.glob("*feed.py"))
    assert not found
