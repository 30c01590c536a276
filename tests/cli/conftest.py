import io
import json
import sys
from typing import Any, NamedTuple

import pytest

from penstock import Node
from penstock.cli import main


class Outcome(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def node():
    with Node.running(["default", "beer"], vbuckets=16) as node:
        yield node


@pytest.fixture
def run(capsys, monkeypatch):
    """Run a command in this process: run("load", "-", "--key", "id", stdin=...)."""
    for name in ("PENSTOCK_URL", "PENSTOCK_USERNAME", "PENSTOCK_PASSWORD"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def on_beer(run, node, monkeypatch):
    """The same, with the bucket `beer` of a node for --url."""
    monkeypatch.setenv("PENSTOCK_URL", node.url("beer"))
    return run
