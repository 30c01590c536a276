"""Wheels with and without a C compiler: each has the tag of its contents."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import penstock.wire
from penstock.version import __version__, describe_version
from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize(
    ("compiler", "tag", "is_reported"),
    [(None, "cp311-abi3", False), ("/no/compiler", "py3-none-any.whl", True)],
    ids=["compiler", "none"],
)
def test_wheel_has_the_tag_of_its_contents(tmp_path, compiler, tag, is_reported):
    source, built = tmp_path / "source", tmp_path / "built"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", source], check=True, timeout=PATIENCE)
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "-w", built, "."]
    environment = os.environ | ({} if compiler is None else {"CC": compiler})
    done = subprocess.run(
        command, cwd=source, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    (wheel,) = built.iterdir()
    assert wheel.name.startswith(f"penstock-{__version__}-{tag}")
    has_module = any(name.endswith(".so") for name in zipfile.ZipFile(wheel).namelist())
    assert has_module is (compiler is None)
    assert ("built without its native module" in done.stdout + done.stderr) is is_reported


def test_version_reports_a_missing_native_module(monkeypatch, tmp_path):
    monkeypatch.setattr(penstock.wire, "__path__", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "penstock.wire._native", raising=False)
    assert describe_version() == f"penstock {__version__}, without its native module"
