"""The lock files satisfy pyproject.toml: a dependency that was changed without `make lock` fails here."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins(lock: str) -> dict[str, str]:
    """Return name -> version of a lock. Each line of it that begins with a name pins one version."""
    found = re.findall(r"^([a-z0-9-]+)==([^ ;]+)", (ROOT / "requirements" / lock).read_text(), re.MULTILINE)
    return dict(found)


ASKED = [
    *(("dev.txt", asked) for asked in PROJECT["project"]["dependencies"]),
    *(("dev.txt", asked) for extra in PROJECT["project"]["optional-dependencies"].values() for asked in extra),
    *(("dev.txt", asked) for asked in PROJECT["dependency-groups"]["dev"]),
    *(("bench.txt", asked) for asked in PROJECT["dependency-groups"]["bench"]),
    *(("compat.txt", asked) for asked in PROJECT["dependency-groups"]["compat"]),
    *(("docs.txt", asked) for asked in PROJECT["dependency-groups"]["docs"]),
    *(("mutation.txt", asked) for asked in PROJECT["dependency-groups"]["mutation"]),
    *(("build.txt", asked) for asked in PROJECT["build-system"]["requires"]),
]


@pytest.mark.parametrize(("lock", "asked"), ASKED)
def test_the_lock_satisfies(lock, asked):
    requirement = Requirement(asked)
    assert requirement.specifier.contains(pins(lock)[requirement.name])


def test_the_benchmarks_change_no_version_that_the_tests_run_on():
    tested, measured = pins("dev.txt"), pins("bench.txt")
    shared = tested.keys() & measured.keys()
    assert shared
    assert {name: measured[name] for name in shared} == {name: tested[name] for name in shared}


@pytest.mark.parametrize("lock", ["compat.txt", "docs.txt", "mutation.txt"])
def test_other_locks_have_versions_of_dev_lock(lock):
    tested, others = pins("dev.txt"), pins(lock)
    assert {name: others[name] for name in others.keys() & tested.keys()} == {
        name: tested[name] for name in others.keys() & tested.keys()
    }


@pytest.mark.parametrize("lock", ["bench.txt", "build.txt", "compat.txt", "dev.txt", "docs.txt", "mutation.txt"])
def test_every_pin_has_hashes(lock):
    text = (ROOT / "requirements" / lock).read_text()
    for pin in re.split(r"\n(?=[a-z])", text)[1:]:
        assert "--hash=sha256:" in pin, pin
