"""Paths, commands and environments of the programs that tools/install_compat installs.

If a program is missing, the tests that need it are skipped. With PENSTOCK_COMPAT=required in the environment they fail.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from tests.quick_java import QUICK_JAVA

_PLACE = Path(__file__).parent.parent.parent / "build" / "compat"
_DEBIAN = _PLACE / "debian" / "usr"
_NPM = _PLACE / "npm" / "node_modules"
_JAVA = _PLACE / "java"
_BROWSER = _PLACE / "browser"

AXE = _NPM / "axe-core" / "axe.min.js"
"""The script of axe-core, which finds violations of the accessibility guidelines in a page."""
_KAFKA = _PLACE / "kafka"
_LAKEHOUSE = _PLACE / "lakehouse"

SPARK_OPENED = ("java.lang", "java.lang.invoke", "java.nio", "java.util", "sun.nio.ch", "sun.util.calendar")
"""Packages of Java that Spark needs to be open."""

GO_DIRECTORY = _PLACE / "go"
"""The Go programs, and the data files of gocbcore's test suites."""


def require_package(module: str) -> None:
    """Skip the test, or the test module, if a Python package is not installed."""
    if importlib.util.find_spec(module) is None:
        _report_missing(f"the Python package {module}")


def find_program(name: str) -> str:
    """Return the path of a program: from the unpacked packages, otherwise from PATH."""
    found = shutil.which(name, path=str(_DEBIAN / "bin")) or shutil.which(name)
    if found is None:
        _report_missing(name)
    return found


def find_browser() -> tuple[str, str]:
    """Return the path of the browser, and the directories of its libraries as LD_LIBRARY_PATH."""
    require_package("playwright")
    program = _BROWSER / "usr" / "lib" / "chromium" / "chromium-headless-shell"
    if not program.exists():
        _report_missing("chromium-headless-shell")
    if not AXE.exists():
        _report_missing("the npm package axe-core")
    places = [place for pattern in ("", "/pulseaudio") for place in _BROWSER.glob(f"usr/lib/*-linux-*{pattern}")]
    return str(program), os.pathsep.join(map(str, places))


def make_npm_environment(name: str) -> dict[str, str]:
    """Return an environment in which Node.js finds the installed npm packages. `name` must be one of them."""
    if not (_NPM / name / "package.json").exists():
        _report_missing(f"the npm package {name}")
    return os.environ | {"NODE_PATH": str(_NPM)}


def find_go_program(name: str) -> str:
    """Return the path of a program built from tests/compat/go."""
    if not (GO_DIRECTORY / "installed").exists():
        _report_missing(f"the Go program {name}")
    return str(GO_DIRECTORY / name)


def make_java_command(name: str) -> list[str]:
    """Return the command that runs a class of tests/compat/java."""
    if not (_JAVA / "installed").exists():
        _report_missing(f"the Java program {name}")
    path = os.pathsep.join([str(_JAVA / "classes"), str(_JAVA / "jars" / "*")])
    return [find_program("java"), "-cp", path, name]


def make_kafka_command(name: str) -> list[str]:
    """Return the command that runs a class of Kafka's broker."""
    if not (_KAFKA / "installed").exists():
        _report_missing("the Kafka broker")
    return [find_program("java"), *QUICK_JAVA.split(), "-Xmx256m", "-cp", str(_KAFKA / "jars" / "*"), name]


def make_lakehouse_command(name: str) -> list[str]:
    """Return the command that runs a class of tests/compat/lakehouse, beside Spark, Delta and Iceberg."""
    if not (_LAKEHOUSE / "installed").exists():
        _report_missing("Spark with Delta and Iceberg")
    path = os.pathsep.join([str(_LAKEHOUSE / "classes"), str(_LAKEHOUSE / "jars" / "*")])
    opened = [f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in SPARK_OPENED]
    return [find_program("java"), *QUICK_JAVA.split(), "-Xmx1g", *opened, "-cp", path, name]


def make_library_environment() -> dict[str, str]:
    """Return an environment in which unpacked programs find their unpacked libraries."""
    places = [str(place) for place in sorted(_DEBIAN.glob("lib/*-linux-*"))]
    return os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(places)}


def _report_missing(name: str) -> NoReturn:
    reason = f"{name} is not installed; tools/install_compat installs it"
    if os.environ.get("PENSTOCK_COMPAT") == "required":
        raise pytest.UsageError(reason)
    pytest.skip(reason, allow_module_level=True)
