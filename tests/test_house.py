"""Rules of the source: no import circles, packages in a declared order, limits of size.

The source is read, so imports inside functions and under TYPE_CHECKING count too.
"""

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from penstock.extras import describe_missing_extra

SOURCE = Path(__file__).parent.parent / "src"
MOST_LINES = 500
MOST_FUNCTION_LINES = 40
MOST_COMPLEXITY = 12
PROGRAMS = ("src", "benchmarks", "examples", "fuzz", "mutation", "tools")
"""Folders whose functions are held to be short."""


@cache
def paths() -> dict[str, Path]:
    """Return the file of each module, by its dotted name."""
    found = {}
    for path in sorted((SOURCE / "penstock").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module, by its dotted name. Only tests call it, not their collection."""
    return {module: ast.parse(path.read_text()) for module, path in paths().items()}


def teardown_module() -> None:
    """Give up the trees. The garbage collector would walk over these millions of objects during later tests."""
    trees.cache_clear()


def is_package(module: str) -> bool:
    return paths()[module].name == "__init__.py"


@cache
def imports() -> dict[str, set[str]]:
    """Return the modules of the project that each module imports, wherever in its text."""
    known = trees()
    found: dict[str, set[str]] = {}
    for module, tree in known.items():
        names = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    names.add(whole if whole in known else node.module)
        found[module] = {name for name in names if name in known and name != module}
    return found


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the groups of modules that import each other, directly or not."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            for name in graph[ahead.pop()] - seen:
                seen.add(name)
                ahead.append(name)
        reached[start] = seen
    groups = {
        frozenset(other for other in reached[one] if one in reached[other]) for one in graph if one in reached[one]
    }
    return [set(group) for group in groups]


@pytest.mark.long
def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(imports()) == []


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]


def declared_order(package: str) -> tuple[str, ...] | None:
    """Return the ORDER that a package's __init__ states, None where it states none."""
    for node in trees()[package].body:
        if isinstance(node, ast.Assign) and [target.id for target in node.targets if isinstance(target, ast.Name)] == [
            "ORDER"
        ]:
            order: tuple[str, ...] = ast.literal_eval(node.value)
            return order
    return None


def subpackages(package: str) -> set[str]:
    depth = package.count(".") + 1
    return {
        module.rpartition(".")[2]
        for module in paths()
        if module.startswith(f"{package}.") and module.count(".") == depth and is_package(module)
    }


PARENTS = sorted(module for module in paths() if is_package(module) and subpackages(module) and module != "penstock")


@pytest.mark.parametrize("package", PARENTS)
def test_packages_import_only_from_those_before_them(package: str) -> None:
    order = declared_order(package)
    assert order is not None, f"{package} has packages, and states no ORDER of them"
    assert set(order) == subpackages(package)
    rank = {f"{package}.{name}": place for place, name in enumerate(order)}
    wrong = [
        f"{module} imports {other}"
        for module, others in imports().items()
        for other in others
        if (here := room_of(module, rank)) is not None
        and (there := room_of(other, rank)) is not None
        and rank[there] > rank[here]
    ]
    assert wrong == []


def room_of(module: str, rooms: dict[str, int]) -> str | None:
    """Return which of these packages a module lies in."""
    return next((room for room in rooms if module == room or module.startswith(f"{room}.")), None)


def test_module_names_stand_once() -> None:
    free = {"options", "stats", "__main__"}
    counts = Counter(module.rpartition(".")[2] for module in trees() if not is_package(module))
    assert {name for name, count in counts.items() if count > 1} - free == SAME_MODULES


SAME_MODULES: set[str] = set()
"""Names of modules that stand twice."""


LONG_MODULES: set[str] = set()
"""Modules of more than MOST_LINES lines, yet to be divided. A new one must not be added."""

SAME_CLASSES: set[str] = set()
"""Names of classes that stand twice, yet to be changed. A new one must not be added."""


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield (module, class) of every public class."""
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield module, node


def test_no_module_is_long() -> None:
    counts = {
        module: (SOURCE / module.replace(".", "/")).with_suffix(".py").read_text().count("\n")
        for module in trees()
        if not is_package(module)
    }
    assert {module for module, count in counts.items() if count > MOST_LINES} == LONG_MODULES


LONG_FUNCTIONS: set[str] = set()
"""Functions of more than MOST_FUNCTION_LINES lines, yet to be divided. A new one must not be added."""


def lines_of_code(function: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> int:
    """Return how many lines a function's body has.

    Not counted: the signature (that of a command is its table of options), the docstring, comments, empty lines.
    """
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if not body:
        return 0
    texts = [line.strip() for line in lines[body[0].lineno - 1 : body[-1].end_lineno]]
    return sum(bool(text) and not text.startswith("#") for text in texts)


def test_no_function_is_long() -> None:
    root = SOURCE.parent
    found = set()
    for path in (path for folder in PROGRAMS for path in sorted((root / folder).rglob("*.py"))):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = lines_of_code(node, text.splitlines())
                if count > MOST_FUNCTION_LINES:
                    found.add(f"{path.relative_to(root)}: {node.name}")
    assert found == LONG_FUNCTIONS


def test_lines_of_a_function_are_those_of_its_body() -> None:
    text = 'def one(\n    a: int,\n) -> int:\n    """Doc.\n\n    """\n\n    # why\n    a += 1\n    return a\n'
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    assert lines_of_code(function, text.splitlines()) == 2


def test_the_linter_refuses_complex_functions() -> None:
    lint = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "C90" in lint["select"]
    assert lint["mccabe"]["max-complexity"] == MOST_COMPLEXITY
    excepted = {path for path, rules in lint["per-file-ignores"].items() if "C901" in rules}
    assert excepted == COMPLEX_FUNCTIONS


COMPLEX_FUNCTIONS: set[str] = set()
"""Modules with a function over MOST_COMPLEXITY, yet to be divided. A new one must not be added."""


def test_class_names_stand_once() -> None:
    counts = Counter(node.name for _, node in classes())
    assert {name for name, count in counts.items() if count > 1} == SAME_CLASSES


def test_each_package_describes_its_contents() -> None:
    texts = {module: ast.get_docstring(tree) for module, tree in trees().items() if is_package(module)}
    assert {module for module, text in texts.items() if text is None or len(text.splitlines()) > 6} == set()


def test_every_imported_distribution_is_declared() -> None:
    """A dependency of a dependency may go away with the next release of the other one. An extra may be missing here."""
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]
    lines = [
        *project["dependencies"],
        *(line for extra in project.get("optional-dependencies", {}).values() for line in extra),
    ]
    declared = {_normal(line) for line in lines}
    providers = importlib.metadata.packages_distributions()
    used = set()
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                used |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                used.add(node.module.partition(".")[0])
    used -= {"penstock", "__future__", *sys.stdlib_module_names}
    missing = {name for name in used if not declared & {_normal(one) for one in providers.get(name, [name])}}
    known_extras = {name for name in missing if describe_missing_extra(ModuleNotFoundError(name=name))}
    assert missing - (known_extras - providers.keys()) == set()


def _normal(requirement: str) -> str:
    name = requirement
    for sign in "[<>=!~; ":
        name = name.partition(sign)[0]
    return name.strip().lower().replace("_", "-")


def test_nothing_private_of_a_dependency_is_imported() -> None:
    own = {"penstock"}
    wrong = []
    for module, tree in trees().items():
        for node in ast.walk(tree):
            names = (
                [node.module or "", *(alias.name for alias in node.names)] if isinstance(node, ast.ImportFrom) else []
            )
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else names
            if names and names[0].partition(".")[0] not in own | {"__future__"}:
                wrong += [f"{module}: {name}" for name in names for part in name.split(".") if part.startswith("_")]
    assert wrong == []


PLACE = re.compile(r"`((?:wire|store|client|node|spark|cli)(?:\.[a-z_]\w*)+)(?:\.[A-Z]\w*)*`")
"""A module as the pages name it, perhaps with a class behind it; Spark's own settings have capital letters."""


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/design.md", "docs/reliability.md"])
def test_pages_name_modules_where_they_are(page: str) -> None:
    text = (SOURCE.parent / page).read_text()
    assert {place for place in PLACE.findall(text) if f"penstock.{place}" not in trees()} == set()
