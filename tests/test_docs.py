"""The code blocks of the documentation run: python blocks as they stand, console blocks command by command."""

import doctest
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.node import Node
from tests.patience import PATIENCE
from tests.ports import free_ports

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
DEFAULT_PORT = "11210"
USUAL_PORTS = (DEFAULT_PORT, "8091", "11207")

RUN_BLOCKS = Path(__file__).parent / "spark" / "run_blocks.py"
TUTORIAL = ROOT / "docs" / "tutorial.md"


def blocks(kind: str) -> list[Any]:
    """Return the blocks of a kind.

    docs/cli.md is left out: it is generated, and shows how commands are called. The tutorial has a test of its own.
    """
    found = []
    for page in PAGES:
        if page.name in ("cli.md", TUTORIAL.name):
            continue
        for number, match in enumerate(FENCE.finditer(page.read_text(encoding="utf-8"))):
            if match["kind"].strip() == kind:
                found.append(pytest.param(match["text"], id=f"{page.name}-{number}"))
    return found


def run(command: list[str], where: Path, given: str = "") -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    ran = subprocess.run(
        command,
        input=given,
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


RUN_ALL = """
import json, os, sys
place = os.getcwd()
for name, text in json.load(sys.stdin).items():
    os.mkdir(os.path.join(place, name))
    os.chdir(os.path.join(place, name))
    exec(compile(text, name, "exec"), {"__name__": "__main__"})
"""
"""Runs each block in a directory of its own."""


@pytest.mark.process
def test_python_blocks(tmp_path):
    """They run one after the other in one process, which imports the package once."""
    texts = {block.id: block.values[0] for block in blocks("python")}
    assert texts
    run([sys.executable, "-W", "error", "-c", RUN_ALL], tmp_path, json.dumps(texts))


@pytest.mark.spark
def test_spark_blocks(tmp_path):
    """As they stand, but for the port, in one session: it takes longer to start than they take to run."""
    texts = {block.id: block.values[0] for block in blocks("python spark")}
    assert texts
    run([sys.executable, str(RUN_BLOCKS), DEFAULT_PORT], tmp_path, json.dumps(texts))


def on_free_ports(text: str) -> str:
    """Return shell commands with free ports in the place of the usual ones."""
    ports = [str(port) for port in free_ports(len(USUAL_PORTS))]
    for usual, free in zip(USUAL_PORTS, ports, strict=True):
        text = text.replace(usual, free)
    options = "".join(f" --{name} {port}" for name, port in zip(("port", "http-port"), ports, strict=False))
    return text.replace("penstock serve", f"penstock serve{options}")


@pytest.mark.process
@pytest.mark.parametrize("text", blocks("sh"))
def test_shell_block(text, tmp_path):
    """The block runs unchanged except for the ports. Processes that it leaves running are ended."""
    run(["bash", "-e", "-c", "trap 'kill $(jobs -p) 2>&- || true' EXIT\n" + on_free_ports(text)], tmp_path)


@pytest.mark.spark
def test_tutorial(tmp_path):
    """All console blocks run in one shell. Each command prints the text of the page; `...` stands for any text."""
    shown = [
        (command, output)
        for block in FENCE.finditer(TUTORIAL.read_text(encoding="utf-8"))
        if block["kind"] == "console"
        for command, output in re.findall(r"^\$ ([^\n]*)\n((?:(?!\$ )[^\n]*\n)*)", block["text"], re.MULTILINE)
    ]
    assert shown
    script = "\n".join(
        f"{command.removesuffix('&')} > {number}.out {'&' if command.endswith('&') else ''}"
        if ">" not in command
        else command
        for number, (command, _) in enumerate(shown)
    )
    run(["bash", "-e", "-c", "trap 'kill $(jobs -p) 2>&- || true' EXIT\n" + on_free_ports(script)], tmp_path)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for number, (command, output) in enumerate(shown):
        if output:
            printed = (tmp_path / f"{number}.out").read_text()
            assert doctest.OutputChecker().check_output(output, printed, options), f"$ {command}\n{printed}"


@pytest.mark.spark
@pytest.mark.parametrize("text", blocks("console"))
def test_console_block(text, tmp_path):
    """`serve` runs in front of the others on a port of its own; every other command must succeed."""
    commands = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
    serving = [command for command in commands if command.endswith("&")]
    assert len(serving) == 1
    buckets = re.findall(r"--bucket (\S+)", serving[0])
    with Node.running(buckets=buckets) as node:
        script = "\n".join(command for command in commands if command not in serving)
        shown = run(["bash", "-e", "-c", script.replace(DEFAULT_PORT, str(node.kv_port))], tmp_path)
    assert "10000 documents loaded" in shown
    assert "5 of 10,000 rows" in shown


RELIABILITY = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_reliability_names_tests_and_benchmarks_that_are_there():
    named = set(re.findall(r"`((?:tests|benchmarks|fuzz|mutation)/[^`]+)`", RELIABILITY))
    assert named
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []


def test_reliability_names_a_test_for_each_promise():
    promises = [line for line in RELIABILITY.splitlines() if line.startswith("| ") and line.endswith("|")]
    for header in ("promise", "tested by"):
        assert any(header in line for line in promises)
    for table in re.findall(r"\| promise \| tested by \|\n\| --- \| --- \|\n((?:\|.*\n)+)", RELIABILITY):
        assert [line for line in table.splitlines() if "`tests/" not in line and "`benchmarks/" not in line] == []
