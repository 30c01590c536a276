"""Run mutmut on one module, and read its results."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mutation.tables import Change, Watched

ROOT = Path(__file__).parent.parent
WORK = ROOT / "build" / "mutation"
LOOKED_AFTER = re.compile(r"^ {4}(?P<name>\S+): (?P<status>.+)$", re.MULTILINE)
ALIVE = ("survived", "no tests", "suspicious", "not checked")
SETTINGS = """\
[mutmut]
source_paths=src
only_mutate=
    {path}
pytest_add_cli_args_test_selection=
    {tests}
pytest_add_cli_args=
    --hypothesis-profile=mutation
    -p
    no:cacheprovider
    -m
    not spark and not soak
    -k
    {chosen}
timeout_constant=10
"""
"""mutmut allows a mutant 15 times the time of its tests, and these seconds: a busy machine kills no mutant."""


class Outcome(NamedTuple):
    """The results of a module's mutants.

    Attributes:
        total: how many mutants there are.
        killed: how many made a test fail, or run without end.
        survivors: the others.
    """

    total: int
    killed: int
    survivors: list[Change]


class MutationFailed(Exception):
    """mutmut ended with an error; the text is its output."""


def test_module(watched: Watched, processes: int) -> Outcome:
    """Try every mutant of a module on its tests.

    Args:
        watched: the module and its tests.
        processes: how many mutants run at a time.

    Raises:
        MutationFailed: mutmut stopped early, as when a test fails without any mutant.
    """
    where = _prepare(watched)
    _run(where, "run", "--max-children", str(processes))
    _run(where, "export-cicd-stats")
    figures = json.loads((where / "mutants" / "mutmut-cicd-stats.json").read_text(encoding="utf-8"))
    survivors = [_read_difference(where, name) for name in _list_alive(_run(where, "results"))]
    return Outcome(figures["total"], figures["total"] - len(survivors), survivors)


def _prepare(watched: Watched) -> Path:
    """Make a directory for a module, with its settings and without files of an earlier run."""
    where = WORK / watched.module.replace("/", ".")
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    for name in ("src", "tests"):
        (where / name).symlink_to(ROOT / name)
    # mutmut reads setup.cfg where pyproject.toml has no section for it; pytest's settings are those of the project.
    shutil.copy(ROOT / "pyproject.toml", where)
    tests = "\n    ".join(watched.tests)
    chosen = f"not {watched.without}" if watched.without else "test"
    settings = SETTINGS.format(path=watched.path, tests=tests, chosen=chosen)
    (where / "setup.cfg").write_text(settings, encoding="utf-8")
    return where


def _run(where: Path, *arguments: str) -> str:
    command = [str(Path(sys.executable).parent / "mutmut"), *arguments]
    ran = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise MutationFailed(f"{' '.join(command)} in {where}:\n{ran.stdout[-4000:]}{ran.stderr[-4000:]}")
    return ran.stdout


def _list_alive(results: str) -> Iterator[str]:
    for row in LOOKED_AFTER.finditer(results):
        if row["status"] in ALIVE:
            yield row["name"]


def _read_difference(where: Path, name: str) -> Change:
    """Return the difference between a mutant and the code."""
    lines = _run(where, "show", name).splitlines()
    before = (line[1:].strip() for line in lines if line.startswith("-") and not line.startswith("---"))
    after = (line[1:].strip() for line in lines if line.startswith("+") and not line.startswith("+++"))
    return Change(_parse_function(name), " ".join(before), " ".join(after))


def _parse_function(name: str) -> str:
    """Return the function of `penstock.store.log.row_index.xǁRowIndexǁcut__mutmut_3`: RowIndex.cut."""
    function = name.rpartition(".")[2].partition("__mutmut")[0]
    return function.removeprefix("xǁ").replace("ǁ", ".") if "ǁ" in function else function.removeprefix("x_")
