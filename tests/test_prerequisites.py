"""tools/prerequisites on machines that lack something: a directory of made-up programs stands for the machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

pytestmark = pytest.mark.process

PREREQUISITES = Path(__file__).parent.parent / "tools" / "prerequisites"
GOOD = "3 12 complete /bin/good"

# name, each Python's answer to the probe, missing commands, PYTHON; then the printed path or the requested packages
MACHINES = [
    ("complete", {"python3": GOOD}, "", "", "/bin/good"),
    ("python3 is old, another is not", {"python3": "3 9 complete /old", "python3.11": GOOD}, "", "", "/bin/good"),
    ("python3 is bare, another is not", {"python3": "3 11 bare /bare", "python3.12": GOOD}, "", "", "/bin/good"),
    ("a path with a space", {"python3": "3 11 complete /a path"}, "", "", "/a path"),
    ("the one that PYTHON names", {"python3": GOOD, "mine": "3 13 complete /mine"}, "", "mine", "/mine"),
]
LACKS = [
    ("no Python", {}, "", "", "no Python 3.11 or newer", "python3 python3-venv"),
    ("an old Python", {"python3": "3 10 complete /old"}, "", "", "python3 is 3.10", "python3 python3-venv"),
    ("Python 2", {"python3": "2 7 bare /old"}, "", "", "python3 is 2.7", "python3 python3-venv"),
    ("no ensurepip", {"python3": "3 11 bare /bare"}, "", "", "Python 3.11 has no ensurepip", "python3.11-venv"),
    ("PYTHON names nothing", {"python3": GOOD}, "", "/no/where", "by the name of /no/where", "python3 python3-venv"),
    ("no ps", {"python3": GOOD}, "ps", "", "no command ps", "procps"),
    ("no git, no chmod", {"python3": GOOD}, "git chmod", "", "no command git; no command chmod", "git coreutils"),
    ("nothing", {}, "git ps bash chmod", "", "no command bash", "python3 python3-venv git procps bash coreutils"),
]


def run(place: Path, pythons: dict[str, str], without: str, python: str) -> subprocess.CompletedProcess[str]:
    programs = {name: f"echo '{answer}'" for name, answer in pythons.items()}
    programs |= dict.fromkeys({"git", "ps", "bash", "chmod"} - set(without.split()), "exit 0")
    for name, content in programs.items():
        (place / name).write_text(f"#!/bin/sh\n{content}\n")
        (place / name).chmod(0o755)
    environ = {"PATH": str(place), "PYTHON": python}
    return subprocess.run(
        ["/bin/sh", PREREQUISITES], env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.mark.parametrize(
    ("pythons", "without", "python", "chosen"), [row[1:] for row in MACHINES], ids=[row[0] for row in MACHINES]
)
def test_the_python_to_use_is_printed(tmp_path, pythons, without, python, chosen):
    result = run(tmp_path, pythons, without, python)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{chosen}\n", "")


@pytest.mark.parametrize(
    ("pythons", "without", "python", "lack", "packages"), [row[1:] for row in LACKS], ids=[row[0] for row in LACKS]
)
def test_missing_program_is_named_with_its_install_command(tmp_path, pythons, without, python, lack, packages):
    result = run(tmp_path, pythons, without, python)
    assert (result.returncode, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    assert lines[0].startswith("This machine lacks what Penstock is built with: ")
    assert lack in lines[0]
    assert lines[1] == f"On Debian or Ubuntu: apt install {packages}"


def test_the_probe_runs_on_a_real_python(tmp_path):
    """The interpreter of this test must print the interpreter that its environment was made from."""
    environ = os.environ | {"PYTHON": sys.executable}
    result = subprocess.run([PREREQUISITES], env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert result.stdout == f"{Path(sys._base_executable).resolve()}\n"  # type: ignore[attr-defined]
