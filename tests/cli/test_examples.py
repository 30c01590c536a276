"""The examples of all --help texts: all of them are valid command lines, and those that a lone node can serve run."""

import os
import shlex

import pytest
import typer.main

from penstock import Node
from penstock.cli.base.app import app
from tests.cli.test_commands import FOUND

EXAMPLES = [
    line.removeprefix("$ ").replace("\\[", "[")
    for _, command in FOUND
    for line in command.epilog.splitlines()
    if line.startswith("$ ")
]


def find_words(example: str) -> list[str]:
    """Return the words after `penstock` in a line of a shell."""
    if example.startswith('eval "$('):
        example = example.removeprefix('eval "$(').partition(")")[0]
    lexer = shlex.shlex(example, posix=True, punctuation_chars="|>")
    lexer.whitespace_split = True
    words = [*lexer]
    start = next(at for at, word in enumerate(words) if word == "penstock" and (at == 0 or words[at - 1] == "|")) + 1
    end = next((at for at, word in enumerate(words) if word in ("|", ">") and at > start), None)
    return words[start:end]


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_is_a_valid_command_line(example, monkeypatch):
    monkeypatch.setenv("PENSTOCK_USERS", "users.json")
    command = typer.main.get_command(app)
    context = command.make_context("penstock", find_words(example))
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


RUN = [
    "penstock workload --docs beer.jsonl --count 10000",
    "penstock load beer.jsonl --key id --value doc",
    "penstock tail --from beginning --until now",
    "penstock stats",
    "penstock stats vbucket-seqno",
    "penstock stats failovers 7 --json",
    "penstock dump beer.parquet",
    "penstock dump today.arrow --since 2026-11-23T08:00:00Z --json",
    "penstock restore beer.parquet",
    "penstock streams list",
    "penstock streams list --json",
    "penstock positions move beer.positions --to now",
    "penstock positions list beer.positions",
    "penstock positions show beer.positions",
    "penstock positions copy beer.positions document:indexer",
    "penstock positions show document:indexer --json",
    "penstock positions copy beer.positions spark:offset",
    "penstock positions members indexer",
    "penstock positions members indexer --json",
    "penstock positions reset beer.positions --at 2026-11-23T08:00:00Z",
    "penstock positions reset beer.positions",
    "penstock check ./data",
    "penstock check ./data/beer --json",
    "penstock check ./data/beer --repair",
    "penstock compact --data-dir ./data --bucket beer --json",
    "penstock decode 80 0a 0000 00 00 0000 00000000 00000007 0000000000000000",
    "penstock user add alice --role 'data_reader[beer]' --role 'data_writer[beer:tasting]' --users users.json",
    "penstock user add spark --role 'data_dcp_reader[*]' --password-file secret.txt --users users.json",
    "penstock user add beer --role 'data_dcp_reader[beer]' --no-password --users users.json",
    "pass show penstock | penstock user add root --role admin --password-file - --users users.json",
    "penstock user list --users users.json",
    "penstock user remove alice --users users.json",
    "penstock tls init ./tls",
    "penstock replicate --from $A --to $B --vbucket 7 --until now --json",
    "penstock schema",
    "penstock schema tail",
    "penstock schema pipeline status > status.schema.json",
    "penstock pipeline validate pipeline.toml --connect",
    "penstock pipeline plan pipeline.toml",
    "penstock pipeline plan pipeline.toml --json",
]
"""Examples in an order in which each finds the files of those before it."""

INPUTS = {"pass show": b"secret\n", "user add alice": b"secret\n"}
"""Part of an example -> its standard input."""


@pytest.mark.long
def test_examples_run(run, target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Node.running(["beer"], vbuckets=16, data_dir=tmp_path / "data"):
        pass
    (tmp_path / "secret.txt").write_text("secret\n")
    with Node.running(["beer"], vbuckets=16) as node:
        (tmp_path / "pipeline.toml").write_text(f'lake = "lake"\n[source.beer]\nurl = "{node.url("beer")}"\n')
        monkeypatch.setenv("PENSTOCK_URL", node.url("beer"))
        monkeypatch.setenv("A", node.url("beer"))
        monkeypatch.setenv("B", target.url("beer"))
        for example in RUN:
            assert example in EXAMPLES
            words = map(os.path.expandvars, find_words(example))
            code, _, err = run(*words, stdin=next((text for part, text in INPUTS.items() if part in example), b""))
            assert code == 0, f"{example}: {err}"
