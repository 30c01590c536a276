"""Where the programs of others are, that tools/install_compat installs.

One that is missing skips the tests that need it, or fails them where the environment says PENSTOCK_COMPAT=required.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

__all__ = ["GO_DIRECTORY", "go_program", "java_program", "need", "npm_package", "program", "shared_libraries"]

_PLACE = Path(__file__).parent.parent.parent / "build" / "compat"
_DEBIAN = _PLACE / "debian" / "usr"
_NPM = _PLACE / "npm" / "node_modules"
_JAVA = _PLACE / "java"

GO_DIRECTORY = _PLACE / "go"
"""Programs in Go, and the data that gocbcore's test suites read."""


def need(module: str) -> None:
    """Go on with a test module, or a test, only if a Python package is there."""
    if importlib.util.find_spec(module) is None:
        _missing(f"the Python package {module}")


def program(name: str) -> str:
    """Return the path of a program: the one that was unpacked, or the machine's."""
    found = shutil.which(name, path=str(_DEBIAN / "bin")) or shutil.which(name)
    if found is None:
        _missing(name)
    return found


def npm_package(name: str) -> dict[str, str]:
    """Return an environment in which Node.js finds the packages that npm has installed, this one among them."""
    if not (_NPM / name / "package.json").exists():
        _missing(f"the npm package {name}")
    return os.environ | {"NODE_PATH": str(_NPM)}


def go_program(name: str) -> str:
    """Return the path of a program that was built from tests/compat/go."""
    if not (GO_DIRECTORY / "installed").exists():
        _missing(f"the Go program {name}")
    return str(GO_DIRECTORY / name)


def java_program(name: str) -> list[str]:
    """Return the command that runs a class of tests/compat/java."""
    if not (_JAVA / "installed").exists():
        _missing(f"the Java program {name}")
    path = os.pathsep.join([str(_JAVA / "classes"), str(_JAVA / "jars" / "*")])
    return [program("java"), "-cp", path, name]


def shared_libraries() -> dict[str, str]:
    """Return an environment in which unpacked programs find the libraries that were unpacked with them."""
    places = [str(place) for place in sorted(_DEBIAN.glob("lib/*-linux-*"))]
    return os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(places)}


def _missing(what: str) -> NoReturn:
    why = f"{what} is not installed; tools/install_compat does that"
    if os.environ.get("PENSTOCK_COMPAT") == "required":
        raise pytest.UsageError(why)
    pytest.skip(why, allow_module_level=True)
