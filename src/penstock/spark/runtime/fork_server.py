"""Runs Spark's Python processes as forks of one process that has imported their modules.

Spark starts Python processes for each query and each micro-batch. Each of them imports pyspark, Arrow and Penstock for
half a second of CPU before it does any work. With this server, `worker-python` starts `fork_launcher`, which passes its
arguments, environment and open files on. A fork of the server then does the work.

The server ends with the program that started it: its standard input closes. A directory that only this user may enter
has its socket.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

SOCKET_NAME = "PENSTOCK_FORK_SERVER"
"""The variable that has the path of the socket, for `worker-python`."""

PRELOADED = (
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.worker.utils",
    "penstock.spark.runtime.changelog_sink",
    "penstock.spark.runtime.changelog_source",
    "penstock.spark.runtime.data_source",
    "penstock.spark.runtime.lake_source",
    "penstock.spark.runtime.worker",
    "penstock.spark.source.partition_reader",
)
"""The modules that Spark's processes need. Their programs are left out, because Python runs a program only once."""

_BACKLOG = 128
_LONGEST_DIRECTORY = 70
"""Octets of a directory in which the socket has a path that the kernel accepts: 107 at most."""
_TIMEOUT = 10.0
"""Seconds for a request to arrive. A launcher sends it at once."""


def start_fork_server() -> dict[str, str]:
    """Start the server. Its imports go on beside the program; processes that start before wait for them.

    Returns:
        The variables with which `worker-python` finds the server; none if the directory of temporary files has too long
        a path for a socket. Spark's processes then start without the server.
    """
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_DIRECTORY:
        return {}
    place = Path(tempfile.mkdtemp(prefix="penstock-"))
    path = str(place / "fork-server")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(_BACKLOG)
        # Threads of a library would be missing in the forks. Spark's processes have the same hash of a text.
        settings = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        settings["PYTHONHASHSEED"] = os.environ.get("PYTHONHASHSEED", "0")
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(place), str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **settings},
            pass_fds=[listener.fileno()],
        )
    atexit.register(process.communicate)
    return {SOCKET_NAME: path}


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """A process to run.

    Attributes:
        directory: its working directory.
        arguments: the arguments after the name of the interpreter.
        environment: its variables.
        files: its standard input, output and error output.
    """

    directory: str
    arguments: list[str]
    environment: dict[str, str]
    files: Sequence[int]

    @classmethod
    def receive(cls, connection: socket.socket) -> ForkRequest | None:
        """Return the request of a launcher, None if the launcher has ended or is late."""
        connection.settimeout(_TIMEOUT)
        files: list[int] = []
        with suppress(OSError):
            data, files, _, _ = socket.recv_fds(connection, 1 << 16, 3)
            while more := connection.recv(1 << 16) if _count_missing(data) else b"":
                data += more
            if not _count_missing(data):
                return cls._parse(data, files)
        for each in files:
            os.close(each)
        return None

    @classmethod
    def _parse(cls, data: bytes, files: Sequence[int]) -> ForkRequest:
        directory, count, *rest = (os.fsdecode(part) for part in data[4:].split(b"\0"))
        pairs = (part.partition("=") for part in rest[int(count) :])
        return cls(directory, rest[: int(count)], {name: value for name, _, value in pairs}, files)


def _count_missing(data: bytes) -> int:
    """Return how many octets of a request have not come, 0 if it is complete."""
    return max(0, 4 + int.from_bytes(data[:4], "big") - len(data)) if len(data) >= 4 else 4 - len(data)


def main() -> None:
    """Run the server until its standard input ends; in a fork, run one of Spark's processes."""
    place, descriptor = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches Spark's processes too, and Java ends them
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks leave no zombies
    with socket.socket(fileno=int(descriptor)) as listener:
        base = list_base_path()
        for name in PRELOADED:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()
        accepted = serve(listener)
    if accepted is None:
        shutil.rmtree(place, ignore_errors=True)
        return
    run_process(*accepted, base)


def serve(listener: socket.socket) -> tuple[socket.socket, ForkRequest] | None:
    """Fork for each request.

    Returns:
        In a fork, the launcher and its request; None at the end of the server.
    """
    with DefaultSelector() as selector:
        selector.register(sys.stdin.fileno(), EVENT_READ)
        selector.register(listener, EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not listener:
                    return None
                connection, _ = listener.accept()
                request = ForkRequest.receive(connection)
                if request is None:
                    connection.close()
                elif os.fork() == 0:
                    return connection, request
                else:
                    connection.close()
                    for each in request.files:
                        os.close(each)


def list_base_path() -> list[str]:
    """Return the import path without the entries of PYTHONPATH, which each process has of its own."""
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [entry for entry in sys.path if entry not in own]


def run_process(connection: socket.socket, request: ForkRequest, base: Sequence[str]) -> None:
    """Run a process in this fork, and report its status to its launcher.

    Args:
        connection: the launcher.
        request: the process.
        base: the import path behind PYTHONPATH.

    Raises:
        SystemExit: the process ends itself.
    """
    from penstock.spark.runtime import worker

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, each in enumerate(request.files):
        os.dup2(each, number)
        os.close(each)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.directory)
    added = request.environment.get("PYTHONPATH", "")
    sys.path[:] = [request.directory, *(added.split(os.pathsep) if added else []), *base]
    _, _, *sys.argv[1:] = request.arguments  # without `-m penstock.spark.runtime.worker`
    status = 1
    try:
        worker.main()
        status = 0
    except SystemExit as end:
        status = end.code & 0xFF if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        with suppress(OSError):  # the launcher may have ended before
            connection.sendall(bytes([status]))


if __name__ == "__main__":
    main()
