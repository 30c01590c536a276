"""A standalone Spark cluster on this machine: a master and two workers, each a separate process as on any cluster."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self, TypeVar

import pyspark

import penstock
from penstock.client.blocking import LoopThread
from penstock.spark.runtime.java import java_environment
from penstock.spark.shipping import PACKAGES
from tests.patience import PATIENCE
from tests.quick_java import QUICK_SPARK
from tests.spark.buckets import Proxy

SPARK_HOME = Path(pyspark.__file__).parent

T = TypeVar("T")


class Daemon:
    """A process that leads its own process group, and whose output goes to a file. `kill` ends the whole group."""

    def __init__(self, log: Path, command: list[str], environment: dict[str, str]) -> None:
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait_for_output(self, pattern: str) -> str:
        """Wait until a pattern is in the output, and return its first group."""
        found = self.wait_for(lambda: re.search(pattern, self.log.read_text(), re.MULTILINE))
        return found[1]

    def wait_for_executor(self) -> int:
        """Wait until this worker runs an executor, and return the executor's process id."""
        return self.wait_for(lambda: next(_find_executors(self.process.pid), None))

    def wait_for(self, find: Callable[[], T | None]) -> T:
        """Return the result of `find` once it is not None; fail if the process ends, or after PATIENCE seconds."""
        deadline = time.monotonic() + PATIENCE
        while (found := find()) is None:
            running = self.process.poll() is None and time.monotonic() < deadline
            assert running, f"{self.process.args!r} wrote: {self.log.read_text()[-8000:]}"
            threading.Event().wait(0.05)
        return found


def _find_executors(worker: int) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended meanwhile
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == worker and b"CoarseGrainedExecutorBackend" in (entry / "cmdline").read_bytes():
                yield int(entry.name)


class Cluster:
    """A master and its workers, which run until `running` ends.

    Attributes:
        master: URL of the master, spark://127.0.0.1:PORT.
        workers: the worker processes, with one core each.
        directory: holds the logs and the files of Spark.
    """

    def __init__(self, master: str, workers: list[Daemon], directory: Path) -> None:
        self.master = master
        self.workers = workers
        self.directory = directory

    @classmethod
    @contextmanager
    def running(cls, directory: Path, workers: int = 2) -> "Iterator[Cluster]":
        """Run a cluster whose executors have a Python without penstock. Each process listens on any free port."""
        directory.mkdir()
        environment = environment_with(bare_python(directory / "python"))
        environment |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK_SPARK}
        start = [str(SPARK_HOME / "bin" / "spark-class"), "org.apache.spark.deploy"]
        options = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        with ExitStack() as stack:
            command = [start[0], f"{start[1]}.master.Master", *options]
            master = stack.enter_context(Daemon(directory / "master.log", command, environment))
            url = master.wait_for_output(r"Starting Spark master at (spark://\S+)")
            command = [start[0], f"{start[1]}.worker.Worker", *options, "--cores", "1", "--memory", "768m"]
            started = []
            for number in range(workers):
                place = ["--work-dir", str(directory / f"work-{number}")]
                log = directory / f"worker-{number}.log"
                started.append(stack.enter_context(Daemon(log, [*command, *place, url], environment)))
            for worker in started:
                worker.wait_for_output("(Successfully registered) with master")
            yield cls(url, started, directory)

    def submit(self, *arguments: str, **environment: str) -> Daemon:
        """Start a program with spark-submit."""
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.master]
        return self.drive([*command, *arguments], environment)

    def drive(self, command: list[str], environment: Mapping[str, str]) -> Daemon:
        """Start a driver with a Python that has the package, unlike the Python of the executors."""
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.ui.enabled": "false",
            "spark.executor.extraJavaOptions": QUICK_SPARK,
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # both executors exist when the first job starts
        }
        directory = Path(tempfile.mkdtemp(prefix="driver-", dir=self.directory))
        (directory / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        here = {"PYTHONPATH": str(Path(penstock.__file__).parents[1]), "SPARK_CONF_DIR": str(directory)}
        here |= {"PYSPARK_PYTHON": "python3"}
        everything = environment_with(Path(sys.executable)) | here | dict(environment)
        return Daemon(directory / "driver.log", command, everything)

    def collect_output(self) -> str:
        """Return all output of the cluster, and the current command lines of all processes on this machine."""
        logs = [*self.directory.rglob("*.log"), *self.directory.glob("work-*/*/*/std*")]
        texts = [log.read_text(errors="replace") for log in logs]
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                texts.append(entry.read_bytes().decode(errors="replace"))
        return "\n".join(texts)


def environment_with(python: Path) -> dict[str, str]:
    """Return environment variables with a Java and with `python` as python3, but without a path to the package."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "PENSTOCK"))}
    kept |= {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    java = {name: value for name, value in java_environment().items() if not name.startswith("PYSPARK")}
    return kept | java | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}


def bare_python(directory: Path) -> Path:
    """Make a Python environment with everything that is installed here, except this package."""
    venv.create(directory, symlinks=True)
    (site,) = directory.glob("lib/python*/site-packages")
    links = directory / "links"
    links.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("__editable__", *PACKAGES)):
            (links / entry.name).symlink_to(entry)
    (site / "links.pth").write_text(str(links))
    python = directory / "bin" / "python3"
    tried = subprocess.run(
        [python, "-c", "import deltalake, penstock"],
        env=environment_with(python),
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.stderr.endswith("ModuleNotFoundError: No module named 'penstock'\n")
    return python


class Gate(Proxy):
    """A network that, while it is shut, holds each connection on which more than `limit` bytes came from the node."""

    def __init__(self, loop: LoopThread, port: int) -> None:
        super().__init__(loop, port)
        self._limit: int | None = None
        self._open = asyncio.Event()
        self._held = 0

    def shut(self, limit: int) -> None:
        self._limit, self._held = limit, 0
        self._loop.run(self._swing(is_open=False))

    def open(self) -> None:
        self._limit = None
        self._loop.run(self._swing(is_open=True))

    def holds(self, connections: int) -> bool | None:
        """Return True if at least `connections` connections are held, otherwise None."""
        return self._held >= connections or None

    async def _swing(self, *, is_open: bool) -> None:
        self._open.set() if is_open else self._open.clear()

    async def _cut(self) -> None:
        self._open.set()
        await super()._cut()

    async def _from_node(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed = 0
        while data := await reader.read(65536):
            passed += len(data)
            if self._limit is not None and passed > self._limit:
                self._held += 1
                await self._open.wait()
            writer.write(data)
            await writer.drain()
        writer.close()
