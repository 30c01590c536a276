"""Fixtures of the tests of commands."""

import io
import json
import sys
from typing import Any, NamedTuple

import pytest

from penstock import Node
from penstock.cli import main
from tests.cli.output_checks import check_output


class Outcome(NamedTuple):
    """The exit code and the output of a command."""

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
    """A function that runs a command in this process, and checks its JSON against its schema.

    Example:
        outcome = run("load", "-", "--key", "id", stdin=b"...")
    """
    for name in ("PENSTOCK_URL", "PENSTOCK_USERNAME", "PENSTOCK_PASSWORD"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        outcome = Outcome(code, *capsys.readouterr())
        check_output(arguments, outcome.out)
        return outcome

    return run


@pytest.fixture
def on_beer(run, node, monkeypatch):
    """The fixture `run`, with the bucket `beer` of a running node as --url."""
    monkeypatch.setenv("PENSTOCK_URL", node.url("beer"))
    return run


@pytest.fixture
def target():
    """Another node with an empty bucket `beer`."""
    with Node.running(["beer"], vbuckets=16) as node:
        yield node


@pytest.fixture
def source(node, run):
    """The node, with 100 documents in its bucket `beer`."""
    lines = b"".join(b'{"id": %d}\n' % number for number in range(100))
    assert run("load", "-", "--key", "id", "--url", node.url("beer"), stdin=lines).code == 0
    return node
