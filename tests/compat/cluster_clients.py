"""Three nodes that `penstock cluster` drives, and the programs that write to them meanwhile.

A writer has the arguments connection string, user, password, bucket. It writes the documents `plain-0`, `plain-1`, ...
and with durability majority `durable-0`, ..., each one twice, with the number of the write as value. After an error it
goes on with the next write. It prints `plain KEY VALUE` or `durable KEY VALUE` after each acknowledged write. Once its
standard input ends, it reads all documents and prints `kept KEY VALUE` for each that exists.

A consumer prints the mutations of the bucket, and the rollbacks that it is notified of.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.compat.running import Program
from tests.compat.serving import Serving
from tests.node.serve_process import ServeProcess, run_processes
from tests.patience import PATIENCE
from tests.waiting import wait_readable

BUCKET = "beer"
VBUCKETS = 16
MORE = 10
"""Acknowledged writes of each kind that prove that a writer goes on."""


class DrivenCluster:
    """Three processes with one bucket, and the program that keeps its replicas.

    Attributes:
        nodes: the processes.
        owned: the vbuckets that the killed node owned.
    """

    def __init__(self, nodes: Sequence[ServeProcess], file: Path) -> None:
        self.nodes = nodes
        self.owned: set[int] = set()
        self._file = file

    @classmethod
    @contextmanager
    def running(cls, directory: Path) -> Iterator[DrivenCluster]:
        with run_processes(directory, 3) as nodes:
            text = f'[[bucket]]\nname = "{BUCKET}"\nvbuckets = {VBUCKETS}\n'
            for node in nodes:
                text += f'[[node]]\nurl = "couchbase://127.0.0.1:{node.ports[0]}"\nhttp = "127.0.0.1:{node.ports[1]}"\n'
            file = directory / "lab.toml"
            file.write_text(text)
            cluster = cls(nodes, file)
            cluster.run("apply")
            keeping = [sys.executable, "-m", "penstock", "cluster", "run", str(file)]
            with subprocess.Popen(keeping, stdout=subprocess.PIPE) as process:
                assert wait_readable([process.stdout], PATIENCE)
                try:
                    yield cluster
                finally:
                    process.kill()

    def make_arguments(self) -> list[str]:
        """Return connection string, user, password and bucket."""
        return [f"couchbase://{self.name_node(0)}", Serving.user, Serving.password, BUCKET]

    @property
    def http_url(self) -> str:
        """The HTTP address of the first node."""
        return f"http://127.0.0.1:{self.nodes[0].ports[1]}"

    def name_node(self, number: int) -> str:
        return f"127.0.0.1:{self.nodes[number].ports[0]}"

    def run(self, command: str, *words: str) -> str:
        """Return the output of a command of `penstock cluster`, which must succeed."""
        line = [sys.executable, "-m", "penstock", "cluster", command, str(self._file), *words]
        done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def change(self) -> Iterator[str]:
        """Change the cluster, and yield the name of each change. Clients know the killed node as their first one."""
        rows = map(json.loads, self.run("status", "--json").splitlines())
        self.owned = {row["vbucket"] for row in rows if row["owner"] == self.name_node(0)}
        self.nodes[0].kill()
        self.run("failover", self.name_node(0), "--rebalance")
        yield "failover"
        self.nodes[0].start()
        self.run("apply")
        yield "return"
        self.run("remove", self.name_node(1))
        yield "removal"
        self.run("rebalance")
        yield "addition"


class AcknowledgedWrite(NamedTuple):
    """The last acknowledged write of a document.

    Attributes:
        value: its value; a later write has a higher one.
        line: the number of the writer's line about it.
    """

    value: int
    line: int


class WriterRecord:
    """The lines of a writer.

    Attributes:
        program: the writer.
    """

    def __init__(self, program: Program) -> None:
        self.program = program

    def wait_for_more(self) -> int:
        """Wait until some more writes of each kind are acknowledged. Returns the number of the first new line."""
        known = len(self.program.lines)

        def has_more() -> bool:
            kinds = [line.partition(" ")[0] for line in self.program.lines[known:]]
            return all(kinds.count(kind) >= MORE for kind in ("plain", "durable"))

        self.program.wait_until(has_more)
        return known

    def find_last_writes(self) -> dict[str, int]:
        """Return the last acknowledged write of each kind: key -> value."""
        last = {line.partition(" ")[0]: line.split() for line in self.program.lines}
        return {key: int(value) for _, key, value in last.values()}

    def stop(self) -> dict[str, int]:
        """Stop the writer. Returns the documents that exist, and their values."""
        self.program.close_input()
        assert self.program.read_rest()[1] == 0
        return {key: value for kind, key, value in self._read_lines() if kind == "kept"}

    def find_lost(self, kept: dict[str, int]) -> dict[str, AcknowledgedWrite]:
        """Return the documents without their last acknowledged writes."""
        acknowledged = {
            key: AcknowledgedWrite(value, number)
            for number, (kind, key, value) in enumerate(self._read_lines())
            if kind != "kept"
        }
        return {key: write for key, write in acknowledged.items() if kept.get(key, -1) < write.value}

    def _read_lines(self) -> Iterator[tuple[str, str, int]]:
        for line in self.program.lines:
            kind, key, value = line.split()
            yield kind, key, int(value)


class ReceivedMutation(NamedTuple):
    """A mutation that a consumer has received."""

    vbucket: int
    seqno: int
    key: str
    value: int


class ReceivedRollback(NamedTuple):
    """A rollback that a consumer was notified of: changes of the vbucket above the seqno are void."""

    vbucket: int
    seqno: int


class ConsumerRecord:
    """The lines of a consumer.

    Attributes:
        values: the last value of each document that the consumer has received, without changes that were rolled back.
    """

    def __init__(self, program: Program, parse: Callable[[str], ReceivedMutation | ReceivedRollback | None]) -> None:
        """Begin with the first line.

        Args:
            program: the consumer.
            parse: returns the change in a line, None for other lines.
        """
        self.values: dict[str, int] = {}
        self._program = program
        self._parse = parse
        self._mutations: list[ReceivedMutation] = []
        self._read = 0

    def wait_for(self, written: Mapping[str, int]) -> None:
        """Wait until these documents were received with these values, or with those of later writes."""

        def has_all() -> bool:
            lines = self._program.lines[self._read :]
            self._read += len(lines)
            for line in lines:
                self._apply(self._parse(line))
            return all(self.values.get(key, -1) >= value for key, value in written.items())

        self._program.wait_until(has_all)

    def _apply(self, change: ReceivedMutation | ReceivedRollback | None) -> None:
        if isinstance(change, ReceivedMutation):
            self._mutations.append(change)
            self.values[change.key] = change.value
        elif change is not None:
            self._mutations = [
                each for each in self._mutations if each.vbucket != change.vbucket or each.seqno <= change.seqno
            ]
            self.values = {each.key: each.value for each in self._mutations}
