"""The two tables of mutation testing: the tests of each module, and the mutants that may survive with their reasons."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
SOURCES = Path("src/penstock")


class Change(NamedTuple):
    """The difference between a mutant and the code: lines of one function.

    Attributes:
        function: name of the function, with its class.
        before: the lines that the mutant changes, without their indentation, one space between two.
        after: the lines in their place.
    """

    function: str
    before: str
    after: str


class Watched(NamedTuple):
    """A module and the test files that must notice each change of it.

    Attributes:
        without: tests that cannot run where modules are changed, with `-k` of pytest.
    """

    module: str
    tests: tuple[str, ...]
    without: str

    @property
    def path(self) -> Path:
        return SOURCES / f"{self.module}.py"


def read_modules() -> list[Watched]:
    """Return the table modules.toml."""
    return [
        Watched(row["module"], tuple(row["tests"]), row.get("without", "")) for row in _read("modules.toml")["watched"]
    ]


def read_reasons() -> dict[str, str]:
    """Return the kinds of reason for which a mutant may survive, each with its explanation."""
    reasons: dict[str, str] = _read("survivors.toml")["reasons"]
    return reasons


def read_survivors() -> dict[str, dict[Change, str]]:
    """Return the mutants that may survive and the kind of reason, by module."""
    found: dict[str, dict[Change, str]] = {}
    for row in _read("survivors.toml")["survivor"]:
        of_module = found.setdefault(row["module"], {})
        for before, after in row["changes"]:
            of_module[Change(row["function"], before, after)] = row["reason"]
    return found


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((HERE / name).read_text(encoding="utf-8"))
