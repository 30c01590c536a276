"""The lock files satisfy pyproject.toml: a dependency that was changed without `make lock` fails here."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

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


SAFE = {
    "cryptography": ("50.0.0", "CVE-2026-69247: PKCS#7 decryption is an oracle. Before 49: CVE-2026-69248, -69249"),
    "dnspython": ("2.6.1", "CVE-2023-29483: forged answers end a lookup"),
    "flask": ("3.1.3", "CVE-2026-27205: a session may be cached. Before 3.1.1: CVE-2025-47278"),
    "flask-cors": ("6.0.0", "CVE-2024-6839, -6844, -6866: paths match the rules of others"),
    "h11": ("0.16.0", "CVE-2025-43859: malformed chunks smuggle requests"),
    "jinja2": ("3.1.6", "CVE-2025-27516: templates leave the sandbox"),
    "pyarrow": (
        "23.0.1",
        "CVE-2026-25087: use of freed memory in the reader of IPC files. Before 14.0.1: CVE-2023-47248",
    ),
    "pytest": ("9.0.3", "CVE-2025-71176: other users foresee its temporary directories"),
    "setuptools": ("78.1.1", "CVE-2025-47273: a downloaded package writes anywhere"),
    "starlette": ("1.3.1", "CVE-2026-54283, -54282, -48710: form limits, and Host, are ignored. CVE-2025-62727: Range"),
    "urllib3": (
        "2.8.0",
        "CVE-2026-97688: an endless loop. Before 2.7: CVE-2026-44431, -44432. Before 2.6.3: CVE-2026-21441",
    ),
}
"""Dependency -> the first version without known vulnerabilities, and those of the versions before."""


def test_no_range_admits_a_version_with_a_known_vulnerability():
    admitted = {}
    for _, asked in ASKED:
        requirement = Requirement(asked)
        floors = [each.version for each in requirement.specifier if each.operator in (">=", "==", "~=")]
        assert floors, f"{asked} has no lowest version"
        if requirement.name in SAFE and max(map(Version, floors)) < Version(SAFE[requirement.name][0]):
            admitted[asked] = SAFE[requirement.name]
    assert not admitted
    assert SAFE.keys() <= {Requirement(asked).name for _, asked in ASKED}  # no row of a dependency that was removed


@pytest.mark.parametrize("lock", ["bench.txt", "build.txt", "compat.txt", "dev.txt", "docs.txt", "mutation.txt"])
def test_no_lock_has_a_version_with_a_known_vulnerability(lock):
    found = pins(lock)
    assert not {
        name: found[name] for name in SAFE.keys() & found.keys() if Version(found[name]) < Version(SAFE[name][0])
    }


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
